"""Rows of knowledge: what they say of a stack, and what is wrong in a file of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.rules.facts import Fact, Value
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import Knowledge, KnowledgeFile, Row
from envbuild.rules.rows import judge_rows
from envbuild.rules.rulebook import judge
from envbuild.spec.load import load

FLOOR: dict[str, Any] = {
    "rule": "A.floor",
    "if": {"gpus.vendor": "nvidia", "cuda.toolkit": ">=13,<14"},
    "needs": {"driver.version": ">=580.65.06"},
    "reason": "CUDA 13 needs 580.65.06",
    "source": "here",
    "seen": "2026-11-20",
    "fix": "take an older CUDA",
}
STACK: dict[str, Value] = {"gpus.vendor": "nvidia", "cuda.toolkit": "13.0", "driver.version": "590.44.01"}


def judged(known: dict[str, Value], *changes: dict[str, Any]) -> list[RuleResult]:
    rows = [Row.model_validate({**FLOOR, **change}) for change in changes or ({},)]
    facts = {path: Fact(value, "site:x") for path, value in known.items()}
    return list(judge_rows(facts, [(row, "") for row in rows]))


def test_a_stack_meets_a_row_or_breaks_it() -> None:
    (result,) = judged(STACK)
    assert (result.rule, result.outcome, result.reason) == (
        "A.floor",
        "compatible",
        "CUDA 13 needs 580.65.06",
    )
    (result,) = judged({**STACK, "driver.version": "575.1"})
    assert (result.outcome, result.hint) == ("incompatible", "take an older CUDA")
    assert result.reason == "CUDA 13 needs 580.65.06, and driver.version is 575.1"
    assert result.source == "here (seen 2026-11-20)"
    assert "driver.version = 575.1 (site:x)" in result.fact_lines


def test_a_row_whose_conditions_do_not_hold_says_nothing() -> None:
    assert judged({**STACK, "cuda.toolkit": "12.4", "driver.version": "1"}) == []
    # Known to have no CUDA at all.
    assert judged({**STACK, "cuda.toolkit": "", "driver.version": "1"}) == []
    # One condition that is false is enough, whatever else is unknown.
    assert judged({"gpus.vendor": "amd"}) == []


@pytest.mark.parametrize("path", STACK)
def test_an_absent_fact_is_unknown_and_named(path: str) -> None:
    (result,) = judged({key: value for key, value in STACK.items() if key != path})
    assert (result.outcome, result.missing) == ("unknown", (path,))
    assert f"{path}" in result.reason


def test_a_version_that_says_too_little_decides_nothing() -> None:
    (result,) = judged({**STACK, "driver.version": "580"})
    assert (result.outcome, result.missing) == ("unknown", ())
    assert result.reason == "CUDA 13 needs 580.65.06, and driver.version is 580"


def test_the_worst_row_of_a_rule_counts_and_all_broken_ones_are_shown() -> None:
    broken, other = {**STACK, "driver.version": "575.1"}, {"needs": {"driver.version": ">=570"}}
    assert [result.outcome for result in judged(broken, {}, other)] == ["incompatible"]
    assert [result.outcome for result in judged(STACK, {}, other)] == ["compatible"]
    tighter = {"needs": {"driver.version": ">=600"}}
    assert [result.outcome for result in judged(broken, {}, tighter)] == ["incompatible"] * 2
    unknown = {"needs": {"runtime.name": "apptainer"}}
    assert [result.outcome for result in judged(STACK, {}, unknown)] == ["unknown"]


@pytest.mark.parametrize(("severity", "warn"), [("warning", True), ("note", False)])
def test_a_row_may_warn(severity: str, warn: bool) -> None:
    (result,) = judged({**STACK, "driver.version": "575.1"}, {"severity": severity})
    assert (result.outcome, result.warn) == ("unknown", warn)


def test_a_row_without_needs_names_a_stack_that_is_known_to_be_bad() -> None:
    bad = {"needs": {}, "if": {"scheduler.version": ">=25.11.0,<25.11.2"}, "fixed_in": "25.11.2"}
    (result,) = judged({"scheduler.version": "25.11.1"}, bad)
    assert (result.outcome, result.hint) == ("incompatible", "take an older CUDA; fixed in 25.11.2")
    assert judged({"scheduler.version": "25.11.2"}, bad) == []
    # A series alone may be a bad release of it.
    assert [result.outcome for result in judged({"scheduler.version": "25.11"}, bad)] == ["unknown"]
    assert [result.missing for result in judged({}, bad)] == [("scheduler.version",)]


def test_what_nobody_has_read_is_unknown() -> None:
    (result,) = judged(STACK, {"needs": {"driver.version": "?"}, "reason": "not read yet"})
    assert (result.outcome, result.reason, result.warn) == ("unknown", "not read yet", False)
    (result,) = judged({"gpus.vendor": "nvidia", "cuda.toolkit": "13"}, {"needs": {"driver.version": "?"}})
    assert (result.outcome, result.warn) == ("unknown", False)


def test_lists_texts_and_flags() -> None:
    def outcome(wanted: str | bool, path: str, value: Value) -> list[str]:
        change = {"if": {"gpus.vendor": "nvidia"}, "needs": {path: wanted}}
        return [result.outcome for result in judged({"gpus.vendor": "nvidia", path: value}, change)]

    assert outcome("sm_90", "gpus.architectures", ("sm_80", "sm_90")) == ["compatible"]
    assert outcome("sm_90", "gpus.architectures", ()) == ["incompatible"]
    assert outcome("!=sm_90", "gpus.architectures", ("sm_80",)) == ["compatible"]
    assert outcome("!=sm_90", "gpus.architectures", ("sm_90",)) == ["incompatible"]
    assert outcome("!= none", "pmi.default", "none") == ["incompatible"]
    assert outcome(False, "runtime.setuid", False) == ["compatible"]
    assert outcome(True, "runtime.setuid", False) == ["incompatible"]


def test_a_package_that_the_image_lacks_breaks_nothing() -> None:
    change = {"if": {"packages.numba": "<1"}, "needs": {"packages.numpy": "<2"}}
    assert judged({"packages": ("numpy",), "packages.numpy": "2.1"}, change) == []
    (result,) = judged({"packages.numpy": "2.1"}, change)
    assert (result.outcome, result.missing) == ("unknown", ("packages.numba",))
    known: dict[str, Value] = {
        "packages": ("numba", "numpy"),
        "packages.numpy": "2.1",
        "packages.numba": "0.5",
    }
    assert [result.outcome for result in judged(known, change)] == ["incompatible"]
    of_framework = {"if": {"frameworks.pytorch.version": "<3"}, "needs": {"packages.numpy": "<2"}}
    assert judged({"frameworks": ("jax",), "packages.numpy": "2.1"}, of_framework) == []
    facts: dict[str, Value] = {"frameworks.pytorch.version": "2.0", "packages.numpy": "2.1"}
    assert [result.subject for result in judged(facts, of_framework)] == ["pytorch"]


def test_every_error_of_a_file_has_its_place_cause_and_hint() -> None:
    text = b"""\
