"""Forecast: which installed images a change of the machine breaks, and what they need of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from envbuild.activate.installed import find_installed
from envbuild.errors import EnvbuildError, RequestError, did_you_mean, raise_all
from envbuild.image.file import ImageFile
from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries
from envbuild.preflight.image_facts import image_facts, kept_facts
from envbuild.rules.facts import FACTS, Fact, Facts, Value, fact_type, shown
from envbuild.rules.from_site import facts_of_site, stack_facts
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import Knowledge, Row
from envbuild.rules.rows import holds
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site
from envbuild.system.files import is_directory, list_directory
from envbuild.workflows.explain import Verdict, verdict_of
from envbuild.workflows.inputs import sites_of
from envbuild.workflows.settings import Settings

SCHEMA = 1
_WORST: tuple[Verdict, ...] = ("reject", "warn", "unknown", "ok")
State = Literal["breaks", "broken", "warns", "unknown", "holds"]
# Facts of the machine; all others are the image's.
_OF_HOST = ("driver", "gpus", "scheduler", "fabric", "host", "host_mpi", "limits", "runtime")
_OF_HOST_TOO = (
    "architecture.host",
    "glibc.host",
    "libstdcxx.host",
    "pmi.offered",
    "pmi.default",
    "rocm.driver",
)
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
    facts: Mapping[str, Fact] | None
    """None if it has no facts of envbuild, or cannot be read."""
    problem: str = ""
    """Why it has none."""
    scanned: bool = False
    """Whether its facts were not kept from an earlier command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The effect of a change on an image in a partition."""

    partition: str
    """Name of the site, or of its partition."""
    state: State
    """``broken``: a rule refuses it already; ``unknown``: what the change touches is not settled."""
    results: tuple[RuleResult, ...] = ()
    """The rules that say so, as they are after the change."""


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
                    "partitions": [
                        {
                            "name": outlook.partition,
                            "state": outlook.state,
                            "rules": [_rule_data(result) for result in outlook.results],
                        }
                        for outlook in outlooks
                    ],
                }
                for image, outlooks in self.images
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that images need of the machine."""

    need: str
    """``driver.version >=580``, with the machines that it is about."""
    reason: str
    source: str
    images: tuple[str, ...]


def _rule_data(result: RuleResult) -> dict[str, object]:
    return {
        "id": result.rule,
        "verdict": verdict_of(result),
        "reason": result.reason,
        "missing": list(result.missing),
        "source": result.source,
        "fix": result.hint,
    }


def parse_changes(texts: Sequence[str]) -> dict[str, Fact]:
    """Read changes of facts: ``driver.version=580.65``; entries of a list are joined by commas.

    RequestError: there is no such fact of a machine, or the value is not one of it; all are reported at once.
    """
    errors: list[EnvbuildError] = []
    facts = {}
    for text in texts:
        path, equals, value = text.partition("=")
        declared = fact_type(path)
        if declared is None or not is_of_host(path):
            known = tuple(name for name in FACTS if is_of_host(name))
            hint = did_you_mean(path, known) or f"facts of a machine are {', '.join(known[:4])}, …"
            errors.append(RequestError(f"`{path}` is not a fact of a machine", hint=hint))
        elif not equals or not value:
            errors.append(RequestError(f"`{text}` has no value", hint=f"write `{path}=VALUE`"))
        elif declared.kind == "flag" and value not in ("true", "false"):
            errors.append(RequestError(f"`{text}` is not `true` or `false`", hint=declared.meaning))
        else:
            read: Value = value == "true" if declared.kind == "flag" else value
            facts[path] = Fact(tuple(value.split(",")) if declared.kind == "list" else read, "--change")
    raise_all(errors)
    return facts


def is_of_host(path: str) -> bool:
    """Return whether a fact is one of the machine, not of the image."""
    return path.partition(".")[0] in _OF_HOST or path in _OF_HOST_TOO


def forecast(
    directories: Sequence[Path],
    settings: Settings,
    *,
    then: Path | None,
    changes: Sequence[str],
    from_host: HostLibraries,
) -> Forecast:
    """Judge the images below directories at a site as it is, and as it will be.

    `then` is a site file, `changes` are single facts. RequestError: neither is given, a file or change cannot
    be used, or no site is known.
    """
    changed = parse_changes(changes)
    if then is None and not changed:
        raise RequestError("no change is given", hint="--change driver.version=580.65, or --then FILE")
    sites = sites_of(settings)
    if not sites:
        raise RequestError("no site is known", hint="name the site as it is now with --site SITE")
    later = sites_of(replace(settings, site=then)) if then is not None else sites
    pairs = _pairs(sites, later)
    knowledge = read_knowledge()
    images = []
    for image in find_images(directories, settings):
        judged = partial(outlook, image, knowledge=knowledge, changed=changed, from_host=from_host)
        images.append((image, tuple(judged(now, site) for now, site in pairs)))
    return Forecast(
        site=", ".join(dict.fromkeys(site.name for site in sites)),
        changes=_differences(pairs, changed),
        images=tuple(images),
    )


def _pairs(sites: Sequence[Site], later: Sequence[Site]) -> list[tuple[Site, Site]]:
    """Pair each partition with itself after the change; both files have the same partitions."""
    suffixes = [[site.name.partition("/")[2] for site in group] for group in (sites, later)]
    if suffixes[0] != suffixes[1]:
        raise RequestError(
            "the site has other partitions after the change:"
            f" {', '.join(suffixes[0]) or 'none'}, then {', '.join(suffixes[1]) or 'none'}",
            hint="name one with --site SITE/PARTITION and --then FILE/PARTITION",
        )
    return list(zip(sites, later, strict=True))


