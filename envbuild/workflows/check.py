"""Check: what an image would load and whether it fits its site, known without running it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.errors import raise_all
from envbuild.events import task
from envbuild.image import shifter
from envbuild.image.model import Manifest
from envbuild.image.sif import image_entries
from envbuild.image.verify import judge_bytes
from envbuild.jobs.report import CheckResult, counts
from envbuild.launch.slurm import pmi_findings
from envbuild.preflight import gpu
from envbuild.preflight.report import PreflightReport, findings_of, run_preflight
from envbuild.preflight.scan import scan_image
from envbuild.rules.facts import texts_of
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RuleResult
from envbuild.rules.rulebook import judge
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import Site
from envbuild.workflows.hosting import NO_HOST_LIBS, HostLibraries, plan_on_host, site_of_host
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedImage:
    """A checked image."""

    manifest: Manifest
    preflight: PreflightReport
    """Of its files."""
    verdicts: tuple[RuleResult, ...]
    """Of the rules on it, and on its site if one is known."""
    gpu_code: tuple[CheckResult, ...]
    """Whether the site's GPUs run the image's code, if the site names them."""
    seconds: float
    """Duration, wall clock."""
    runtime: tuple[CheckResult, ...] = ()
    """Effects of another runtime, if one was named."""
    changed: tuple[CheckResult, ...] = ()
    """The parts that are not as they were built."""
    scheduler: tuple[CheckResult, ...] = ()
    """What the scheduler offers its MPI, if that was asked."""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; unknown is reported, and is no failure."""
        return all(finding.status != "FAIL" for finding in self.findings())

    def findings(self, *, all_unknown: bool = False) -> list[CheckResult]:
        """Return the lines of a report; see `envbuild.preflight.report.findings_of`."""
        fit = findings_of(self.verdicts, all_unknown=all_unknown)
        own = (*self.changed, *self.preflight.findings())
        return [*own, *self.gpu_code, *fit, *self.runtime, *self.scheduler]

    def document(self) -> dict[str, object]:
        """Return it as JSON data.

        Keys: ``schema``, ``image``, ``passed``, ``counts``, ``objects``, ``processes``,
        ``distributions``, ``excused``, ``problems`` (fields of `Problem`), ``findings``
        (as in a test's report), ``verdicts``.
        """
        manifest, preflight = self.manifest, self.preflight
        findings = self.findings(all_unknown=True)
        return {
            "schema": SCHEMA,
            "image": {"name": manifest.name, "version": manifest.version, "digest": manifest.digest},
            "passed": self.passed,
            "counts": counts(findings),
            "objects": preflight.objects,
            "processes": preflight.processes,
            "distributions": preflight.distributions,
            "excused": list(preflight.excused),
            "problems": [asdict(problem) for problem in preflight.problems],
            "findings": [asdict(finding) for finding in findings],
            "verdicts": [verdict.to_data() for verdict in self.verdicts],
        }


def check_image(
    image: Path,
    settings: Settings,
    *,
    from_host: HostLibraries = NO_HOST_LIBS,
    lint_shifter: bool = False,
    srun: bool = False,
) -> CheckedImage:
    """Look at an image without running it.

    Parameters
    ----------
    from_host : HostLibraries
        Libraries of the site's host that take the place of the image's own, and are checked as well.
    lint_shifter : bool
        Whether to tell what Shifter would make of it, too.
    srun : bool
        Whether to ask this machine's srun which PMI it offers.

    Raises
    ------
    MachineError
        There is no srun to ask.
    RequestError
        It is no image of envbuild, or damaged; the site file cannot be used, or no site file describes the
        host's libraries.
    """
    started = time.monotonic()
    site = _site(settings, from_host)
    with task(settings.emit, "check", f"what {image.name} would load") as running:
        scan = scan_image(image, settings.store)
        manifest = scan.manifest
        host_libs: HostLibraryPlan | None = None
        if from_host and site:
            preflight, host_libs, facts = plan_on_host(scan, site, from_host)
            raise_all(host_libs.errors)
        else:
            preflight = run_preflight(scan)
            facts = stack_facts(preflight.facts, site)
        verdicts = judge(facts)
        gpus = site.gpus.architectures if site and site.gpus else ()
        if host_libs and all(verdict.outcome != "incompatible" for verdict in verdicts):
            preflight = run_preflight(scan, host_libs=host_libs.by_name)
        checked = CheckedImage(
            manifest=manifest,
            preflight=preflight,
            verdicts=verdicts,
            gpu_code=tuple(gpu.findings(preflight.gpu_code, gpus)),
            changed=(judge_bytes(scan.changed),) if scan.changed else (),
            runtime=tuple(_lint(image, manifest, preflight)) if lint_shifter else (),
            scheduler=tuple(pmi_findings(manifest, host_libs.mpi if host_libs else None)) if srun else (),
            seconds=time.monotonic() - started,
        )
        running.failed = not checked.passed
    return checked


def _lint(image: Path, manifest: Manifest, preflight: PreflightReport) -> list[CheckResult]:
    return shifter.lint(
        manifest,
        image_entries(image),
        abis=texts_of(preflight.facts, "mpi.needed_abis"),
        rpath_files=texts_of(preflight.facts, "mpi.rpath_files"),
    )


def _site(settings: Settings, from_host: HostLibraries) -> Site | None:
    if from_host:
        return site_of_host(settings, from_host)
    loaded = read_site(settings.site) if settings.site else None
    return None if loaded is None else loaded.value
