"""One lock for several architectures: each machine renews the target of its own, and keeps the others."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError, RequestError
from envbuild.inputs.once import ReadOnce
from envbuild.lock.model import Lock
from envbuild.lock.text import load_file
from envbuild.system import host
from envbuild.workflows.edit import add_packages
from envbuild.workflows.fetch import fetch_spec
from envbuild.workflows.lock import check_lock, lock_spec, read_locked, write_pylock
from envbuild.workflows.settings import Settings
from tests.support.mirrors import digest, write_wheel
from tests.support.torture.ground import DEFINITION

AMD64, ARM64 = "py3-none-manylinux_2_28_x86_64", "py3-none-manylinux_2_28_aarch64"


class Desk:
    """A spec on a finished root, whose packages come from a directory of wheels."""

    def __init__(self, directory: Path, settings: Settings, on: Callable[[str], None]) -> None:
        self.spec = directory / "spec.yaml"
        self.path = directory / "spec.lock.yaml"
        self.wheels = directory / "wheels"
        self.settings = settings
        self.on = on
        self.ask("alpha", "fast")
        write_wheel(self.wheels, "alpha", "1.0")
        write_wheel(self.wheels, "fast", "1.0", tag=AMD64)
        write_wheel(self.wheels, "fast", "1.0", tag=ARM64)

    def ask(self, *names: str) -> None:
        """Write the spec."""
        text = f'name: s\nversion: "1"\nbase: tiny\npackages: {{python: {json.dumps(names)}}}\n'
        self.spec.write_text(text)

    def publish_newer(self) -> None:
        """Write newer releases."""
        for tag in (AMD64, ARM64):
            write_wheel(self.wheels, "fast", "2.0", tag=tag)
        write_wheel(self.wheels, "alpha", "2.0")

    def lock_of(self, architecture: str) -> Lock:
        """Return the lock of an architecture, as it is in the file."""
        lock = load_file(self.path.read_bytes(), self.path).lock(architecture)
        assert lock is not None
        return lock

    def lines_of(self, architecture: str) -> str:
        """Return the lines of a target."""
        found = re.search(rf"^  {architecture}:\n((?:    .*\n)+)", self.path.read_text(), re.MULTILINE)
        assert found is not None
        return found[1]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w"):
        pass  # nothing is built
    bases = tmp_path / "config/envbuild/base-images"
    bases.mkdir(parents=True)
    text = DEFINITION.format(place=root, sha256=digest(root), architecture="amd64, arm64")
    (bases / "tiny.yaml").write_text(text)
    site = f"name: here\norigins: {{pypi: ['file://{tmp_path}/wheels']}}\n"
    (bases.parent / "site.yaml").write_text(site)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))

    def on(architecture: str) -> None:
        monkeypatch.setattr(host, "architecture", lambda: architecture)

    on("amd64")
    return Desk(tmp_path, Settings.of(store=tmp_path / "store"), on)


def versions(lock: Lock) -> dict[str, str]:
    return {pin.name: pin.version for pin in lock.python}


def test_a_target_is_added_with_the_versions_of_the_first(desk: Desk) -> None:
    lock_spec(desk.spec, desk.settings)
    before = desk.lines_of("amd64")
    desk.publish_newer()
    desk.on("arm64")
    locked = lock_spec(desk.spec, desk.settings)
    assert locked.changes == ("there was no target for arm64, only for amd64",)
    assert locked.stale_targets == ()
    assert desk.lines_of("amd64") == before
    assert desk.lock_of("arm64") == locked.lock
    assert {pin.file: pin.version for pin in locked.lock.python} == {
        "alpha-1.0-py3-none-any.whl": "1.0",
        f"fast-1.0-{ARM64}.whl": "1.0",
    }
    content = desk.path.read_bytes()
    for architecture in ("amd64", "arm64"):
        desk.on(architecture)
        again = lock_spec(desk.spec, desk.settings)
        assert (again.lock, again.changes) == (desk.lock_of(architecture), ())
        assert read_locked(desk.spec, desk.settings).lock == again.lock
    assert desk.path.read_bytes() == content


def test_the_order_in_which_machines_lock_leaves_no_trace(desk: Desk) -> None:
    texts = []
    for order in (("amd64", "arm64"), ("arm64", "amd64")):
        desk.path.unlink(missing_ok=True)
        for architecture in order:
            desk.on(architecture)
            lock_spec(desk.spec, desk.settings)
        texts.append(desk.path.read_bytes())
    assert texts[0] == texts[1]


def test_a_new_target_names_how_it_differs(desk: Desk) -> None:
    write_wheel(desk.wheels, "tuned", "1.0")
    write_wheel(desk.wheels, "neon", "1.0")
    desk.ask("alpha", "fast", "tuned; platform_machine == 'x86_64'", "neon; platform_machine == 'aarch64'")
    (desk.wheels / f"fast-1.0-{ARM64}.whl").unlink()
    lock_spec(desk.spec, desk.settings)
    desk.publish_newer()
    desk.on("arm64")
    locked = lock_spec(desk.spec, desk.settings)
    assert locked.changes == (
        "there was no target for arm64, only for amd64",
        "fast is 2.0, the target for amd64 has 1.0",
        "neon 1.0 is not in the target for amd64",
        "tuned 1.0 is only in the target for amd64",
    )
    assert lock_spec(desk.spec, desk.settings).changes == ()


def test_a_package_without_a_file_for_the_architecture_is_named_and_nothing_is_written(desk: Desk) -> None:
    (desk.wheels / f"fast-1.0-{ARM64}.whl").unlink()
    lock_spec(desk.spec, desk.settings)
    content = desk.path.read_bytes()
    desk.on("arm64")
    with pytest.raises(EnvbuildError, match="fast") as caught:
        lock_spec(desk.spec, desk.settings)
    assert "alpha" not in caught.value.problem
    assert desk.path.read_bytes() == content


def test_a_fixed_lock_without_the_target_is_rejected(desk: Desk) -> None:
    lock_spec(desk.spec, desk.settings)
    desk.on("arm64")
    with pytest.raises(RequestError, match="has no target for arm64, only for amd64") as caught:
        read_locked(desk.spec, desk.settings)
    assert caught.value.hint == f"`envbuild lock {desk.spec}` adds it, and keeps what is there"
    assert check_lock(desk.spec, desk.settings).changes == ("there was no target for arm64, only for amd64",)


def name_in_spec(desk: Desk, line: str) -> None:
    desk.spec.write_text(f"{desk.spec.read_text()}{line}\n")


def test_a_spec_is_locked_for_all_architectures_that_it_names(desk: Desk) -> None:
    name_in_spec(desk, "architectures: [amd64, arm64]")
    locked = lock_spec(desk.spec, desk.settings)
    assert locked.lock == desk.lock_of("amd64")
    assert locked.changes == ("there was no lock",)
    assert versions(desk.lock_of("arm64")) == {"alpha": "1.0", "fast": "1.0"}
    content = desk.path.read_bytes()
    desk.publish_newer()
    other = replace(desk.settings, architecture="arm64")
    assert lock_spec(desk.spec, other).lock == read_locked(desk.spec, other).lock == desk.lock_of("arm64")
    assert desk.path.read_bytes() == content
    upgraded = lock_spec(desk.spec, desk.settings, upgrade=["fast"])
    assert upgraded.changes[0] == "updated fast 1.0 → 2.0"
    assert versions(desk.lock_of("arm64")) == {"alpha": "1.0", "fast": "2.0"}
    # On a third machine the first one is built.
    desk.on("riscv64")
    assert lock_spec(desk.spec, desk.settings).lock == upgraded.lock


def test_a_first_lock_for_several_architectures_names_how_they_differ_alone(desk: Desk) -> None:
    write_wheel(desk.wheels, "tuned", "1.0")
    desk.ask("alpha", "tuned; platform_machine == 'x86_64'")
    name_in_spec(desk, "architectures: [amd64, arm64]")
    assert lock_spec(desk.spec, desk.settings).changes == (
        "there was no lock",
        "arm64: tuned 1.0 is only in the target for amd64",
    )


def test_an_image_is_for_the_architecture_of_its_spec_else_of_its_site(desk: Desk, tmp_path: Path) -> None:
    site = tmp_path / "far.yaml"
    site.write_text("name: far\narchitecture: arm64\n")
    there = replace(desk.settings, site=site)
    assert lock_spec(desk.spec, there).lock.architecture == "arm64"
    with pytest.raises(EnvbuildError, match=r"ARCH\.same: the image is for amd64, and the host is arm64"):
        lock_spec(desk.spec, replace(there, architecture="amd64"))
    name_in_spec(desk, "architecture: arm64")
    assert lock_spec(desk.spec, desk.settings).lock.architecture == "arm64"
    with pytest.raises(RequestError, match="the spec is for arm64, and amd64 is asked for") as caught:
        lock_spec(desk.spec, replace(desk.settings, architecture="amd64"))
    assert caught.value.at is not None
    assert caught.value.at.line == 5
    assert "`architectures: [amd64, arm64]`" in str(caught.value.hint)


def test_at_a_site_of_one_of_them_the_image_is_for_that_and_the_other_is_locked_as_well(
    desk: Desk, tmp_path: Path
) -> None:
    """Its wheels are compiled by the base for this machine, which the site has no node for."""
    site = tmp_path / "far.yaml"
    site.write_text("name: far\narchitecture: arm64\n")
    name_in_spec(desk, "architectures: [amd64, arm64]")
    there = replace(desk.settings, site=site)
    assert lock_spec(desk.spec, there).lock == desk.lock_of("arm64")
    here = replace(there, architecture="amd64")
    assert read_locked(desk.spec, here, judges=False).lock == desk.lock_of("amd64")
    with pytest.raises(EnvbuildError, match=r"ARCH\.same"):
        read_locked(desk.spec, here)


def test_a_lock_without_one_of_them_does_not_satisfy_the_spec(desk: Desk) -> None:
    lock_spec(desk.spec, desk.settings)
    name_in_spec(desk, "architectures: [amd64, arm64]")
    assert check_lock(desk.spec, desk.settings).changes == ("there is no target for arm64",)
    lock_spec(desk.spec, desk.settings)
    assert check_lock(desk.spec, desk.settings).changes == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("architecture: aarch64", "arm64"),
        ("architectures: [arm64, arm64]", "names one twice"),
        ("architecture: arm64\narchitectures: [amd64]", "leave one of the two out"),
    ],
)
def test_an_architecture_that_cannot_be_is_refused(desk: Desk, line: str, problem: str) -> None:
    name_in_spec(desk, line)
    with pytest.raises(EnvbuildError) as caught:
        lock_spec(desk.spec, desk.settings)
    assert problem in f"{caught.value.problem} {caught.value.hint}"
    assert not desk.path.exists()


@pytest.fixture
def both(desk: Desk) -> Desk:
    """Return a desk whose lock has two targets."""
    for architecture in ("arm64", "amd64"):
        desk.on(architecture)
        lock_spec(desk.spec, desk.settings)
    return desk


def test_an_edit_renews_one_target_and_names_the_stale_one(both: Desk) -> None:
    write_wheel(both.wheels, "more", "1.0")
    before = both.lines_of("arm64")
    locked = add_packages(both.spec, ["more"], both.settings).locked
    assert locked is not None
    stale = (
        "the target for arm64 does not satisfy the spec (packages.python gained `more`);"
        f" `envbuild lock {both.spec} --architecture arm64` renews it"
    )
    assert locked.stale_targets == (stale,)
    assert versions(both.lock_of("amd64")) == {"alpha": "1.0", "fast": "1.0", "more": "1.0"}
    assert both.lines_of("arm64") == before
    assert lock_spec(both.spec, both.settings).stale_targets == (stale,), "as long as it is stale"
    write_wheel(both.wheels, "more", "2.0")
    both.on("arm64")
    renewed = lock_spec(both.spec, both.settings)
    assert versions(renewed.lock) == {"alpha": "1.0", "fast": "1.0", "more": "1.0"}
    assert renewed.stale_targets == ()


def test_an_upgrade_names_the_versions_that_differ_then(both: Desk) -> None:
    both.publish_newer()
    before = both.lines_of("arm64")
    locked = lock_spec(both.spec, both.settings, upgrade=["alpha"])
    assert locked.changes == ("updated alpha 1.0 → 2.0", "alpha is 2.0, the target for arm64 has 1.0")
    assert locked.stale_targets == ()
    assert both.lines_of("arm64") == before
    assert lock_spec(both.spec, both.settings, upgrade=["fast"]).changes == (
        "updated fast 1.0 → 2.0",
        "fast is 2.0, the target for arm64 has 1.0",
    ), "known differences are not repeated"


@pytest.mark.parametrize(
    ("words", "code", "outcome"),
    [
        (["--upgrade", "--dry-run"], 0, "3 packages, would be written"),
        (["--outdated"], 4, "outdated"),
        (["--outdated", "--system"], 0, "up to date"),
    ],
)
def test_newer_packages_are_listed_and_nothing_is_written(
    words: list[str], code: int, outcome: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    lock_spec(desk.spec, desk.settings)
    before = desk.path.read_bytes()
    desk.publish_newer()
    with pytest.raises(SystemExit) as ended:
        main(["lock", str(desk.spec), *words])
    printed = capsys.readouterr().err
    assert (ended.value.code, desk.path.read_bytes()) == (code, before)
    assert f"{desk.path}: {outcome}\n" in printed
    assert ("  updated alpha 1.0 → 2.0\n" in printed) is ("--system" not in words)


def test_a_plan_shows_the_cost_of_an_upgrade(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    lock_spec(desk.spec, desk.settings)
    before = desk.path.read_bytes()
    desk.publish_newer()
    changes = []
    for words in ([], ["--upgrade", "alpha"], ["--upgrade"], ["--upgrade", "--system"]):
        main_words = ["plan", str(desk.spec), *words, "--json"]
        with pytest.raises(SystemExit) as ended:
            main(main_words)
        assert ended.value.code == 0
        changes.append(json.loads(capsys.readouterr().out)["lock_changes"])
    both = ["updated alpha 1.0 → 2.0", "updated fast 1.0 → 2.0"]
    assert changes == [[], both[:1], both, []]
    assert desk.path.read_bytes() == before
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(desk.spec), "--system"])
    assert ended.value.code == 2


def test_name_and_version_hold_for_all_targets(both: Desk) -> None:
    both.spec.write_text(both.spec.read_text().replace('version: "1"', 'version: "2"'))
    locked = lock_spec(both.spec, both.settings)
    assert locked.changes == ("version is `2`, the lock has `1`",)
    both.on("arm64")
    assert read_locked(both.spec, both.settings).lock.version == "2"


def test_a_base_that_is_not_for_the_other_architecture_makes_its_target_stale(
    both: Desk, tmp_path: Path
) -> None:
    base = tmp_path / "config/envbuild/base-images/tiny.yaml"
    base.write_text(base.read_text().replace("[amd64, arm64]", "[amd64]"))
    # Another run: one reads a base image once.
    again = replace(both.settings, once=ReadOnce())
    (stale,) = lock_spec(both.spec, again).stale_targets
    assert "(the base image `tiny` is not made for arm64)" in stale


def test_commands_print_stale_targets(both: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        captured = capsys.readouterr()
        assert ended.value.code == 0, captured.err
        return captured.out, captured.err

    write_wheel(both.wheels, "more", "1.0")
    stale = "the target for arm64 does not satisfy the spec (packages.python gained `more`)"
    assert stale in said("add", str(both.spec), "more")[1]
    assert stale in said("lock", str(both.spec))[1]
    assert f"lock: {stale}" in said("plan", str(both.spec))[1]
    (sentence,) = json.loads(said("lock", str(both.spec), "--json")[0])["stale_targets"]
    assert sentence.startswith(stale)
    assert stale in said("lock", str(both.spec), "--check")[1]


def test_files_and_pylock_are_those_of_this_machine(both: Desk, tmp_path: Path) -> None:
    both.on("arm64")
    kept = tmp_path / "kept"
    fetch_spec(both.spec, both.settings, to=kept)
    assert sorted(path.name for path in (kept / "wheels").iterdir()) == [
        "alpha-1.0-py3-none-any.whl",
        f"fast-1.0-{ARM64}.whl",
    ]
    locked = lock_spec(both.spec, both.settings)
    text = write_pylock(locked, kept, both.settings.store.path).read_text()
    assert "platform_machine == 'aarch64'" in text
    assert f"fast-1.0-{ARM64}.whl" in text
    assert AMD64 not in text
