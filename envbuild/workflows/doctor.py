"""Doctor: what this machine lacks for which verb, and what mends it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from envbuild.doctor.look import look
from envbuild.doctor.model import VERBS, Finding, Machine
from envbuild.doctor.rules import blocked, concerning, findings
from envbuild.errors import EnvbuildError, RequestError, did_you_mean
from envbuild.resolve.origins import python_sources, read_machine
from envbuild.store.store import Store
from envbuild.system import network
from envbuild.system.files import is_directory
from envbuild.system.network import Client, NetworkError, Patience
from envbuild.system.redaction import redact
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

_ASKED = ("http://", "https://", "file:")
_PATIENCE = Patience(connect_s=5.0, read_s=10.0, attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes
    ----------
    verb : str or None
        The verb that was asked for; None for all.
    findings : tuple of Finding
        Those that concern it.
    """

    verb: str | None
    findings: tuple[Finding, ...]

    @property
    def blocked(self) -> list[str]:
        """Verbs that cannot work, sorted."""
        return blocked(self.findings, self.verb)

    def to_json(self) -> str:
        """Return it as JSON."""
        asked = [self.verb] if self.verb else list(VERBS)
        data = {
            "verbs": {verb: verb not in self.blocked for verb in asked},
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(data, indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        """Return it for people: three lines a finding, and a summary."""
        lines = [finding.line() for finding in self.findings]
        what = self.verb or "all verbs"
        if self.blocked:
            summary = f"cannot work here: {', '.join(self.blocked)}"
        elif self.findings:
            summary = f"{what} can work here, hampered by what is said above"
        else:
            summary = f"{what} can work here"
        return "\n".join([*lines, summary])


def diagnose(verb: str | None, settings: Settings, *, online: bool = False) -> Diagnosis:
    """Look at this machine and say what is wrong with it.

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
        meant = did_you_mean(verb, VERBS)
        known = f"it knows {', '.join(VERBS)}; without a verb it looks for all"
        problem = f"doctor knows nothing of a verb `{verb}`"
        raise RequestError(problem, hint=f"{meant} {known}" if meant else known)
    machine = look(store=settings.store.path, named=settings.apptainer)
    machine = _with_origins(replace(machine, store_refused=_refused(settings.store)), settings, online)
    found = findings(machine)
    return Diagnosis(verb=verb, findings=tuple(concerning(found, verb) if verb else found))


def _refused(store: Store) -> dict[str, str]:
    """Return why a store cannot be used, and what to do; nothing if it can."""
    try:
        store.check()
    except EnvbuildError as error:
        return _mistakes(error)
    return {}


def _with_origins(machine: Machine, settings: Settings, online: bool) -> Machine:
    """Add where packages come from, as the site's, the machine's and the user's configuration says."""
    loaded = None
    try:
        loaded = read_site(settings.site)
    except EnvbuildError as error:
        named = settings.site is not None
        machine = replace(machine, site_unread=_mistakes(error), site_named=named)
    try:
        here = read_machine()
    except EnvbuildError as error:
        return replace(machine, unread=_mistakes(error))
    sources = python_sources(loaded.value if loaded is not None else None, here)
    # As written: what is not there would be passed over in silence.
    links = [*(loaded.value.find_links if loaded is not None else ()), *here.find_links]
    local = (path.expanduser() for link in links if (path := network.local_path(link)) is not None)
    known = replace(
        machine,
        wheel_directories={str(path): is_directory(path) for path in local},
        index=redact(sources.indexes[0]) if sources.indexes else "",
        no_index=sources.no_index,
        debian_sources=len(here.apt),
    )
    if not online:
        return known
    archives = (uri for source in here.apt for uri in source.uris if uri.startswith(_ASKED))
    return replace(known, unreachable=_unreachable([*sources.indexes, *archives]))


def _mistakes(error: EnvbuildError) -> dict[str, str]:
    """Return what is wrong, with its place, and what mends it."""
    each = error.each()
    return {f"{one.problem} ({one.at})" if one.at else one.problem: one.hint for one in each}


def _unreachable(addresses: list[str]) -> dict[str, str]:
    """Ask each address once; whatever answers, be it a refusal, is reached."""
    found = {}
    with Client(_PATIENCE) as client:
        for address in dict.fromkeys(addresses):
            path = network.local_path(address)
            shown = redact(address)
            if path is not None:
                if not is_directory(path):
                    found[shown] = "there is no such directory"
                continue
            try:
                client.status(address)
            except NetworkError as error:
                found[shown] = error.problem
    return found
