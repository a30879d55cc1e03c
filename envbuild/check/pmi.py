"""S5: does the scheduler offer a PMI that an image's MPI speaks? Pure.

The wrong one gives as many jobs of one rank as there are ranks, often with exit code 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.check.findings import Finding
from envbuild.rules.tables import look_up

OFFERED = "S5.pmi"
DEFAULT = "S5.pmi-default"


def judge_pmi(family: str, version: str, *, offered: Sequence[str], default: str) -> list[Finding]:
    """Return the findings of an image's MPI and a scheduler.

    Parameters
    ----------
    family, version : str
        Of the MPI that the ranks would run on; an empty family for none.
    offered : sequence of str
        What ``srun --mpi=list`` names.
    default : str
        What srun takes unless told; empty where that is not known.
    """
    spoken = look_up("pmi-of-mpi", family, version) or () if family else ()
    optional = look_up("optional-pmi-of-mpi", family, version) or () if family else ()
    known = (*spoken, *optional)
    told = ", ".join(offered) or "nothing"
    if not family:
        return [Finding("SKIP", OFFERED, "a PMI that the MPI speaks", "the image holds no MPI")]
    if not known:
        why = f"what {family} {version} speaks is not known"
        return [Finding("SKIP", OFFERED, "a PMI that the MPI speaks", why)]
    wanted = " or ".join(known)
    common = [each for each in known if each in offered]
    if not common:
        hint = "ask the site for one of these types, or choose another MPI: every rank would be alone"
        return [Finding("FAIL", OFFERED, wanted, f"srun offers {told}", hint)]
    found = Finding("PASS", OFFERED, wanted, f"srun offers {told}")
    if default in known:
        return [found, Finding("PASS", DEFAULT, wanted, f"srun takes {default} unless told")]
    seen = f"srun takes {default} unless told" if default else "what srun takes unless told is not known"
    hint = f"`srun --mpi={common[0]}`, or SLURM_MPI_TYPE={common[0]}; `envbuild launch` writes it"
    return [found, Finding("SKIP", DEFAULT, wanted, seen, hint)]
