"""Rows of a centre and of a user: they add, and only the machine's files silence a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.inputs.knowledge import read_knowledge
from envbuild.rules.facts import Fact
from envbuild.rules.knowledge import shipped
from envbuild.rules.rulebook import judge
from envbuild.system import files
from tests.unit.rules.stacks import cases, stack

ROW = """\
rows:
  - rule: {rule}
    if: {{cuda.toolkit: ">=13,<14"}}
    needs: {{driver.version: "{needs}"}}
    reason: our nodes hang
    source: ticket 4711
    seen: "2026-11-20"
    fix: ask us
"""
SILENCE = 'silences:\n  - {rule: RULE, reason: our driver can, date: "2026-11-20"}\n'
GOOD = {
    "gpus.vendor": Fact("nvidia"),
    "cuda.toolkit": Fact("13.0"),
    "cuda.forward_compat": Fact(False),
    "driver.version": Fact("580.95.05"),
}


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """Return the directories of the machine and the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    found = {"machine": tmp_path / "etc/knowledge", "user": tmp_path / "config/envbuild/knowledge"}
    for path in found.values():
        path.mkdir(parents=True)
    return found


def outcomes(facts: dict[str, Fact], rule: str) -> list[tuple[str, bool]]:
    results = judge(facts, knowledge=read_knowledge())
    return [(result.outcome, result.warn) for result in results if result.rule == rule]


def test_without_files_it_is_that_of_envbuild() -> None:
    assert read_knowledge() == shipped()


@pytest.mark.parametrize("place", ["machine", "user"])
def test_rows_add_to_a_shipped_rule_and_make_new_ones(place: str, places: dict[str, Path]) -> None:
    assert outcomes(GOOD, "CUDA.driver-floor") == [("compatible", False)]
    (places[place] / "a.yaml").write_text(ROW.format(rule="CUDA.driver-floor", needs=">=590"))
    (places[place] / "b.yaml").write_text(ROW.format(rule="SITE.new", needs=">=590"))
    (places[place] / "notes.txt").write_text("no rows: none of this is read")
    assert outcomes(GOOD, "CUDA.driver-floor") == [("incompatible", False)]
    assert outcomes(GOOD, "SITE.new") == [("incompatible", False)]
    (result,) = [result for result in judge(GOOD, knowledge=read_knowledge()) if result.rule == "SITE.new"]
    assert result.source == f"ticket 4711 (seen 2026-11-20, {places[place] / 'b.yaml'})"


def test_no_row_weakens_a_shipped_rule(places: dict[str, Path]) -> None:
    (places["machine"] / "a.yaml").write_text(ROW.format(rule="CUDA.driver-floor", needs=">=1"))
    old = {**GOOD, "driver.version": Fact("570.86")}
    assert outcomes(old, "CUDA.driver-floor") == [("incompatible", False)]


@pytest.mark.parametrize("rule", ["CUDA.driver-floor", "CUDA.one-major"])
def test_the_machine_silences_a_rule_and_every_result_says_so(rule: str, places: dict[str, Path]) -> None:
    path = places["machine"] / "a.yaml"
    path.write_text(SILENCE.replace("RULE", rule))
    case = next(case for case in cases().values() if case.rule == rule)
    results = judge(stack(case.facts), knowledge=read_knowledge())
    (result,) = [result for result in results if result.rule == rule]
    why = f"our driver can (2026-11-20, {path})"
    assert (result.outcome, result.warn, result.silenced) == ("unknown", False, why)
    assert result.reason.startswith(f"silenced: {why}; ")
    assert result.to_data()["silenced"] == why
    assert result.finding.status == "SKIP"
    # A stack that is fine is still shown as judged under a silence.
    (result,) = [result for result in judge(GOOD, knowledge=read_knowledge()) if result.rule == rule] or [
        result
    ]
    assert result.silenced == why


def test_a_centres_own_rows_are_not_silenced(places: dict[str, Path]) -> None:
    text = ROW.format(rule="CUDA.driver-floor", needs=">=590") + SILENCE.replace("RULE", "CUDA.driver-floor")
    (places["machine"] / "a.yaml").write_text(text)
    assert outcomes(GOOD, "CUDA.driver-floor") == [("compatible", False), ("incompatible", False)]


def test_a_user_silences_nothing(places: dict[str, Path]) -> None:
    (places["user"] / "a.yaml").write_text(SILENCE.replace("RULE", "CUDA.driver-floor"))
    with pytest.raises(EnvbuildError) as caught:
        read_knowledge()
    (error,) = caught.value.each()
    assert error.problem == "only the machine's own files can silence a rule"
    assert str(error.at) == f"{places['user'] / 'a.yaml'}:1:1"
    assert str(places["machine"]) in error.hint


def test_all_errors_of_all_files_are_shown_at_once(places: dict[str, Path]) -> None:
    (places["machine"] / "a.yaml").write_text(SILENCE.replace("RULE", "CUDA.driver-flor"))
    (places["machine"] / "b.yaml").write_text(ROW.format(rule="SITE.x", needs="590"))
    (places["user"] / "c.yaml").write_text("rows: [\n")
    with pytest.raises(EnvbuildError) as caught:
        read_knowledge()
    errors = caught.value.each()
    assert len({error.at.path.name for error in errors if error.at}) == 3
    assert any("did you mean `CUDA.driver-floor`?" in error.hint for error in errors)


def test_a_given_file_is_read_as_the_machines(tmp_path: Path) -> None:
    given = tmp_path / "mine.yaml"
    given.write_text(ROW.format(rule="SITE.x", needs=">=590") + SILENCE.replace("RULE", "CUDA.driver-floor"))
    knowledge = read_knowledge(given)
    assert [row.rule for row, file in knowledge.rows if file == str(given)] == ["SITE.x"]
    assert set(knowledge.silences) == {"CUDA.driver-floor"}


def test_a_directory_with_too_many_files_is_an_error(places: dict[str, Path]) -> None:
    for number in range(201):
        (places["user"] / f"{number}.yaml").write_text("rows: []\n")
    with pytest.raises(EnvbuildError, match="at most 200 are read"):
        read_knowledge()
