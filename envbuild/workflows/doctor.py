"""Doctor: the problems of this machine, for which verbs, and their fixes."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.doctor.checks import (
    check_emulation,
    check_machine,
    check_resolve,
    check_site,
    check_supplies,
)
from envbuild.doctor.model import VERBS, Diagnostic, blocked
from envbuild.errors import EnvbuildError, RequestError, did_you_mean
from envbuild.system.survey import Survey
from envbuild.workflows.inputs import site_here
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The problems of a machine."""

    works: dict[str, bool]
    """Verb → whether it can work; the named verb, or all."""
    problems: tuple[Diagnostic, ...]
    """Problems of these verbs, errors first."""


def diagnose(verb: str | None, settings: Settings, *, online: bool = False) -> Diagnosis:
    """Return the problems of this machine, all or those of one verb.

    With an architecture in the settings, they say whether its programs can start here. If `online`, ask each
    address of packages whether it answers. RequestError: there is no such verb.
    """
    if verb is not None and verb not in VERBS:
        names = f"the verbs are {', '.join(VERBS)}; without one, doctor looks for all"
        similar = did_you_mean(verb, VERBS)
        raise RequestError(f"there is no verb `{verb}`", hint=f"{similar} {names}" if similar else names)
    survey = Survey()
    problems = [*check_machine(survey, settings.store, settings.apptainer)]
    if settings.architecture is not None:
        problems += check_emulation(settings.architecture)
    site = None
    try:
        site = site_here(settings)
    except EnvbuildError as error:
        problems += check_site(error, named=settings.site is not None)
    if site is not None:
        problems += check_supplies(site, settings.emit)
    problems += check_resolve(survey, site, online=online, emit=settings.emit)
    verbs = [verb] if verb else list(VERBS)
    problems = [problem for problem in problems if set(verbs) & set(problem.verbs)]
    not_working = blocked(problems)
    return Diagnosis(
        works={name: name not in not_working for name in verbs},
        problems=tuple(sorted(problems, key=lambda problem: problem.severity != "error")),
    )
