"""Forecast: which installed images a change of the machine breaks, and what they need of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from envbuild.errors import EnvbuildError, RequestError, collected, raise_all
from envbuild.image.file import ImageFile
from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries
from envbuild.preflight.image_facts import image_facts, kept_facts
from envbuild.rules.facts import (
    FACTS,
    Fact,
    Facts,
    FactType,
    Value,
    fact_type,
    is_of_host,
    shown,
    similar_fact,
    texts_of,
)
from envbuild.rules.from_site import facts_of_site, problem_of_value, stack_facts, with_changes
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import Knowledge, Row, shipped
from envbuild.rules.needs import Need, UndecidedNeed, needs_of
from envbuild.rules.pmi import warn_of_odd_types
from envbuild.rules.repair import Repair, repair_of
from envbuild.rules.rows import holds
from envbuild.rules.rulebook import function_rules, judge
from envbuild.spec.site import Site
from envbuild.workflows.explain import VERDICTS, Verdict, verdict_of
from envbuild.workflows.images import NamedImage, named_images
from envbuild.workflows.inputs import no_site, sites_of
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings

SCHEMA = 1
State = Literal["breaks", "broken", "warns", "unknown", "holds"]
STATES: tuple[State, ...] = get_args(State)
"""States of images, the worst first."""
# Those that people set: an update of their part leaves them as they are.
_SETTINGS = (
    "driver.open_modules",
    "gpus.mig",
    "gpus.names",
    "gpus.xnack",
    "host.fuse",
    "limits.memlock",
    "limits.shm",
    "scheduler.pmix_security",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownImage:
    """An image below a directory, and its facts."""

    name: str
    path: Path
    facts: Mapping[str, Fact] | None = None
    """None if it has no facts of envbuild, or cannot be read."""
    problem: str = ""
    """Why it has none."""
    scanned: bool = False
    """Whether it neither carries facts nor had any in the store, and was scanned."""
    is_extended: bool = False
    """Whether `envbuild extend` has added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The effect of a change on an image in a partition."""

    partition: str
    """Name of the site, or of its partition."""
    state: State
    """``broken``: a rule refuses it already; ``unknown``: what the change touches is not settled."""
    results: tuple[RuleResult, ...] = ()
    """The rules that say so, as they are after the change."""
    repair: Repair | None = None
    """How an image that is refused is repaired; None if no change of the image helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The effect of a change of a site on images."""

    site: str
    changes: Mapping[str, tuple[str, str]]
    """Fact → its values now and then, in words; of the partitions those that differ most."""
    images: tuple[tuple[KnownImage, tuple[Outlook, ...]], ...]

    @property
    def breaks(self) -> bool:
        """Whether the change breaks an image that nothing refuses now."""
        return any(outlook.state == "breaks" for _, outlooks in self.images for outlook in outlooks)

    @property
    def has_partitions(self) -> bool:
        """Whether the site has several partitions."""
        return any(len(outlooks) > 1 for _, outlooks in self.images)

    @property
    def counts(self) -> dict[State, int]:
        """Number of outlooks, of images in partitions, of each state that occurs, the worst first."""
        counts = Counter(outlook.state for _, outlooks in self.images for outlook in outlooks)
        return {state: counts[state] for state in STATES if counts[state]}

    def document(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "schema": SCHEMA,
            "site": self.site,
            "changes": [
                {"fact": fact, "now": now, "then": then} for fact, (now, then) in self.changes.items()
            ],
            "breaks": self.breaks,
            "images": [
                {
                    "name": image.name,
                    "path": str(image.path),
                    "problem": image.problem,
                    "scanned": image.scanned,
                    "partitions": [
                        {
                            "name": outlook.partition,
                            "state": outlook.state,
                            "rules": [rule_data(result) for result in outlook.results],
                            "repair": _repair_data(outlook.repair),
                        }
                        for outlook in outlooks
                    ],
                }
                for image, outlooks in self.images
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Needs of images of a machine, and those that are not known."""

    listed: tuple[tuple[Need, tuple[str, ...]], ...]
    """Each need, and the names of the images that have it."""
    undecided: tuple[tuple[UndecidedNeed, tuple[str, ...]], ...]
    """Rules that facts of an image do not decide, and the images."""
    unknown: tuple[KnownImage, ...]
    """Images without facts."""
    silenced: Mapping[str, str]
    """Rules that do not count here, whose needs are not listed → why."""

    def document(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "schema": SCHEMA,
            "needs": [{**asdict(need), "images": list(names)} for need, names in self.listed],
            "undecided": [{**asdict(rule), "images": list(names)} for rule, names in self.undecided],
            "unknown": [{"name": image.name, "problem": image.problem} for image in self.unknown],
            "silenced": dict(self.silenced),
        }


