"""Errors that no other test provokes, each once: what they say stands in docs/errors.md."""

from __future__ import annotations

import errno
import io
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import uv
import yaml

from envbuild.build.debian import _control
from envbuild.build.run import finished
from envbuild.build.sandbox import Sandbox
from envbuild.check import controls, run
from envbuild.cli.main import main
from envbuild.compat.rules import load_rules
from envbuild.errors import BuildError, EnvbuildError, Location, MachineError, RequestError
from envbuild.events import ignore
from envbuild.image import sif
from envbuild.image.compare import _reading
from envbuild.image.contents import unreadable
from envbuild.image.half import half_image, unwritable
from envbuild.image.model import Variable
from envbuild.image.outputs import Output, check_outputs
from envbuild.image.sif import read_sif
from envbuild.lock.check import check_unique
from envbuild.lock.model import RootPin
from envbuild.lock.text import HEADER, load
from envbuild.plan.model import FilesStep, Layer
from envbuild.resolve import debian, exact, fetch, python, uvfault, uvtext
from envbuild.resolve import uv as resolver
from envbuild.resolve.files import FileCache
from envbuild.resolve.roots import _digest, root_pins
from envbuild.spec import building
from envbuild.spec.bases import none_fits
from envbuild.spec.syntax import explain_syntax
from envbuild.store.store import Store
from envbuild.system import files, host, network, process, tools
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import cache, cache_pin, cache_verify, layer, recipe_rules, reproduce
from envbuild.workflows import test as verb
from envbuild.workflows.export import check_forms, export_image
from envbuild.workflows.hosting import Lend
from envbuild.workflows.init import _choice
from envbuild.workflows.lock import refuse
from envbuild.workflows.recipe_check import _same_state
from envbuild.workflows.settings import Settings
from tests.support.asking import asked, deb, lock_of
from tests.support.small_images import BASE, small_image
from tests.unit.cli.test_command import COMMAND
from tests.unit.compat.test_rules import RULE
from tests.unit.resolve.test_roots import asked_of
from tests.unit.spec.test_bases import loaded, need
from tests.unit.store.test_cache import flip, locked_file
from tests.unit.store.test_cache import layer as published

HERE = Location(path=Path("spec.yaml"), line=1, column=1)
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/store/pins/x.json")


def stub(**fields: Any) -> Any:
    """Stand for an object of which only these fields are looked at."""
    return SimpleNamespace(**fields)


def at(*_: object) -> Location:
    return HERE


