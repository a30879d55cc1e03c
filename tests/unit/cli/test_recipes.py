"""`envbuild recipes`: what is listed and shown, what is data, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.system import files

PLAIN = """\
name: plain
kind: framework
summary: Nothing to install
versions: ["1.0"]
variants: {cpu: {requirements: []}}
owns: []
requires: ["rich@>=2"]
"""
RICH = """\
name: rich
kind: framework
summary: Has a bit of everything
homepage: https://example.org
frozen: its project is asleep
versions: ["2.1.0", "2.0.3", "2.10.0"]
variants:
  cpu: {requirements: ["rich=={version}+cpu"], origins: [rich-cpu], backends: [gloo, mpi],
    versions: ["2.1.0"]}
  cuda: {requirements: ["rich=={version}"], untried: no GPU was there}
owns: [rich]
companions: [rich-vision]
python: ["numpy>=2"]
system: [libgomp1]
needs_mpi: true
base: {python: ">=3.10", glibc: "2.28"}
source: {distribution: rich, python: [setuptools], against: [mpi]}
imports: [rich]
commands: [rich-run]
environment: {RICH_THREADS: "1", RICH_PATH: {prepend: /opt/rich}}
environment_with: {poor: {RICH_FRIEND: poor}}
lacks: [libgold.so.1]
links: {/opt/env/bin/poor: rich-run}
debian_python: true
"""


# File under verify/ → its header.
JOBS = {
    "rich.py": "{id: rich.sum, title: All ranks are rich, expect: {sum: n}, variants: [cuda]}",
    "train.py": "{id: rich.train, title: They stay so, launcher: torchrun, oracle: training,"
    " compare_with_reported: {fit: {newton: 1.0e-6}}, says: {gold: [ore, bar]},"
    " measures: {coins_per_s: {unit: coins/s}}}",
}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory of the only recipes that there are."""
    monkeypatch.delenv("ENVBUILD_RECIPES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(files, "_own_data", lambda: tmp_path / "own")
    add(tmp_path / "own/recipes", "rich", RICH, JOBS)
    add(tmp_path / "own/recipes", "plain", PLAIN)
    return tmp_path / "own/recipes"


def add(recipes: Path, name: str, text: str, jobs: Mapping[str, str] = {}) -> None:
    directory = recipes / name / "verify"
    directory.mkdir(parents=True)
    for file, header in jobs.items():
        (directory / file).write_text(f"# /// job\n# {header}\n# ///\nprint()\n")
    (recipes / name / "recipe.yaml").write_text(text)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["recipes", *words])
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