def rule_data(result: RuleResult) -> dict[str, object]:
    """Return the result of a rule as JSON data."""
    return {
        "id": result.rule,
        "verdict": verdict_of(result),
        "reason": result.reason,
        "missing": list(result.missing),
        "source": result.source,
        "fix": result.hint,
    }


def _repair_data(repair: Repair | None) -> dict[str, object] | None:
    if repair is None:
        return None
    return {
        "release": repair.release,
        "architecture": repair.architecture,
        "layers": list(repair.layers),
        "steps": repair.steps,
    }


def parse_changes(texts: Sequence[str]) -> dict[str, Fact | None]:
    """Read changes of facts: ``driver.version=580.65``; entries of a list are joined by commas.

    ``NAME=null`` is None: the fact is no longer known. RequestError: there is no such fact of a machine, or
    the value is not one of it; all are reported at once.
    """
    errors: list[EnvbuildError] = []
    facts: dict[str, Fact | None] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        declared = fact_type(path)
        if declared is None or not is_of_host(path):
            known = tuple(name for name in FACTS if is_of_host(name))
            hint = similar_fact(path, known) or f"facts of a machine are {', '.join(known[:4])}, …"
            errors.append(RequestError(f"--change: `{path}` is not a fact of a machine", hint=hint))
        elif not equals or not value:
            hint = f"write `{path}=VALUE`, or `{path}=null` if it will not be known"
            errors.append(RequestError(f"--change: `{text}` has no value", hint=hint))
        elif path in facts:
            errors.append(RequestError(f"--change: `{path}` is given twice", hint="leave one of them out"))
        elif value == "null":
            facts[path] = None
        else:
            fact = _change(declared, value)
            if problem := problem_of_value(path, fact.value):
                verb = "says" if declared.kind == "flag" else "is the"
                hint = f"`{path}` {verb} {declared.meaning}"
                errors.append(RequestError(f"--change: `{text}`: {problem}", hint=hint))
            facts[path] = fact
    raise_all(errors)
    return facts


def _change(declared: FactType, text: str) -> Fact:
    value: Value = text
    if declared.kind == "list":
        value = tuple(text.split(","))
    elif declared.kind == "flag" and text in ("true", "false"):
        value = text == "true"
    return Fact(value, "--change")


def forecast(
    directories: Sequence[Path],
    settings: Settings,
    *,
    then: Path | None,
    changes: Sequence[str],
    from_host: HostLibraries,
) -> Forecast:
    """Judge the images below directories at a site as it is, and as it will be.

    `then` is a site file, `changes` are single facts. RequestError: neither is given, a file, change or
    directory cannot be used, or no site is known; all are reported at once.
    """
    pairs, changed, members = _asked(directories, settings, then=then, changes=changes)
    knowledge = read_knowledge()
    images = []
    for member in members.items:
        image = known_image(member, settings)
        judged = partial(outlook, image, knowledge=knowledge, changed=changed, from_host=from_host)
        images.append((image, tuple(judged(now, site) for now, site in pairs)))
    return Forecast(
        site=", ".join(dict.fromkeys(site.name for site, _ in pairs)),
        changes=_differences(pairs, changed),
        images=tuple(images),
    )


