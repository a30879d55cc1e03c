"""Which Apptainer is used, and the command lines that start something in an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.system import host
from envbuild.system.apptainer import Apptainer, Bind, OldApptainerError, find
from envbuild.system.process import Finished


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVBUILD_APPTAINER", raising=False)


class TestFind:
    @pytest.mark.parametrize(
        ("said", "version"),
        [
            ("apptainer version 1.4.5", "1.4.5"),
            ("apptainer version 1.3.0-1.el9", "1.3.0-1.el9"),
            ("apptainer version 1.10.2", "1.10.2"),
            ("apptainer version 2.0", "2.0"),
            ("singularity-ce version 4.1.2-jammy", "singularity-ce 4.1.2-jammy"),
            ("singularity-ce version 3.9.0", "singularity-ce 3.9.0"),
        ],
    )
    def test_the_one_that_is_named(self, tmp_path: Path, said: str, version: str) -> None:
        path = program(tmp_path / "mine", f"echo '{said}'")
        assert find(path) == Apptainer(program=path, version=version)

    @pytest.mark.parametrize(
        ("script", "problem"),
        [
            ("echo 'apptainer version 1.0.3'", "Apptainer 1.0.3 at `.*` is too old: 1.1 or newer"),
            (
                "echo 'singularity-ce version 3.8.7'",
                "SingularityCE 3.8.7 at `.*` is too old: 3.9 or newer",
            ),
            ("echo 'singularity version 3.8.7-1.el8'", "is not an Apptainer or SingularityCE"),
            ("echo 'apptainer version ?'", "is not an Apptainer"),
            (
                "echo 'apptainer version 1.4.5'; echo 'FATAL: no' >&2; exit 1",
                "mine --version` fails: FATAL: no",
            ),
            ("exit 1", "is not an Apptainer"),
            ("true", "is not an Apptainer"),
        ],
    )
    def test_what_will_not_do(self, tmp_path: Path, script: str, problem: str) -> None:
        with pytest.raises(MachineError, match=problem) as caught:
            find(program(tmp_path / "mine", script))
        assert caught.value.hint is not None
        assert "ENVBUILD_APPTAINER" in caught.value.hint

    def test_an_old_one_tells_its_version(self, tmp_path: Path) -> None:
        with pytest.raises(OldApptainerError) as caught:
            find(program(tmp_path / "mine", "echo 'apptainer version 1.0.3-1.el9'"))
        assert (caught.value.version, caught.value.oldest) == ("1.0.3-1.el9", "1.1")

    def test_singularityce_does_if_there_is_no_apptainer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = program(tmp_path / "bin/singularity", "echo 'singularity-ce version 4.3.7'")
        # Without the directories of this machine, in which there may be an Apptainer.
        monkeypatch.setattr(host, "_SYSTEM_PATH", "/usr/bin:/bin")
        monkeypatch.setenv("PATH", f"{other.parent}")
        assert find() == Apptainer(program=other, version="singularity-ce 4.3.7")
        own = program(tmp_path / "bin/apptainer", "echo 'apptainer version 1.4.5'")
        assert find().program == own

    def test_a_name_that_is_nowhere(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="there is no Apptainer at"):
            find(tmp_path / "nowhere")

    def test_named_comes_before_the_variable_and_that_before_the_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named, variable, on_path = (
            program(tmp_path / place / "apptainer", "echo 'apptainer version 1.4.5'") for place in "abc"
        )
        monkeypatch.setenv("PATH", str(on_path.parent))
        assert find().program == on_path
        monkeypatch.setenv("ENVBUILD_APPTAINER", str(variable))
        assert find().program == variable
        assert find(named).program == named

    def test_it_is_found_wherever_it_is_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = program(tmp_path / "bin/apptainer", "echo 'apptainer version 1.4.5'")
        monkeypatch.chdir(tmp_path)
        assert find(Path("bin/apptainer")).program == path


class TestNotStarted:
    # As Apptainer 1.4.5 says it: its starter in colours whatever it writes to.
    STARTER = (
        "\x1b[91mERROR  : Failed to create user namespace: maximum number of user namespaces exceeded,"
        " check /proc/sys/user/max_user_namespaces\n\x1b[0m"
    )
    FUSE = "FATAL:   container creation failed: image driver mount failure: squashfuse_ll exited"
    # As SingularityCE 4.5.1 writes it (cmd/starter/c/starter.c, launcher/native/launcher_linux.go).
    CE_STARTER = "ERROR  : Failed to create user namespace: not allowed to create user namespace\n"
    CE_SANDBOX = (
        "FATAL:   while preparing image: unpacking image to temporary sandbox dir required, but is prohibited"
        " by 'tmp sandbox = no' in singularity.conf or --no-tmp-sandbox command-line flag"
    )

    @pytest.mark.parametrize(
        ("code", "stdout", "stderr", "early"),
        [
            (1, "", STARTER, True),
            (255, "", FUSE, False),
            (1, "{}", STARTER, None),
            (1, "", f"Traceback\n{STARTER}", None),
            (1, "", "no module named numpy", None),
            (255, "", "killed", None),
            (0, "", STARTER, None),
            (-15, "", FUSE, None),
        ],
    )
    def test_what_it_says_itself(self, code: int, stdout: str, stderr: str, early: bool | None) -> None:
        done = Finished(argv=("a", "b c"), code=code, stdout=stdout, stderr=stderr)
        told = Apptainer(program=Path("a"), version="1.4.5").not_started(done, "x.sif")
        assert (told and told.early) == early
        if told is not None:
            assert told.exit_code == 5
            assert told.problem.startswith(
                f"Apptainer cannot start x.sif here\n{told.output}\nrepeat it: a 'b c'"
            )
            assert "\x1b" not in told.problem

    @pytest.mark.parametrize(("code", "stderr", "early"), [(1, CE_STARTER, True), (255, CE_SANDBOX, False)])
    def test_singularityce_is_named(self, code: int, stderr: str, early: bool) -> None:
        done = Finished(argv=("a",), code=code, stdout="", stderr=stderr)
        error = Apptainer(program=Path("a"), version="singularity-ce 4.5.1").not_started(done, "x.sif")
        assert error is not None
        assert error.early is early
        assert error.problem.startswith(f"SingularityCE cannot start x.sif here\n{stderr.strip()}")

    def test_none_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host, "_SYSTEM_PATH", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MachineError, match="`apptainer` is not on this machine"):
            find()


class TestBuildcfg:
    @pytest.mark.parametrize(("ending", "told"), [("", "PREFIX=/usr\n"), ("; exit 1", "")])
    def test_what_it_says_counts_where_it_ends_well(self, tmp_path: Path, ending: str, told: str) -> None:
        script = f'test "$*" = buildcfg && echo PREFIX=/usr; echo no >&2{ending}'
        assert Apptainer(program=program(tmp_path / "mine", script), version="1.4.5").buildcfg() == told


class TestCommand:
    APPTAINER = Apptainer(program=Path("/bin/apptainer"), version="1.4.5")

    @pytest.fixture
    def _ordinary_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host, "is_root", lambda: False)

    @pytest.mark.usefixtures("_ordinary_user")
    def test_alone_it_is_shut_off_from_the_host(self) -> None:
        assert self.APPTAINER.command(Path("a.sif"), ["true", "-x"]) == [
            *("/bin/apptainer", "--silent", "exec", "--containall", "--cleanenv", "--no-home"),
            *("--net", "--network", "none", "a.sif", "true", "-x"),
        ]

    @pytest.mark.usefixtures("_ordinary_user")
    def test_everything_at_once(self) -> None:
        words = self.APPTAINER.command(
            Path("a.sif"),
            ["x"],
            action="run",
            binds=[
                Bind(source=Path("/a"), target="/b"),
                Bind(source=Path("/c"), target="/d", writable=True),
            ],
            env={"Z": "1", "A": "a b=c"},
            cwd="/there",
            network=True,
            isolated=False,
        )
        assert words == [
            *("/bin/apptainer", "--silent", "run"),
            *("--mount", '"type=bind","src=/a","dst=/b",ro'),
            *("--mount", '"type=bind","src=/c","dst=/d"', "--env", "A=a b=c", "--env", "Z=1"),
            *("--pwd", "/there", "a.sif", "x"),
        ]

    @pytest.mark.usefixtures("_ordinary_user")
    @pytest.mark.parametrize(
        ("version", "own"),
        [("singularity-ce 3.11.5", []), ("singularity-ce 4.0.0", ["--no-oci"]), ("singularity-ce", [])],
    )
    def test_singularityce_starts_as_apptainer_does(self, version: str, own: list[str]) -> None:
        """Its OCI mode, which a site can make the default, came with 4.0."""
        program = Apptainer(program=Path("/bin/singularity"), version=version)
        assert program.command(Path("a.sif"), ["true"]) == [
            *("/bin/singularity", "--silent", "exec", *own, "--containall", "--cleanenv", "--no-home"),
            *("--net", "--network", "none", "a.sif", "true"),
        ]
        assert not program.knows_cdi

    def test_root_asks_for_a_user_namespace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host, "is_root", lambda: True)
        assert "--userns" in self.APPTAINER.command(Path("a.sif"), [])
