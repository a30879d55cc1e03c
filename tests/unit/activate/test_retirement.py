"""The default version and retired ones: what is written, and what a second command makes of it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from envbuild.activate.installed import InstalledModule, find_installed, uninstall
from envbuild.activate.layout import Deprecation
from envbuild.activate.retirement import choose_default, end_retirement, retire
from envbuild.cli.main import main
from envbuild.errors import RequestError
from envbuild.workflows.module import named_modules, retire_modules, uninstall_retired
from envbuild.workflows.settings import Settings

DAY = date(2027, 1, 31)
NAME = "pytorch-mpi"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sw"


@pytest.fixture
def three(put: Any, manifest: Any, root: Path) -> list[InstalledModule]:
    for version in ("2026.9", "2026.10", "2026.11"):
        put(runnable=manifest(version=version))
    return list(find_installed(root))


def offered(root: Path) -> dict[str, tuple[bool, date | None]]:
    return {module.layout.version: (module.default, module.retired_until) for module in find_installed(root)}


def test_the_default_moves_forth_and_back(three: list[InstalledModule], root: Path) -> None:
    assert choose_default(three[2])
    assert choose_default(three[0])
    assert not choose_default(three[0])
    assert [version for version, (default, _) in offered(root).items() if default] == ["2026.9"]


def test_a_retired_module_states_its_day_and_is_hidden(three: list[InstalledModule], root: Path) -> None:
    choose_default(three[2])
    before = three[0].layout.modulefile.read_text()
    retire(three[0], DAY)
    assert offered(root)["2026.9"] == (False, DAY)
    assert offered(root)["2026.10"] == (False, None)
    text = three[0].layout.modulefile.read_text()
    assert text.startswith(before)
    assert f'"{NAME}/2026.9 is retired, and will be uninstalled on 2027-01-31: load {NAME}' in text
    marker = three[0].layout.default_marker.read_text()
    assert f'"{NAME}/2026.9"' in marker
    assert 'set ModulesVersion "2026.11"' in marker
    # Another day replaces the first.
    retire(find_installed(root)[0], date(2027, 2, 28))
    assert three[0].layout.modulefile.read_text().count("is retired") == 1
    end_retirement(find_installed(root)[0])
    assert three[0].layout.modulefile.read_text() == before
    assert "hide" not in three[0].layout.default_marker.read_text()


def test_without_default_and_retirement_there_is_no_marker(three: list[InstalledModule], root: Path) -> None:
    retire(three[0], DAY)
    assert three[0].layout.default_marker.exists()
    end_retirement(find_installed(root)[0])
    assert not three[0].layout.default_marker.exists()


def test_an_installation_ends_a_retirement(three: Any, root: Path, put: Any, manifest: Any) -> None:
    retire(three[0], DAY)
    assert put(runnable=manifest(version="2026.9")).changed
    assert offered(root)["2026.9"] == (False, None)
    assert not three[0].layout.default_marker.exists()


def test_the_default_is_not_retired_and_a_retired_one_is_no_default(
    three: list[InstalledModule], root: Path
) -> None:
    choose_default(three[2])
    with pytest.raises(RequestError, match="is the default version"):
        retire(find_installed(root)[2], DAY)
    assert all(until is None for _, until in offered(root).values())
    retire(three[0], DAY)
    with pytest.raises(RequestError, match=r"2026\.9 is retired"):
        choose_default(find_installed(root)[0])


def test_a_choice_of_somebody_else_stays(three: list[InstalledModule]) -> None:
    theirs = three[0].layout.modulefile.with_name(".modulerc")
    theirs.write_text("#%Module1.0\n")
    with pytest.raises(RequestError, match="chosen by a file that envbuild did not make"):
        retire(three[0], DAY)
    with pytest.raises(RequestError, match="chosen by a file that envbuild did not make"):
        choose_default(three[0])


def test_a_broken_module_is_neither(three: list[InstalledModule], root: Path) -> None:
    (three[0].layout.home / "image.sif").unlink()
    for change in (choose_default, lambda module: retire(module, DAY)):
        with pytest.raises(RequestError, match="cannot be loaded"):
            change(find_installed(root)[0])


def test_a_retired_one_does_not_become_the_default(three: list[InstalledModule], root: Path) -> None:
    choose_default(three[0])
    retire(three[2], DAY)
    assert uninstall(three[0].layout).default == "2026.10"
    # Alone, it does: otherwise `module load NAME` would find none.
    assert uninstall(three[1].layout).default == "2026.11"


def test_those_whose_day_has_come_are_removed(
    three: list[InstalledModule], root: Path, tmp_path: Path
) -> None:
    settings = Settings.of(store=tmp_path / "store")
    retire(three[0], DAY)
    retire(three[1], date(2027, 2, 1))
    assert uninstall_retired(root, settings, today=date(2027, 1, 30)).items == ()
    assert uninstall_retired(root, settings, today=DAY).only.module == f"{NAME}/2026.9"
    assert list(offered(root)) == ["2026.10", "2026.11"]


def test_one_that_cannot_be_removed_leaves_the_others_due(
    three: list[InstalledModule], root: Path, tmp_path: Path
) -> None:
    retire(three[0], DAY)
    retire(three[1], DAY)
    notes = three[0].layout.home / "notes"
    notes.write_text("of somebody else\n")
    removed = uninstall_retired(root, Settings.of(store=tmp_path / "store"), today=DAY)
    assert [(member.name, bool(member.error)) for member in removed.items] == [
        (f"{NAME}/2026.9", True),
        (f"{NAME}/2026.10", False),
    ]
    assert notes.exists()
    assert [module.layout.version for module in find_installed(root)] == ["2026.9", "2026.11"]


def test_several_are_uninstalled_and_one_that_is_not_there_leaves_the_others_done(
    three: Any, root: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    words = ("module", "uninstall", f"{NAME}/2026.9", "gone/1", f"{NAME}/2026.10", "--root", root)
    code, table, said = run(capsys, *words)
    assert code == 2
    assert [line.split()[:2] for line in table.splitlines()] == [
        ["uninstalled", f"{NAME}/2026.9"],
        ["failed", "gone/1"],
        ["uninstalled", f"{NAME}/2026.10"],
    ]
    assert "no module `gone/1` is installed" in said
    assert list(offered(root)) == ["2026.11"]
    code, printed, _ = run(capsys, *words, "--json")
    members = json.loads(printed)["members"]
    assert [member["exit_code"] for member in members] == [2, 2, 2]


def test_the_configuration_says_after_how_many_days(
    three: list[InstalledModule], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = Settings.of(store=tmp_path / "store")
    modules, today = named_modules([f"{NAME}/2026.9"], root=root), date(2026, 12, 1)
    with pytest.raises(RequestError, match="the configuration has no `retirement_days`"):
        retire_modules(modules, settings, today=today)
    config = tmp_path / "config/envbuild/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("retirement_days: 61\n")
    assert retire_modules(modules, settings, today=today).only == DAY
    with pytest.raises(RequestError, match="is past"):
        retire_modules(modules, settings, today=today, until=date(2026, 11, 30))


def test_a_deprecated_module_names_another_one_and_stays_offered(put: Any, manifest: Any, root: Path) -> None:
    day = Deprecation.of(DAY, "pytorch-mpi/2026.11")
    put(runnable=manifest(version="2026.10"), deprecation=day)
    (module,) = find_installed(root)
    assert (module.deprecation, module.retired_until) == (day, None)
    text = module.layout.modulefile.read_text()
    assert "# Deprecated: 2027-01-31, use pytorch-mpi/2026.11\n" in text
    # A retirement adds its note, names the same replacement, and leaves the first note when it ends.
    retire(module, date(2027, 6, 30))
    (module,) = find_installed(root)
    assert (module.deprecation, module.retired_until) == (day, date(2027, 6, 30))
    assert "uninstalled on 2027-06-30: load pytorch-mpi/2026.11" in module.layout.modulefile.read_text()
    end_retirement(module)
    assert module.layout.modulefile.read_text() == text
    # As all that `module install` writes, it goes with the next installation.
    put(runnable=manifest(version="2026.10"))
    assert find_installed(root)[0].deprecation is None


@pytest.mark.parametrize("use", ["", "a b", '"; exec touch x; #', "../x", "a//b", "a/", "-a", "x" * 300, "é"])
def test_a_replacement_has_the_name_of_a_module(use: str) -> None:
    with pytest.raises(RequestError, match="names no module"):
        Deprecation.of(DAY, use)


def test_a_module_does_not_replace_itself(put: Any, manifest: Any, root: Path) -> None:
    day = Deprecation.of(DAY, "pytorch-mpi/2026.10")
    with pytest.raises(RequestError, match=r"`pytorch-mpi/2026\.10` cannot be loaded in its own place"):
        put(runnable=manifest(version="2026.10"), deprecation=day)
    assert not root.exists()


@pytest.mark.parametrize("words", [["--deprecate", "2027-01-31"], ["--use", "x/1"]])
def test_a_deprecation_names_day_and_replacement(
    words: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = run(capsys, "module", "install", "x.sif", "--root", root, *words)
    assert code == 2
    assert "--deprecate and --use need each other" in said


@pytest.mark.parametrize(
    "text", ["tomorrow", "2027-02-30", "20270131", "2027-01-31T00:00:00", "31.1.2027", ""]
)
@pytest.mark.parametrize(
    "words", [("install", "x.sif", "--use", "x/2", "--deprecate"), ("retire", "x/1", "--on")]
)
def test_a_day_is_one_of_the_calendar(
    words: tuple[str, ...], text: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = run(capsys, "module", *words, text, "--root", root)
    assert code == 2
    assert f"`{text}` is not a day" in said
    assert "2027-01-31" in said


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, printed.out, printed.err


def test_the_commands(
    three: Any, root: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    at = ("--root", root)
    _, _, said = run(capsys, "module", "default", f"{NAME}/2026.10", *at)
    assert "the default is now 2026.10; none was chosen before" in said
    assert run(capsys, "module", "retire", f"{NAME}/2026.9", *at, "--on", "2999-01-01")[0] == 0
    _, listed, _ = run(capsys, "module", "ls", *at)
    assert f"{NAME}/2026.9 (retired until 2999-01-01)" in listed
    assert "no retired module is due" in run(capsys, "module", "uninstall", "--retired", *at)[2]
    assert run(capsys, "module", "uninstall", *at)[0] == 2
    assert run(capsys, "module", "uninstall", "--retired", NAME, *at)[0] == 2
    assert "offered again" in run(capsys, "module", "retire", "--undo", f"{NAME}/2026.9", *at)[2]


def test_one_that_is_not_there_leaves_the_others_done(
    three: Any, root: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    at = ("--root", root)
    words = (f"{NAME}/2026.9", "gone", f"{NAME}/2026.10")
    code, table, said = run(capsys, "module", "retire", *words, *at, "--on", "2999-01-01")
    assert code == 2
    assert [line.split()[:2] for line in table.splitlines()] == [
        ["retired", words[0]],
        ["failed", "gone"],
        ["retired", words[2]],
    ]
    assert "no module `gone` is installed" in said
    assert [until for _, until in offered(root).values()] == [date(2999, 1, 1)] * 2 + [None]
    code, printed, _ = run(capsys, "module", "retire", "--undo", *words, *at, "--json")
    assert code == 2
    assert [member["exit_code"] for member in json.loads(printed)["members"]] == [0, 2, 0]
    assert not any(until for _, until in offered(root).values())


def test_many_defaults_are_chosen_at_once(
    three: Any,
    put: Any,
    manifest: Any,
    root: Path,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    put(runnable=manifest(name="jax", version="1"))
    at = ("--root", root)
    code, table, _ = run(capsys, "module", "default", "jax", "gone", f"{NAME}/2026.9", *at)
    assert code == 2
    assert [line.split()[:2] for line in table.splitlines()] == [
        ["default", "jax/1"],
        ["failed", "gone"],
        ["default", f"{NAME}/2026.9"],
    ]
    code, _, said = run(capsys, "module", "default", f"{NAME}/2026.10", f"{NAME}/2026.11", *at)
    assert (code, "cannot both be the default" in said) == (2, True)
    assert [version for version, (default, _) in offered(root).items() if default] == ["1", "2026.9"]
    # The highest that is not retired.
    run(capsys, "module", "retire", f"{NAME}/2026.11", *at, "--on", "2999-01-01")
    code, printed, _ = run(capsys, "module", "default", "--all", tmp_path, "--json")
    assert code == 0
    assert {member["name"]: member["result"]["default"] for member in json.loads(printed)["members"]} == {
        "jax/1": "1",
        f"{NAME}/2026.10": "2026.10",
    }
    assert run(capsys, "module", "default", f"{NAME}/2026.9", "--all", tmp_path)[0] == 2
    assert run(capsys, "module", "default", *at)[0] == 2