def _asked(
    directories: Sequence[Path], settings: Settings, *, then: Path | None, changes: Sequence[str]
) -> tuple[list[tuple[Site, Site]], dict[str, Fact | None], Members[NamedImage]]:
    """Return each partition as it is and as it will be, the facts that change, and the images."""
    errors: list[EnvbuildError] = []
    members: Members[NamedImage] = Members(items=(), many=True)
    with collected(errors):
        members = named_images(settings, every=directories)
    changed: dict[str, Fact | None] = {}
    pairs: list[tuple[Site, Site]] = []
    with collected(errors):
        changed = parse_changes(changes)
        warn_of_odd_types(texts_of(with_changes({}, changed), "pmi.offered"), settings.emit)
    if then is None and not changes:
        hint = "--change driver.version=580.65, or --then FILE"
        errors.append(RequestError("no change is given", hint=hint))
    with collected(errors):
        later = None
        if then is not None:
            with collected(errors):
                later = sites_of(replace(settings, site=then))
        sites = sites_of(settings)
        if then is None or later is not None:
            pairs = _pairs(sites, sites if later is None else later)
    raise_all(errors)
    return pairs, changed, members


def _pairs(sites: Sequence[Site], later: Sequence[Site]) -> list[tuple[Site, Site]]:
    """Pair each partition with itself after the change; both files have the same partitions."""
    if not sites:
        raise no_site()
    suffixes = [[site.name.partition("/")[2] for site in group] for group in (sites, later)]
    if suffixes[0] != suffixes[1]:
        raise RequestError(
            "the site has other partitions after the change:"
            f" {', '.join(suffixes[0]) or 'none'}, then {', '.join(suffixes[1]) or 'none'}",
            hint="name one with --site SITE/PARTITION and --then FILE/PARTITION",
        )
    return list(zip(sites, later, strict=True))


def _differences(
    pairs: Iterable[tuple[Site, Site]], changed: Mapping[str, Fact | None]
) -> dict[str, tuple[str, str]]:
    found = {}
    for now, later in pairs:
        before, after = facts_of_site(now), with_changes(facts_of_site(later), changed)
        for path in sorted(before.keys() | after.keys()):
            words = tuple(
                shown(facts[path].value) if path in facts else "unknown" for facts in (before, after)
            )
            if words[0] != words[1]:
                found[path] = (words[0], words[1])
    return found


def known_image(member: Member[NamedImage], settings: Settings) -> KnownImage:
    """Return an image with its facts: those that it carries, or else those of a scan."""
    name, path = member.name, member.path
    try:
        path = member.get().file(settings)
        with ImageFile.open(path) as image:
            kept = kept_facts(image, settings.store)
            facts = image_facts(image, settings.store) if kept is None else kept
            is_extended = image.note is not None
    except EnvbuildError as error:
        return KnownImage(name=name, path=path, problem=error.problem)
    return KnownImage(name=name, path=path, facts=facts, scanned=kept is None, is_extended=is_extended)


