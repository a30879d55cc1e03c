"""The command: its exit codes and errors for what users get wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from envbuild import __version__
from envbuild.cli.main import app, expand_upgrade, main
from envbuild.cli.options import read_timeout
from envbuild.errors import (
    BuildError,
    CheckError,
    EnvbuildError,
    Location,
    MachineError,
    ManyErrors,
    RequestError,
)
from envbuild.lock.text import HEADER
from envbuild.workflows import inspect, launch
from tests.support.small_images import UNREAD, small_image

COMMAND = Path(sys.executable).with_name("envbuild")
_NO_SPEC = "error: there is no file `nowhere.yaml`\n\nhint: `envbuild init` writes a first spec\n"


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (
            ["build", "t.yaml", "--store", "s", "--upstream", "/nowhere"],
            "there is no store `/nowhere`",
            "name the directory that its owner builds with (--store)",
        ),
        (
            ["fetch", "t.yaml", "--store", "s", "--to", "file/d"],
            "/file` is not a directory",
            "name another directory with --to DIR",
        ),
    ],
)
def test_a_directory_that_cannot_be_one(
    words: list[str],
    problem: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text('name: t\nversion: "1"\n')
    Path("file").touch()
    code, _, text = run(words, capsys)
    assert code == 2
    assert problem in text
    assert f"hint: {hint}" in text


@pytest.mark.parametrize("command", [["add"], ["fetch", "--to", "x"]])
@pytest.mark.parametrize(
    ("files", "hint"),
    [
        (["envbuild.yaml"], "name the spec in it: 'my specs/envbuild.yaml'"),
        (["a.yaml", "spec.yaml", "b.yml"], "name the spec in it: 'my specs/spec.yaml'"),
        (["a.yaml", "b.yml"], "name one of its files: 'my specs/a.yaml', 'my specs/b.yml'"),
        (["README"], "`envbuild init 'my specs'` writes a first spec in it"),
    ],
)
def test_a_directory_given_as_a_spec(
    command: list[str],
    files: list[str],
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my specs").mkdir()
    for name in files:
        Path("my specs", name).touch()
    words = [*command, "my specs", *(["scipy"] if command == ["add"] else []), "--store", "s"]
    expected = f"error: `my specs` is a directory, not a file\n\nhint: {hint}\n"
    assert run(words, capsys) == (2, "", expected)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["build", "nowhere.yaml", "--store", "s"], _NO_SPEC),
        (["lock", "nowhere.yaml", "--store", "s"], _NO_SPEC),
        (["plan", "nowhere.yaml", "--store", "s"], _NO_SPEC),
        (["fetch", "nowhere.yaml", "--to", "d", "--store", "s"], _NO_SPEC),
        (
            ["inspect", "nowhere.sif"],
            "error: there is no image `nowhere.sif`\n\nhint: `envbuild build SPEC -o IMAGE.sif` makes one\n",
        ),
        (
            ["status", "pytorch/2026.12", "--store", "s"],
            "error: there is no image `pytorch/2026.12`\n\nhint: a module is named with its root:"
            " `pytorch/2026.12 --root DIR`\n",
        ),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_a_file_that_is_not_there(
    words: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words, capsys) == (2, "", text)
    assert not list(tmp_path.iterdir()), "nothing was made for it"


@pytest.mark.parametrize(
    "words",
    [
        ["status", "spce.sif"],
        ["status", "spec"],
        ["extend", "spce.sif", "--python", "x"],
        ["test", "spce.sif"],
        ["check", "spce.sif"],
        ["inspect", "spce.sif"],
        ["module", "install", "spce.sif", "--root", "modules"],
    ],
    ids=" ".join,
)
def test_an_image_of_a_similar_name_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("spec.sif", "spce.yaml"):
        Path(name).touch()
    name = next(word for word in words if word.startswith("sp"))
    expected = f"error: there is no image `{name}`\n\nhint: did you mean `spec.sif`?\n"
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert err.endswith(expected)


@pytest.mark.parametrize(
    "words",
    [
        ["build", "HERE/t.yaml", "-o", "HERE/t.sif"],
        ["cache", "ls", "--store", "rel"],
        ["cache", "unpin", "x"],
        ["sbom", "-o", "z", "HERE/t.yaml"],
        ["site", "probe", "-o", "x"],
        ["recipes", "new", "a", "1", "--offline"],
        ["init", "--version", "1"],
        ["launch", "HERE/t.yaml", "--", "python", "--help"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_working_directory_that_is_gone(
    words: list[str], tmp_path: Path, gone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.yaml").write_text('name: a\nversion: "1"\n')
    given = [word.replace("HERE", str(tmp_path)) for word in words]
    told = "error: the working directory no longer exists\n\nhint: change to another one (`cd`)"
    assert run(given, capsys) == (5, "", f"{told}, and run it again\n")


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory that was removed."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


@pytest.mark.parametrize("words", [[], ["--help"], ["build", "-h"], ["--version"]], ids=" ".join)
def test_help_is_there_wherever_one_is(
    words: list[str], gone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(words, capsys)
    assert (code, "error:" in err) == (0 if words else 2, False)


_WRITING = {
    "build": ["build", "t.yaml", "-o", "PLACE"],
    "sbom": ["sbom", "t.sif", "-o", "PLACE"],
    "export": ["export", "t.sif", "--format", "oci", "-o", "PLACE"],
    "site": ["site", "probe", "-o", "PLACE"],
    "import": ["import", "Dockerfile", "-o", "PLACE"],
    "test": ["test", "t.sif", "--report", "PLACE"],
    "fetch": ["fetch", "t.yaml", "--to", "PLACE"],
    "layer": ["layer", "export", "t.yaml", "--to", "PLACE"],
    "module": ["module", "install", "t.sif", "--root", "PLACE"],
    "recipes": ["recipes", "new", "a", "1", "--offline", "--dir", "PLACE"],
    "init": ["init", "PLACE", "--yes"],
    "lock": ["lock", "store/pins/t.yaml"],
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory with a store, a spec, an image and a Dockerfile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENVBUILD_STORE", "store")
    (tmp_path / "store/pins").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "store/pins"):
        (place / "t.yaml").write_text('name: a\nversion: "1"\n')
    (tmp_path / "Dockerfile").write_text("FROM debian:12\n")
    small_image(tmp_path, UNREAD, name="t.sif")
    return tmp_path


@pytest.mark.parametrize("verb", ["sbom", "export", "site", "import", "test"])
def test_a_directory_is_not_made_a_file(verb: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run([word.replace("PLACE", "x.y/") for word in _WRITING[verb]], capsys)
    told = "error: `x.y/` ends in `/`, and names no directory"
    assert (code, err.partition("\n")[0]) == (2, told)
    assert not (work / "x.y").exists()


@pytest.mark.parametrize("verb", _WRITING)
def test_nothing_is_written_into_the_store(verb: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run([word.replace("PLACE", "store/pins/x.yaml") for word in _WRITING[verb]], capsys)
    told = err.partition("\n")[0]
    assert (code, told.endswith("` is inside the store")) == (2, True)
    assert [path.name for path in (work / "store/pins").iterdir()] == ["t.yaml"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_whoever_reads_our_output_may_go(stream: str) -> None:
    """And whatever it was, it was no success."""
    read, write = os.pipe()
    os.close(read)
    words = ["--help"] if stream == "stdout" else ["inspect", "nowhere.sif"]
    with os.fdopen(write, "wb") as closed:
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: closed}
        child = subprocess.Popen([COMMAND, *words], **given)  # type: ignore[call-overload]
        said = child.communicate(timeout=60)
    assert child.returncode == 141
    assert not any(said)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run the command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["upgrade"], "hint: `envbuild lock SPEC.yaml --upgrade` takes newer packages"),
        (["build", "--nonsense"], "No such option: --nonsense"),
        (["build"], "Missing argument 'SPEC'"),
        (["schema", "nonsense"], "error: Invalid value for 'NAME': 'nonsense' is not one of 'spec', "),
        (["module", "nonsense"], "hint: `envbuild module --help` shows what there is"),
        (["biuld"], "Did you mean 'build'?"),
        (["fetch", "x.yaml"], "Missing option '--to'"),
        (["build", "x.yaml", "--compression", "lz4"], "'lz4' is not one of 'zstd', 'gzip'"),
        (["export", "x.sif", "--format", "sif-flat", "-o", "y"], "'sif-flat' is not one of 'squashfs', "),
        (["export", "x.sif", "--format", "enroot", "-o", "y"], "there is no image `x.sif`"),
        (
            ["exec", "x.sif", "-c", "pass"],
            "hint: options of a program stand behind it: `envbuild exec IMAGE.sif",
        ),
        (["shell", "x.sif", "ls"], "hint: `envbuild exec IMAGE.sif COMMAND` runs a command"),
        (["extend", "x.sif", "a.whl", "--store", "s"], "there is no image `x.sif`"),
        (["test", "x.sif", "--ranks", "1"], "Invalid value for '--ranks'"),
        (["test", "x.sif", "--timeout", "soon"], "error: `soon` is not a duration\n\nhint: write 90s"),
        (["lock", "x.yaml", "--store"], "Option '--store' requires an argument"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_command_line_that_is_wrong(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["exec", "x.sif", "python", "-c", "pass"], ["python", "-c", "pass"]),
        (["exec", "--store", "s", "x.sif", "-v", "ls", "--json", "--", "x"], ["ls", "--json", "--", "x"]),
        (["exec", "x.sif", "--", "--help"], ["--help"]),
        (["launch", "x.sif", "-n", "2", "python", "-n", "3"], ["python", "-n", "3"]),
        (["launch", "-qn", "2", "x.sif", "python", "-q"], ["python", "-q"]),
        (["launch", "-n2", "--ranks=2", "x.sif", "python", "-m", "m"], ["python", "-m", "m"]),
    ],
    ids=" ".join,
)
def test_options_behind_a_program_are_its_own(
    words: list[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []
    monkeypatch.setattr(launch, "program_line", lambda _image, line, _settings: line)
    monkeypatch.setattr(launch, "launch_line", lambda _image, line, **_options: line)
    monkeypatch.setattr(launch, "launch", lambda line, **_options: lines.append(line))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert (ended.value.code, lines) == (0, [command])


@pytest.mark.parametrize(
    "words",
    [
        ["build", "docker://ubuntu:24.04"],
        ["lock", "docker://ubuntu:24.04"],
        ["extend", "docker://ubuntu:24.04", "tabulate"],
        ["inspect", "docker://ubuntu:24.04"],
        ["extend", "docker.io/library/ubuntu:24.04", "tabulate"],
    ],
    ids=" ".join,
)
def test_an_image_in_a_registry_is_pulled_first(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = words[1] if "://" in words[1] else f"docker://{words[1]}"
    code, _, err = run([*words, "--store", "s"], capsys)
    assert code == 2
    assert f"`{address}`" in err
    assert f"hint: `apptainer pull IMAGE.sif {address}` makes a file of an image in a registry" in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["build", "t.yaml", "--from", "nowhere"], "there is no directory `nowhere`"),
        (["reproduce", "t.sif", "--from", "nowhere"], "there is no directory `nowhere`"),
        (["build", "t.sif"], "`t.sif` is an image, not a spec"),
        (["lock", "t.yaml", "--system"], "`--system` says what `--upgrade` or `--outdated` is about"),
        (["lock", "t.yaml", "--outdated", "--check"], "`--dry-run` and `--outdated` go with neither"),
        (["lock", "t.lock.yaml"], "`t.lock.yaml` is a lock, not a spec"),
        (["plan", "t.lock.yaml"], "`t.lock.yaml` is a lock, not a spec"),
        (
            ["module", "uninstall", "a/1", "--all", "--root", "."],
            "`a/1` is one version, and --all asks for all",
        ),
        (["module", "uninstall", "a", "--root", "nowhere"], "there is no directory `nowhere`"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_arguments_are_rejected(
    words: list[str],
    problem: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (work / "t.lock.yaml").write_text(HEADER + "format: 1\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("ENVBUILD_STORE", "store")
    code, _, err = run(words, capsys)
    assert code == 2
    assert err.startswith(f"error: {problem}")


def test_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.touch()
    # As an ordinary user: root reads everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != spec)
    code, _, err = run(["build", str(spec)], capsys)
    assert code == 2
    assert f"{spec}' is not readable\n\nhint: check its permissions" in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == (0, f"envbuild {__version__}\n", "")


class TestBoundary:
    """The one place where errors become text and exit codes."""

    @pytest.fixture
    def fail(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
        def plant(error: BaseException) -> None:
            def stumble(*arguments: object) -> None:
                raise error

            monkeypatch.setattr(inspect, "inspect_image", stumble)

        return plant

    @pytest.mark.parametrize(
        ("kind", "code"),
        [(EnvbuildError, 2), (RequestError, 2), (BuildError, 3), (CheckError, 4), (MachineError, 5)],
    )
    def test_exit_codes(
        self,
        kind: type[EnvbuildError],
        code: int,
        fail: Callable[[BaseException], None],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        fail(kind("wrong", hint="mend it"))
        assert run(["inspect", "x.sif"], capsys) == (code, "", "error: wrong\n\nhint: mend it\n")

    def test_many_at_once(
        self, fail: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = Location(path=Path("a.yaml"), line=1, column=2)
        errors = [MachineError("second", hint="mend it"), BuildError("first", at=place, hint="do it again")]
        fail(ManyErrors(errors))
        told = "error: first\n  --> a.yaml:1:2\n\nhint: do it again\n\nerror: second\n\nhint: mend it\n"
        assert run(["inspect", "x.sif"], capsys) == (3, "", told)

    def test_an_interrupt(
        self, fail: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        fail(KeyboardInterrupt())
        code, out, err = run(["inspect", "x.sif"], capsys)
        assert (code, out) == (130, "")
        assert err == "interrupted: unfinished results were not written\n"

    def test_an_interrupt_of_what_the_next_run_goes_on_with(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("envbuild.workflows.build.build_images", interrupted)
        code, _, err = run(["build", str(tmp_path / "x.yaml"), "--store", str(tmp_path)], capsys)
        assert (code, err[: err.index(",")]) == (130, "interrupted: finished parts are kept")

    @pytest.mark.parametrize(("number", "code"), [(errno.ENAMETOOLONG, 2), (errno.ELOOP, 2), (errno.EIO, 5)])
    def test_a_file_that_the_system_refuses(
        self,
        number: int,
        code: int,
        fail: Callable[[BaseException], None],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        fail(OSError(number, os.strerror(number), "some/file"))
        seen, out, err = run(["inspect", "x.sif"], capsys)
        assert (seen, out) == (code, "")
        assert err.startswith(f"error: `some/file`: {os.strerror(number)}\n\nhint: ")

    def test_a_full_disk_behind_a_file_that_the_system_does_not_name(
        self, fail: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        code, _, err = run(["inspect", "x.sif"], capsys)
        assert (code, err.partition("\n")[0]) == (
            5,
            "error: a file cannot be written: No space left on device",
        )

    def test_a_bug_keeps_its_traceback(self, fail: Callable[[BaseException], None]) -> None:
        fail(ZeroDivisionError("ours"))
        with pytest.raises(ZeroDivisionError):
            main(["inspect", "x.sif"])

    def test_what_is_quoted_does_not_steer_the_terminal(
        self, fail: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        fail(RequestError("unknown key `\x1b[2J\r\x07`", hint="two\nlines"))
        _, _, err = run(["inspect", "x.sif"], capsys)
        assert err == "error: unknown key `\\u001b[2J\\u000d\\u0007`\n\nhint: two\nlines\n"

    def test_data_goes_to_standard_output_and_nothing_else_does(
        self, work: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, text, err = run(["inspect", "t.sif", "--store", "new", "--json"], capsys)
        name = json.loads(text)["name"]
        assert (code, bool(name), err) == (0, True, "")
        code, text, err = run(["inspect", "t.sif", "--store", "new"], capsys)
        assert (code, f"name:        {name}/" in text, err) == (0, True, "")


class TestUpgrade:
    @pytest.mark.parametrize(
        ("words", "expanded"),
        [
            ("lock a.yaml --upgrade", "lock a.yaml --upgrade=*"),
            ("lock --upgrade a.yaml", "lock --upgrade=* a.yaml"),
            ("lock a.yaml --upgrade torch numpy", "lock a.yaml --upgrade=torch --upgrade=numpy"),
            ("lock --upgrade torch numpy a.yml", "lock --upgrade=torch --upgrade=numpy a.yml"),
            ("lock --upgrade torch --json a.yaml", "lock --upgrade=torch --json a.yaml"),
            ("lock --upgrade --json a.yaml", "lock --upgrade=* --json a.yaml"),
            ("lock --upgrade --system a.yaml", "lock --upgrade=* --system a.yaml"),
            ("lock a.yaml --upgrade=torch", "lock a.yaml --upgrade=torch"),
            ("lock a.yaml", "lock a.yaml"),
            ("build a.yaml --upgrade", "build a.yaml --upgrade"),
            ("launch a.sif -- poetry lock --upgrade", "launch a.sif -- poetry lock --upgrade"),
            ("launch lock --upgrade", "launch lock --upgrade"),
            ("lock a.yaml -- --upgrade", "lock a.yaml -- --upgrade"),
            ("lock --upgrade torch -- a.yaml", "lock --upgrade=torch -- a.yaml"),
            ("", ""),
        ],
    )
    def test_one_option_for_each_name(self, words: str, expanded: str) -> None:
        assert expand_upgrade(words.split()) == expanded.split()

    def test_a_file_is_the_spec_whatever_it_is_called(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "spec").touch()
        given = ["lock", "--upgrade", "torch", "spec", "more"]
        assert expand_upgrade(given) == ["lock", "--upgrade=torch", "spec", "more"]

    @pytest.mark.parametrize(
        ("words", "expanded"),
        [
            ("lock --upgrade specs", "lock --upgrade=* specs"),
            ("lock --upgrade torch specs", "lock --upgrade=torch specs"),
            ("lock --upgrade torch specs/ more/", "lock --upgrade=torch specs/ more/"),
            ("lock --upgrade .", "lock --upgrade=* ."),
            ("lock --upgrade torch specs --dry-run", "lock --upgrade=torch specs --dry-run"),
            ("lock --store more --upgrade specs --json", "lock --store more --upgrade=* specs --json"),
            ("lock --upgrade specs --store more", "lock --upgrade=* specs --store more"),
            ("lock --upgrade torch -- specs", "lock --upgrade=torch -- specs"),
            ("lock torch --upgrade specs", "lock torch --upgrade=specs"),
            ("lock specs --upgrade torch", "lock specs --upgrade=torch"),
            ("lock a.yaml --upgrade torch specs", "lock a.yaml --upgrade=torch --upgrade=specs"),
            ("-q lock --upgrade --system specs", "-q lock --upgrade=* --system specs"),
            ("-v lock --upgrade torch specs", "-v lock --upgrade=torch specs"),
        ],
    )
    def test_a_directory_of_specs_is_not_a_package_unless_specs_are_named_before(
        self, words: str, expanded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("specs", "more", "torch"):
            (tmp_path / name).mkdir()
        (tmp_path / "a.yaml").touch()
        assert expand_upgrade(words.split()) == expanded.split()

    def test_every_option_with_a_value_is_told_from_a_spec(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "specs").mkdir()
        command = typer.main.get_command(app).commands["lock"]  # type: ignore[attr-defined]
        options = [option for option in command.params if option.param_type_name == "option"]
        with_value = [option.opts[0] for option in options if not option.is_flag]
        assert len(with_value) > 3
        for name in with_value:
            if name != "--upgrade":
                words = ["lock", name, "specs", "--upgrade", "specs"]
                assert expand_upgrade(words) == ["lock", name, "specs", "--upgrade=*", "specs"], name

    def test_what_is_given_stays_as_it_is(self) -> None:
        given = ["lock", "--upgrade"]
        expand_upgrade(given)
        assert given == ["lock", "--upgrade"]


class TestTimeout:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("90", 90),
            ("90s", 90),
            ("90 sec", 90),
            ("5min", 300),
            ("2m", 120),
            ("1.5h", 5400),
            (" 1 ", 1),
            ("24h", 86_400),
            ("0.1", 0.1),
        ],
    )
    def test_durations(self, text: str, value: float) -> None:
        assert read_timeout(text) == value

    @pytest.mark.parametrize(
        "text", ["", "s", "5 days", "-1", "1e3", "nan", "inf", "1,5h", "5MIN", "\u0665s", "1h5"]
    )
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(RequestError, match="is not a duration"):
            read_timeout(text)

    @pytest.mark.parametrize("text", ["0", "0.0s", "86401", "25h", "9" * 400])
    def test_what_nobody_waits_for(self, text: str) -> None:
        with pytest.raises(RequestError, match="is not between 0 and 24h"):
            read_timeout(text)
