"""Rules and tables as rows of data: their models, and what is wrong with a file of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, model_validator

from envbuild.compat.facts import ITEM, kind_of, known_paths
from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.spec.load import Loaded, examine
from envbuild.spec.model import Model, Text, full_match

PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")
LIMIT = "limit"

_ID = r"[A-Z][A-Z0-9]*\.[a-z0-9]+(-[a-z0-9.]+)*"


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise ValueError(f"`{value}` is not a range of versions, such as `>=5,<6`") from None
    return value


RuleId = Annotated[str, full_match(_ID, "a rule's id, such as `CUDA.driver-floor`")]
Date = Annotated[str, full_match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|unknown", "a date, such as `2026-11-20`")]
FactPath = Annotated[str, full_match(r"[a-z_]+\.[a-z_]+", "a fact's path, such as `driver.version`")]
Range = Annotated[Text, AfterValidator(_specifier)]

_RENAME = "rename one of them"
_FACTS = "docs/compatibility.md lists the facts"


class Operand(Model):
    """What a fact is compared with: given texts, another fact, or rows of a table.

    Attributes
    ----------
    by : tuple of str
        Facts whose values choose a row, one for each column of the table. One
        of them may be a list: then a row is chosen for each of its entries,
        and the condition must hold for all.
    """

    values: tuple[Text, ...] | None = None
    fact: FactPath | None = None
    table: Text | None = None
    by: tuple[FactPath, ...] = ()

    @model_validator(mode="after")
    def _one(self) -> Operand:
        if sum(each is not None for each in (self.values, self.fact, self.table)) != 1:
            raise ValueError("an operand has one of `values`, `fact` and `table`")
        if (self.table is None) == bool(self.by):
            raise ValueError("`table` and `by` belong together")
        return self


class Condition(Model):
    """One small predicate over a fact, or several of which one must hold.

    Attributes
    ----------
    is_, is_true, is_empty : optional
        The fact is this text; is true or false; is an empty text or list, or is not.
    version : str or None
        The fact is a version in this range (PEP 440).
    all_equal : bool or None
        The entries of the fact are the same text.
    one_of, none_of : Operand or None
        The fact is among the operand's texts, or is not.
    at_least, at_most : Operand or None
        The fact is a version not below, not above the operand's.
    same_series : Operand or None
        The first two numbers of both versions are the same.
    admitted_by : Operand or None
        The fact is a version in the range that the operand is.
    subset_of, intersects, disjoint : Operand or None
        Every, some, no entry of the fact is among the operand's texts.
    may_intersect : Operand or None
        No entry is (false), or some is, which does not settle it (unknown).
    run_code_for : Operand or None
        The fact's GPUs all run the operand's GPU code.
    any_of : tuple of Condition
        Holds where one of these does; no `fact` then.
    """

    fact: FactPath | None = None
    is_: Annotated[Text | None, Field(alias="is")] = None
    is_true: bool | None = None
    is_empty: bool | None = None
    version: Range | None = None
    all_equal: Literal[True] | None = None
    one_of: Operand | None = None
    none_of: Operand | None = None
    at_least: Operand | None = None
    at_most: Operand | None = None
    same_series: Operand | None = None
    admitted_by: Operand | None = None
    subset_of: Operand | None = None
    intersects: Operand | None = None
    disjoint: Operand | None = None
    may_intersect: Operand | None = None
    run_code_for: Operand | None = None
    any_of: tuple[Condition, ...] = ()

    @model_validator(mode="after")
    def _one(self) -> Condition:
        operators = [name for name in OPERATORS if getattr(self, name) is not None]
        if bool(self.any_of) == (self.fact is not None):
            raise ValueError("a condition has either `fact` or `any_of`")
        if len(operators) != (0 if self.any_of else 1):
            known = ", ".join(name.rstrip("_") for name in OPERATORS)
            raise ValueError(f"a condition on a fact has one operator; they are: {known}")
        return self

    @property
    def operator(self) -> str:
        """Name of the one predicate; ``any_of`` for several conditions."""
        return next((name for name in OPERATORS if getattr(self, name) is not None), "any_of")

    @property
    def operand(self) -> Operand | None:
        """What the fact is compared with, where it is with more than a given value."""
        value = None if self.any_of else getattr(self, self.operator)
        return value if isinstance(value, Operand) else None


# Predicate → the kinds of fact that it is for.
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "is_": ("text",),
    "is_true": ("truth",),
    "is_empty": ("text", "texts"),
    "version": ("text",),
    "all_equal": ("texts",),
    "one_of": ("text",),
    "none_of": ("text",),
    "at_least": ("text",),
    "at_most": ("text",),
    "same_series": ("text",),
    "admitted_by": ("text",),
    "subset_of": ("texts",),
    "intersects": ("texts",),
    "disjoint": ("texts",),
    "may_intersect": ("texts",),
    "run_code_for": ("texts",),
}


Remedy = Literal["older-accelerator"]


class Rule(Model):
    """One rule.

    Attributes
    ----------
    source : tuple of str
        Where it was read or seen.
    seen : str
        When (ISO 8601 date, or ``unknown``).
    each : str or None
        ``frameworks``: judged once for each, whose facts are ``it.…``.
    when : tuple of Condition
        All must hold for the rule to say anything.
    check : tuple of Condition
        All must hold for the stack to be compatible.
    failing : str
        What it says otherwise; ``unknown`` for what may work all the same.
    tell_unknown : bool
        Whether people are warned where the facts are known and it says unknown.
    tell_missing : bool
        Whether they are, too, where it concerns the stack and a fact that it asks for is not known.
    reason, hint : str
        With ``{path}`` for facts, and ``{limit}`` for what the fact that failed was compared with.
    remedy : str or None
        What of a spec mends it; where there is a spec, the hint then says what its recipes have.
    """

    id: RuleId
    title: Text
    source: Annotated[tuple[Text, ...], Field(min_length=1)]
    seen: Date
    each: Literal["frameworks"] | None = None
    when: tuple[Condition, ...] = ()
    check: Annotated[tuple[Condition, ...], Field(min_length=1)]
    failing: Literal["incompatible", "unknown"] = "incompatible"
    tell_unknown: bool = False
    tell_missing: bool = False
    reason: Text
    hint: Text
    remedy: Remedy | None = None


class Row(Model):
    """One row of a table: in each column a text, or a range of versions that begins with its comparison."""

    match: Annotated[tuple[Text, ...], Field(min_length=1)]
    values: tuple[Text, ...]

    def meets(self, keys: Sequence[str]) -> bool:
        """Return whether every key meets its column."""
        return len(keys) == len(self.match) and all(map(_meets, self.match, keys))


class Table(Model):
    """Rows in the order in which they are tried; none that fits is unknown.

    Attributes
    ----------
    columns : tuple of str
        What each column of `Row.match` is.
    """

    summary: Text
    source: Annotated[tuple[Text, ...], Field(min_length=1)]
    seen: Date
    columns: Annotated[tuple[Text, ...], Field(min_length=1)]
    rows: tuple[Row, ...]

    def find(self, keys: Sequence[str]) -> tuple[str, ...] | None:
        """Return the values of the first row that the keys meet; None where there is none."""
        return next((row.values for row in self.rows if row.meets(keys)), None)


class RuleFile(Model):
    """A file of rules or tables."""

    rules: tuple[Rule, ...] = ()
    tables: dict[Text, Table] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulebook:
    """Rules in their order, and the tables that they look into."""

    rules: tuple[Rule, ...]
    tables: Mapping[str, Table] = field(default_factory=dict)


def load_rules(files: Mapping[Path, bytes]) -> Rulebook:
    """Read files of rules and tables.

    Parameters
    ----------
    files : mapping of Path to bytes
        Their contents, in the order in which their rules are judged.

    Raises
    ------
    RequestError, ManyErrors
        Everything that is wrong with them, each with its place.
    """
    mistakes: list[EnvbuildError] = []
    loaded: list[Loaded[RuleFile]] = []
    for path, content in files.items():
        one, wrong = examine(RuleFile, content, path)
        mistakes += wrong
        if one is not None:
            loaded.append(one)
    tables: dict[str, Table] = {}
    for one in loaded:
        for name, table in one.value.tables.items():
            if name in tables:
                at = one.at_key("tables", name)
                mistakes.append(RequestError(f"there are two tables `{name}`", at=at, hint=_RENAME))
            tables[name] = table
            mistakes += _table_mistakes(one, name, table)
    seen: set[str] = set()
    for one in loaded:
        for index, rule in enumerate(one.value.rules):
            if rule.id in seen:
                at = one.at("rules", index, "id")
                mistakes.append(RequestError(f"there are two rules `{rule.id}`", at=at, hint=_RENAME))
            seen.add(rule.id)
            mistakes += _rule_mistakes(one, index, rule, tables)
    raise_all(mistakes)
    return Rulebook(rules=tuple(rule for one in loaded for rule in one.value.rules), tables=tables)


def version_of(text: str) -> Version | None:
    """Return a version as it can be compared (PEP 440); None for one that cannot.

    Of a vendor's (``1.22.0amzn4.0``) the numbers that it begins with.
    """
    try:
        return Version(text)
    except InvalidVersion:
        numbers = re.match(r"[0-9]+(\.[0-9]+)*", text)
        return Version(numbers[0]) if numbers else None


def _meets(pattern: str, key: str) -> bool:
    if pattern[:1] not in "<>=!~":
        return pattern == key
    version = version_of(key)
    return version is not None and SpecifierSet(pattern).contains(version, prereleases=True)


def _fitting(fact: str) -> str:
    kind = kind_of(fact)
    return ", ".join(f"`{name.rstrip('_')}`" for name, kinds in OPERATORS.items() if kind in kinds)


def _table_mistakes(loaded: Loaded[RuleFile], name: str, table: Table) -> Iterator[EnvbuildError]:
    for index, row in enumerate(table.rows):
        at = loaded.at("tables", name, "rows", index, "match")
        if len(row.match) != len(table.columns):
            yield RequestError(
                f"a row of `{name}` has as many entries as the table has columns, {len(table.columns)}",
                at=at,
                hint="write one entry for each column",
            )
        for pattern in row.match:
            if pattern[:1] in tuple("<>=!~"):
                try:
                    SpecifierSet(pattern)
                except InvalidSpecifier:
                    yield RequestError(
                        f"`{pattern}` is not a range of versions",
                        at=at,
                        hint="write it as in PEP 440: `>=2.1,<3`",
                    )


def _rule_mistakes(
    loaded: Loaded[RuleFile], index: int, rule: Rule, tables: Mapping[str, Table]
) -> Iterator[EnvbuildError]:
    paths = known_paths(item=rule.each is not None)
    for part in ("when", "check"):
        for number, condition in enumerate(getattr(rule, part)):
            at = loaded.at("rules", index, part, number)
            yield from _condition_mistakes(condition, at, paths, tables)
    for name in ("reason", "hint"):
        for path in PLACEHOLDER.findall(getattr(rule, name)):
            if path not in (*paths, LIMIT):
                problem = f"`{rule.id}` names a fact that there is not: `{path}`"
                yield RequestError(
                    problem, at=loaded.at("rules", index, name), hint=did_you_mean(path, paths) or _FACTS
                )


def _condition_mistakes(
    condition: Condition, at: Location, paths: Sequence[str], tables: Mapping[str, Table]
) -> Iterator[EnvbuildError]:
    for inner in condition.any_of:
        yield from _condition_mistakes(inner, at, paths, tables)
    operand = condition.operand
    by = operand.by if operand is not None else ()
    named = [condition.fact, *(by if operand else ()), operand.fact if operand else None]
    unknown = [path for path in named if path is not None and path not in paths]
    for path in unknown:
        hint = did_you_mean(path, paths) or (
            "`it.…` is for rules with `each`" if path.startswith(f"{ITEM}.") else _FACTS
        )
        yield RequestError(f"there is no fact `{path}`", at=at, hint=hint)
    if unknown:
        return
    if condition.fact is not None and kind_of(condition.fact) not in OPERATORS[condition.operator]:
        operator = condition.operator.rstrip("_")
        yield RequestError(
            f"`{operator}` is not for `{condition.fact}`, a {kind_of(condition.fact)}",
            at=at,
            hint=f"a {kind_of(condition.fact)} is compared by {_fitting(condition.fact)}",
        )
    if operand is not None and operand.table is not None:
        if operand.table not in tables:
            yield RequestError(
                f"there is no table `{operand.table}`",
                at=at,
                hint=did_you_mean(operand.table, list(tables))
                or f"there are: {', '.join(sorted(tables)) or 'none'}",
            )
        elif len(by) != len(tables[operand.table].columns):
            yield RequestError(
                f"`{operand.table}` has another number of columns: {len(tables[operand.table].columns)}",
                at=at,
                hint="name as many facts under `by`, in their order",
            )
        if sum(kind_of(path) == "texts" for path in by) > 1:
            yield RequestError(
                "only one fact of `by` may be a list", at=at, hint="split the rule into one for each"
            )
