"""Check: what an image would load and whether it fits its site, without running it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envbuild.errors import raise_all
from envbuild.events import Warned, task
from envbuild.image import shifter
from envbuild.image.file import ImageFile
from envbuild.image.runnable import Runnable
from envbuild.image.verify import judge_bytes
from envbuild.inputs.knowledge import read_knowledge
from envbuild.jobs.report import CheckResult, Section, counts
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.preflight import gpu
from envbuild.preflight.bind_facts import bind_facts
from envbuild.preflight.image_facts import image_facts, keep_facts
from envbuild.preflight.report import PreflightReport, checks_of, run_preflight, simulate
from envbuild.preflight.scan import scan_image
from envbuild.rules.facts import is_of_host, texts_of
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RuleResult, judge_each
from envbuild.rules.rulebook import judge
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.accelerators import BY_VENDOR
from envbuild.spec.site import Site
from envbuild.workflows.extended import examine_extended
from envbuild.workflows.hosting import plan_on_host, site_of_host, supplied_parts
from envbuild.workflows.inputs import sites_of
from envbuild.workflows.settings import Settings

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFit:
    """How an image fits a partition of the site."""

    name: str
    """``lumi/g``."""
    reasons: tuple[str, ...]
    """Why it cannot run there; empty if it may."""

    @property
    def fits(self) -> bool:
        """Whether nothing is known that prevents it from running there."""
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedImage:
    """A checked image."""

    runnable: Runnable
    preflight: PreflightReport
    rule_results: tuple[RuleResult, ...]
    """The rules on the image, and on its site if one is known."""
    others: tuple[CheckResult, ...]
    """On parts that have changed since the build, GPUs, and, if requested, a runtime and the scheduler."""
    partitions: tuple[PartitionFit, ...] = ()
    """Of a site with several, unless one was named."""
    seconds: float
    """Duration, wall clock."""

    @property
    def passed(self) -> bool:
        """Whether no check fails; unknown is reported, and is not a failure."""
        return all(finding.status != "FAIL" for finding in self.findings())

    def checks(self) -> list[CheckResult]:
        """Return the lines of a report; see `PreflightReport.checks` and `checks_of`."""
        return [*self.preflight.checks(), *self.others, *checks_of(self.rule_results)]

    def sections(self) -> list[Section]:
        """Return these by what they are on: the loader, Python packages, GPUs, rules."""
        groups: dict[str, list[CheckResult]] = {}
        for check in self.checks():
            area = check.id.partition(".")[0]
            # The ids of rules begin with an area in capitals.
            groups.setdefault("rules" if area.isupper() else area, []).append(check)
        return [Section(area, tuple(checks)) for area, checks in groups.items()]

    def findings(self) -> list[CheckResult]:
        """Return all findings: each once, with every unknown rule."""
        return [
            *self.preflight.findings(),
            *self.others,
            *(result.finding for result in self.rule_results),
        ]

    def document(self) -> dict[str, object]:
        """Return it as JSON data.

        Keys: ``schema``, ``image``, ``passed``, ``counts``, ``objects``, ``processes``,
        ``distributions``, ``excused``, ``excuses`` (the spec's), ``findings`` (as in a test's report; those
        of rules with what the rule has read), ``partitions`` (name, whether it ``fits``, ``reasons``).
        """
        runnable, preflight = self.runnable, self.preflight
        of_files = [*preflight.findings(), *self.others]
        return {
            "schema": SCHEMA,
            "image": {"name": runnable.name, "version": runnable.version, "digest": runnable.digest},
            "passed": self.passed,
            "counts": counts(self.findings()),
            "objects": preflight.objects,
            "processes": preflight.processes,
            "distributions": preflight.distributions,
            "excused": list(preflight.excused),
            "excuses": [excuse.model_dump() for excuse in preflight.excuses],
            "findings": [
                *(asdict(finding) for finding in of_files),
                *(result.to_data() for result in self.rule_results),
            ],
            "partitions": [{**asdict(partition), "fits": partition.fits} for partition in self.partitions],
        }


def check_image(
    path: Path,
    settings: Settings,
    *,
    from_host: HostLibraries = NO_HOST_LIBS,
    lint_shifter: bool = False,
    srun: bool = False,
) -> CheckedImage:
    """Check an image without running it.

    `from_host` are libraries of the site's host that replace the image's own and are checked as well.
    `lint_shifter` adds the effects of Shifter; `srun` asks this machine's srun which PMI it offers. An
    extended image of another tool is compared with the one before; its Python is started once.

    MachineError: there is no srun. RequestError: it is not an image of envbuild's, or damaged; or the site
    file cannot be used, or does not describe the host's libraries.
    """
    started = time.monotonic()
    unfit = {"--mpi host": from_host.mpi, "--fabric host": from_host.fabric}
    unfit |= {"--runtime": lint_shifter, "--srun": srun}
    with ImageFile.open(path) as image:
        extended = examine_extended(image, settings, unfit=unfit)
        if extended is not None:
            judged = _judge_extended(image, settings)
            return CheckedImage(
                runnable=extended.runnable,
                preflight=extended.examined.preflight,
                rule_results=judge_each(judged),
                others=(),
                partitions=_fits(judged, {}),
                seconds=time.monotonic() - started,
            )
        return _check(image, settings, from_host, lint_shifter=lint_shifter, srun=srun)


def _check(
    image: ImageFile, settings: Settings, from_host: HostLibraries, *, lint_shifter: bool, srun: bool
) -> CheckedImage:
    started = time.monotonic()
    sites, knowledge = _sites(settings, from_host), read_knowledge()
    _warn_of_unused_gpus(image, sites, settings)
    with task(settings.emit, "check", f"check {image.path.name}") as running:
        scan = scan_image(image, settings.store)
        manifest = scan.manifest
        host_libs: HostLibraryPlan | None = None
        if sites and (from_host or supplied_parts(scan.lock)):
            judged = {}
            for site in sites:
                preflight, host_libs, facts = plan_on_host(scan, site, from_host)
                raise_all(host_libs.errors if from_host else ())
                judged[site.name] = judge(facts, knowledge=knowledge)
        else:
            simulation = simulate(scan)
            preflight = keep_facts(image, scan, run_preflight(scan, simulation), settings.store)
            judged = {
                site.name if site else "": judge(
                    stack_facts(
                        preflight.facts, site, host=bind_facts(site, simulation.tree) if site else None
                    ),
                    knowledge=knowledge,
                )
                for site in sites or (None,)
            }
        rule_results = judge_each(judged)
        gpu_checks = {
            site.name: list(gpu.checks(preflight.gpu_code, site.gpus.architectures if site.gpus else ()))
            for site in sites
        }
        partitions = _fits(judged, gpu_checks)
        if host_libs and from_host and all(result.outcome != "incompatible" for result in rule_results):
            preflight = run_preflight(scan, simulate(scan, host_libs.by_name))
        checked = CheckedImage(
            runnable=manifest,
            preflight=preflight,
            rule_results=rule_results,
            others=(
                *([judge_bytes(scan.changed)] if scan.changed else []),
                *_gpu_checks(gpu_checks, fits_one=any(partition.fits for partition in partitions)),
                *(_lint_shifter(image, preflight) if lint_shifter else []),
                *(SlurmHere().pmi_checks(manifest, host_libs.mpi if host_libs else None) if srun else []),
            ),
            partitions=partitions,
            seconds=time.monotonic() - started,
        )
        running.failed = not checked.passed
    return checked


def _judge_extended(image: ImageFile, settings: Settings) -> dict[str, tuple[RuleResult, ...]]:
    """Judge an extended image of another tool at each partition of the site, by rules that concern a host.

    Rules on the image alone would judge what it was before the addition.
    """
    sites = _sites(settings, NO_HOST_LIBS)
    facts = image_facts(image, settings.store) if sites else {}
    knowledge = read_knowledge()
    return {
        site.name: tuple(
            result
            for result in judge(stack_facts(facts, site), knowledge=knowledge)
            if any(map(is_of_host, (*result.facts, *result.missing)))
        )
        for site in sites
    }


def _fits(
    judged: Mapping[str, Sequence[RuleResult]], gpu_checks: Mapping[str, Sequence[CheckResult]]
) -> tuple[PartitionFit, ...]:
    """Return whether an image fits each partition; empty for a single one."""
    fits = tuple(_fit(name, results, gpu_checks.get(name, ())) for name, results in judged.items())
    return fits if len(fits) > 1 else ()


def _fit(name: str, results: Sequence[RuleResult], gpu_checks: Sequence[CheckResult]) -> PartitionFit:
    reasons = [result.sentence for result in results if result.outcome == "incompatible"]
    reasons += [f"{check.id}: {check.observed}" for check in gpu_checks if check.status == "FAIL"]
    return PartitionFit(name=name, reasons=tuple(reasons))


def _gpu_checks(checks: Mapping[str, Sequence[CheckResult]], *, fits_one: bool) -> Iterator[CheckResult]:
    """Yield the checks of each partition; one that fails is skipped if the image fits another partition."""
    for name, of_partition in checks.items():
        for check in of_partition:
            observed = f"{name}: {check.observed}" if len(checks) > 1 else check.observed
            yield replace(
                check,
                status="SKIP" if fits_one and check.status == "FAIL" else check.status,
                observed=observed,
            )


def _warn_of_unused_gpus(image: ImageFile, sites: Sequence[Site], settings: Settings) -> None:
    vendors = {site.gpus.vendor if site.gpus else "none" for site in sites}
    if vendors and vendors <= BY_VENDOR.keys() and image.manifest.accelerator == "cpu":
        site, vendor = sites[0], min(vendors)
        text = f"the site `{site.name}` has GPUs ({vendor}), and the image is for CPUs: it uses none"
        hint = f"`accelerator: {BY_VENDOR[vendor].name}` in the spec makes an image for them"
        settings.emit(Warned(text=text, hint=hint))


def _lint_shifter(image: ImageFile, preflight: PreflightReport) -> list[CheckResult]:
    return shifter.lint(
        image.manifest,
        {entry.path: entry for entry in image.root.walk()},
        abis=texts_of(preflight.facts, "mpi.needed_abis"),
        rpath_files=texts_of(preflight.facts, "mpi.rpath_files"),
    )


def _sites(settings: Settings, from_host: HostLibraries) -> tuple[Site, ...]:
    if from_host:
        # The libraries are those of one partition.
        return (site_of_host(settings, from_host),)
    return sites_of(settings) if settings.site else ()
