"""Check: what an image would load and whether it fits its site, known without running it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.check.findings import Finding, counts
from envbuild.check.hosted import library_path
from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import preflight
from envbuild.check.stack import findings_of, stack_of
from envbuild.compat.engine import Verdict, judge
from envbuild.errors import RequestError
from envbuild.events import TaskDone, TaskFailed, TaskStarted
from envbuild.image.model import Manifest
from envbuild.image.sif import read_data
from envbuild.image.sifwriter import LOCK
from envbuild.lock.text import load
from envbuild.site.files import HostTree
from envbuild.site.inject import ImageSide, Injection, lent_names, plan_mpi
from envbuild.spec.site import Site
from envbuild.system import clock
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

# A refusal that names its rule.
_RULE = re.compile(r"([A-Z]+\.[A-Za-z0-9.-]+): (.*)", flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An image that was looked at.

    Attributes
    ----------
    preflight : Preflight
        What was found in its files.
    verdicts : tuple of Verdict
        What the rules say of it, and of its site where one is known.
    refused : tuple of Finding
        Why the host's MPI cannot be lent, where the files on the host say so.
    seconds : float
        How long it took, wall clock.
    """

    manifest: Manifest
    preflight: Preflight
    verdicts: tuple[Verdict, ...]
    refused: tuple[Finding, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; what is unknown is told, and is no failure."""
        return all(finding.status != "FAIL" for finding in self.findings())

    def findings(self, *, all_unknown: bool = False) -> list[Finding]:
        """Return the lines of a report; see `envbuild.check.stack.findings_of`."""
        fit = findings_of(self.verdicts, all_unknown=all_unknown)
        return [*self.preflight.findings(), *fit, *self.refused]

    def to_json(self) -> str:
        """Return it as JSON that ends in a newline: `Preflight.document`, with ``verdicts`` beside it."""
        manifest = self.manifest
        image = {"name": manifest.name, "version": manifest.version, "digest": manifest.digest}
        document = self.preflight.document(image)
        every = self.findings(all_unknown=True)
        data = {
            **document,
            "passed": self.passed,
            "counts": counts(every),
            "findings": [asdict(finding) for finding in every],
            "verdicts": [verdict.to_data() for verdict in self.verdicts],
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """Return it for people: a line for each finding, and a summary."""
        found, manifest = self.preflight, self.manifest
        digest = manifest.digest.removeprefix("sha256:")[:12]
        told = self.findings()
        unknown = sum(verdict.outcome == "unknown" for verdict in self.verdicts)
        clashes = sum(verdict.outcome == "incompatible" for verdict in self.verdicts)
        wrong = len(found.problems) + clashes + len(self.refused)
        outcome = "passed" if self.passed else f"failed: {wrong} problem{'s' if wrong > 1 else ''}"
        summary = (
            f"{manifest.name}/{manifest.version} ({digest}): {outcome};"
            f" {found.objects} ELF files, {found.processes} processes in {self.seconds:.1f} s"
        )
        if unknown:
            summary += f"; {unknown} rules lack facts to tell (--json names them)"
        return "\n".join([*(finding.line() for finding in told), summary])


def check_image(image: Path, settings: Settings, *, on_host_mpi: bool = False) -> Checked:
    """Look at an image without running it.

    Parameters
    ----------
    on_host_mpi : bool
        Whether programs are to run on the site's MPI, whose libraries are then looked at as well.

    Raises
    ------
    RequestError
        It is no image of ours, or damaged; the site file cannot be used; or no
        site was named for the host's MPI.
    """
    started, task = clock.seconds(), "check"
    loaded = read_site(settings.site) if settings.site or on_host_mpi else None
    site = None if loaded is None else loaded.value
    if on_host_mpi and (site is None or site.mpi is None):
        raise RequestError(
            "the host's MPI was asked for, and no site says what it is", hint="name the site with --site SITE"
        )
    settings.emit(TaskStarted(task=task, title=f"what {image.name} would load"))
    tree = HostTree()
    names = lent_names(site, tree=tree) if on_host_mpi and site else ()
    manifest, found = preflight(image, settings.store, injected=_of_fabric(site), names=names)
    lock = load(read_data(image, LOCK), image)
    facts = stack_of(manifest, lock, found.facts, site, host_mpi=on_host_mpi)
    verdicts = judge(facts)
    refused: list[Finding] = []
    if on_host_mpi and site and all(verdict.outcome != "incompatible" for verdict in verdicts):
        plan = _planned(site, manifest, found, tree)
        if isinstance(plan, Finding):
            refused.append(plan)
        else:
            lent = {**_of_fabric(site), **_of_plan(plan)}
            _, found = preflight(image, settings.store, injected=lent)
    checked = Checked(
        manifest=manifest,
        preflight=found,
        verdicts=verdicts,
        refused=tuple(refused),
        seconds=clock.seconds() - started,
    )
    settings.emit(TaskDone(task=task, seconds=checked.seconds) if checked.passed else TaskFailed(task=task))
    return checked


def _planned(site: Site, manifest: Manifest, found: Preflight, tree: HostTree) -> Injection | Finding:
    """Return what the host would lend; a finding where a rule forbids it."""
    abis = found.facts.get("mpi.needed_abis", ())
    tied = found.facts.get("mpi.rpath_files", ())
    side = ImageSide(
        label=f"{manifest.name}/{manifest.version}",
        family=manifest.mpi_family,
        abis=abis,  # type: ignore[arg-type]  # what `mpi_abi` returns
        glibc=manifest.glibc,
        library_path=library_path(manifest),
        provides=found.provides,
        bound_hard=tied,  # type: ignore[arg-type]  # paths
    )
    try:
        return plan_mpi(site, side, tree=tree)
    except RequestError as error:
        told = _RULE.fullmatch(error.problem)
        if told is None:
            raise
        expected = "the host's MPI can take the place of the image's"
        return Finding("FAIL", told[1], expected, told[2], error.hint or "")


def _of_plan(plan: Injection) -> Mapping[str, Path]:
    files = {name: Path(path) for name, path in plan.files.items()}
    return {**files, **{name: files[target] for name, target in plan.links.items()}}


def _of_fabric(site: Site | None) -> dict[str, Path]:
    """Return the fabric's libraries that a site lends, by name."""
    libraries = site.fabric.libraries if site and site.fabric else ()
    return {Path(path).name: Path(path) for path in libraries}
