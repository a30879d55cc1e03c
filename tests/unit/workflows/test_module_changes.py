"""What changed between versions of modules, for their users."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from envbuild.activate.installed import find_installed
from envbuild.activate.retirement import choose_default, retire
from envbuild.cli.main import main
from tests.support.module_roots import put_module
from tests.support.small_images import UNREAD, small_image
from tests.unit.workflows.test_packages import bill

VERSIONS = {
    "2026.9": ("deb:libssl3@3.0.14-1", "pypi:six@1.16.0", "pypi:old@1"),
    "2026.10": ("deb:libssl3@3.0.15-1", "pypi:six@1.16.0", "pypi:new@2|x"),
    "2026.11": ("deb:libssl3@3.0.16-1", "pypi:six@1.16.0", "pypi:new@2|x"),
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    for version, packages in VERSIONS.items():
        image = small_image(tmp_path, UNREAD, name=f"{version}.sif", bill=bill(*packages))
        put_module(image, tmp_path / "apps", f"env/{version}")
    put_module(image, tmp_path / "apps", "alone/1")
    return tmp_path / "apps"


def changes(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["module", "changes", "--root", str(root), *words])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_page_says_what_changed_for_whom(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modules = [module for module in find_installed(root) if module.layout.name == "env"]
    choose_default(modules[1])
    retire(modules[0], date(2027, 1, 31))
    code, page, _ = changes(capsys, root)
    assert code == 0
    assert page.splitlines() == [
        "# Changes of modules",
        "",
        "## env: 2026.9 → 2026.10",
        "",
        "- `module load env` loads env/2026.10; running jobs keep what they loaded.",
        "- env/2026.9 is retired, and will be uninstalled on 2027-01-31.",
        "- env/2026.11 is a higher version, and not the default.",
        "- Test: UNTESTED",
        "",
        "| package | of | before | now |",
        "|---|---|---|---|",
        "| libssl3 | Debian | 3.0.14-1 | 3.0.15-1 |",
        "| new | Python | not there | 2\\|x |",
        "| old | Python | 1 | removed |",
    ]


def test_a_default_that_was_moved_back_is_a_change(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choose_default(next(module for module in find_installed(root) if module.layout.label == "env/2026.9"))
    code, page, _ = changes(capsys, root)
    assert code == 0
    assert "## env: 2026.10 → 2026.9" in page
    assert "`module load env` loads env/2026.9;" in page
    assert "still loads the version before" not in page
    assert "- env/2026.10 is a higher version, and not the default." in page
    assert "| libssl3 | Debian | 3.0.15-1 | 3.0.14-1 |" in page


def test_without_a_default_the_highest_is_the_later_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (change,) = json.loads(changes(capsys, root, "--json")[1])
    assert (change["before"], change["now"], change["is_default"]) == ("2026.10", "2026.11", False)
    assert [package["name"] for package in change["packages"]] == ["libssl3"]
    (change,) = json.loads(changes(capsys, root, "env", "--from", "2026.9", "--json")[1])
    assert [package["name"] for package in change["packages"]] == ["libssl3", "new", "old"]
    (change,) = json.loads(changes(capsys, root, "env/2026.10", "--json")[1])
    assert (change["before"], change["now"]) == ("2026.9", "2026.10")


def test_what_cannot_be_compared_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = changes(capsys, root, "env/2026.9", "alone", "env/9", "gone")
    assert code == 2
    assert "no version of env is below 2026.9" in said
    assert "no version of alone is below 1" in said
    assert "no module `env/9` is installed" in said
    assert "no module `gone` is installed" in said
    assert changes(capsys, root, "env", "alone", "--from", "1")[0] == 2
    assert changes(capsys, root, "env", "--from", "7")[0] == 2
