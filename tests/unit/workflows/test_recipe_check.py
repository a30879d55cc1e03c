"""A recipe is held to the rules, and a new one begins by keeping all but those that people must write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.cli.recipes import format_checked
from envbuild.errors import EnvbuildError, MachineError
from envbuild.jobs.judge import Job
from envbuild.jobs.report import CheckResult
from envbuild.jobs.run import JobResult
from envbuild.launch.controls import every_rank_alone, missed_by
from envbuild.spec.load import load
from envbuild.spec.recipe import Control, Recipe, VerifyJob
from envbuild.workflows.recipe_check import CheckedRecipe, check_recipe
from envbuild.workflows.recipe_new import new_recipe
from envbuild.workflows.settings import Settings

MARKER = ", still_the_template=True"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """Return a directory with one new recipe whose README and job somebody has written."""
    new_recipe("thing", "1.2", tmp_path / "recipes")
    replaced(tmp_path / "recipes/thing/verify/sums.py", MARKER, "")
    readme = tmp_path / "recipes/thing/README.md"
    readme.write_text(readme.read_text().replace("…\n", "Written.\n"))
    return tmp_path / "recipes"


def check(recipes: Path, name: str = "thing") -> CheckedRecipe:
    return check_recipe(name, Settings.of(store=recipes.parent, apptainer=None, recipes=[recipes], site=None))


def told(recipes: Path) -> list[str]:
    with pytest.raises(EnvbuildError) as caught:
        check(recipes)
    assert {error.exit_code for error in caught.value.each()} == {2}
    return [f"{error.problem} [{error.at}]".replace(f"{recipes}/", "") for error in caught.value.each()]


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    path.write_text(text.replace(old, new))


def test_a_new_one_keeps_the_rules_once_its_readme_and_job_are_written(recipes: Path) -> None:
    checked = check(recipes)
    assert (checked.controls, checked.ran, checked.passed) == (2, {}, True)
    assert format_checked(checked) == "thing: keeps the rules; 1 job, 2 controls"


def test_what_is_left_to_write_is_told(tmp_path: Path) -> None:
    new_recipe("thing", "1.2", tmp_path)
    assert told(tmp_path) == [
        *(f"this section is still empty [thing/README.md:{line}:1]" for line in (3, 7, 11)),
        "this job is still the template [thing/verify/sums.py:14:68]",
    ]


def _no_readme(recipe: Path) -> None:
    (recipe / "README.md").unlink()


def _no_controls(recipe: Path) -> None:
    (recipe / "controls.yaml").unlink()


def _no_tutorial(recipe: Path) -> None:
    (recipe / "tutorial.py").unlink()


def _stray_file(recipe: Path) -> None:
    (recipe / "verify/stray.py").write_text("print()\n")


def _no_python(recipe: Path) -> None:
    (recipe / "verify/stray.py").write_text("print(\n")


def _in(file: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda recipe: replaced(recipe / file, old, new)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_no_readme, ["there is no README.md beside the recipe [thing]"]),
        (
            _no_python,
            ["not valid Python: '(' was never closed (<unknown>, line 1) [thing/verify/stray.py]"],
        ),
        (
            _in("README.md", "# thing\n", "thing\n"),
            ["README.md does not start with a heading [thing/README.md]"],
        ),
        (
            _in("recipe.yaml", 'owns: ["thing"]', "owns: []"),
            ["`thing` is installed, and no recipe owns it [thing/recipe.yaml:9:20]"],
        ),
        (
            _in("recipe.yaml", 'imports: ["thing"]', "imports: []"),
            ["the recipe names no module that must import [thing/recipe.yaml:1:1]"],
        ),
        (
            _in("recipe.yaml", 'expect:\n      sum: "n*(n+1)//2"', "says: {word: [text]}"),
            [
                "no job that starts sums.py has the check `thing.sums/sum` [thing/controls.yaml:7:13]",
                "the job thing.sums has no oracle: any report would pass [thing/recipe.yaml:19:5]",
                "no control makes a value of `thing.sums` fail [thing/recipe.yaml:19:5]",
            ],
        ),
        (
            _in("verify/sums.py", "    total = ", "    assert comm.size > 1\n    total = "),
            ["the job judges itself [thing/verify/sums.py:13:5]"],
        ),
        (_no_tutorial, ["there is no tutorial.py beside the recipe [thing]"]),
        (_stray_file, ["no job starts or imports this file [thing/verify/stray.py]"]),
        (
            _no_controls,
            ["no control makes a value of `thing.sums` fail [thing/recipe.yaml:19:5]"],
        ),
        (
            _in("controls.yaml", 'this: "comm.allreduce(', 'this: "comm.reduce('),
            [
                "the control `own number alone` does not fit: `comm.reduce(comm.rank + 1, op=MPI.SUM)` "
                "occurs 0 times in sums.py, not once [thing/controls.yaml:9:7]"
            ],
        ),
        (
            _in("controls.yaml", 'becomes: "comm.rank + 1"', 'becomes: "comm.rank + "'),
            ["the control `own number alone` does not fit: invalid syntax"],
        ),
        (
            _in(
                "controls.yaml",
                '    changes:\n      - this: "comm.allreduce(comm.rank + 1, op=MPI.SUM)"\n'
                '        becomes: "comm.rank + 1"\n',
                "",
            ),
            ["the control changes nothing [thing/controls.yaml:5:5]"],
        ),
        (
            _in("controls.yaml", "name: own number alone", "name: every rank alone"),
            ["the job thing.sums already has a control `every rank alone` [thing/controls.yaml:5:11]"],
        ),
        (
            _in("controls.yaml", "fails: [thing.sums/sum]", "fails: [thing.sums/ranks, thing.sums/end]"),
            ["no control makes a value of `thing.sums` fail [thing/recipe.yaml:19:5]"],
        ),
        (
            _in("controls.yaml", "fails: [thing.sums/sum]", "fails: [thing.sums/sum, thing.sums/summ]"),
            [
                "no job that starts sums.py has the check `thing.sums/summ` [thing/controls.yaml:7:29]",
            ],
        ),
        (
            _in(
                "controls.yaml",
                "fails: [thing.sums/sum]",
                "fails: [thing.sums/sum, other.sums/ranks, thing.sums/end]",
            ),
            ["the check `other.sums/ranks` is not of the job thing.sums [thing/controls.yaml:7:29]"],
        ),
        (
            _in("recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires: [thing]"),
            ["the recipe requires itself [thing/recipe.yaml:17:12]"],
        ),
        (
            _in("recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires_one_of: [pytorch, thing]"),
            ["the recipe requires itself [thing/recipe.yaml:17:28]"],
        ),
        (
            _in("recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires: [pytroch, jax]"),
            ["unknown recipe `pytroch` [thing/recipe.yaml:17:12]"],
        ),
        (
            _in("recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires_one_of: [jax, tensorflwo]"),
            ["unknown recipe `tensorflwo` [thing/recipe.yaml:17:24]"],
        ),
        (
            _in("recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires: ['jax@>=99']"),
            ["no proven version of `jax` meets `>=99` [thing/recipe.yaml:17:12]"],
        ),
        (
            _in("recipe.yaml", "  cpu:\n", "  cdua-13.0: {requirements: [thing]}\n  cpu:\n"),
            ["unknown variant `cdua-13.0` [thing/recipe.yaml:8:14]"],
        ),
        (
            _in("recipe.yaml", "  cpu:\n", "  cuda-new: {requirements: [thing]}\n  cpu:\n"),
            ["unknown variant `cuda-new` [thing/recipe.yaml:8:13]"],
        ),
        (
            _in("recipe.yaml", "    job: sums.py\n", "    job: sums.py\n    variants: [cup]\n"),
            ["the recipe has no variant `cup` [thing/recipe.yaml:21:16]"],
        ),
        (
            _in(
                "controls.yaml", "name: own number alone\n    job: sums.py", "name: other\n    job: other.py"
            ),
            [
                "there is no file `verify/other.py` in the recipe [thing/controls.yaml:6:10]",
                "no control makes a value of `thing.sums` fail [thing/recipe.yaml:19:5]",
            ],
        ),
    ],
)
def test_a_rule_that_is_broken_is_told_with_its_place(
    recipes: Path, spoil: Callable[[Path], None], expected: list[str]
) -> None:
    spoil(recipes / "thing")
    found = told(recipes)
    assert len(found) == len(expected), found
    for seen, wanted in zip(found, expected, strict=True):
        assert seen.startswith(wanted)


def test_what_is_meant_is_offered(recipes: Path) -> None:
    replaced(recipes / "thing/recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires: [pytroch]")
    replaced(
        recipes / "thing/controls.yaml",
        "fails: [thing.sums/sum]",
        "fails: [thing.sums/sum, thing.sums/smu]",
    )
    with pytest.raises(EnvbuildError) as caught:
        check(recipes)
    hints = sorted(str(error.hint) for error in caught.value.each())
    assert hints == [
        "did you mean `pytorch`? `envbuild recipes ls` lists all",
        "did you mean `thing.sums/sum`?",
    ]


def test_a_required_recipe_with_mistakes_is_no_mistake_of_this_one(recipes: Path) -> None:
    new_recipe("other", "1", recipes)
    replaced(recipes / "thing/recipe.yaml", "needs_mpi: true", "needs_mpi: true\nrequires: [other]")
    replaced(recipes / "other/recipe.yaml", "schema: 1", "schema: 7")
    assert check(recipes).passed


def test_all_that_is_wrong_is_told_at_once(recipes: Path) -> None:
    _no_readme(recipes / "thing")
    _no_controls(recipes / "thing")
    replaced(recipes / "thing/recipe.yaml", 'owns: ["thing"]', "owns: []")
    assert len(told(recipes)) == 3


def copied(recipes: Path, name: str, **changes: str) -> Path:
    """Copy `thing` under another name, without its controls; its job becomes a link."""
    new_recipe(name, "1", recipes)
    for file in ("README.md", "recipe.yaml"):
        text = (recipes / "thing" / file).read_text()
        (recipes / name / file).write_text(text.replace('name: "thing"', f"name: {name}"))
    (recipes / name / "controls.yaml").unlink()
    job = recipes / name / "verify/sums.py"
    job.unlink()
    job.symlink_to("../../thing/verify/sums.py")
    return job


def test_its_own_controls_of_a_job_come_before_another_s(recipes: Path) -> None:
    copied(recipes, "other")
    for name in ("thing", "other"):
        replaced(recipes / name / "recipe.yaml", "kind: framework", "kind: mpi")
    text = (recipes / "thing/controls.yaml").read_text()
    another = text.partition("controls:\n")[2].replace("own number alone", "another name")
    (recipes / "thing/controls.yaml").write_text(text + another)
    (recipes / "other/controls.yaml").write_text(text)
    assert [check(recipes, name).controls for name in ("thing", "other")] == [3, 2]


def test_mpis_share_a_job_and_its_controls(recipes: Path) -> None:
    job = copied(recipes, "other")
    for name in ("thing", "other"):
        replaced(recipes / name / "recipe.yaml", "kind: framework", "kind: mpi")
    assert check(recipes, "other").controls == 2
    # A copy that is changed is another job.
    job.unlink()
    job.write_text((recipes / "thing/verify/sums.py").read_text() + "# changed\n")
    with pytest.raises(EnvbuildError, match="no control makes"):
        check(recipes, "other")


def test_a_copied_recipe_needs_checks_and_controls_of_its_own(recipes: Path) -> None:
    copied(recipes, "other")
    assert told(recipes) == ["the recipe `other` has the job `thing.sums`, too [thing/recipe.yaml:19:9]"]
    with pytest.raises(EnvbuildError) as caught:
        check(recipes, "other")
    assert [error.problem for error in caught.value.each()] == [
        "no control makes a value of `thing.sums` fail",
        "the recipe `thing` has the job `thing.sums`, too",
    ]


def test_a_check_of_a_shipped_recipe_is_told(recipes: Path) -> None:
    for file in ("recipe.yaml", "controls.yaml"):
        path = recipes / "thing" / file
        path.write_text(path.read_text().replace("thing.sums", "pytorch.ddp"))
    assert told(recipes) == ["the recipe `pytorch` has the job `pytorch.ddp`, too [thing/recipe.yaml:19:9]"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("Bad/Name", "1"), "`Bad/Name` is not a valid recipe name"),
        (("..", "1"), "`..` is not a valid recipe name"),
        (("a" * 200, "1"), "is not a valid recipe name"),
        (("fine", "==2"), "VERSION: `==2` is not a version in its normal form (PEP 440), such as `2.13.0`"),
        (("thing", "1"), "already exists"),
    ],
)
def test_a_new_one_that_cannot_be_is_refused_and_nothing_written(
    recipes: Path, words: tuple[str, str], problem: str
) -> None:
    before = sorted(recipes.rglob("*"))
    with pytest.raises(EnvbuildError) as caught:
        new_recipe(*words, recipes)
    assert problem in caught.value.problem
    assert sorted(recipes.rglob("*")) == before


def test_words_that_no_recipe_may_hold_are_told_once_each(tmp_path: Path) -> None:
    with pytest.raises(EnvbuildError) as caught:
        new_recipe("fine", "==2", tmp_path / "recipes", distribution="a b", module="c-d")
    told = [(error.problem.partition(" is not ")[0], error.at) for error in caught.value.each()]
    assert told == [("VERSION: `==2`", None), ("--distribution: `a b`", None), ("--import: `c-d`", None)]
    assert all(error.hint for error in caught.value.each())
    assert not (tmp_path / "recipes").exists()


@pytest.mark.parametrize("name", ["123", "true", "1e3"])
def test_a_name_that_yaml_would_read_otherwise(tmp_path: Path, name: str) -> None:
    new_recipe(name, "1", tmp_path, module="thing")
    path = tmp_path / name / "recipe.yaml"
    recipe = load(Recipe, path.read_bytes(), path).value
    assert (recipe.name, recipe.owns) == (name, (name,))


def test_a_new_one_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        new_recipe("thing", "1", tmp_path / "file")


def test_a_name_that_differs_from_the_distribution_and_the_module(tmp_path: Path) -> None:
    new_recipe("scikit-learn.x", "1.7", tmp_path, distribution="scikit-learn", module="sklearn")
    text = (tmp_path / "scikit-learn.x/recipe.yaml").read_text()
    assert 'requirements: ["scikit-learn=={version}"]' in text
    assert 'imports: ["sklearn"]' in text
    assert "id: scikit-learn-x.sums" in text
    new_recipe("scikit-learn", "1.7", tmp_path)
    assert 'imports: ["scikit_learn"]' in (tmp_path / "scikit-learn/recipe.yaml").read_text()


class TestWhatTheJudgeMissed:
    job = Job(id="demo.y", recipe="y", file="y.py", compare_with_single={"losses": 1e-5})
    control = Control(name="c", job="y.py", fails=("demo.y/losses-as-one-rank",), before="pass")

    def missed(self, status: str, observed: str) -> list[str]:
        finding = CheckResult(status, "demo.y/losses-as-one-rank", "difference<=1e-05", observed)
        return missed_by(JobResult(checks=(finding,), output="out"), self.job, self.control)

    def test_by_far_is_seen(self) -> None:
        assert self.missed("FAIL", "difference=0.2") == []

    def test_a_narrow_failure_is_luck(self) -> None:
        told = self.missed("FAIL", "difference=0.0002")
        assert told[0] == "demo.y/losses-as-one-rank failed by 0.0002 only"
        assert told[-1] == "out"

    def test_a_narrow_distance_from_what_is_reported_is_luck_too(self) -> None:
        job = replace(self.job, compare_with_reported={"fit": {"newton": 1e-6}})
        control = self.control.model_copy(update={"fails": ("demo.y/fit-as-newton",)})
        for distance, told in (("1e-5", ["demo.y/fit-as-newton failed by 1e-05 only"]), ("0.1", [])):
            finding = CheckResult(
                "FAIL", "demo.y/fit-as-newton", "difference<=1e-06", f"difference={distance}"
            )
            assert missed_by(JobResult(checks=(finding,)), job, control)[:1] == told

    @pytest.mark.parametrize(
        ("observed", "missed"),
        [
            ("ranks=0,0 size=1 processes=2", []),
            ("ranks= size= processes=0", ["demo.y/ranks failed, but the ranks did not run alone: "]),
        ],
    )
    def test_ranks_that_crash_were_not_alone(self, observed: str, missed: list[str]) -> None:
        control = every_rank_alone(
            "y", VerifyJob.model_validate({"id": "demo.y", "job": "y.py", "title": "y"}), "pass\n"
        ).control
        finding = CheckResult("FAIL", "demo.y/ranks", "ranks=0,1 size=2 processes=2", observed)
        result = missed_by(JobResult(checks=(finding,)), self.job, control)
        assert [line.partition("ranks=")[0] for line in result[:1]] == missed

    def test_a_pass_is_missed(self) -> None:
        assert self.missed("PASS", "difference=0")[0] == "demo.y/losses-as-one-rank did not fail"


def test_a_recipe_without_a_job_proves_nothing(recipes: Path) -> None:
    path = recipes / "thing/recipe.yaml"
    text = path.read_text()
    path.write_text(text[: text.index("\nverify:") + 1])
    assert any(
        "the recipe has no mini job: nothing proves that its ranks communicate" in line
        for line in told(recipes)
    )
