"""A recipe is held to the rules, and a new one begins by keeping all but those that people must write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.cli.recipes import format_checked
from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.jobs.judge import Job
from envbuild.jobs.report import CheckResult
from envbuild.jobs.run import JobResult
from envbuild.launch.controls import MutatedJob, every_rank_alone, missed_by
from envbuild.resolve.index import OfferedRelease
from envbuild.spec.job import Control
from envbuild.spec.load import load
from envbuild.spec.recipe import Recipe
from envbuild.workflows import recipe_new
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


@pytest.mark.parametrize("path", ["thing", "thing/recipe.yaml", "../recipes/thing/"])
def test_one_is_checked_by_its_path(recipes: Path, path: str) -> None:
    settings = Settings.of(store=recipes.parent, apptainer=None, recipes=[], site=None)
    assert check_recipe(f"{recipes}/{path}", settings).recipe.name == "thing"


def test_a_directory_beside_the_user_is_enough(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipes)
    settings = Settings.of(store=recipes.parent, apptainer=None, recipes=[], site=None)
    assert check_recipe("thing", settings).recipe.name == "thing"
    monkeypatch.chdir("thing")
    assert check_recipe("./", settings).recipe.name == "thing"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none", "there is no recipe at `"),
        ("thing/verify", "there is no recipe at `"),
        ("Thing", "`Thing` is not a valid recipe name"),
    ],
)
def test_a_path_without_a_recipe_is_refused(recipes: Path, path: str, problem: str) -> None:
    (recipes / "Thing").symlink_to("thing")
    settings = Settings.of(store=recipes.parent, apptainer=None, recipes=[], site=None)
    with pytest.raises(EnvbuildError) as caught:
        check_recipe(f"{recipes}/{path}", settings)
    assert caught.value.problem.startswith(problem)


def test_what_is_left_to_write_is_told(tmp_path: Path) -> None:
    new_recipe("thing", "1.2", tmp_path)
    assert told(tmp_path) == [
        *(f"this section is still empty [thing/README.md:{line}:1]" for line in (3, 7)),
        "this job is still the template [thing/verify/sums.py:26:68]",
    ]


def _no_readme(recipe: Path) -> None:
    (recipe / "README.md").unlink()


JOB = "verify/sums.py"
MARK = "    # control own number alone: total = comm.rank + 1\n"
CONTROLS = "# controls:\n#   own number alone: [sum]\n"


def _no_controls(recipe: Path) -> None:
    replaced(recipe / JOB, CONTROLS, "")
    replaced(recipe / JOB, MARK, "")


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
            ["not valid Python: '(' was never closed [thing/verify/stray.py:1:6]"],
        ),
        (
            _in(JOB, "    main()\n", "    main(\n"),
            ["not valid Python: '(' was never closed [thing/verify/sums.py:30:9]"],
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
            _in(JOB, "expect: {sum: n*(n+1)//2}", "says: {word: [text]}"),
            [
                "the job thing.sums has no oracle: any report would pass [thing/verify/sums.py:2:7]",
                "no control makes a value of `thing.sums` fail [thing/verify/sums.py:2:7]",
                "the job has no check `sum` [thing/verify/sums.py:10:24]",
            ],
        ),
        (
            _in(JOB, "    total = ", "    assert comm.size > 1\n    total = "),
            ["the job judges itself [thing/verify/sums.py:25:5]"],
        ),
        (_no_tutorial, ["there is no tutorial.py beside the recipe [thing]"]),
        (_stray_file, ["no job starts or imports this file [thing/verify/stray.py]"]),
        (
            _no_controls,
            ["no control makes a value of `thing.sums` fail [thing/verify/sums.py:2:7]"],
        ),
        (
            _in(JOB, MARK, ""),
            ["the control `own number alone` changes nothing [thing/verify/sums.py:10:5]"],
        ),
        (
            _in(JOB, "# control own number alone:", "# control own numbr alone:"),
            [
                "the control `own number alone` changes nothing [thing/verify/sums.py:10:5]",
                "no job that uses sums.py has a control `own numbr alone` [thing/verify/sums.py:24:1]",
            ],
        ),
        (
            _in(JOB, "total = comm.rank + 1\n", "total = comm.rank + \n"),
            ["with the control `own number alone`, sums.py is not valid Python: invalid syntax"],
        ),
        (
            _in(JOB, "    main()\n", "    main()\n# control own number alone: pass\n"),
            ["no line of code follows this mark [thing/verify/sums.py:31:1]"],
        ),
        (
            _in(
                JOB,
                "#   own number alone: [sum]\n",
                "#   own number alone: [sum]\n#   every rank alone: [ranks]\n",
            ),
            ["every job already has a control `every rank alone` [thing/verify/sums.py:11:5]"],
        ),
        (
            _in(JOB, "own number alone: [sum]", "own number alone: [ranks, end]"),
            ["no control makes a value of `thing.sums` fail [thing/verify/sums.py:2:7]"],
        ),
        (
            _in(JOB, "own number alone: [sum]", "own number alone: [sum, summ]"),
            ["the job has no check `summ` [thing/verify/sums.py:10:29]"],
        ),
        (
            _in(JOB, "own number alone: [sum]", "own number alone: {fails: [summ, sum]}"),
            ["the job has no check `summ` [thing/verify/sums.py:10:32]"],
        ),
        (
            _in(JOB, "# title: a sum over all ranks, exact oracle\n", "# oracle: averaging\n"),
            ["the control `no averaging` changes nothing [thing/verify/sums.py:3:11]"],
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
            _in(JOB, "# hint:", "# variants: [cup]\n# hint:"),
            ["the recipe has no variant `cup` [thing/verify/sums.py:6:14]"],
        ),
        (
            _in(JOB, "# id: thing.sums", "# di: thing.sums"),
            [
                "the key `id` is missing [thing/verify/sums.py:2:3]",
                "unknown key `di` [thing/verify/sums.py:2:3]",
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
    replaced(recipes / "thing" / JOB, "own number alone: [sum]", "own number alone: [sum, smu]")
    with pytest.raises(EnvbuildError) as caught:
        check(recipes)
    hints = sorted(str(error.hint) for error in caught.value.each())
    assert hints == [
        "did you mean `pytorch`? `envbuild recipes ls` lists all",
        "did you mean `sum`?",
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


def copied(recipes: Path, name: str) -> Path:
    """Copy `thing` under another name; its job becomes a link."""
    new_recipe(name, "1", recipes)
    for file in ("README.md", "recipe.yaml"):
        text = (recipes / "thing" / file).read_text()
        (recipes / name / file).write_text(text.replace('name: "thing"', f"name: {name}"))
    job = recipes / name / JOB
    job.unlink()
    job.symlink_to("../../thing/verify/sums.py")
    return job


def test_a_linked_job_brings_its_expectations_and_controls_along(recipes: Path) -> None:
    copied(recipes, "other")
    for name in ("thing", "other"):
        replaced(recipes / name / "recipe.yaml", "kind: framework", "kind: mpi")
    assert [check(recipes, name).controls for name in ("thing", "other")] == [2, 2]


def test_a_copied_recipe_needs_ids_of_its_own(recipes: Path) -> None:
    copied(recipes, "other")
    assert told(recipes) == ["the recipe `other` has the job `thing.sums`, too [thing/verify/sums.py:2:7]"]


def test_an_id_of_a_shipped_recipe_is_refused(recipes: Path) -> None:
    replaced(recipes / "thing" / JOB, "thing.sums", "pytorch.ddp")
    assert told(recipes) == ["the recipe `pytorch` has the job `pytorch.ddp`, too [thing/verify/sums.py:2:7]"]


def test_a_module_belongs_to_the_jobs_that_import_it(recipes: Path) -> None:
    verify = recipes / "thing/verify"
    replaced(verify / "sums.py", "import envbuild_job\n", "import adding\nimport envbuild_job\n")
    replaced(verify / "sums.py", MARK, "")
    (verify / "adding.py").write_text("import numbers_\n# control own number alone: LAST = 1\nLAST = 2\n")
    (verify / "numbers_.py").write_text("# control own number alone:\nprint()\n")
    assert check(recipes).controls == 2


def test_a_twin_on_gpus_has_the_controls_of_its_job(recipes: Path) -> None:
    replaced(recipes / "thing" / JOB, "# hint:", "# devices: [cpu, gpu]\n# hint:")
    checked = check(recipes)
    assert (checked.jobs, checked.controls) == (2, 4)


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


@pytest.mark.parametrize(
    ("release", "found", "base"),
    [
        (OfferedRelease(wheels_for=("3.9", "3.11", "3.13")), "a wheel for Python 3.9, 3.11 and 3.13", ""),
        (
            OfferedRelease(wheels_for=("3.11",)),
            "a wheel for Python 3.11, and none for Python 3.9 and 3.13: see `base` in recipe.yaml",
            ">=3.11,<3.13",
        ),
        (
            OfferedRelease(has_source=True),
            "no wheel for Python 3.9, 3.11 and 3.13, only a source archive: build it with `source`"
            " in recipe.yaml",
            "",
        ),
        (None, "the index cannot be asked, so nothing is known of its files", ""),
    ],
)
def test_a_new_one_is_for_the_pythons_that_the_index_has_wheels_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: OfferedRelease | None, found: str, base: str
) -> None:
    monkeypatch.setattr(recipe_new, "offered_release", lambda *_: release)
    written = new_recipe("thing", "1.2", tmp_path, ask_index=True)
    assert (written.release, written.found) == ("thing 1.2", found)
    path = written.directory / "recipe.yaml"
    assert load(Recipe, path.read_bytes(), path).value.base.python == base


@pytest.mark.parametrize(
    ("newest", "hint"), [("1.1", "its newest release is 1.1; with `--offline`"), ("", "check the name; with")]
)
def test_a_release_that_the_index_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: str, hint: str
) -> None:
    monkeypatch.setattr(recipe_new, "offered_release", lambda *_: OfferedRelease(newest=newest))
    with pytest.raises(RequestError, match=r"the index has no thing 1\.2") as caught:
        new_recipe("thing", "1.2", tmp_path, ask_index=True)
    assert caught.value.hint.startswith(hint)
    assert [*tmp_path.iterdir()] == []
    assert new_recipe("thing", "1.2", tmp_path).found == ""


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
    assert "id: scikit-learn-x.sums" in (tmp_path / "scikit-learn.x" / JOB).read_text()
    new_recipe("scikit-learn", "1.7", tmp_path)
    assert 'imports: ["scikit_learn"]' in (tmp_path / "scikit-learn/recipe.yaml").read_text()


class TestWhatTheJudgeMissed:
    job = Job(id="demo.y", recipe="y", file="y.py", compare_with_single={"losses": 1e-5})
    mutated = MutatedJob(
        job=job, fault="c", control=Control(fails=("losses-as-one-rank",)), files={"y.py": "pass\n"}
    )

    def missed(self, status: str, observed: str) -> list[str]:
        finding = CheckResult(status, "demo.y/losses-as-one-rank", "difference<=1e-05", observed)
        return missed_by(JobResult(checks=(finding,), output="out"), self.mutated)

    def test_by_far_is_seen(self) -> None:
        assert self.missed("FAIL", "difference=0.2") == []

    def test_a_narrow_failure_is_luck(self) -> None:
        told = self.missed("FAIL", "difference=0.0002")
        assert told[0] == "demo.y/losses-as-one-rank failed by 0.0002 only"
        assert told[-1] == "out"

    def test_a_narrow_distance_from_what_is_reported_is_luck_too(self) -> None:
        job = replace(self.job, compare_with_reported={"fit": {"newton": 1e-6}})
        mutated = replace(self.mutated, job=job, control=Control(fails=("fit-as-newton",)))
        for distance, told in (("1e-5", ["demo.y/fit-as-newton failed by 1e-05 only"]), ("0.1", [])):
            finding = CheckResult(
                "FAIL", "demo.y/fit-as-newton", "difference<=1e-06", f"difference={distance}"
            )
            assert missed_by(JobResult(checks=(finding,)), mutated)[:1] == told

    @pytest.mark.parametrize(
        ("observed", "missed"),
        [
            ("ranks=0,0 size=1 processes=2", []),
            ("ranks= size= processes=0", ["demo.y/ranks failed, but the ranks did not run alone: "]),
        ],
    )
    def test_ranks_that_crash_were_not_alone(self, observed: str, missed: list[str]) -> None:
        mutated = every_rank_alone(self.job, {"y.py": "pass\n"})
        finding = CheckResult("FAIL", "demo.y/ranks", "ranks=0,1 size=2 processes=2", observed)
        result = missed_by(JobResult(checks=(finding,)), mutated)
        assert [line.partition("ranks=")[0] for line in result[:1]] == missed

    def test_a_pass_is_missed(self) -> None:
        assert self.missed("PASS", "difference=0")[0] == "demo.y/losses-as-one-rank did not fail"


def test_a_recipe_without_a_job_proves_nothing(recipes: Path) -> None:
    (recipes / "thing" / JOB).write_text("print()\n")
    assert any(
        "the recipe has no mini job: nothing proves that its ranks communicate" in line
        for line in told(recipes)
    )