rows:
  - rule: my rule
    if: {cuda.tolkit: ">=13", cuda.forward_compat: "yes", cuda.toolkit: 13}
    needs: {driver.version: "580", gpus.vendor: "?"}
    reason: because
    severity: fatal
    seen: "2026-13-01"
    fix: ""
  - rule: A.b
    if: {}
    needs: {}
"""
    with pytest.raises(EnvbuildError) as caught:
        load(KnowledgeFile, text, Path("centre.yaml"))
    errors = {str(error.at): error for error in caught.value.each()}
    problems = {place.removeprefix("centre.yaml:"): error.problem for place, error in errors.items()}
    assert all(error.hint for error in errors.values())
    assert problems["2:11"] == "`rows.rule`: `my rule` is not an id, such as `SITE.driver`"
    assert (
        problems["3:23"]
        == "`rows.if.cuda.tolkit`: there is no fact `cuda.tolkit`; did you mean `cuda.toolkit`?"
    )
    assert problems["3:52"].startswith("`rows.if.cuda.forward_compat`: `cuda.forward_compat` is a flag")
    assert problems["3:73"] == "`rows.if.cuda.toolkit`: expected text in quotes, `true` or `false`"
    assert problems["4:29"].startswith(
        "`rows.needs.driver.version`: `580` is not a range of versions, such as "
    )
    assert problems["6:15"].startswith("`rows.severity`: expected `error`, `warning` or `note`")
    assert problems["7:11"] == "`rows.seen`: `2026-13-01` is not a date, such as `2026-11-20`"
    assert problems["8:10"] == "`rows.fix`: must not be empty"
    assert problems["10:9"] == "`rows.if`: must not be empty"
    assert problems["9:5"].startswith("the key `")


def test_errors_of_facts_and_ranges_name_the_condition() -> None:
    conditions = {
        "cuda.tolkit": ">=13",
        "cuda.forward_compat": "yes",
        "driver.version": "580",
        "runtime.name": "?",
    }
    lines = "\n".join(f'      {path}: "{wanted}"' for path, wanted in conditions.items())
    head = "rows:\n  - rule: A.b\n    reason: r\n    source: s\n    seen: 2026-11-20\n    fix: f\n    if:"
    text = f"{head}\n{lines}\n"
    with pytest.raises(EnvbuildError) as caught:
        load(KnowledgeFile, text.encode(), Path("centre.yaml"))
    problems = [(str(error.at), error.problem) for error in caught.value.each()]
    assert [place for place, _ in problems] == [f"centre.yaml:{line}:{column}" for line, column in PLACES]
    assert "did you mean `cuda.toolkit`?" in problems[0][1]
    assert "`cuda.forward_compat` is a flag" in problems[1][1]
    assert "`580` is not a range of versions, such as `>=12,<13`" in problems[2][1]
    assert "`?` stands in `needs` alone" in problems[3][1]


@pytest.mark.parametrize(
    ("path", "wanted", "facts"),
    [
        ("gpus.vendor", "NVIDIA", {"gpus.vendor": "nvidia"}),
        ("mpi.family", "OpenMPI", {"mpi.family": "openmpi"}),
        ("scheduler.name", "Slurm", {"scheduler.name": "slurm"}),
        ("architecture.host", "x86_64", {"architecture.host": "amd64"}),
        ("fabric.rate", "hdr", {"fabric.rate": "HDR"}),
        ("packages", "Flash_Attn", {"packages": ("flash-attn",)}),
        ("packages.Flash_Attn", ">=2", {"packages.flash-attn": "2.8"}),
        ("frameworks", "PyTorch", {"frameworks": ("pytorch",)}),
        ("frameworks.torch.version", ">=2", {"frameworks.pytorch.version": "2.9.1"}),
    ],
)
def test_a_row_names_things_as_people_write_them(path: str, wanted: str, facts: dict[str, Value]) -> None:
    (result,) = judged({"driver.version": "1", **facts}, {"if": {path: wanted}})
    assert result.outcome == "incompatible"
    (result,) = judged(facts, {"if": {path: wanted}, "needs": {}})
    assert result.outcome == "incompatible"
    if ">" not in wanted:
        (result,) = judged(
            {"driver.version": "1", **facts}, {"if": {"driver.version": ">0"}, "needs": {path: wanted}}
        )
        assert result.outcome == "compatible"
        assert judged({"driver.version": "1", **facts}, {"if": {path: f"!= {wanted}"}}) == []


def test_a_table_names_packages_as_people_write_them() -> None:
    text = TABLE.replace(b"packages.torchvision", b"packages.Torch_Vision").replace(
        b"pytorch.version", b"torch.version"
    )
    (table,) = load(KnowledgeFile, text, Path("a.yaml")).value.tables
    assert (table.if_, table.needs) == ("packages.torch-vision", "frameworks.pytorch.version")


@pytest.mark.parametrize(
    ("conditions", "problem"),
    [
        ("{gpus.vendor: intel}", "`gpus.vendor` cannot be `intel`: not one of nvidia, amd, none"),
        ('{gpus.vendor: "!=intel"}', "`gpus.vendor` cannot be `intel`: not one of nvidia, amd, none"),
        ("{gpus.architectures: H100}", "`H100` is not a GPU architecture"),
        ('{frameworks.pytorch: ">=2"}', "did you mean `frameworks.pytorch.version`?"),
        ('{packages.torch_x: ">=2", packages.torch-x: ">=3"}', "`packages.torch-x` is given twice"),
    ],
)
def test_a_condition_that_no_stack_can_meet_is_an_error(conditions: str, problem: str) -> None:
    head = "rows:\n  - {rule: A.b, reason: r, source: s, seen: '2026-11-20', fix: f, if: "
    with pytest.raises(EnvbuildError) as caught:
        load(KnowledgeFile, f"{head}{conditions}}}\n".encode(), Path("centre.yaml"))
    (error,) = caught.value.each()
    assert problem in error.problem
    assert str(error.at).startswith("centre.yaml:2:")


def test_a_date_is_a_day_of_the_calendar() -> None:
    text = "silences: [{rule: CUDA.driver-floor, reason: r, date: '2026-02-30'}]\n"
    with pytest.raises(EnvbuildError, match=r"`2026-02-30` is not a day of the calendar"):
        load(KnowledgeFile, text.encode(), Path("centre.yaml"))


TABLE = b"""\
tables:
  - rule: A.pairs
    if: packages.torchvision
    needs: frameworks.pytorch.version
    where: {frameworks.pytorch.accelerator: "!=rocm"}
    ranges:
      ">=0.20,<0.21": "==2.5.*"
      ">=0.21,<0.22": "==2.6.*"
    source: here
    seen: "2026-11-28"
    fix: take both of one release
