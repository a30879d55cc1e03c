"""What the scripts in setup/ decide; what they do to a machine is proven by `make setup` itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "setup"
# The scripts run before anything is installed, so they are no package and find each other as siblings.
sys.path.insert(0, str(SETUP))
import apptainer  # noqa: E402
import common  # noqa: E402
import environment  # noqa: E402
import modules  # noqa: E402
import privateapt  # noqa: E402
import system  # noqa: E402

sys.path.remove(str(SETUP))
from envbuild.resolve.aptsources import AptSource  # noqa: E402


def source(uri: str, suite: str = "bookworm", component: str = "main", key: str = "") -> AptSource:
    return AptSource(uris=(uri,), suites=(suite,), components=(component,), signed_by=key)


class TestDebianMirrors:
    @pytest.mark.parametrize(
        "stranger",
        [
            source("http://m.example/debian-security", suite="bookworm-security"),
            source("https://m.example/apt", suite="bookworm-pgdg"),
            source("https://m.example/linux", component="stable"),
            source("cdrom:[Debian 12]/"),
        ],
        ids=["security archive", "suite of another's", "no main component", "compact disc"],
    )
    def test_passes_over_what_is_no_whole_debian_archive(self, stranger: AptSource) -> None:
        mirror = source("http://mirror.example/debian/")
        found = privateapt.debian_mirrors([stranger, mirror], "bookworm")
        assert found == [("http://mirror.example/debian", privateapt.DEBIAN_KEYRING)]

    def test_likeliest_mirror_comes_first_with_its_own_keys(self) -> None:
        vendor = source("http://a-vendor.example/packages", key="/etc/keys/vendor.gpg")
        mirror = source("http://mirror.example/debian", key="/etc/keys/site.gpg")
        assert privateapt.debian_mirrors([vendor, mirror, mirror], "bookworm") == [
            ("http://mirror.example/debian", "/etc/keys/site.gpg"),
            ("http://a-vendor.example/packages", "/etc/keys/vendor.gpg"),
        ]


class TestPackages:
    def test_names_and_reasons(self) -> None:
        text = "# about the file\n\nlmod  # the module command\nfuse3# mounts\n"
        assert system.parse_packages(text) == [
            system.Package("lmod", "the module command"),
            system.Package("fuse3", "mounts"),
        ]

    @pytest.mark.parametrize("line", ["lmod", "lmod #", "lmod uidmap  # two at once"])
    def test_refuses_a_line_without_one_name_and_a_reason(self, line: str) -> None:
        with pytest.raises(ValueError, match="line 2: expected"):
            system.parse_packages(f"fuse3  # mounts\n{line}\n")

    def test_both_lists_are_sorted_and_together_name_each_package_once(self) -> None:
        run, test = (
            [package.name for package in system.parse_packages(path.read_text())]
            for path in (system.RUN_PACKAGES, system.TEST_PACKAGES)
        )
        assert (run, test) == (sorted(run), sorted(test))
        assert len(set(run + test)) == len(run + test)

    @pytest.mark.parametrize("tests", [False, True])
    def test_only_the_option_asks_for_the_packages_of_the_tests(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tests: bool
    ) -> None:
        """On a machine on which dpkg knows no package."""
        query = tmp_path / "dpkg-query"
        query.write_text("#!/bin/sh\nexit 1\n")
        query.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        command = [sys.executable, "-B", str(SETUP / "system.py"), "--check", *(["--tests"] if tests else [])]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 5
        assert "  install squashfs-tools " in ended.stdout
        assert ("  install podman " in ended.stdout) is tests
        assert ended.stderr.endswith("hint: run `make setup`\n")


class TestSubordinateIds:
    @pytest.mark.parametrize(
        ("taken", "user_ids", "start"),
        [
            ([], [], 100_000),
            ([("ann", 100_000, 65_536)], [], 165_536),
            ([("ann", 165_536, 65_536)], [], 100_000),
            ([("ann", 165_535, 1)], [], 165_536),
            ([("ann", 99_999, 2)], [], 165_536),
            ([("ann", 0, 1_000_000)], [], 1_017_504),
            ([], [0, 1000, 120_000], 165_536),
        ],
        ids=["empty", "after", "before", "last id", "first id", "inside a large one", "a real account"],
    )
    def test_takes_the_lowest_free_range(
        self, taken: list[tuple[str, int, int]], user_ids: list[int], start: int
    ) -> None:
        ranges = [system.SubidRange(*fields) for fields in taken]
        assert system.free_range("bob", ranges, user_ids) == system.SubidRange("bob", start, 65_536)

    def test_one_range_is_free_in_both_files_and_no_two_users_share_one(self) -> None:
        uid, gid = Path("/etc/subuid"), Path("/etc/subgid")
        files = {uid: "ann:100000:65536\n", gid: "ann:100000:65536\ncarl:165536:65536\n"}
        lacking = system.missing_subids([("root", 0), ("bob", 1000)], files, [])
        root, bob = system.SubidRange("root", 231_072, 65_536), system.SubidRange("bob", 296_608, 65_536)
        assert lacking == {uid: [root, bob], gid: [root, bob]}

    @pytest.mark.parametrize("owner", ["bob", "1000"])
    def test_leaves_alone_who_has_a_range(self, owner: str) -> None:
        files = {Path("/etc/subuid"): f"{owner}:500000:65536\n"}
        assert system.missing_subids([("bob", 1000)], files, []) == {}

    def test_a_range_too_small_for_an_image_is_none(self) -> None:
        path = Path("/etc/subuid")
        lacking = system.missing_subids([("bob", 1000)], {path: "bob:100000:1000\n"}, [])
        assert lacking == {path: [system.SubidRange("bob", 165_536, 65_536)]}

    def test_each_line_to_append_is_announced_on_a_line(self) -> None:
        root, bob = system.SubidRange("root", 100_000, 65_536), system.SubidRange("bob", 165_536, 65_536)
        text = system.Lack(subids={Path("/etc/subuid"): [root, bob]}).describe()
        assert [line.split("  ")[1] for line in text.splitlines()] == [
            "append root:100000:65536 to /etc/subuid",
            "append bob:165536:65536 to /etc/subuid",
        ]

    def test_malformed_lines_are_passed_over(self) -> None:
        assert system.parse_subids("\nbob\nbob:x:1\n# no\nbob:100000:65536\n") == [
            system.SubidRange("bob", 100_000, 65_536)
        ]

    def test_appending_heals_a_missing_newline(self, tmp_path: Path) -> None:
        path = tmp_path / "subuid"
        path.write_text("ann:100000:65536")
        system.append_line(path, "bob:165536:65536")
        assert path.read_text() == "ann:100000:65536\nbob:165536:65536\n"


class TestAptLists:
    def lists(self, tmp_path: Path, *, fetched_s: float) -> Path:
        (tmp_path / "partial").mkdir()
        (tmp_path / "mirror.example_debian_dists_bookworm_main_binary-amd64_Packages.lz4").touch()
        os.utime(tmp_path / "partial", (fetched_s, fetched_s))
        return tmp_path

    def test_never_fetched(self, tmp_path: Path) -> None:
        (tmp_path / "lock").touch()
        assert system.lists_are_stale(tmp_path)

    @pytest.mark.parametrize(("now_s", "stale"), [(2_000.0, False), (200_000.0, True)])
    def test_age(self, tmp_path: Path, now_s: float, stale: bool) -> None:
        assert system.lists_are_stale(self.lists(tmp_path, fetched_s=1_000.0), now_s=now_s) is stale


class TestApptainer:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("apptainer version 1.4.5-2", (1, 4, 5)),
            ("1.3.0", (1, 3, 0)),
            ("1.10", (1, 10)),
            ("1.4.0-rc.1+12-gdeadbeef", (1, 4, 0)),
            ("singularity-ce version 4.1.1-jammy", (4, 1, 1)),
            ("command not found", None),
        ],
    )
    def test_reads_version(self, text: str, version: tuple[int, ...] | None) -> None:
        assert apptainer.parse_version(text) == version

    @pytest.mark.parametrize(
        ("answer", "accepted"),
        [("echo 1.0.3", None), ("echo 1.10.0", "1.10.0"), ("echo 1.3.0; exit 1", None), ("true", None)],
        ids=["too old", "ten is more than three", "fails", "says nothing"],
    )
    def test_accepts_only_what_works_and_is_new_enough(
        self, tmp_path: Path, answer: str, accepted: str | None
    ) -> None:
        program = tmp_path / "apptainer"
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
        assert apptainer.version_of(str(program)) == accepted

    def test_a_named_one_that_will_not_do_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("ENVBUILD_APPTAINER", str(tmp_path / "nowhere"))
        with pytest.raises(common.SetupError, match="will not do"):
            apptainer.existing(tmp_path)

    def test_libraries_come_with_the_program_and_programs_do_not(self) -> None:
        depends = (
            "ca-certificates, libc6 (>= 2.38), libfoo2:any | libbar1, squashfs-tools, libsqlite3-0 (>= 3)"
        )
        assert apptainer.library_packages(depends) == ["libc6", "libfoo2", "libsqlite3-0"]

    def test_what_an_interrupted_run_left_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".incoming-old").mkdir()
        with privateapt.workplace(tmp_path) as work:
            (work / "file").touch()
            assert [path.name for path in tmp_path.glob(".incoming-*")] == [work.name]
        assert list(tmp_path.glob(".incoming-*")) == []

    def test_another_package_layout_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(common.SetupError, match="holds 0 of starter"):
            apptainer.sole(tmp_path.glob("starter"), "starter")


class TestEnvironmentModules:
    def package(self, tree: Path) -> Path:
        """A package as it comes out of its .deb, with the parts that matter here."""
        texts = {
            "usr/lib/x-gnu/modulecmd.tcl": "set libdir {/usr/lib/x-gnu}; home /usr/share/modules; /bin/less",
            "usr/share/modules/init/bash": "eval $(tclsh '/usr/lib/x-gnu/modulecmd.tcl' bash autoinit)",
            "etc/environment-modules/initrc": "module use {/usr/share/modules/modulefiles}",
        }
        for name, text in texts.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        (tree / "usr/lib/x-gnu/library.so").write_bytes(b"\x7fELF\xff/usr/share/modules")
        (tree / "usr/lib/modulecmd.tcl").symlink_to("x-gnu/modulecmd.tcl")
        return tree

    def test_every_file_learns_its_new_place(self, tmp_path: Path) -> None:
        tree = self.package(tmp_path / "tree")
        modules.tell_place(tree, modules.moves(tree, Path("/new")))
        assert (tree / "usr/lib/x-gnu/modulecmd.tcl").read_text() == (
            "set libdir {/new/usr/lib/x-gnu}; home /new/usr/share/modules; /bin/less"
        )
        assert "'/new/usr/lib/x-gnu/modulecmd.tcl'" in (tree / "usr/share/modules/init/bash").read_text()
        assert "{/new/usr/share/" in (tree / "etc/environment-modules/initrc").read_text()
        assert b"\xff/usr/share/modules" in (tree / "usr/lib/x-gnu/library.so").read_bytes()
        assert (tree / "usr/lib/modulecmd.tcl").readlink() == Path("x-gnu/modulecmd.tcl")

    def test_another_package_layout_is_refused(self, tmp_path: Path) -> None:
        tree = self.package(tmp_path / "tree")
        (tree / "usr/share/modules/init/bash").unlink()
        with pytest.raises(common.SetupError, match="laid out in a way"):
            modules.moves(tree, Path("/new"))


class TestEnvironment:
    def test_uv_gets_pips_main_index_and_certificates_and_no_other_index(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "SSL_"))]:
            monkeypatch.delenv(name)
        (tmp_path / "pip.conf").write_text(
            "[global]\nindex-url = https://global.example/simple\ncert = /etc/ca.pem\n"
            "extra-index-url = https://more.example/simple\nfind-links = /wheels\n"
            "[install]\nindex-url = https://install.example/simple\n"
        )
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        settings = environment.uv_settings(sys.executable)
        assert settings["UV_DEFAULT_INDEX"] == "https://install.example/simple"
        assert settings["SSL_CERT_FILE"] == "/etc/ca.pem"
        assert not {"UV_INDEX", "UV_FIND_LINKS"} & settings.keys()
        monkeypatch.setenv("SSL_CERT_FILE", "/mine.pem")
        monkeypatch.setenv("PIP_INDEX_URL", "https://environ.example/simple")
        settings = environment.uv_settings(sys.executable)
        assert settings["UV_DEFAULT_INDEX"] == "https://environ.example/simple"
        assert settings["SSL_CERT_FILE"] == "/mine.pem"

    def test_the_lists_have_hashes_name_no_place_and_do_not_overlap(self) -> None:
        run, dev = (environment.entries(path.read_text())[1:] for path in (environment.RUN, environment.DEV))
        assert all("--hash=sha256:" in entry and "://" not in entry for entry in run + dev)
        assert not set(run) & set(dev)
        assert {"uv", "hatchling", "editables"} <= {entry.partition("==")[0] for entry in run}
        assert {"pytest", "pytest-xdist", "ruff", "sphinx"} <= {entry.partition("==")[0] for entry in dev}


class TestBecomingRoot:
    def test_without_sudo_says_what_an_admin_would_run(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(common.SetupError, match="no sudo") as caught:
            common.as_root(["/usr/bin/python3", "setup/system.py"])
        assert "/usr/bin/python3 setup/system.py" in caught.value.hint

    def test_keeps_the_proxy_and_nothing_else(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        log = tmp_path / "argv"
        sudo = tmp_path / "sudo"
        sudo.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\n')
        sudo.chmod(0o755)
        for name in common.KEPT_BY_SUDO:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example")
        common.as_root(["work"])
        assert log.read_text().splitlines()[-1] == "--preserve-env=https_proxy work --quiet"

    def test_a_problem_becomes_exit_code_5(self) -> None:
        code = (
            "import common\n"
            "def work(): raise common.SetupError('no disk', 'buy one')\n"
            "exit(common.main_guard(work))"
        )
        ended = subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=SETUP, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 5
        assert ended.stderr == "error: no disk\n\nhint: buy one\n"