def raising(error: BaseException) -> Any:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def told(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    return capsys.readouterr().err


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.of(store=tmp_path / "store", apptainer=None, recipes=None, site=None)


class TestBuilding:
    def test_a_file_that_is_no_package(self, tmp_path: Path) -> None:
        deb = tmp_path / "x.deb"
        deb.write_text("no archive")
        with pytest.raises(BuildError, match=r"`x\.deb` is not a Debian package"):
            _control(deb)

    @pytest.mark.parametrize(
        ("script", "kind", "said"),
        [
            ("echo FATAL: no namespaces >&2; exit 255", MachineError, "Apptainer cannot start a build step"),
            ("echo no compiler >&2; exit 1", BuildError, r"it fell \(exit code 1\)\nno compiler"),
        ],
    )
    def test_a_step(self, script: str, kind: type[EnvbuildError], said: str, tmp_path: Path) -> None:
        program = tmp_path / "apptainer"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        sandbox = Sandbox(apptainer=Apptainer(program=program, version="1.4"), root=tmp_path / "root")
        with pytest.raises(kind, match=said):
            sandbox.run(["true"], binds=(), env={}, log=tmp_path / "log", what="it fell")

    def test_a_layer_that_vanishes(self, settings: Settings) -> None:
        gone = Layer(name="mpi", key=f"sha256:{'a' * 64}", step=FilesStep(files=(), tools=()))
        with pytest.raises(EnvbuildError, match="layer mpi vanished from the store"):
            finished(gone, settings.store)

    @pytest.mark.parametrize("verb", ["build", "reproduce"])
    def test_kept_files_that_are_not_there(
        self, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [verb, str(tmp_path / "x.yaml"), "--from", str(tmp_path / "nowhere")]
        assert "there is no directory" in told([*words, "--store", str(tmp_path / "s")], capsys)

    @pytest.mark.parametrize("verb", ["build", "lock", "plan"])
    def test_what_is_no_spec(self, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        image = small_image(tmp_path, BASE)
        (tmp_path / "x.lock.yaml").write_text(HEADER + "format: 1\n")
        for path, said in (
            (image, "is an image, not a spec"),
            (tmp_path / "x.lock.yaml", "is a lock, not a spec"),
        ):
            assert said in told([verb, str(path), "--store", str(tmp_path / "s")], capsys)

    def test_a_lock_that_is_to_stay(self) -> None:
        with pytest.raises(RequestError, match="does not satisfy the spec\n  git is not asked for"):
            refuse(Path("spec.yaml"), ["git is not asked for"])


class TestStores:
    def test_what_cannot_be_taken_away(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        published(settings.store, "a")
        monkeypatch.setattr(cache, "forget", raising(DENIED))
        with pytest.raises(MachineError, match="cannot be removed: Permission denied"):
            cache.prune_cache(settings)
        published(settings.store, "a")
        cache_pin.pin_thing("a" * 12, settings)
        monkeypatch.setattr(cache_pin, "forget", raising(DENIED))
        with pytest.raises(MachineError, match="cannot be removed: Permission denied"):
            cache_pin.unpin_thing("a" * 12, settings)

    def test_what_cannot_be_put_aside(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        flip(locked_file(settings.store, b"wheel"))
        monkeypatch.setattr(cache_verify, "put_aside", raising(DENIED))
        with pytest.raises(MachineError, match="cannot be put aside: Permission denied"):
            cache_verify.verify_cache(settings, repair=True)

    def test_a_place_for_layers_that_is_full(self) -> None:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with (
            pytest.raises(MachineError, match="`kept` cannot be written: No space"),
            layer._writing(Path("kept")),
        ):
            raise full

    def test_a_layer_that_is_damaged(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "store")
        record = published(store, "a")
        flip(store.blob_path(record.blob))
        planned = Layer(name="a", key=record.key, step=FilesStep(files=(), tools=()))
        settings = Settings(store=store)
        with pytest.raises(RequestError, match="layer a in the store is damaged"):
            layer._export(planned, record, {}, tmp_path, settings)


class TestChecks:
    def test_a_control_of_another_image(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(controls, "jobs_of", lambda *_: [])
        with pytest.raises(RequestError, match="the image has 0 jobs that `wrong-sum` spoils"):
            controls.overlooked(stub(), stub(name="wrong-sum"))

    def test_nothing_that_starts_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "launcher_of", lambda *_: None)
        with pytest.raises(RequestError, match=r"nothing here starts the ranks of `D1\.mpi`"):
            controls.try_text(stub(), stub(id="D1.mpi", launcher="mpiexec"), "", ranks=2, limit_s=1)

    def test_ranks_that_could_leave_no_report(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(RequestError, match="where the ranks would leave their reports"):
            verb._srun_of(stub(), settings, Lend())


class TestCommand:
    def test_nothing_to_launch(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "there is no command to start" in told(["launch", "x.sif"], capsys)

    @pytest.mark.parametrize("words", [["schema", "spec"], ["build", "--help"]])
    def test_a_full_disk_behind_standard_output(self, words: list[str]) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 5
        assert done.stderr.startswith("error: standard output cannot be written: No space left on device\n")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["a/1", "--all", "--root", "."], "`a/1` is one version, and --all asks for all"),
            (["a", "--root", "nowhere"], "there is no directory `nowhere`"),
        ],
    )
    def test_modules(self, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert said in told(["module", "uninstall", *words], capsys)

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(RequestError, match="is not a name"):
            _choice("Py Torch")


class TestRules:
    def test_two_tables_of_one_name(self) -> None:
        text = RULE.replace("CHECK", "{fact: driver.version, is: x}").encode()
        other = b"tables:\n" + text.partition(b"tables:\n")[2]
        with pytest.raises(EnvbuildError, match="there are two tables `t`"):
            load_rules({Path("r.yaml"): text, Path("s.yaml"): other})

    def test_two_lists_beside_each_other(self) -> None:
        by = "[gpus.architectures, gpus.architectures]"
        check = f"{{fact: driver.version, at_least: {{table: t, by: {by}}}}}"
        text = RULE.replace("CHECK", check).replace("columns: [one]", "columns: [one, two]")
        with pytest.raises(EnvbuildError, match="only one fact of `by` may be a list"):
            load_rules({Path("r.yaml"): text.replace('match: ["1"]', 'match: ["1", "2"]').encode()})


class TestImages:
    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="cannot be read: No such file"):
            _reading(tmp_path / "x.sif")
        error = unreadable(Path("x.sif"), OSError(errno.EIO, os.strerror(errno.EIO)))
        assert error.problem == "`x.sif` cannot be read: Input/output error"

    def test_a_disk_that_fails_while_an_image_is_read(self, tmp_path: Path) -> None:
        path = small_image(tmp_path, BASE)
        with pytest.raises(RequestError, match="cannot be read: Input/output error"), sif._opened(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    @pytest.mark.parametrize("there", ["there", "there/new"])
    def test_a_directory_that_may_not_be_written(
        self, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "there").mkdir()
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(RequestError, match="nothing can be written in"):
            check_outputs([Output(format="shifter", path=tmp_path / there)], keep=())

    def test_a_directory_in_none(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match=r"there is no directory .* for `new`"):
            check_outputs([Output(format="shifter", path=tmp_path / "no/new")], keep=())

    def test_forms_that_cannot_be(self, tmp_path: Path) -> None:
        path = small_image(tmp_path, BASE)
        oci = Output(format="oci", path=tmp_path / "out")
        with pytest.raises(RequestError, match="the form oci has no squashfs to compress by gzip"):
            export_image(path, [oci], ignore, compression="gzip")
        content = bytearray(path.read_bytes())
        content[read_sif(path).partitions[0].offset + 200] ^= 1
        path.write_bytes(content)
        with pytest.raises(RequestError, match=r"`small\.sif` does not hold what was built"):
            export_image(path, [oci], ignore)
        manifest = stub(environment=[Variable(name="X", operation="set", value="a\nb")])
        with pytest.raises(RequestError, match="Shifter would misread the variable"):
            check_forms([Output(format="shifter", path=tmp_path)], manifest, raising(AssertionError()))

    def test_a_layer_that_shrinks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = tmp_path / "layer"
        source.write_bytes(b"hsqs")
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
        with (
            half_image(tmp_path / "x.sif") as half,
            pytest.raises(MachineError, match="became shorter while it was copied"),
        ):
            half.copy(source, 4, 0)

    def test_a_layer_that_cannot_be_read_any_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "layer"
        source.write_bytes(b"hsqs")
        read = os.pread

        def failing(file: int, count: int, at: int) -> bytes:
            # The beginning was looked at before.
            return read(file, 4, at) if not copied else raising(OSError(errno.EIO, "Input/output error"))()

        def cannot(*_: object) -> int:
            copied.append(True)
            raise OSError(errno.EXDEV, "")

        copied: list[bool] = []
        monkeypatch.setattr(os, "copy_file_range", cannot)
        monkeypatch.setattr(os, "pread", failing)
        with (
            half_image(tmp_path / "x.sif") as half,
            pytest.raises(MachineError, match="a layer cannot be read: Input/output error"),
        ):
            half.copy(source, 4, 0)

    def test_an_image_that_cannot_be_written(self) -> None:
        error = unwritable(Path("x.sif"), OSError(errno.EIO, os.strerror(errno.EIO)))
        assert error.problem == "`x.sif` cannot be written: Input/output error"

    def test_a_story_that_cannot_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = small_image(tmp_path, BASE)
        monkeypatch.setattr(reproduce, "read_data", lambda *_: b"\xff")
        with pytest.raises(RequestError, match=r"in `small\.sif` is no text"):
            reproduce._read_story(path)

    def test_an_image_of_another_architecture(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = small_image(tmp_path, BASE)
        plan = stub(layers=())
        monkeypatch.setattr(reproduce, "load_plan", lambda _: plan)
        monkeypatch.setattr(host, "architecture", lambda: "arm64")
        with pytest.raises(RequestError, match="is for amd64, and this machine is arm64"):
            reproduce._read_story(path)

    @pytest.mark.parametrize(
        ("name", "said"), [("other", "does not hold the recipe `other`"), ("", "holds another state of")]
    )
    def test_a_recipe_that_an_image_does_not_hold(self, name: str, said: str, tmp_path: Path) -> None:
        path = small_image(tmp_path, BASE)
        (first, *_) = load(sif.read_data(path, sif.LOCK), path).recipes
        recipe = stub(value=stub(name=name or first.name), path=Path("recipe.yaml"))
        with pytest.raises(RequestError, match=said):
            _same_state(path, stub(loaded=recipe, digest="sha256:0"))


class TestResolving:
    def test_roots_of_several_kinds(self) -> None:
        pins = [RootPin(kind=kind, file=f"x.{kind}", size_bytes=1, sha256="0" * 64)
                for kind in ("tar", "squashfs")]  # fmt: skip
        lock = lock_of(asked(), base_debs=[deb("libc6")])
        errors: list[EnvbuildError] = []
        check_unique(stub(**{name: getattr(lock, name) for name in lock.__slots__} | {"base_root": pins}),
                     Path("x.lock.yaml"), errors, "delete it")  # fmt: skip
        assert [error.problem for error in errors] == [
            "`base_root` is one tar, one squashfs or layers of one image, and no `base_debs` are beside it"
        ]

    def test_a_root_that_is_lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x.tar").write_bytes(b"other")
        what = asked_of(tmp_path, "tar", "x.tar", "0" * 64)
        with pytest.raises(RequestError, match="is another file: its sha256 is"):
            root_pins(what)
        pin = RootPin(kind="tar", file="x.tar", size_bytes=1, sha256="0" * 64)
        (error,) = fetch._lost_roots([pin], what)
        assert "is not where its definition says, or was changed" in error.each()[0].problem
        monkeypatch.setattr(Path, "is_file", raising(DENIED))
        with pytest.raises(RequestError, match="cannot be read: Permission denied"):
            root_pins(what)

    def test_an_archive_that_apt_was_not_given(self) -> None:
        entry = stub(address="https://archive.example.org/x.deb", name="git", version="1")
        with pytest.raises(MachineError, match="apt takes `git` from an archive that it was not given"):
            debian._Apt._pin(stub(), entry, {}, {})

    def test_tools_that_do_not_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process, "run", lambda *_, **__: stub(timed_out=True))
        with pytest.raises(MachineError, match="apt did not end within"):
            debian._Apt._run(stub(_conf=tmp_path / "c", _run_dir=tmp_path), "apt-get", "update")
        for ended, told in (
            (stub(stderr="", timed_out=True), "uv did not end within 900 s"),
            (stub(stderr="error: no such option", timed_out=False, code=2), "uv failed: no such option"),
        ):
            error = uvfault.fault(ended, tmp_path / "log")
            assert error is not None
            assert error.problem == told
        assert uvfault.fault(stub(stderr="No solution found", timed_out=False, code=1), tmp_path) is None

    def test_no_uv(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uv, "find_uv_bin", raising(FileNotFoundError()))
        with pytest.raises(MachineError, match="the `uv` program is not installed"):
            resolver.find_uv()

    def test_local_files_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(network.NetworkError, match="cannot be read: No such file"):
            exact.Finder._page(stub(), f"file://{tmp_path}/simple/x")
        write = fetch._Downloads._writer(
            stub(), f"file://{tmp_path}/x.whl", stub(size_bytes=1), lambda _: None
        )
        with pytest.raises(network.NetworkError, match="cannot be read: No such file"):
            write(tmp_path / "part")
        with pytest.raises(RequestError, match="cannot be read: No such file"):
            _digest(tmp_path / "root.tar", HERE)

    def test_a_directory_that_cannot_keep_files(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(MachineError, match="cannot be written: Not a directory"):
            fetch.export([], FileCache(tmp_path / "files"), tmp_path / "file/kept")

    def test_a_version_without_a_wheel(self) -> None:
        found = [uvtext.Resolved(name="scipy", version="1.0", via=())]
        with pytest.raises(RequestError, match=r"scipy 1\.0 has no wheel for cp311 with glibc 2\.36"):
            python._choose(asked(python=["scipy"]), found, {})


class TestNetwork:
    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (requests.exceptions.SSLError(), "its certificate is not trusted here"),
            (requests.exceptions.InvalidURL(), "cannot be asked: it is no usable address"),
        ],
    )
    def test_an_address(self, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests.Session, "request", raising(error))
        with network.Client() as client, pytest.raises(network.NetworkError, match=said):
            client.page("https://index.example.org/simple/x/", accept="text/html")

    def test_a_page_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b"x" * 100)
        monkeypatch.setattr(network, "_PAGE_LIMIT_BYTES", 10)
        monkeypatch.setattr(requests.Session, "request", lambda *_, **__: answer)
        with network.Client() as client, pytest.raises(network.NetworkError, match="is longer than a page"):
            client.page("https://index.example.org/simple/x/", accept="text/html")

    def test_a_file_whose_length_is_asked_for(self, tmp_path: Path) -> None:
        with network.Client() as client, pytest.raises(network.NetworkError, match="cannot be read"):
            client.length(f"file://{tmp_path}/x.whl")


class TestSpecs:
    def test_no_base_is_right_for_three(self) -> None:
        bases = [loaded("a", "1", "3.11"), loaded("b", "2", "3.12"), loaded("c", "3", "3.13")]
        needs = [need(python="!=3.11.*"), need(python="!=3.12.*"), need(python="!=3.13.*")]
        (error,) = none_fits(needs, bases, "amd64")
        assert error.each()[0].problem.startswith("no base image is right for all: ")

    def test_an_mpi_from_source(self) -> None:
        source = stub(distribution="x", against=(), patches=(), environment={})
        recipe = stub(kind="mpi", source=source, owns=("x",), requires=(), needs_mpi=False)
        (error,) = building.source_mistakes(stub(value=recipe, at=at), {})
        assert error.each()[0].problem == "an MPI recipe cannot be built from source"

    def test_compiling_against_what_has_no_headers(self) -> None:
        mpi = stub(name="mpich", kind="mpi", source=None, owns=("mpich",))
        own = stub(name="own", kind="framework", owns=("own",), source=stub(against=("mpich",)))
        located = [(stub(recipe=mpi, layer="mpi"), ("mpi",)), (stub(recipe=own, layer="framework:own"), ())]
        (error,) = building.against_mistakes(stub(at=at), located)
        assert error.each()[0].problem == "the recipe `own` cannot compile against `mpich`"

    def test_what_yaml_does_not_explain(self) -> None:
        assert explain_syntax(yaml.YAMLError("?"), Path("x.yaml")).problem == "the file is not YAML"

    def test_recipes(self) -> None:
        recipe = stub(
            verify=(), imports=("x",), python=(), variants={}, source=stub(distribution="x"), owns=("y",)
        )
        problems = [
            error.each()[0].problem for error in recipe_rules._owner_mistakes(stub(value=recipe, at=at))
        ]
        assert problems == ["`x` is built, and nobody owns it"]


class TestFiles:
    def test_reading_and_writing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(RequestError, match="cannot be read: File name too long"):
            files.list_directory(tmp_path / ("x" * 300))
        with pytest.raises(RequestError, match="`/proc/self/mem` cannot be read: Input/output error"):
            files.read_input(Path("/proc/self/mem"), limit_bytes=10)
        with pytest.raises(MachineError, match="cannot be written: File name too long"):
            files.write_new(tmp_path / ("x" * 300), b"")
        monkeypatch.setattr(os, "fdopen", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(MachineError, match="cannot be written: No space left on device"):
            files.write_new(tmp_path / "x", b"")
        assert not (tmp_path / "x").exists()

    def test_programs(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="`/nowhere/x` cannot be started: No such file"):
            process.become(["/nowhere/x"], env={})
        with pytest.raises(MachineError, match="cannot be read: No such file"):
            tools._digest(tmp_path / "x")
        silent = tmp_path / "uv"
        silent.write_text("#!/bin/sh\n")
        silent.chmod(0o755)
        with pytest.raises(MachineError, match="does not tell its version"):
            tools._examine("uv", silent)
