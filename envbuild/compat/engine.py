"""Judge facts by rules: compatible, incompatible or unknown, with the facts that met.

Pure. The logic is Kleene's: what is not known stays unknown through every
condition unless the others settle it, so that knowing less never turns a
verdict into compatible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envbuild.compat.builtin import builtin
from envbuild.compat.facts import ITEM, Facts
from envbuild.compat.predicates import COMPARISONS, TESTS, Truth
from envbuild.compat.rules import LIMIT, PLACEHOLDER, Condition, Operand, Remedy, Rule, Rulebook
from envbuild.compat.sections import FrameworkFacts

Outcome = Literal["compatible", "incompatible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A fact that a rule looked at.

    Attributes
    ----------
    path : str
        Its dotted path (``driver.version``).
    value : str
        Its value for people.
    origin : str
        Where it stands; empty where nobody said.
    """

    path: str
    value: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.path} = {self.value}" + (f" ({self.origin})" if self.origin else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one rule says of a stack.

    Attributes
    ----------
    rule, title : str
        Its stable id, and what it is about.
    outcome : str
        ``compatible``, ``incompatible`` or ``unknown``; unknown is never fine.
    facts : tuple of Met
        Those that met, in the order in which the rule asks for them.
    missing : tuple of str
        Paths of the facts, and tables' rows, that it would need.
    reason, hint : str
        For people.
    source : str
        Where the rule was read, and when.
    subject : str
        The framework that it is about; empty for the whole stack.
    tell : bool
        Whether people are warned of it although it is only unknown.
    remedy : str or None
        What of a spec mends it; see `Rule`.
    """

    rule: str
    title: str
    outcome: Outcome
    facts: tuple[Met, ...]
    missing: tuple[str, ...]
    reason: str
    hint: str
    source: str
    subject: str = ""
    tell: bool = False
    remedy: Remedy | None = None

    @property
    def sentence(self) -> str:
        """What it says, with the rule's id."""
        return f"{self.rule}: {self.reason}"

    @property
    def explained(self) -> str:
        """What it says, and a line for each fact that met, with where it stands."""
        return "\n".join((self.sentence, *(f"  {met}" for met in self.facts)))

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        facts = [{"path": met.path, "value": met.value, "origin": met.origin} for met in self.facts]
        return {
            "rule": self.rule,
            "title": self.title,
            "subject": self.subject,
            "outcome": self.outcome,
            "facts": facts,
            "missing": list(self.missing),
            "reason": self.reason,
            "hint": self.hint,
            "source": self.source,
        }


def judge(
    facts: Facts, rules: Sequence[Rule] | None = None, book: Rulebook | None = None
) -> tuple[Verdict, ...]:
    """Judge a stack by all rules that concern it.

    Parameters
    ----------
    rules : sequence of Rule, optional
        Those to judge by; all of the book if absent.
    book : Rulebook, optional
        Where tables are looked up; the one that comes with this program if absent.

    Returns
    -------
    tuple of Verdict
        In the order of the rules, frameworks by name. A rule whose `when`
        does not hold says nothing.
    """
    known = builtin() if book is None else book
    verdicts = (
        _judge(rule, _Stack(facts=facts, book=known, name=name, item=item))
        for rule in (known.rules if rules is None else rules)
        for name, item in _subjects(facts, rule)
    )
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _subjects(facts: Facts, rule: Rule) -> Iterator[tuple[str, FrameworkFacts | None]]:
    if rule.each is None:
        yield "", None
    elif facts.frameworks is None:
        # What is not known may be incompatible: one verdict says so.
        yield "", FrameworkFacts()
    else:
        yield from sorted(facts.frameworks.items())