def _differences(pairs: Iterable[tuple[Site, Site]], changed: Facts) -> dict[str, tuple[str, str]]:
    found = {}
    for now, later in pairs:
        before, after = facts_of_site(now), {**facts_of_site(later), **changed}
        for path in sorted(before.keys() | after.keys()):
            words = tuple(
                shown(facts[path].value) if path in facts else "unknown" for facts in (before, after)
            )
            if words[0] != words[1]:
                found[path] = (words[0], words[1])
    return found


def find_images(directories: Sequence[Path], settings: Settings) -> Iterator[KnownImage]:
    """Yield the images of the modules below directories, and the SIF files in them, in order of name.

    RequestError: one is not a directory.
    """
    for directory in directories:
        if not is_directory(directory):
            raise RequestError(
                f"there is no directory `{directory}`", hint="name one with modules or images with --all DIR"
            )
        for module in find_installed(directory.absolute()):
            if module.image is None:
                problem = "; ".join(module.problems) or "its record cannot be read"
                yield KnownImage(
                    name=module.layout.label, path=module.layout.home, facts=None, problem=problem
                )
            else:
                yield _known(module.layout.label, module.image, settings)
        for name in list_directory(directory):
            if name.endswith(".sif"):
                yield _known(name, directory / name, settings)


def _known(name: str, path: Path, settings: Settings) -> KnownImage:
    try:
        with ImageFile.open(path) as image:
            kept = kept_facts(image, settings.store)
            facts = image_facts(image, settings.store) if kept is None else kept
    except EnvbuildError as error:
        return KnownImage(name=name, path=path, facts=None, problem=error.problem)
    return KnownImage(name=name, path=path, facts=facts, scanned=kept is None)


def outlook(
    image: KnownImage,
    now: Site,
    later: Site,
    *,
    changed: Facts,
    knowledge: Knowledge | None = None,
    from_host: HostLibraries = NO_HOST_LIBS,
) -> Outlook:
    """Return what it does to an image that a site becomes another one, with `changed` facts."""
    if image.facts is None:
        return Outlook(partition=now.name, state="unknown")
    if "pmi.offered" in changed:
        # The list that is named is the whole one, also where the site file says that there are more.
        changed = {"pmi.more_offered": Fact(False, "--change"), **changed}
    facts = [
        stack_facts(image.facts, site, host_mpi=from_host.mpi, host_fabric=from_host.fabric, host=host)
        for site, host in ((now, {}), (later, changed))
    ]
    before, after = (judge(stack, knowledge=knowledge) for stack in facts)
    old: dict[tuple[str, str], Verdict] = {}
    for result in before:
        identity = (result.rule, result.subject)
        old[identity] = min(old.get(identity, "ok"), verdict_of(result), key=_WORST.index)
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
        elif verdict == "unknown" and (was == "ok" or _touches(result, differing)):
            found.setdefault("unknown", []).append(result)
    states: tuple[State, ...] = ("breaks", "broken", "warns", "unknown")
    for state in states:
        if state in found:
            return Outlook(partition=now.name, state=state, results=tuple(found[state]))
    return Outlook(partition=now.name, state="holds")


def _value(facts: Facts, path: str) -> Value | None:
    return facts[path].value if path in facts else None


def _touches(result: RuleResult, changed: Collection[str]) -> bool:
    """Return whether a rule reads facts that change, or others of the machine's part that changes."""
    groups = {path.partition(".")[0] for path in changed}
    return any(
        path in changed or (path.partition(".")[0] in groups and path not in _SETTINGS)
        for path in (*result.facts, *result.missing)
    )


def needs(directories: Sequence[Path], settings: Settings) -> tuple[tuple[Need, ...], tuple[KnownImage, ...]]:
    """Return what the images below directories need of a machine by rows, and the images without facts."""
    knowledge, images = read_knowledge(), list(find_images(directories, settings))
    found: dict[tuple[str, str, str], list[str]] = {}
    for image in images:
        for row, _ in knowledge.rows if image.facts is not None else ():
            if need := _need(row, image.facts or {}):
                found.setdefault((need, row.reason, row.source), []).append(image.name)
    listed = (
        Need(need=need, reason=reason, source=source, images=tuple(names))
        for (need, reason, source), names in sorted(found.items())
    )
    return tuple(listed), tuple(image for image in images if image.facts is None)


def _need(row: Row, facts: Facts) -> str:
    """Return what a row needs of a machine if its conditions on the image hold; empty if nothing."""
    of_image = {path: wanted for path, wanted in row.if_.items() if not is_of_host(path)}
    if not of_image or any(
        path not in facts or holds(path, facts[path].value, wanted) is not True
        for path, wanted in of_image.items()
    ):
        return ""
    where = [f"{path} {_words(wanted)}" for path, wanted in row.if_.items() if path not in of_image]
    needed = [f"{path} {_words(wanted)}" for path, wanted in row.needs.items() if is_of_host(path)]
    if row.needs:
        condition = f" where {' and '.join(where)}" if where else ""
        return f"{' and '.join(needed)}{condition}" if needed else ""
    return f"not {' with '.join(where)}" if where else ""


def _words(wanted: str | bool) -> str:
    return shown(wanted)
