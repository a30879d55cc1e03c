"""Knowledge of stacks as data: files of rows, of envbuild, of a centre and of a user. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from envbuild.rules.facts import FactType, fact_type, is_of_host, shown, similar_fact
from envbuild.rules.from_site import problem_of_value
from envbuild.rules.judge import Occasion, Severity
from envbuild.rules.spelling import fact_as_envbuild_names_it, text_as_envbuild_writes_it
from envbuild.rules.versions import range_problem
from envbuild.spec.fields import Format
from envbuild.spec.load import load
from envbuild.spec.model import Model, Text, errors_below, full_match

UNREAD = "?"
"""The need of a row that says that the answer has not been read: the result is unknown."""
_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
MAX_ROWS = 20_000
_FACTS_PAGE = "see docs/reference/rules.md"


def _day_of_calendar(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a day of the calendar") from None
    return text


RuleId = Annotated[str, full_match(r"[A-Z][A-Z0-9]*\.[a-z0-9][a-z0-9.-]*", "an id, such as `SITE.driver`")]
Date = Annotated[str, full_match(_DATE, "a date, such as `2026-11-20`"), AfterValidator(_day_of_calendar)]
Line = Annotated[Text, Field(min_length=1)]


def excludes(condition: str | bool) -> bool:
    """Return whether a condition names a property that excuses a stack: `false`, `!=rocm`."""
    return condition is False or (
        isinstance(condition, str) and condition.startswith("!=") and "," not in condition
    )


def _problem(path: str, condition: object, *, is_need: bool) -> str:
    """Return why a condition cannot be judged; empty if it can."""
    declared = fact_type(path)
    if declared is None:
        return f"there is no fact `{path}`; {similar_fact(path) or _FACTS_PAGE}"
    if not isinstance(condition, str | bool):
        return "expected text in quotes, `true` or `false`"
    if not condition and condition is not False:
        return "must not be empty"
    if condition == UNREAD:
        return "" if is_need else "`?` stands in `needs` alone"
    return _problem_of_value(path, declared, condition)


def _problem_of_value(path: str, declared: FactType, condition: str | bool) -> str:
    if declared.kind == "flag" or isinstance(condition, bool):
        is_flag = declared.kind == "flag" and isinstance(condition, bool)
        return "" if is_flag else f"`{path}` is a {declared.kind}, and `{shown(condition)}` is not one"
    if declared.kind == "version":
        return range_problem(condition, declared.scheme)
    value = condition.removeprefix("!=").strip()
    problem = problem_of_value(path, (value,) if declared.kind == "list" else value)
    return f"`{path}` cannot be `{value}`: {problem}" if problem else ""


def _conditions(conditions: object, *, is_need: bool) -> object:
    if not isinstance(conditions, Mapping):
        return conditions
    problems: dict[tuple[str | int, ...], str] = {}
    known: dict[str, object] = {}
    for name, condition in conditions.items():
        path = fact_as_envbuild_names_it(str(name))
        meant = _as_envbuild_writes_it(path, condition)
        if problem := _problem(path, meant, is_need=is_need):
            problems[str(name),] = problem
        elif path in known:
            problems[str(name),] = f"`{path}` is given twice"
        known[path] = meant
    if problems:
        raise errors_below(problems)
    return known


def _as_envbuild_writes_it(path: str, condition: object) -> object:
    declared = fact_type(path)
    if (
        not isinstance(condition, str)
        or condition == UNREAD
        or declared is None
        or declared.kind == "version"
    ):
        return condition
    sign = "!=" if condition.startswith("!=") else ""
    return f"{sign}{text_as_envbuild_writes_it(path, condition.removeprefix('!=').strip())}"


_Conditions = Annotated[
    dict[str, str | bool], Field(min_length=1), BeforeValidator(partial(_conditions, is_need=False))
]
_Needs = Annotated[dict[str, str | bool], BeforeValidator(partial(_conditions, is_need=True))]
# Facts → when a row that reads them is judged beside `lock` and `check`.
_OCCASIONS: Mapping[str, tuple[Occasion, ...]] = {
    "fabric": ("fabric",),
    "host_mpi": ("host-mpi",),
    "runtime": ("start",),
    "scheduler": ("job", "export"),
}


class Row(Model):
    """A row: a stack whose facts are as `if` says needs those of `needs`."""

    rule: RuleId
    """Id of the rule that the row belongs to: a shipped one, or one of your own."""
    if_: Annotated[_Conditions, Field(alias="if")]
    """Facts of the stacks that the row is about. Of a version a range (`>=12,<13`); of a text its value, or
    `!=` and a value; of a list an entry that it contains, or `!=` and one that it lacks; of a flag `true` or
    `false`."""
    needs: _Needs = {}
    """Facts that such a stack needs, in the same form. `?` says that it is not known what it needs. A row
    without `needs` names a stack that is known to be bad."""
    reason: Line
    """Why, in a sentence without a full stop."""
    severity: Severity = "error"
    """`error` refuses the stack, `warning` warns, `note` reports it as unknown."""
    source: Line
    """Where this was read: an address, or a document with its version."""
    seen: Date
    """When it was read."""
    fix: Line
    """The smallest change that helps."""
    fixed_in: Text = ""
    """The release that is good again, of a stack that is known to be bad."""

    @cached_property
    def subject(self) -> str:
        """The framework that it is about; empty for none."""
        named = (path.split(".") for path in self.if_ if path.startswith("frameworks."))
        return next((parts[1] for parts in named), "")

    @cached_property
    def opening(self) -> tuple[str, bool, tuple[str, str]]:
        """The first fact that it reads, whether that can excuse a stack, and its rule with its subject."""
        path, condition = next(iter(self.if_.items()))
        return path, excludes(condition), (self.rule, self.subject)

    @cached_property
    def occasions(self) -> frozenset[Occasion]:
        """When it is judged beside `lock` and `check`: where facts that it reads come in."""
        groups = {path.partition(".")[0] for path in (*self.if_, *self.needs)}
        return frozenset(occasion for group in groups for occasion in _OCCASIONS.get(group, ()))

    @cached_property
    def reads_host(self) -> bool:
        """Whether it reads facts of the machine."""
        return any(is_of_host(path) for path in (*self.if_, *self.needs))

    @cached_property
    def of_gpus_alone(self) -> bool:
        """Whether it compares GPUs and their driver alone: those that fit nothing do no harm on the CPU."""
        return all(path.partition(".")[0] in ("gpus", "driver") for path in (*self.if_, *self.needs))

    @property
    def rows(self) -> tuple[Row]:
        """Itself, as a table of one row."""
        return (self,)


class Ranges(Model):
    """A table of ranges: for each range of one version, the range that another one needs.

    Each entry is judged as the row that it stands for.
    """

    rule: RuleId
    """Id of the rule that its rows belong to."""
    if_: Annotated[Text, AfterValidator(fact_as_envbuild_names_it), Field(alias="if")]
    """Fact whose ranges are the keys of `ranges`."""
    needs: Annotated[Text, AfterValidator(fact_as_envbuild_names_it)]
    """Fact whose ranges are the values of `ranges`."""
    ranges: Annotated[dict[str, str], Field(min_length=1, max_length=MAX_ROWS)]
    """Range of the first fact → the range that the second one needs."""
    where: Annotated[dict[str, str | bool], BeforeValidator(partial(_conditions, is_need=False))] = {}
    """Further conditions of each row."""
    reason: Text = ""
    """Why, in a sentence without a full stop; without it, the reason names both facts and their ranges."""
    severity: Severity = "error"
    """As of a row."""
    source: Line
    """Where this was read."""
    seen: Date
    """When it was read."""
    fix: Line
    """The smallest change that helps."""

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        found = {
            key: _problem(self.if_, key, is_need=False) or _problem(self.needs, needed, is_need=True)
            for key, needed in self.ranges.items()
        }
        problems: dict[tuple[str | int, ...], str] = {
            ("ranges", key): text for key, text in found.items() if text
        }
        if problems:
            raise errors_below(problems)
        return self

    @cached_property
    def opening(self) -> tuple[str, bool, tuple[str, str]]:
        """As of a row: all its rows read the same facts."""
        path, _, identity = self._first.opening
        return path, any(map(excludes, self.ranges)), identity

    @property
    def subject(self) -> str:
        """As of a row."""
        return self._first.subject

    @property
    def occasions(self) -> frozenset[Occasion]:
        """As of a row."""
        return self._first.occasions

    @property
    def reads_host(self) -> bool:
        """As of a row."""
        return self._first.reads_host

    @property
    def of_gpus_alone(self) -> bool:
        """As of a row."""
        return self._first.of_gpus_alone

    @cached_property
    def _first(self) -> Row:
        return self._row(next(iter(self.ranges)))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows that it stands for, made when one of them is judged."""
        return tuple(map(self._row, self.ranges))

    def _row(self, key: str) -> Row:
        # Its conditions are checked.
        needed = self.ranges[key]
        return Row.model_construct(
            rule=self.rule,
            if_={self.if_: key, **self.where},
            needs={self.needs: needed},
            reason=self.reason or f"{_short(self.if_)} {key} needs {_short(self.needs)} {needed}",
            severity=self.severity,
            source=self.source,
            seen=self.seen,
            fix=self.fix,
        )