@dataclass(slots=True)
class _Stack:
    """The facts as one rule sees them, and what it has looked at."""

    facts: Facts
    book: Rulebook
    name: str
    item: FrameworkFacts | None
    met: dict[str, Met] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    limit: str = ""

    def at(self, path: str) -> Any:  # noqa: ANN401  # as `Facts.at`
        """Return a fact and remember that it was asked for."""
        value, origin = self.look(path)
        if value is None:
            self.missing[path] = None
        else:
            shown = path.replace(f"{ITEM}.", f"frameworks.{self.name}.", 1) if self.item else path
            self.met[path] = Met(path=shown, value=_text(value), origin=origin)
        return value

    def look(self, path: str) -> tuple[Any, str]:
        if self.item is None or not path.startswith(f"{ITEM}."):
            return self.facts.at(path), self.facts.origin(path)
        fact = path.removeprefix(f"{ITEM}.")
        value = (self.name or None) if fact == "name" else getattr(self.item, fact)
        return value, self.facts.origin(f"frameworks.{self.name}.{fact}")

    def fill(self, template: str) -> str:
        """Put facts into a text for people."""

        def shown(found: Any) -> str:  # noqa: ANN401  # a match of `re`
            path = found[1]
            if path == LIMIT:
                return self.limit or "unknown"
            # What a sentence names has met, too; a framework's name is no fact of it.
            value = self.name if path == f"{ITEM}.name" else self.at(path)
            return "unknown" if value is None else _text(value)

        return PLACEHOLDER.sub(shown, template)


def _judge(rule: Rule, stack: _Stack) -> Verdict | None:
    applies = _all(rule.when, stack)
    if applies is False:
        return None
    asked, stack.met, stack.limit = stack.met, {}, ""
    holds = _all(rule.check, stack) if applies else None
    outcome: Outcome = "compatible" if holds else "unknown" if holds is None else rule.failing
    missing = tuple(stack.missing) if holds is None else ()
    reason = _unsettled(stack) if holds is None else rule.title if holds else stack.fill(rule.reason)
    # Whether a rule concerns the stack at all has to be known before anybody is warned of what it lacks.
    lacks = rule.tell_missing and applies is True and holds is None
    # A check names its own facts first; why the rule applies comes after them.
    met = {**stack.met, **asked}
    return Verdict(
        rule=rule.id,
        title=rule.title,
        outcome=outcome,
        facts=tuple(met.values()),
        missing=missing,
        reason=reason,
        hint=stack.fill(rule.hint) if holds is False or lacks else "",
        source=f"{'; '.join(rule.source)} (seen {rule.seen})",
        subject=stack.name,
        tell=lacks or (rule.tell_unknown and holds is False and outcome == "unknown"),
        remedy=rule.remedy if holds is False else None,
    )


def _unsettled(stack: _Stack) -> str:
    if stack.missing:
        return "not known: " + ", ".join(f"`{path}`" for path in stack.missing)
    return "these facts do not settle it: " + ", ".join(map(str, stack.met.values()))


def _all(conditions: Sequence[Condition], stack: _Stack) -> Truth:
    """Whether all hold; looks at each, so that everything that is missing is named."""
    truths = [_holds(condition, stack) for condition in conditions]
    return False if False in truths else None if None in truths else True


def _holds(condition: Condition, stack: _Stack) -> Truth:
    if condition.any_of:
        truths = [_holds(inner, stack) for inner in condition.any_of]
        return True if True in truths else None if None in truths else False
    if condition.fact is None:
        raise AssertionError("a condition without alternatives has a fact")
    fact = stack.at(condition.fact)
    operand = condition.operand
    if operand is None:
        wanted = getattr(condition, condition.operator)
        return None if fact is None else TESTS[condition.operator](fact, wanted)
    others = _operand(operand, stack)
    if fact is None or others is None:
        return None
    truth = COMPARISONS[condition.operator](fact, others)
    if truth is False and not stack.limit:
        stack.limit = _text(tuple(dict.fromkeys(others)))
    return truth


def _operand(operand: Operand, stack: _Stack) -> tuple[str, ...] | None:
    if operand.values is not None:
        return operand.values
    if operand.fact is not None:
        value = stack.at(operand.fact)
        return None if value is None else value if isinstance(value, tuple) else (str(value),)
    return _rows(operand, stack)


def _rows(operand: Operand, stack: _Stack) -> tuple[str, ...] | None:
    """Look into a table, once for each entry of a fact that is a list."""
    if operand.table is None:
        raise AssertionError("an operand is texts, a fact or a table")
    keys = [stack.at(path) for path in operand.by]
    if any(key is None for key in keys):
        return None
    longest = next((key for key in keys if isinstance(key, tuple)), ("",))
    found: list[str] = []
    known = True
    for entry in longest:
        row = [entry if isinstance(key, tuple) else str(key) for key in keys]
        values = stack.book.tables[operand.table].find(row)
        if values is None:
            stack.missing[f"{operand.table}[{', '.join(row)}]"] = None
            known = False
        found += values or ()
    return tuple(found) if known else None


def _text(value: Any) -> str:  # noqa: ANN401  # as `Facts.at`
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "not set"
