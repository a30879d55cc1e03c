"""Needs of an image of a machine, by rows and by rules that are functions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from envbuild.rules.facts import Facts, is_absent, is_of_host, shown
from envbuild.rules.judge import Rule, Severity, Stack, UnknownFact, frameworks_of
from envbuild.rules.knowledge import UNREAD, Knowledge, Row
from envbuild.rules.rows import holds
from envbuild.rules.rulebook import function_rules


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Need:
    """Something that an image needs of the machine."""

    need: str
    """``driver.version >=580``, with the machines that it is about."""
    rule: str
    reason: str
    source: str
    severity: Severity
    """``error``: without it a rule refuses the image; else it may run all the same."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class UndecidedNeed:
    """A rule of which it is not known what it makes an image need."""

    rule: str
    missing: str
    """The fact of the image that is not known, or what has not been read."""


def needs_of(facts: Facts, knowledge: Knowledge) -> Iterator[Need | UndecidedNeed]:
    """Yield what an image with these facts needs of a machine, by all rules that are not silenced."""
    for entry, file in knowledge.entries:
        if entry.reads_host and (file or entry.rule not in knowledge.silences):
            for row in entry.rows:
                yield from _of_row(row, facts)
    for rule in function_rules():
        if rule.needs is not None and rule.id not in knowledge.silences:
            yield from _of_function(rule, rule.needs, facts)


def _of_row(row: Row, facts: Facts) -> Iterator[Need | UndecidedNeed]:
    text = _text(row)
    of_image = {path: wanted for path, wanted in row.if_.items() if not is_of_host(path)}
    if not text or not of_image:
        return
    missing: list[str] = []
    excuses: list[str] = []
    for path, wanted in of_image.items():
        truth = holds(path, facts[path].value, wanted) if path in facts else None
        if truth is False or (path not in facts and is_absent(facts, path)):
            return
        if truth is None:
            (excuses if wanted is False else missing).append(path)
    if missing:
        yield UndecidedNeed(rule=row.rule, missing=missing[0])
    elif any(wanted == UNREAD for path, wanted in row.needs.items() if is_of_host(path)):
        yield UndecidedNeed(rule=row.rule, missing=row.reason)
    else:
        need = f"{text}, unless {excuses[0]}, which is not known" if excuses else text
        yield Need(need=need, rule=row.rule, reason=row.reason, source=row.source, severity=row.severity)


def _text(row: Row) -> str:
    """Return what a row needs of a machine, in words; empty if nothing."""
    where = [f"{path} {shown(wanted)}" for path, wanted in row.if_.items() if is_of_host(path)]
    if not row.needs:
        return f"not {' with '.join(where)}" if where else ""
    needed = [f"{path} {shown(wanted)}" for path, wanted in row.needs.items() if is_of_host(path)]
    condition = f" where {' and '.join(where)}" if where else ""
    return f"{' and '.join(needed)}{condition}" if needed else ""


def _of_function(
    rule: Rule, needs: Callable[[Stack], Iterable[str]], facts: Facts
) -> Iterator[Need | UndecidedNeed]:
    for framework in frameworks_of(rule, facts):
        try:
            texts = list(needs(Stack(facts, framework)))
        except UnknownFact as unknown:
            yield UndecidedNeed(rule=rule.id, missing=unknown.missing)
            continue
        source = "; ".join(rule.source)
        for text in texts:
            yield Need(need=text, rule=rule.id, reason=rule.title, source=source, severity=rule.severity)
