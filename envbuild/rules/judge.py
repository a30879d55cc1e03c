"""Judge facts by rules: compatible, incompatible or unknown. Pure.

A rule is a function that reads facts through a `Stack` and requires something of them. Reading an
absent fact makes the rule unknown, so knowing less never turns a result into compatible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.jobs.report import CheckResult
from envbuild.rules.facts import Fact, Facts, Value, shown, texts_of
from envbuild.rules.tables import look_up

Outcome = Literal["compatible", "incompatible", "unknown"]
STATUS: Mapping[Outcome, str] = {"compatible": "PASS", "incompatible": "FAIL", "unknown": "SKIP"}
"""Outcome of a rule → status of its finding."""
Severity = Literal["error", "warning", "note"]
Occasion = Literal["start", "job", "ranks", "export", "fabric", "host-libraries", "host-mpi"]
"""When rules are judged, other than by `lock` and `check`, which judge all.

``start``: an image starts here; ``job``: on nodes of a scheduler; ``ranks``: a launcher starts its ranks;
``export``: a text that starts it is written; ``fabric``: ranks use a fabric; ``host-libraries``,
``host-mpi``: those of the host take the place of the image's own.
"""


class UnknownFact(Exception):
    """A rule needs an unknown fact, or known facts do not settle it."""

    def __init__(self, missing: str = "", reason: str = "") -> None:
        super().__init__(missing)
        self.missing = missing
        """The fact, or the row of a table (``TABLE[KEY]``); empty if known facts do not settle the rule."""
        self.reason = reason
        """What the fact is needed for, for people; may be empty."""


class BrokenRule(Exception):
    """A stack breaks a rule; its text is the reason, for people."""


def require(holds: bool | None, reason: str) -> None:
    """Raise BrokenRule if `holds` is False, UnknownFact if it is None."""
    if holds is None:
        raise UnknownFact
    if not holds:
        raise BrokenRule(reason)


@dataclass(slots=True)
class Stack:
    """Facts for one rule, and those that it has read."""

    facts: Facts
    framework: str = ""
    """The framework that a rule about each framework is judged for."""
    package: str = ""
    """The Python package that a rule about each package is judged for."""
    used: dict[str, Fact] = field(default_factory=dict)

    def get(self, path: str) -> Value | None:
        """Return a fact; None if it is unknown."""
        fact = self.facts.get(path)
        if fact is None:
            return None
        self.used[path] = fact
        return fact.value

    def __getitem__(self, path: str) -> Value:
        value = self.get(path)
        if value is None:
            raise UnknownFact(path)
        return value

    def text(self, path: str) -> str:
        """Return a fact that is a text."""
        return str(self[path])

    def texts(self, path: str) -> tuple[str, ...]:
        """Return a fact that is a list of texts."""
        value = self[path]
        return value if isinstance(value, tuple) else (str(value),)

    def texts_or_none(self, path: str) -> tuple[str, ...] | None:
        """Return a fact that is a list of texts; None if it is unknown."""
        return None if self.get(path) is None else self.texts(path)

    def own(self, name: str) -> str:
        """Return the path of a fact of the framework that the rule is judged for."""
        if not self.framework:
            raise UnknownFact("frameworks")
        return f"frameworks.{self.framework}.{name}"

    def of_package(self, part: str) -> str:
        """Return a fact of the package that the rule is judged for."""
        return self.text(f"packages.{self.package}.{part}")

    def show(self, path: str) -> str:
        """Return a fact for people; ``unknown`` if it is not known."""
        value = self.get(path)
        return "unknown" if value is None else shown(value)

    def look_up(self, table: str, *keys: str) -> tuple[str, ...]:
        """Return the values of a table's first row that matches the keys."""
        values = look_up(table, *keys)
        if values is None:
            raise UnknownFact(f"{table}[{', '.join(keys)}]")
        return values


Check = Callable[[Stack], None]
RULES: list[Rule] = []