def _short(path: str) -> str:
    """Return the name of a package or framework, or the fact itself."""
    group, _, name = path.partition(".")
    return name.removesuffix(".version") if group in ("packages", "frameworks") else path


Entry = Row | Ranges
"""A row, or a table that stands for many."""


class Silence(Model):
    """A shipped rule that refuses nothing and warns of nothing at a centre."""

    rule: RuleId
    """Id of the rule."""
    reason: Line
    """Why it does not count there, in a sentence without a full stop."""
    date: Date
    """When that was decided."""


class KnowledgeFile(Model):
    """A file of knowledge: rows, and rules that do not count at a centre."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file."""
    read_from: tuple[Line, ...] = ()
    """Origin, date and digest of each source that a script made the file from."""
    rows: Annotated[tuple[Row, ...], Field(max_length=MAX_ROWS)] = ()
    """Rows of facts that go together. They add to those of envbuild, and none takes the place of another."""
    tables: Annotated[tuple[Ranges, ...], Field(max_length=MAX_ROWS)] = ()
    """Tables of ranges: many rows about the same two facts."""
    silences: tuple[Silence, ...] = ()
    """Shipped rules that do not count at this centre; only in `/etc/envbuild/knowledge`."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its rows and tables."""
        return self.rows + self.tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """All rows that count, with the file that each comes from, and the silenced rules."""

    entries: tuple[tuple[Entry, str], ...] = ()
    """Rows and tables, and the file of each; empty for envbuild's own."""
    silences: Mapping[str, str] = field(default_factory=dict)
    """Id of a rule → why it does not count, with date and file."""

    @property
    def rows(self) -> Iterator[tuple[Row, str]]:
        """All rows, those of tables too, and the file of each."""
        return ((row, path) for entry, path in self.entries for row in entry.rows)

    def with_file(self, file: KnowledgeFile, path: str) -> Knowledge:
        """Return this knowledge and that of a file."""
        silences = {entry.rule: f"{entry.reason} ({entry.date}, {path})" for entry in file.silences}
        entries = tuple((entry, path) for entry in file.entries)
        return Knowledge(entries=(*self.entries, *entries), silences={**self.silences, **silences})

    def of_rule(self, rule: str) -> tuple[Row, ...]:
        """Return the rows of a rule."""
        return tuple(row for entry, _ in self.entries if entry.rule == rule for row in entry.rows)


@cache
def shipped() -> Knowledge:
    """Return the knowledge of this program: written by hand (YAML), then imported (JSON)."""
    knowledge = Knowledge()
    directory = resources.files("envbuild.rules") / "knowledge"
    for file in sorted(directory.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            loaded = load(KnowledgeFile, file.read_bytes(), Path(file.name))
            knowledge = knowledge.with_file(loaded.value, "")
    for file in sorted((directory / "imported").iterdir(), key=lambda file: file.name):
        knowledge = knowledge.with_file(KnowledgeFile.model_validate_json(file.read_bytes()), "")
    return knowledge
