"""A finished image and its site, judged by the rules on what fits together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from envbuild.check.findings import Finding
from envbuild.check.preflight.facts import IMAGE
from envbuild.compat.derive import on_host_mpi
from envbuild.compat.engine import Verdict
from envbuild.compat.facts import Facts, make_facts
from envbuild.compat.facts import merge as put_together
from envbuild.compat.from_lock import facts_of_lock
from envbuild.compat.from_site import facts_of_site, merge
from envbuild.image.model import Manifest
from envbuild.lock.model import Lock
from envbuild.spec.site import Site

_STATUS = {"compatible": "PASS", "incompatible": "FAIL", "unknown": "SKIP"}


def stack_of(
    manifest: Manifest, lock: Lock, seen: Mapping[str, object], site: Site | None, *, host_mpi: bool = False
) -> Facts:
    """Return the facts of an image and of the site where it is to run.

    Parameters
    ----------
    lock : Lock
        The one that the image carries.
    seen : mapping of str to object
        What a look at the image's files told: fact's path → value. It comes before the lock.
    host_mpi : bool
        Whether programs are to run on the host's MPI.
    """
    own = {**seen, "runtime.layered": len(manifest.parts) > 1}
    image = put_together(facts_of_lock(lock), make_facts(own, dict.fromkeys(own, IMAGE)))
    facts = image if site is None else merge(image, facts_of_site(site))
    return on_host_mpi(facts) if host_mpi else facts


def findings_of(verdicts: Sequence[Verdict], *, all_unknown: bool = False) -> Iterator[Finding]:
    """Yield a line of a report for each verdict: unknown is SKIP, which is no pass.

    Parameters
    ----------
    all_unknown : bool
        Whether to tell also what is merely unknown; else only what people should know although it is.
    """
    for verdict in verdicts:
        if verdict.outcome == "unknown" and not (verdict.tell or all_unknown):
            continue
        observed = verdict.reason
        if verdict.outcome == "compatible":
            observed = ", ".join(f"{met.path}={met.value}" for met in verdict.facts)
        elif verdict.missing:
            observed = f"unknown: {', '.join(verdict.missing)}"
        told = () if verdict.outcome == "compatible" else (verdict.hint, *_places(verdict))
        name = f"{verdict.rule}/{verdict.subject}" if verdict.subject else verdict.rule
        hint = "; ".join(text for text in told if text)
        yield Finding(_STATUS[verdict.outcome], name, verdict.title, observed, hint)


def _places(verdict: Verdict) -> Iterator[str]:
    if verdict.outcome == "incompatible":
        yield from (str(met) for met in verdict.facts)
