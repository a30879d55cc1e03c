"""Doctor: the problems of this machine, for which verbs, and their fixes."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.doctor.checks import check_machine, check_resolve, check_site
from envbuild.doctor.model import VERBS, Diagnostic, blocked
from envbuild.errors import EnvbuildError, RequestError, did_you_mean
from envbuild.system.survey import Survey
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

__all__ = ["Diagnosis", "Diagnostic", "diagnose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The problems of a machine."""

    works: dict[str, bool]
    """Each verb that was asked for, all if none was named, and whether it can work."""
    findings: tuple[Diagnostic, ...]
    """Those that concern one of them, blocking ones first."""


def diagnose(verb: str | None, settings: Settings, *, online: bool = False) -> Diagnosis:
    """Look at this machine and return its problems.

    Parameters
    ----------
    verb : str, optional
        Only what concerns one verb.
    online : bool
        Ask each address that packages come from whether it answers.

    Raises
    ------
    RequestError
        There is no such verb.
    """
    if verb is not None and verb not in VERBS:
        names = f"the verbs are {', '.join(VERBS)}; without one, doctor looks for all"
        similar = did_you_mean(verb, VERBS)
        raise RequestError(f"there is no verb `{verb}`", hint=f"{similar} {names}" if similar else names)
    survey = Survey()
    findings = [*check_machine(survey, settings.store, settings.apptainer)]
    site = None
    try:
        loaded = read_site(settings.site)
        site = loaded.value if loaded is not None else None
    except EnvbuildError as error:
        findings += check_site(error, named=settings.site is not None)
    findings += check_resolve(survey, site, online=online)
    verbs = [verb] if verb else list(VERBS)
    concerning = [finding for finding in findings if set(verbs) & set(finding.verbs)]
    not_working = blocked(concerning)
    return Diagnosis(
        works={name: name not in not_working for name in verbs},
        findings=tuple(sorted(concerning, key=lambda finding: finding.weight != "blocks")),
    )
