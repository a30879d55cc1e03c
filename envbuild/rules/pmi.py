"""Choose the PMI of ranks under srun: one decision for rules, checks, starts and exports. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from envbuild.events import Emit, Warned
from envbuild.rules.judge import Outcome

# Those of Slurm and Cray; sites may have plug-ins of others.
_KNOWN = re.compile(r"none|openmpi|pmi2|pmix(_v[0-9]+)?|cray_shasta")


def warn_of_odd_types(offered: Iterable[str], emit: Emit) -> None:
    """Warn of types of ``srun --mpi`` that neither Slurm nor Cray has: misspelled ones, or a site's own."""
    if names := sorted({name for name in offered if not _KNOWN.fullmatch(name)}):
        text = f"neither Slurm nor Cray has these types of `srun --mpi`: {', '.join(names)}"
        hint = "`srun --mpi=list` prints those of the site, such as pmix, pmi2 and cray_shasta"
        emit(Warned(text=text, hint=hint))


@dataclass(frozen=True, slots=True, kw_only=True)
class PmiChoice:
    """A type for ``srun --mpi``, and whether ranks find each other by it."""

    type: str
    """Empty if no type can be named."""
    outcome: Outcome
    """``compatible``: they do; ``unknown``: they may; ``incompatible``: each runs as rank 0 of 1."""
    reason: str = ""
    """Why they do not, or why that is unknown; empty for ``compatible``."""


def choose_pmi(
    *,
    mpi: str,
    spoken: Sequence[str] | None,
    optional: Sequence[str] | None,
    offered: Collection[str],
    more_offered: bool = False,
    offer: str = "`srun --mpi` offers",
) -> PmiChoice:
    """Choose a type that both an MPI and the scheduler know; one that the MPI surely speaks, if possible.

    Parameters
    ----------
    mpi : str
        Name and version of the MPI, for the reason.
    spoken, optional : sequence of str or None
        Types that the MPI surely speaks, and those that it speaks only if it was built to; the first ones are
        preferred. None if that is unknown.
    offered : collection of str
        Types that ``srun --mpi`` takes.
    more_offered : bool
        Whether srun may take other types than `offered`.
    offer : str
        The words before the types in a reason.
    """
    sure, possible = tuple(spoken or ()), tuple(optional or ())
    if spoken is None and optional is None:
        return PmiChoice(type="", outcome="unknown", reason=f"the PMI that {mpi} speaks is not known")
    if common := _first_of(sure, offered):
        return PmiChoice(type=common, outcome="compatible")
    offers = f"{', '.join(offered) or 'no known type'}"
    # srun refuses a type that it does not know, which shows. Ranks by a type that their MPI does not speak
    # run alone, and end with exit code 0: it comes after a type that the MPI surely speaks.
    if not (more_offered and sure) and (common := _first_of(possible, offered)):
        reason = f"{mpi} speaks {common} only where it was built to"
        return PmiChoice(type=common, outcome="unknown", reason=reason)
    if more_offered and (known := (*sure, *possible)):
        reason = f"{mpi} speaks {known[0]}, and of the types of `srun --mpi` only {offers} are known"
        return PmiChoice(type=known[0], outcome="unknown", reason=reason)
    if optional is None:
        reason = f"whether {mpi} speaks {offers} is not known"
        return PmiChoice(type="", outcome="unknown", reason=reason)
    speaks = ", ".join(sure or possible) or "no type"
    reason = f"{mpi} speaks {speaks}, and {offer} {offers}: each rank would run as rank 0 of 1"
    return PmiChoice(type="", outcome="incompatible", reason=reason)


def _first_of(types: Sequence[str], offered: Collection[str]) -> str:
    """Return the first type that is offered, or a series of PMIx (``pmix_v6``) for ``pmix``; else empty."""
    # Clients and servers of PMIx know one another whatever their series.
    series = sorted(name for name in offered if name.startswith("pmix_v")) if "pmix" in types else []
    return next((pmi_type for pmi_type in (*types, *series) if pmi_type in offered), "")
