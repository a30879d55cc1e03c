"""What the rules say of an image on the host's MPI: refused, warned of, or fine."""

from __future__ import annotations

from envbuild.compat.derive import on_host_mpi
from envbuild.compat.engine import Verdict, judge
from envbuild.compat.facts import Facts
from envbuild.compat.from_site import facts_of_site, merge
from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.spec.site import Site

# Rules on one library in the place of another; how ranks are started is the launcher's matter.
_ABOUT = ("MPI.", "GLIBC.", "GLIBCXX.")


def judge_swap(image: Facts, site: Site) -> tuple[Verdict, ...]:
    """Return what the rules on MPI say of an image whose programs run on the site's MPI."""
    facts = on_host_mpi(merge(image, facts_of_site(site)))
    return tuple(verdict for verdict in judge(facts) if verdict.rule.startswith(_ABOUT))


def judge_fabric(image: Facts, site: Site) -> tuple[Verdict, ...]:
    """Return what the rules on fabrics say of an image that uses the site's."""
    verdicts = judge(merge(image, facts_of_site(site)))
    return tuple(verdict for verdict in verdicts if verdict.rule.startswith("FABRIC."))


def tell_swap(verdicts: tuple[Verdict, ...], emit: Emit) -> None:
    """Refuse what is incompatible, all of it at once, and warn of what people should know.

    Raises
    ------
    RequestError, ManyErrors
        With the rule, the facts that clash and where each stands.
    """
    errors: list[EnvbuildError] = []
    for verdict in verdicts:
        if verdict.outcome == "incompatible":
            errors.append(RequestError(verdict.explained, hint=verdict.hint))
        elif verdict.tell:
            emit(Warned(text=verdict.sentence, hint=verdict.hint))
    raise_all(errors)