"""


def of_table(known: dict[str, Value]) -> list[RuleResult]:
    rows = Knowledge().with_file(load(KnowledgeFile, TABLE, Path("a.yaml")).value, "").entries
    return list(judge_rows({path: Fact(value) for path, value in known.items()}, rows))


def test_each_range_of_a_table_is_judged_as_a_row() -> None:
    cuda: dict[str, Value] = {"frameworks.pytorch.accelerator": "cuda", "packages.torchvision": "0.20.1"}
    (good,) = of_table({**cuda, "frameworks.pytorch.version": "2.5.1"})
    assert good.outcome == "compatible"
    (bad,) = of_table({**cuda, "frameworks.pytorch.version": "2.6.0"})
    assert (bad.outcome, bad.hint) == ("incompatible", "take both of one release")
    assert bad.reason == (
        "torchvision >=0.20,<0.21 needs pytorch ==2.5.*, and frameworks.pytorch.version is 2.6.0"
    )
    assert of_table({**cuda, "packages.torchvision": "0.19", "frameworks.pytorch.version": "2.6.0"}) == []


def test_of_a_table_whose_fact_is_not_known_one_range_is_reported() -> None:
    (result,) = of_table({"frameworks.pytorch.accelerator": "cuda", "frameworks.pytorch.version": "2.5.1"})
    assert (result.outcome, result.missing, result.warn) == ("unknown", ("packages.torchvision",), False)


def test_a_range_that_excludes_one_version_is_judged_as_such_a_row() -> None:
    excluding = TABLE.replace(b'">=0.20,<0.21"', b'"!=0.19.0"')
    entries = Knowledge().with_file(load(KnowledgeFile, excluding, Path("a.yaml")).value, "").entries
    facts = {"frameworks.pytorch.accelerator": Fact("cuda"), "frameworks.pytorch.version": Fact("2.6.0")}
    (result,) = judge_rows(facts, entries)
    assert (result.outcome, result.title) == ("unknown", "torchvision !=0.19.0 needs pytorch ==2.5.*")


def test_a_property_that_a_row_excludes_excuses_a_stack() -> None:
    broken: dict[str, Value] = {"packages.torchvision": "0.20.1", "frameworks.pytorch.version": "2.6.0"}
    assert of_table({**broken, "frameworks.pytorch.accelerator": "rocm"}) == []
    # It is broken unless it is a build for ROCm: people are warned, and it is not refused.
    (result,) = of_table(broken)
    assert (result.outcome, result.warn) == ("unknown", True)
    assert result.reason.endswith("whether frameworks.pytorch.accelerator excuses it is not known")


def test_a_range_that_is_none_is_an_error_at_its_place() -> None:
    text = TABLE.replace(b'"==2.6.*"', b'"2.6"').replace(b"needs: frameworks", b"needs: framework")
    with pytest.raises(EnvbuildError) as caught:
        load(KnowledgeFile, text, Path("a.yaml"))
    problems = {str(error.at): error.problem for error in caught.value.each()}
    assert problems["a.yaml:7:23"].startswith("`tables.ranges.>=0.20,<0.21`: there is no fact `framework.")
    with pytest.raises(EnvbuildError) as caught:
        load(KnowledgeFile, TABLE.replace(b'"==2.6.*"', b'"2.6"'), Path("a.yaml"))
    (error,) = caught.value.each()
    assert str(error.at) == "a.yaml:8:23"
    assert "`2.6` is not a range of versions" in error.problem


PLACES = [(8, 20), (9, 28), (10, 23), (11, 21)]


def test_a_stack_is_judged_by_thousands_of_rows() -> None:
    rows = [
        Row.model_validate({**FLOOR, "rule": f"A.r{number}", "if": {f"packages.p{number}": f"<{number}.1"}})
        for number in range(2000)
    ]
    knowledge = Knowledge(entries=tuple((row, "") for row in rows))
    facts = {path: Fact(value) for path, value in STACK.items()}
    facts |= {f"packages.p{number}": Fact("1.0") for number in range(0, 2000, 2)}
    results = judge(facts, knowledge=knowledge)
    assert sum(result.outcome == "compatible" for result in results) >= 999