@dataclass(slots=True, kw_only=True)
class Rule:
    """A rule: the decorator of the function that checks it, whose docstring is the title."""

    id: str
    source: Sequence[str]
    """Sources: documents and issues."""
    seen: str
    """Date of the sources (ISO 8601), or ``unknown``."""
    hint: str
    severity: Severity = "error"
    """``error`` refuses the stack. With ``warning`` and ``note`` it may work all the same:
    the result is unknown, and a ``warning`` is shown."""
    when: Callable[[Stack], bool] = lambda _: True
    """Whether the rule concerns the stack; if not, there is no result."""
    judged_at: tuple[Occasion, ...] = ()
    """When it is judged; `lock` and `check` judge all rules."""
    warn_if_unknown: bool = False
    """Whether people are warned if the rule concerns the stack and a fact for the check is unknown."""
    hint_if_unknown: str = ""
    """The hint of that warning; `hint` if empty."""
    per_framework: bool = False
    """Whether it is judged once for each framework."""
    needs: Callable[[Stack], Iterable[str]] | None = None
    """Returns what it makes an image need of a machine, in the words of a row, from facts of the image alone.
    None if that is nothing."""
    per_package: str = ""
    """The fact of a package (``numpy``) for which it is judged: once for each package that has it. Those that
    fit give no result: an image has hundreds."""
    title: str = field(init=False)
    """The condition that a good stack meets."""
    check: Check = field(init=False)

    def __call__(self, check: Check) -> Check:
        """Register the function that checks it."""
        self.title = (check.__doc__ or "").rstrip(".")
        self.check = check
        RULES.append(self)
        return check


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """The result of one rule for a stack."""

    rule: str
    title: str
    outcome: Outcome
    """``compatible``, ``incompatible`` or ``unknown``."""
    facts: dict[str, Fact]
    """The facts that the rule has read, those of its check first."""
    missing: tuple[str, ...]
    """The fact, or the row of a table, that it would need."""
    reason: str
    hint: str
    source: str
    subject: str = ""
    """The framework or package that it is about; empty for the whole stack."""
    warn: bool = False
    """Whether people are warned although the result is only unknown."""
    asks: bool = False
    """Whether the warning only asks for a fact: nothing is known to clash."""
    is_note: bool = False
    """Whether the stack breaks a rule that is only a note: it is known, and no reason against the stack."""
    at: Location | None = None
    """Where to change it, if a file decides a fact."""
    partition: str = ""
    """The partition of the site that it is about (``lumi/g``); empty for all."""
    silenced: str = ""
    """Why a centre has silenced the rule, with date and file; empty for a rule that counts."""

    @property
    def sentence(self) -> str:
        """The reason, with the rule's id."""
        return f"{self.rule}: {self.partition_reason}"

    @property
    def partition_reason(self) -> str:
        """The reason, with the partition that it is about."""
        return f"{self.partition}: {self.reason}" if self.partition else self.reason

    @property
    def fact_lines(self) -> tuple[str, ...]:
        """Each fact that was read, with its source."""
        return tuple(_fact_lines(self.facts))

    @property
    def finding(self) -> CheckResult:
        """The result as a check; an unknown one is SKIP, which is no pass."""
        status, observed = STATUS[self.outcome], self.partition_reason
        return CheckResult(status, self.rule, self.title, observed, self.hint, subject=self.subject)

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON: the keys of a finding, and what the rule has read."""
        facts = [
            {"path": path, "value": str(fact), "origin": fact.source} for path, fact in self.facts.items()
        ]
        return {
            **asdict(self.finding),
            "partition": self.partition,
            "facts": facts,
            "missing": list(self.missing),
            "source": self.source,
            "silenced": self.silenced,
        }


# Areas of rules, from frameworks down to the machine.
_CHAIN = (
    *("ARCH", "GPU", "PYTHON", "NUMPY", "PACKAGE", "TENSORFLOW", "JAX", "PYTORCH", "CUDNN", "NCCL", "CUDA"),
    *("ROCM", "MPI", "PMI", "FABRIC", "GLIBC", "GLIBCXX", "HOST", "RUNTIME", "SCHEDULER"),
)


def in_chain(result: RuleResult) -> int:
    """Return the place of a result in the chain from the frameworks to the machine, as a key to sort by."""
    area = result.rule.partition(".")[0]
    return _CHAIN.index(area) if area in _CHAIN else len(_CHAIN)


def judge_rules(facts: Facts, rules: Iterable[Rule]) -> tuple[RuleResult, ...]:
    """Judge a stack by rules, in their order; a rule that does not concern it gives no result."""
    results: list[RuleResult | None] = []
    for rule in rules:
        if rule.per_package:
            each = (_judge(rule, facts, package=name) for name in packages_with(facts, rule.per_package))
            results += [result for result in each if result is None or result.outcome != "compatible"]
        else:
            results += [_judge(rule, facts, framework) for framework in frameworks_of(rule, facts)]
    return tuple(result for result in results if result is not None)


def frameworks_of(rule: Rule, facts: Facts) -> Sequence[str]:
    """Return the frameworks that a rule is judged for; an empty text stands for the stack as a whole."""
    # Unknown frameworks may be incompatible: there is one result for all.
    if not rule.per_framework or "frameworks" not in facts:
        return [""]
    return sorted(texts_of(facts, "frameworks"))


def packages_with(facts: Facts, part: str) -> Iterator[str]:
    """Yield the Python packages of which a fact (``numpy``) is known, sorted."""
    end = f".{part}"
    for path in sorted(facts):
        if path.startswith("packages.") and path.endswith(end) and path.count(".") == 2:
            yield path.split(".")[1]


def fits(results: Iterable[RuleResult]) -> bool:
    """Return whether nothing is incompatible."""
    return all(result.outcome != "incompatible" for result in results)


def judge_each(results: Mapping[str, Sequence[RuleResult]]) -> tuple[RuleResult, ...]:
    """Return the results for a site with the partitions `results`; a stack has to fit one of them.

    A result that is the same in all is returned once, others name their partition. If the stack fits one
    partition, an incompatible result of another one is a warning: it depends on where the image starts.
    """
    fits_one = any(map(fits, results.values()))
    merged: dict[tuple[object, ...], list[tuple[str, RuleResult]]] = {}
    for name, judged in results.items():
        for result in judged:
            identity = (result.rule, result.subject, result.outcome, result.reason, result.missing)
            merged.setdefault(identity, []).append((name, result))
    found = []
    for group in merged.values():
        if len(group) == len(results):
            found.append(_shared([result for _, result in group]))
        else:
            found += [replace(result, partition=name) for name, result in group]
    if fits_one:
        found = [
            replace(result, outcome="unknown", warn=True) if result.outcome == "incompatible" else result
            for result in found
        ]
    order: dict[str, int] = {}
    for result in found:
        order.setdefault(result.rule, len(order))
    return tuple(sorted(found, key=lambda result: (in_chain(result), order[result.rule], result.subject)))


def _shared(results: Sequence[RuleResult]) -> RuleResult:
    """Return one result for all; its facts are those that are the same in all."""
    first, *others = results
    facts = {
        path: fact
        for path, fact in first.facts.items()
        if all(path in other.facts and other.facts[path].value == fact.value for other in others)
    }
    return replace(first, facts=facts)


def _judge(rule: Rule, facts: Facts, framework: str = "", package: str = "") -> RuleResult | None:
    why, stack = Stack(facts, framework, package), Stack(facts, framework, package)
    concerned, warn, is_note = False, False, False
    missing: tuple[str, ...] = ()
    outcome: Outcome = "unknown"
    try:
        concerned = rule.when(why)
        if not concerned:
            return None
        rule.check(stack)
        outcome, reason, hint = "compatible", rule.title, ""
    except BrokenRule as broken:
        outcome = "incompatible" if rule.severity == "error" else "unknown"
        warn, is_note = rule.severity == "warning", rule.severity == "note"
        reason, hint = str(broken), rule.hint
    except UnknownFact as unknown:
        missing = (unknown.missing,) if unknown.missing else ()
        warn = concerned and rule.warn_if_unknown
        settle = f"these facts do not settle it: {', '.join(_fact_lines({**stack.used, **why.used}))}"
        reason = unknown.reason or (f"not known: `{unknown.missing}`" if missing else settle)
        hint = (rule.hint_if_unknown or rule.hint) if warn else ""
    return RuleResult(
        rule=rule.id,
        title=rule.title,
        outcome=outcome,
        # A check's own facts first; why the rule applies comes after them.
        facts={**stack.used, **why.used},
        missing=missing,
        reason=reason,
        hint=hint,
        source=f"{'; '.join(rule.source)} (seen {rule.seen})",
        subject=framework or package,
        warn=warn,
        asks=warn and bool(missing),
        is_note=is_note,
    )


def _fact_lines(facts: Facts) -> Iterator[str]:
    for path, fact in facts.items():
        yield f"{path} = {fact}" + (f" ({fact.source})" if fact.source else "")


def refusal(result: RuleResult) -> RequestError:
    """Return the error for a result: rule, reason, the facts with their origins, and the source."""
    lines = (*result.fact_lines, f"source: {result.source}")
    problem = "\n".join((result.sentence, *(f"  {line}" for line in lines)))
    return RequestError(problem, at=result.at, hint=result.hint)


def refuse_or_warn(results: Iterable[RuleResult], emit: Emit) -> None:
    """Raise everything that is incompatible, all at once, as `refusal` words it; emit the warnings."""
    errors: list[EnvbuildError] = []
    for result in results:
        if result.outcome == "incompatible":
            errors.append(refusal(result))
        elif result.warn:
            emit(Warned(text=result.sentence, hint=result.hint))
    raise_all(errors)
