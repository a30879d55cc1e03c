"""Explain: which rules hold for a stack, from its frameworks down to the driver, with facts and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.inputs.facts import read_facts
from envbuild.inputs.knowledge import read_knowledge
from envbuild.preflight.image_facts import image_facts
from envbuild.resolve.compatibility import judge_lock
from envbuild.rules.facts import similar_fact
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RuleResult, judge_each
from envbuild.rules.knowledge import Knowledge
from envbuild.rules.rulebook import judge
from envbuild.workflows.images import image_file
from envbuild.workflows.inputs import sites_of
from envbuild.workflows.lock import lock_spec
from envbuild.workflows.settings import Settings

SCHEMA = 1
Verdict = Literal["reject", "unknown", "warn", "ok"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The verdicts, the worst first: one that is not known may be a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The results of the rules for a stack."""

    subject: str
    """The spec, image or file of facts, as the user named it."""
    sites: tuple[str, ...]
    """The site, or its partitions; empty for a stack by itself."""
    results: tuple[RuleResult, ...]
    """From the frameworks to the machine."""
    silenced: Mapping[str, str]
    """Rules that do not count here → why."""
    unread: tuple[str, ...] = ()
    """Keys of a file of facts that are not facts."""

    @property
    def verdict(self) -> Verdict:
        """``reject`` and ``warn`` if a rule says so, ``ok`` if rules decide and none is left undecided.

        Rules that read facts of the site alone do not make it ``ok``. A rule is undecided if it lacks
        knowledge. That others lack facts is no verdict on the stack: they are listed.
        """
        return verdict_on(self.results)

    @property
    def hints(self) -> dict[str, str]:
        """The facts that the first of the unread keys may mean, in words."""
        similar = {name: similar_fact(name) for name in self.unread[:20]}
        return {name: hint for name, hint in similar.items() if hint}

    @property
    def lacking(self) -> tuple[str, ...]:
        """The facts that rules lack, each once."""
        return tuple(sorted({name for result in self.results for name in result.missing if "[" not in name}))

    def document(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "sites": list(self.sites),
            "verdict": self.verdict,
            "rules": [_rule_data(result) for result in self.results],
            "lacking": list(self.lacking),
            "silenced": dict(self.silenced),
            "unread": list(self.unread),
        }


def verdict_of(result: RuleResult) -> Verdict:
    """Return the verdict of one rule."""
    if result.outcome == "incompatible":
        return "reject"
    if result.warn and not result.asks:
        return "warn"
    return "ok" if result.outcome == "compatible" else "unknown"


def verdict_on(results: Sequence[RuleResult]) -> Verdict:
    """Return the verdict on a stack; see `Explanation.verdict`."""
    verdicts = {verdict_of(result) for result in results}
    if "reject" in verdicts:
        return "reject"
    if "warn" in verdicts:
        return "warn"
    of_stack = any(verdict_of(result) == "ok" and _is_of_stack(result) for result in results)
    return "ok" if of_stack and not any(map(is_undecided, results)) else "unknown"


def _is_of_stack(result: RuleResult) -> bool:
    """Return whether a rule has read more than facts of the site, which say nothing of an image."""
    return any(not fact.source.startswith("site:") for fact in result.facts.values())


def is_undecided(result: RuleResult) -> bool:
    """Return whether a rule surely concerns the stack, and neither its facts nor its knowledge decide."""
    is_unknown = verdict_of(result) == "unknown"
    lacks_knowledge = not result.missing or any("[" in name for name in result.missing)
    return is_unknown and not result.is_note and (result.asks or lacks_knowledge)


def _rule_data(result: RuleResult) -> dict[str, Any]:
    data = result.to_data()
    return {
        "id": result.rule,
        "verdict": verdict_of(result),
        "subject": result.subject,
        "partition": result.partition,
        "reason": result.reason,
        "facts": data["facts"],
        "missing": data["missing"],
        "source": result.source,
        "fix": result.hint,
        "silenced": result.silenced,
    }


def explain(
    settings: Settings,
    *,
    stack: Path | None = None,
    facts: Path | None = None,
    knowledge: Path | None = None,
    offline: bool = False,
) -> Explanation:
    """Judge a spec, an image or a file of facts by itself, or at the site that the settings name.

    `knowledge` is a file of rows that count as if they were the machine's. A spec is locked, and nothing is
    written. RequestError: not one of `stack` and `facts` is named, or a file cannot be used.
    """
    if stack is not None and facts is not None:
        raise _one_stack()
    known = read_knowledge(knowledge)
    if stack is not None and stack.suffix in (".yaml", ".yml"):
        locked = lock_spec(stack, settings, offline=offline, write=False, judges=False)
        return Explanation(
            subject=str(stack),
            sites=tuple(site.value.name for site in locked.resolved.sites),
            results=judge_lock(locked.resolved, locked.lock, known),
            silenced=known.silences,
        )
    return _explain_file(settings, known, stack, facts)


def _one_stack() -> RequestError:
    return RequestError(
        "name one stack: a spec, an image, or a file of facts",
        hint="`envbuild explain IMAGE.sif`, or `envbuild explain --facts FILE`",
    )


def _explain_file(
    settings: Settings, known: Knowledge, stack: Path | None, facts: Path | None
) -> Explanation:
    unread: Sequence[str] = ()
    if facts is not None:
        stated = read_facts(facts)
        image, host, unread = stated.facts, stated.facts, stated.unread
    elif stack is None:
        raise _one_stack()
    else:
        with ImageFile.open(image_file(stack, settings)) as file:
            image, host = image_facts(file, settings.store), {}
    sites = sites_of(settings) if settings.site else ()
    results = judge_each(
        {
            # What a file of facts says of the host counts more than the site file.
            site.name if site else "": judge(stack_facts(image, site, host=host), knowledge=known)
            for site in sites or (None,)
        }
    )
    return Explanation(
        subject=str(facts or stack),
        sites=tuple(site.name for site in sites),
        results=results,
        silenced=known.silences,
        unread=tuple(unread),
    )
