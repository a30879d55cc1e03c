"""Fit: which images can run at a site, by the facts that they carry; none is scanned that has facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import Knowledge
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site
from envbuild.workflows.explain import VERDICTS, Verdict, is_undecided, verdict_of, verdict_on
from envbuild.workflows.forecast import KnownImage, known_image, rule_data
from envbuild.workflows.images import NamedImage
from envbuild.workflows.inputs import no_site, sites_of
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """The verdict of the rules on an image in a partition."""

    partition: str
    """Name of the site, or of its partition."""
    verdict: Verdict
    results: tuple[RuleResult, ...]
    """The rules that refuse it, or else those that warn, or else those that are undecided."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of these rules, each with its rule."""
        return tuple(dict.fromkeys(f"{result.rule}: {result.reason}" for result in self.results))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFit:
    """How an image fits a site."""

    image: KnownImage
    partitions: tuple[PartitionVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The best verdict of all partitions; ``unknown`` for an image without facts."""
        return max((one.verdict for one in self.partitions), key=VERDICTS.index, default="unknown")

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons, with the partition if there are several; the problem of an image without facts."""
        if self.image.problem:
            return (self.image.problem,)
        several = len(self.partitions) > 1
        return tuple(
            f"{one.partition}: {reason}" if several else reason
            for one in self.partitions
            for reason in one.reasons
        )

    def document(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "verdict": self.verdict,
            "problem": self.image.problem,
            "scanned": self.image.scanned,
            "partitions": [
                {
                    "name": one.partition,
                    "verdict": one.verdict,
                    "rules": [rule_data(result) for result in one.results],
                }
                for one in self.partitions
            ],
        }


def judge_fits(
    images: Members[NamedImage], settings: Settings, from_host: HostLibraries = NO_HOST_LIBS
) -> Members[SiteFit]:
    """Judge images at the site of the settings, as `explain` does; RequestError if no site is known."""
    sites, knowledge = sites_of(settings), read_knowledge()
    if not sites:
        raise no_site()

    def fit(member: Member[NamedImage], settings: Settings) -> SiteFit:
        image = known_image(member, settings)
        # A thousand images have more facts than memory should hold.
        return SiteFit(
            image=replace(image, facts=None), partitions=_verdicts(image, sites, from_host, knowledge)
        )

    return images.each(fit, settings)


def _verdicts(
    image: KnownImage, sites: Sequence[Site], from_host: HostLibraries, knowledge: Knowledge
) -> tuple[PartitionVerdict, ...]:
    if image.facts is None:
        return ()
    verdicts = []
    for site in sites:
        stack = stack_facts(image.facts, site, host_mpi=from_host.mpi, host_fabric=from_host.fabric)
        results = judge(stack, knowledge=knowledge)
        verdict = verdict_on(results)
        named = tuple(result for result in results if _decides(result, verdict))
        verdicts.append(PartitionVerdict(partition=site.name, verdict=verdict, results=named))
    return tuple(verdicts)


def _decides(result: RuleResult, verdict: Verdict) -> bool:
    """Return whether a rule is a reason for a verdict that is not ``ok``."""
    if verdict == "unknown":
        return is_undecided(result)
    return verdict != "ok" and verdict_of(result) == verdict
