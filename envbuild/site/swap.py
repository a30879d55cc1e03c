"""What the rules say of an image on the host's MPI: refused, warned of, or fine."""

from __future__ import annotations

from dataclasses import replace

from envbuild.compat.engine import Verdict, judge
from envbuild.compat.facts import Facts
from envbuild.compat.from_site import on_site
from envbuild.spec.site import Site

# Rules that decide whether an image starts at all.
_START = ("ARCH.", "RUNTIME.")
# Rules on one library in the place of another; how ranks are started is the launcher's matter.
_ABOUT = ("MPI.", "GLIBC.", "GLIBCXX.")


def judge_swap(image: Facts, site: Site, *, read: Facts | None = None) -> tuple[Verdict, ...]:
    """Return what the rules on MPI say of an image whose programs run on the site's MPI.

    Parameters
    ----------
    read : Facts, optional
        What the host's files tell.
    """
    verdicts = judge(on_site(image, site, host_mpi=True, read=read))
    return tuple(verdict for verdict in verdicts if verdict.rule.startswith(_ABOUT))


def judge_start(
    image: Facts, site: Site | None, *, lent_fabric: bool = False, on_host_mpi: bool = False
) -> tuple[Verdict, ...]:
    """Return what the rules say of starting an image at a site, before any file of it is looked at.

    What the fabric's say only warns here: whoever asks for no fabric of the host has the slow one.
    """
    about = _START if lent_fabric else (*_START, "FABRIC.")
    facts = on_site(image, site, host_mpi=on_host_mpi)
    verdicts = (verdict for verdict in judge(facts) if verdict.rule.startswith(about))
    return tuple(_milder(verdict) if verdict.rule.startswith("FABRIC.") else verdict for verdict in verdicts)


def _milder(verdict: Verdict) -> Verdict:
    if verdict.outcome != "incompatible":
        return verdict
    return replace(verdict, outcome="unknown", tell=True)


def judge_fabric(image: Facts, site: Site, *, on_host_mpi: bool = False) -> tuple[Verdict, ...]:
    """Return what the rules on fabrics say of an image that uses the site's."""
    verdicts = judge(on_site(image, site, host_mpi=on_host_mpi, host_fabric=True))
    return tuple(verdict for verdict in verdicts if verdict.rule.startswith("FABRIC."))