def test_all_are_listed_by_name(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [
        "plain  framework  1.0    Nothing to install\n",
        "rich   framework  2.1.0  Has a bit of everything (frozen)\n",
    ]
    assert run(capsys, "ls") == (0, "".join(listed), "")


def test_the_list_as_json(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ls", "--json")
    assert (code, err) == (0, "")
    plain, rich = json.loads(out)
    assert plain["name"] == "plain"
    assert rich == {
        "name": "rich",
        "kind": "framework",
        "version": "2.1.0",
        "summary": "Has a bit of everything",
        "frozen": True,
    }


def test_no_recipes_at_all(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "_own_data", lambda: tmp_path / "nothing")
    assert run(capsys, "ls") == (0, "", "")
    assert run(capsys, "ls", "--json") == (0, "[]\n", "")
    assert run(capsys, "show", "rich") == (
        2,
        "",
        "error: unknown recipe `rich`\n\nhint: none is known here\n",
    )


def test_a_broken_one_hides_no_other(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(ours, "broken", "name: [\n")
    add(ours, "other", PLAIN)
    code, out, err = run(capsys, "ls")
    assert code == 2
    assert [line.split()[0] for line in out.splitlines()] == ["plain", "rich"]
    assert f"--> {ours}/broken/recipe.yaml:" in err
    assert "error: the recipe's name is `plain`, but its directory is `other`\n" in err
    assert "Traceback" not in err


def test_one_is_shown(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "rich")
    assert (code, err) == (0, "")
    assert (
        out
        == f"""\
recipe:      rich
kind:        framework
summary:     Has a bit of everything
homepage:    https://example.org
frozen:      its project is asleep
file:        {ours}/rich/recipe.yaml
versions:    2.10.0, 2.1.0 [preferred], 2.0.3
variant:     cpu: rich=={{version}}+cpu (from rich-cpu, pypi), over gloo, mpi (2.1.0 only)
variant:     cuda: rich=={{version}}; untried: no GPU was there
owns:        rich
companions:  rich-vision
needs:       an MPI in the spec
base:        Python >=3.10, glibc >=2.28
built:       rich from its source, against mpi
system:      libgomp1, seen by Python
python:      numpy>=2
job:         rich.train: They stay so, started by torchrun
               exact: steps = 25
               equal on all ranks: parameter_hash
               as on one rank: losses (<= 1e-05), parameters (<= 1e-05)
               on each rank: fit as newton (<= 1e-06)
               each rank says: gold
               measured: coins_per_s (coins/s)
job:         rich.sum: All ranks are rich (cuda)
               exact: sum = n
commands:    rich-run
link:        /opt/env/bin/poor -> rich-run
lacks:       libgold.so.1
environment: RICH_THREADS = 1
environment: RICH_PATH += /opt/rich
environment: RICH_FRIEND = poor, with poor
"""
    )


def test_what_is_not_there_has_no_line(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "plain")
    assert code == 0
    assert (
        out
        == f"""\
recipe:      plain
kind:        framework
summary:     Nothing to install
file:        {ours}/plain/recipe.yaml
versions:    1.0
variant:     cpu: nothing to install
requires:    rich@>=2
"""
    )


def test_one_as_json(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "rich", "--json")
    assert (code, err) == (0, "")
    job: dict[str, object] = {
        "recipe": "rich",
        "expect": {},
        "same_on_all_ranks": [],
        "compare_with_single": {},
        "compare_with_reported": {},
        "hint": "",
        "timeout_s": None,
        "launcher": "mpiexec",
        "variants": [],
        "environment": {},
        "says": {},
        "own_mpi": False,
        "at_least": {},
        "measures": {},
        "gpus_per_rank": 0,
    }
    assert json.loads(out) == {
        "name": "rich",
        "kind": "framework",
        "summary": "Has a bit of everything",
        "homepage": "https://example.org",
        "path": f"{ours}/rich/recipe.yaml",
        "versions": ["2.1.0", "2.0.3", "2.10.0"],
        "variants": {
            "cpu": {
                "requirements": ["rich=={version}+cpu"],
                "origins": ["rich-cpu"],
                "backends": ["gloo", "mpi"],
                "versions": ["2.1.0"],
                "untried": "",
            },
            "cuda": {
                "requirements": ["rich=={version}"],
                "origins": [],
                "backends": [],
                "versions": [],
                "untried": "no GPU was there",
            },
        },
        "owns": ["rich"],
        "companions": ["rich-vision"],
        "family": None,
        "base": {"python": ">=3.10", "suites": [], "glibc": "2.28"},
        "debian_python": True,
        "links": {"/opt/env/bin/poor": "rich-run"},
        "lacks": ["libgold.so.1"],
        "supplied": None,
        "frozen": "its project is asleep",
        "source": {
            "distribution": "rich",
            "python": ["setuptools"],
            "system": [],
            "against": ["mpi"],
            "environment": {},
            "patches": [],
        },
        "requires": [],
        "requires_one_of": [],
        "needs_mpi": True,
        "system": ["libgomp1"],
        "python": ["numpy>=2"],
        "imports": ["rich"],
        "jobs": [
            {
                **job,
                "id": "rich.train",
                "file": "train.py",
                "title": "They stay so",
                "hint": "gradients were not synchronised, or a rank used the wrong data shard",
                "launcher": "torchrun",
                "expect": {"steps": "25"},
                "same_on_all_ranks": ["parameter_hash"],
                "compare_with_single": {"losses": 1e-5, "parameters": 1e-5},
                "compare_with_reported": {"fit": {"newton": 1e-6}},
                "says": {"gold": ["ore", "bar"]},
                "measures": {"coins_per_s": {"unit": "coins/s", "higher_is_better": True}},
            },
            {
                **job,
                "id": "rich.sum",
                "file": "rich.py",
                "title": "All ranks are rich",
                "expect": {"sum": "n"},
                "variants": ["cuda"],
            },
        ],
        "commands": ["rich-run"],
        "environment": {"RICH_THREADS": "1", "RICH_PATH": {"prepend": "/opt/rich"}},
        "environment_with": {"poor": {"RICH_FRIEND": "poor"}},
    }
    assert json.loads(run(capsys, "show", "plain", "--json")[1])["requires"] == ["rich@>=2"]


def test_a_users_own_comes_first(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path / "mine", "plain", PLAIN.replace("Nothing to install", "Mine"))
    options = ("--recipes", str(tmp_path / "mine"))
    assert "plain  framework  1.0    Mine\n" in run(capsys, "ls", *options)[1]
    assert f"file:        {tmp_path}/mine/plain/recipe.yaml\n" in run(capsys, "show", "plain", *options)[1]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rick", "did you mean `rich`? `envbuild recipes ls` lists all"),
        ("", "`envbuild recipes ls` lists all"),
        ("../recipes/rich", "`envbuild recipes ls` lists all"),
    ],
)
def test_a_name_that_nothing_has(
    name: str, hint: str, ours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "show", name) == (2, "", f"error: unknown recipe `{name}`\n\nhint: {hint}\n")


def test_a_recipe_in_the_directory_that_was_not_named(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add(tmp_path / "recipes", "mine", PLAIN.replace("name: plain", "name: mine"))
    code, _, said = run(capsys, "check", "mine")
    hint = "`--recipes recipes` reads `recipes/mine`"
    assert (code, said) == (2, f"error: unknown recipe `mine`\n\nhint: {hint}\n")
    assert run(capsys, "show", "mine", "--recipes", "recipes")[0] == 0


def test_one_that_is_wrong(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = {"rich.py": JOBS["rich.py"].replace("cuda", "cudda")}
    add(ours, "wrong", RICH.replace("name: rich", "name: wrong"), jobs)
    code, out, err = run(capsys, "show", "wrong")
    assert (code, out) == (2, "")
    assert err.startswith("error: the recipe has no variant `cudda`\n")


def test_a_recipe_that_cannot_be_read_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd" / "recipe.yaml").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        main(["recipes", "show", "odd", "--recipes", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("is a directory, not a file") == 1
