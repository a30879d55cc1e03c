"""Judges a stack by rows of knowledge: if these facts hold, those are needed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from envbuild.rules.facts import Fact, Facts, Value, absence, fact_type
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import UNREAD, Entry, Row, excludes
from envbuild.rules.versions import in_range


def holds(path: str, value: Value, wanted: str | bool) -> bool | None:
    """Return whether a fact is as a condition says; None if that is undecided."""
    if isinstance(wanted, bool):
        return value is wanted
    if wanted == UNREAD:
        return None
    declared = fact_type(path)
    if declared is not None and declared.kind == "version":
        # An empty version is known to be absent.
        return bool(value) and in_range(str(value), wanted, declared.scheme)
    text = wanted.removeprefix("!=").strip()
    is_it = text in value if isinstance(value, tuple) else value == text
    return is_it != wanted.startswith("!=")


class _State(IntEnum):
    """The state of a row for a stack, the worst first."""

    BROKEN = 0
    PERHAPS_BROKEN = 1  # unless the stack has a property that the row excludes (`false`, `!=rocm`)
    NEED_UNKNOWN = 2
    CONDITION_UNKNOWN = 3
    FINE = 4


@dataclass(slots=True)
class _Judged:
    """A row that concerns a stack, or may."""

    row: Row
    origin: str
    used: dict[str, Fact] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    """Facts that are absent, or do not decide a condition."""
    broken: list[str] = field(default_factory=list)
    state: _State = _State.FINE

    def read(self, path: str, wanted: str | bool, facts: Facts) -> bool | None:
        """Return whether a fact is as a condition says, and record it."""
        fact = facts.get(path)
        truth = None if fact is None else holds(path, fact.value, wanted)
        if fact is not None:
            self.used[path] = fact
        if truth is None:
            self.undecided.append(path)
        return truth


def judge_rows(facts: Facts, entries: Iterable[tuple[Entry, str]]) -> Iterator[RuleResult]:
    """Judge a stack by rows and tables: all broken rows of a rule and framework, else its worst one."""
    groups: dict[tuple[str, str], list[_Judged]] = {}
    lacks, waiting = absence(facts), set[tuple[str, str]]()
    for entry, origin in entries:
        path, excuses, identity = entry.opening
        is_open = path not in facts and not excuses
        # Of thousands of rows most are of packages that the image lacks, or wait for a fact as others do.
        if is_open and (identity in waiting or lacks(path)):
            continue
        if found := [*filter(None, (_judge(row, origin, facts, lacks) for row in entry.rows))]:
            groups.setdefault(identity, []).extend(found)
            if is_open:
                waiting.add(identity)
    for found in groups.values():
        worst = min(judged.state for judged in found)
        decisive = [judged for judged in found if judged.state == worst]
        yield from map(_result, decisive if worst == _State.BROKEN else decisive[:1])


def _judge(row: Row, origin: str, facts: Facts, lacks: Callable[[str], bool]) -> _Judged | None:
    """Judge a row; None if it does not concern the stack."""
    judged = _Judged(row, origin)
    for path, wanted in row.if_.items():
        if judged.read(path, wanted, facts) is False or (path not in facts and lacks(path)):
            return None
    unknown = list(judged.undecided)
    if not all(excludes(row.if_[path]) for path in unknown):
        # Those that it would compare are shown all the same.
        judged.used.update((path, facts[path]) for path in row.needs if path in facts)
        judged.state = _State.CONDITION_UNKNOWN
        return judged
    needs = {path: judged.read(path, wanted, facts) for path, wanted in row.needs.items()}
    judged.broken = [path for path, truth in needs.items() if truth is False]
    # A row without needs names what is known to be bad.
    judged.broken += [] if row.needs else list(row.if_)[:1]
    if unknown:
        judged.state = _State.PERHAPS_BROKEN if judged.broken else _State.CONDITION_UNKNOWN
        judged.undecided = unknown
    elif judged.broken:
        judged.state = _State.BROKEN
    elif judged.undecided:
        judged.state = _State.NEED_UNKNOWN
    return judged


def _result(judged: _Judged) -> RuleResult:
    row, state = judged.row, judged.state
    is_broken, ask = state == _State.BROKEN, _how_to_know(judged)
    refuses = is_broken and row.severity == "error"
    warns = bool(ask) or state == _State.PERHAPS_BROKEN or (is_broken and row.severity == "warning")
    warns = warns and row.severity != "note"
    fix = f"{row.fix}; fixed in {row.fixed_in}" if row.fixed_in else row.fix
    return RuleResult(
        rule=row.rule,
        title=row.reason,
        outcome="incompatible" if refuses else "compatible" if state == _State.FINE else "unknown",
        facts=dict(judged.used),
        missing=() if is_broken else tuple(path for path in judged.undecided if path not in judged.used),
        reason=_reason(judged),
        hint=ask or (fix if is_broken or warns else ""),
        source=f"{row.source} (seen {row.seen}{f', {judged.origin}' if judged.origin else ''})",
        subject=row.subject,
        warn=warns,
        asks=warns and bool(ask),
    )


def _how_to_know(judged: _Judged) -> str:
    """Return how people find out what a row needs to know, if that is theirs to state; else nothing."""
    if judged.state != _State.NEED_UNKNOWN or judged.undecided[0] in judged.used:
        return ""
    declared = fact_type(judged.undecided[0])
    return declared.if_unknown if declared and judged.row.needs[judged.undecided[0]] != UNREAD else ""


def _reason(judged: _Judged) -> str:
    row = judged.row
    path = next(iter(judged.broken or judged.undecided), "")
    known = f"{path} is {judged.used[path]}" if path in judged.used else f"{path} is not known"
    if judged.state == _State.CONDITION_UNKNOWN:
        path = judged.undecided[0]
        return f"these facts do not settle it: {path}" if path in judged.used else f"not known: `{path}`"
    if judged.state == _State.PERHAPS_BROKEN:
        return f"{row.reason}, and {known}; whether {judged.undecided[0]} excuses it is not known"
    if judged.state == _State.FINE or not row.needs or row.needs.get(path) == UNREAD:
        return row.reason
    return f"{row.reason}, and {known}"