def outlook(
    image: KnownImage,
    now: Site,
    later: Site,
    *,
    changed: Mapping[str, Fact | None],
    knowledge: Knowledge | None = None,
    from_host: HostLibraries = NO_HOST_LIBS,
) -> Outlook:
    """Return what it does to an image that a site becomes another one, with `changed` facts."""
    if image.facts is None:
        return Outlook(partition=now.name, state="unknown")
    if changed.get("pmi.offered") is not None:
        # The list that is named is the whole one, also where the site file says that there are more.
        changed = {"pmi.more_offered": Fact(False, "--change"), **changed}
    knowledge = knowledge or shipped()
    facts = [
        stack_facts(image.facts, site, host_mpi=from_host.mpi, host_fabric=from_host.fabric, changes=changes)
        for site, changes in ((now, {}), (later, changed))
    ]
    before, after = (judge(stack, knowledge=knowledge) for stack in facts)
    old: dict[tuple[str, str], Verdict] = {}
    for result in before:
        identity = (result.rule, result.subject)
        old[identity] = min(old.get(identity, "ok"), verdict_of(result), key=VERDICTS.index)
    differing = {
        path for path in facts[0].keys() | facts[1].keys() if _value(facts[0], path) != _value(facts[1], path)
    }
    found: dict[State, list[RuleResult]] = {}
    for result in after:
        verdict = verdict_of(result)
        was = old.get((result.rule, result.subject))
        if verdict == "reject":
            found.setdefault("broken" if was == "reject" else "breaks", []).append(result)
        elif verdict == "warn" and was not in ("warn", "reject"):
            found.setdefault("warns", []).append(result)
        elif verdict == "unknown" and (was == "ok" or _touches(result, differing, facts, knowledge)):
            found.setdefault("unknown", []).append(result)
    if "reject" in old.values() and "breaks" in found:
        # An image that is refused already is not broken by the change, whatever else then refuses it.
        found["broken"] = [*found.get("broken", ()), *found.pop("breaks")]
    for state in STATES:
        if state in found:
            refused = found[state] if state in ("breaks", "broken") else ()
            repair = repair_of(refused, facts[1], knowledge, is_extended=image.is_extended)
            return Outlook(partition=now.name, state=state, results=tuple(found[state]), repair=repair)
    return Outlook(partition=now.name, state="holds")


def _value(facts: Facts, path: str) -> Value | None:
    return facts[path].value if path in facts else None


def _touches(
    result: RuleResult, changed: Collection[str], stacks: Sequence[Facts], knowledge: Knowledge
) -> bool:
    """Return whether a change can matter to a rule that is not settled.

    It reads facts that change, or others of the machine's part that changes; a row only if what it says of
    them is then another thing.
    """
    groups = {path.partition(".")[0] for path in changed}

    def may_change(path: str) -> bool:
        return is_of_host(path) and path.partition(".")[0] in groups and path not in _SETTINGS

    if not any(
        path in changed or may_change(path) for path in (*result.facts, *result.missing) if is_of_host(path)
    ):
        return False
    rows = [row for row in knowledge.of_rule(result.rule) if row.subject == result.subject]
    if any(rule.id == result.rule for rule in function_rules()) or not rows:
        return True
    return any(_row_is_touched(row, changed, stacks, may_change) for row in rows)


def _row_is_touched(
    row: Row, changed: Collection[str], stacks: Sequence[Facts], may_change: Callable[[str], bool]
) -> bool:
    now, then = stacks
    for path, wanted in row.if_.items():
        if path not in changed and path in now and holds(path, now[path].value, wanted) is False:
            return False
    for path, wanted in (*row.if_.items(), *row.needs.items()):
        if path in changed:
            truths = [holds(path, stack[path].value, wanted) if path in stack else None for stack in stacks]
            if None in truths or truths[0] != truths[1]:
                return True
        elif path not in then and may_change(path):
            return True
    return False


def needs(directories: Sequence[Path], settings: Settings, from_host: HostLibraries = NO_HOST_LIBS) -> Needs:
    """Return what the images below directories need of a machine; raises as `named_images`."""
    members = named_images(settings, every=directories)
    knowledge, images = read_knowledge(), [known_image(member, settings) for member in members.items]
    found: dict[Need | UndecidedNeed, list[str]] = {}
    for image in images:
        if image.facts is not None:
            stack = stack_facts(image.facts, host_mpi=from_host.mpi, host_fabric=from_host.fabric)
            for need in dict.fromkeys(needs_of(stack, knowledge)):
                found.setdefault(need, []).append(image.name)
    listed = ((need, tuple(names)) for need, names in found.items() if isinstance(need, Need))
    undecided = ((need, tuple(names)) for need, names in found.items() if isinstance(need, UndecidedNeed))
    return Needs(
        listed=tuple(sorted(listed)),
        undecided=tuple(sorted(undecided)),
        unknown=tuple(image for image in images if image.facts is None),
        silenced=knowledge.silences,
    )
