"""config.yaml of the user and of the centre: which value counts, and what `doctor --config` shows."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from envbuild.build.workdir import traversable_directory
from envbuild.cli import submission
from envbuild.cli.main import main
from envbuild.errors import MachineError, ManyErrors, RequestError
from envbuild.inputs.catalog import find_catalog
from envbuild.inputs.sites import choose_site
from envbuild.system import apptainer, files, host
from envbuild.system.references import Reference
from envbuild.system.registry import Repository
from envbuild.workflows.nodes import with_configured
from envbuild.workflows.settings import Settings


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "TMPDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "config/envbuild/config.yaml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def centre(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc/config.yaml"


def show(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    code: object = 0
    try:
        main(["doctor", "--config", *words])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[tuple[object, str]]]:
    code, text, _ = show(capsys, "--json", *words)
    assert code == 0
    rows: dict[str, list[tuple[object, str]]] = {}
    for row in json.loads(text)["values"]:
        rows.setdefault(row["key"], []).append((row["value"], row["origin"]))
    return rows


def test_the_first_of_option_variable_user_and_centre_counts(
    user: Path,
    centre: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def both() -> tuple[Path, object]:
        return Settings.of().store.path, shown(capsys)["store"][0]

    assert both() == (tmp_path / "cache/envbuild", (str(tmp_path / "cache/envbuild"), "default"))
    centre.write_text("store: /scratch/$USER/$USERS/envbuild\n")
    of_centre = f"/scratch/{host.user()}/$USERS/envbuild"
    assert both() == (Path(of_centre), (of_centre, f"{centre}:1:8"))
    monkeypatch.setenv("HOME", "/h")
    user.write_text("schema: 1\nstore: ~/store\n")
    assert both() == (Path("/h/store"), ("/h/store", f"{user}:2:8"))
    monkeypatch.setenv("ENVBUILD_STORE", "/v")
    assert both() == (Path("/v"), ("/v", "ENVBUILD_STORE"))
    assert Settings.of(store=Path("/o")).store.path == Path("/o")
    assert shown(capsys, "--store", "/o")["store"] == [("/o", "--store")]
    # Another file in place of the user's alone.
    monkeypatch.delenv("ENVBUILD_STORE")
    (tmp_path / "other.yaml").write_text("{}\n")
    monkeypatch.setenv("ENVBUILD_CONFIG", str(tmp_path / "other.yaml"))
    assert both() == (Path(of_centre), (of_centre, f"{centre}:1:8"))
    monkeypatch.setenv("ENVBUILD_CONFIG", "/absent.yaml")
    with pytest.raises(RequestError, match=r"there is no file `/absent\.yaml`") as caught:
        Settings.of()
    assert "ENVBUILD_CONFIG" in caught.value.hint


def test_without_a_file_the_defaults_are_shown(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin/apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(program.parent))
    program.chmod(0o755)
    rows = shown(capsys)
    assert rows["apptainer"] == [(str(program), "default")]
    assert rows["tmpdir"] == [("/var/tmp", "default")]
    assert rows["require_pass"] == [(False, "default")]
    assert rows["jobs.partition"] == rows["upstreams"] == [(None, "default")]


def test_lists_are_put_together(
    user: Path,
    centre: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directories = [tmp_path / name for name in "abcd"]
    for directory in directories:
        directory.mkdir()
    user.write_text(f"recipes: [{directories[2]}]\nplain_http: [user.example.org]\n")
    centre.write_text(f"recipes: [{directories[3]}]\nplain_http: [centre.example.org:5000]\n")
    monkeypatch.setenv("ENVBUILD_RECIPES", str(directories[1]))
    monkeypatch.setenv("ENVBUILD_PLAIN_HTTP", "one.example.org, two.example.org")
    assert list(find_catalog([directories[0]]).recipes[:4]) == directories
    assert shown(capsys)["plain_http"] == [
        ("one.example.org", "ENVBUILD_PLAIN_HTTP"),
        ("two.example.org", "ENVBUILD_PLAIN_HTTP"),
        ("user.example.org", f"{user}:2:14"),
        ("centre.example.org:5000", f"{centre}:2:14"),
    ]
    for name, plain in (("centre.example.org:5000", True), ("centre.example.org", False)):
        with Repository(Reference.parse(f"{name}/a:1")) as repository:
            assert repository._base.startswith("http://") == plain
    directories[3].rmdir()
    with pytest.raises(RequestError, match="there is no directory") as caught:
        find_catalog()
    assert f"{centre}:1:11" in caught.value.hint


def test_errors_name_the_file_that_sets_a_value(user: Path, centre: Path) -> None:
    centre.write_text("apptainer: /absent/apptainer\ntmpdir: /absent/tmp\n")
    settings = Settings.of()
    with pytest.raises(MachineError, match=rf"`/absent/apptainer`, which {centre}:1:12 names"):
        settings.find_apptainer()
    with pytest.raises(MachineError, match=r"there is no Apptainer at `/other`$"):
        apptainer.find(Path("/other"))
    with pytest.raises(MachineError, match=f"{centre}:2:9 names `/absent/tmp`"), traversable_directory():
        pass


def test_jobs_have_configured_options(user: Path, centre: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("jobs: {partition: own, options: [--qos=own]}\n")
    centre.write_text(
        "jobs: {partition: gpu, account: staff, ranks_per_node: 4, options: [--qos=centre, --exclusive]}\n"
    )
    Settings.of()
    named = {"partition": None, "account": None, "time": None, "ntasks-per-node": None}
    assert with_configured(named) == {
        "partition": "own",
        "account": "staff",
        "time": None,
        "ntasks-per-node": 4,
    }
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    jobs = submission.job_options(
        partition=None, account=None, time="5", slurm="--qos=last", at_once=None, paths=()
    )
    # Of two that contradict each other sbatch takes the last.
    assert jobs.words == [
        *("--exclusive", "--qos=centre", "--qos=own"),
        *("--partition=own", "--account=mine", "--time=5", "--qos=last"),
    ]
    assert jobs.partition == "own"


def test_a_user_loosens_nothing_that_the_centre_requires(
    user: Path, centre: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    centre.write_text("require_signature: [/etc/k.pub]\nrequire_pass: true\n")
    user.write_text("require_signature: []\nrequire_pass: false\nrevoked: [/h/r.pub]\n")
    rows = shown(capsys)
    assert rows["require_signature"] == [("/etc/k.pub", f"{centre}:1:21")]
    assert rows["require_pass"] == [(True, f"{centre}:2:15")]
    assert rows["revoked"] == [("/h/r.pub", f"{user}:3:11")]
    _, _, said = show(capsys)
    assert f"note: {user}:2:15: `require_pass` has no effect: {centre}:2:15 counts, too" in said
    assert "`require_signature` has no effect" in said
    assert "`revoked` has no effect" not in said


def test_errors_of_both_files_are_shown_at_once_and_nothing_is_known_then(
    user: Path, centre: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user.write_text("stor: /s\njobs: {time: 3h}\n")
    centre.write_text("require_pass: true\n")
    monkeypatch.setenv("ENVBUILD_APPTAINER", "/a")
    code, text, said = show(capsys, "--json")
    document = json.loads(text)
    assert code == 2
    assert [error["place"] for error in document["errors"]] == [
        f"{user}:1:1",
        f"{user}:2:14",
        f"{centre}:1:15",
    ]
    assert "did you mean `store`?" in said
    values = {row["key"]: (row["value"], row["origin"]) for row in document["values"]}
    assert values["require_pass"] == values["store"] == (None, "unknown")
    assert values["apptainer"] == ("/a", "ENVBUILD_APPTAINER")
    with pytest.raises(ManyErrors):
        Settings.of(store=Path("/o"))


def test_a_file_of_the_centre_that_cannot_be_read_is_not_taken_for_absent(
    user: Path, centre: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstat = Path.lstat

    def closed(path: Path) -> os.stat_result:
        if path in (user, centre):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", closed)
    with pytest.raises(RequestError, match=f"`{centre}`"):
        Settings.of(store=Path("/o"))
    monkeypatch.undo()
    centre.symlink_to("/absent")
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", centre.parent)
    with pytest.raises(RequestError, match=f"there is no file `{centre}`"):
        Settings.of(store=Path("/o"))


@pytest.mark.parametrize("words", [["build"], ["--online"], ["--site", "lumi"]])
def test_the_configuration_is_shown_alone(
    user: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = show(capsys, *words)
    assert code == 2
    assert "--config shows the configuration alone" in said


@pytest.mark.parametrize(
    "line",
    [
        "store: relative",
        "store: /a/../b",
        "store: ~other/x",
        "plain_http: ['https://a.b']",
        "jobs: {options: ['-q gpu; rm']}",
        "jobs: {partition: '--wrap=x'}",
        "jobs: {ranks_per_node: 0}",
        "retirement_days: 0",
        "retirement_days: '90'",
        "schema: 2",
    ],
)
def test_values_that_mean_nothing_are_refused(centre: Path, line: str) -> None:
    centre.write_text(f"{line}\n")
    with pytest.raises((RequestError, ManyErrors)) as caught:
        Settings.of()
    assert str(caught.value.each()[0].at).startswith(f"{centre}:1:")


@pytest.mark.parametrize("text", ["", "# store: /scratch/$USER/envbuild\n", "---\n"])
def test_a_file_whose_keys_are_commented_out_sets_nothing(
    centre: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    centre.write_text(text)
    code, printed, said = show(capsys)
    assert (code, "unknown" in printed, "error" in said) == (0, False, False)
    assert "/etc/config.yaml: exists" in said
    centre.write_text(f"---\n{text}---\nstore: /s\n")
    with pytest.raises(RequestError, match="a second document begins here"):
        Settings.of()


def test_a_file_of_settings_that_everybody_can_write_to_is_refused(user: Path, centre: Path) -> None:
    site = "name: lab\narchitecture: amd64\nscheduler: {name: none}\n"
    for name, text, read in (
        ("config.yaml", "store: /s\n", Settings.of),
        ("site.yaml", site, lambda: choose_site(find_catalog(), None, None)),
    ):
        for path in (user.with_name(name), centre.with_name(name)):
            path.write_text(text)
            read()
            for opened, mode in ((path, 0o646), (path.parent, 0o757)):
                before = opened.stat().st_mode
                opened.chmod(mode)
                with pytest.raises(RequestError, match=f"everybody can write to `{opened}`") as caught:
                    read()
                assert caught.value.hint.endswith(f"`chmod o-w {opened}`")
                opened.chmod(before)
            # A link to a file that only its owner can write to.
            kept = path.rename(centre.parent.parent / f"kept-{name}")
            path.symlink_to(kept)
            read()
            path.parent.chmod(0o757)
            with pytest.raises(RequestError, match=f"everybody can write to `{path.parent}`"):
                read()
            path.unlink()
            kept.rename(path)
            path.parent.chmod(0o1777)  # such as /tmp: no other user can replace the file there
            read()
            path.parent.chmod(0o755)
            path.unlink()
