"""Judge which libraries the ranks loaded where the host's take the place of the image's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from envbuild.errors import pluralize
from envbuild.jobs.judge import SEE_RANKS
from envbuild.jobs.rank_reports import Reports, list_of, values_of
from envbuild.jobs.report import CheckResult
from envbuild.site.host_libs import HOST_LIB_DIR, HostLibraryPlan
from envbuild.spec.site import Site
from envbuild.system.files import sha256

HOST_MPI = "host.mpi"
HOST_FABRIC = "host.fabric"
HOST_SITE = "host.site"
NCCL_NETWORK = "nccl.network"


def judge_host_mpi(reports: Iterable[Reports], host_libs: HostLibraryPlan) -> CheckResult:
    """Judge that every process that loaded an MPI loaded the host's file, from the private directory.

    The path says which file won, its sha256 that it is the host's, and the
    library itself which version it is.
    """
    digests = {f"{HOST_LIB_DIR}/{name}": sha256(Path(host_libs.files[name])) for name in host_libs.mpi_files}
    expected = f"{host_libs.mpi.implementation if host_libs.mpi else 'the host'} from {HOST_LIB_DIR}"
    versions: set[str] = set()
    wrong: set[str] = set()
    count = 0
    for library in (library for run in reports for report in run.good for library in _mpi_of(report)):
        count += 1
        path, version = library.get("path", ""), library.get("version", "")
        real_path = _real_path(path, host_libs)
        if real_path not in digests:
            wrong.add(f"{path} ({version})")
        elif library.get("sha256") != digests[real_path]:
            wrong.add(f"{path} is another file than {host_libs.files[Path(real_path).name]}")
        versions.add(version)
    if count == 0:
        return CheckResult("FAIL", HOST_MPI, expected, "no process loaded an MPI", SEE_RANKS)
    if wrong:
        hint = "the image's own MPI was loaded first: an RPATH, or a variable that names it"
        return CheckResult("FAIL", HOST_MPI, expected, ", ".join(sorted(wrong)[:4]), hint)
    return CheckResult("PASS", HOST_MPI, expected, f"{', '.join(sorted(versions))} in {count} processes")


def judge_host_fabric(reports: Iterable[Reports], host_libs: HostLibraryPlan) -> CheckResult:
    """Judge that every process that loaded a library of the host's fabric loaded the host's file."""
    paths = {f"{HOST_LIB_DIR}/{name}" for name in host_libs.files}
    loaded = {
        path
        for run in reports
        for report in run.good
        for path in report["libraries"]  # type: ignore[attr-defined]  # a sound report's
        if isinstance(path, str) and path.rpartition("/")[2] in host_libs.files
    }
    expected = f"{', '.join(host_libs.files) or 'nothing'} from {HOST_LIB_DIR}"
    if wrong := sorted(loaded - paths):
        hint = "the image's own library was loaded first: an RPATH, or a variable that names it"
        return CheckResult("FAIL", HOST_FABRIC, expected, ", ".join(wrong[:4]), hint)
    if not loaded:
        return CheckResult(
            "SKIP", HOST_FABRIC, expected, "no process loaded any", "no job of the image uses them"
        )
    return CheckResult("PASS", HOST_FABRIC, expected, ", ".join(sorted(loaded)))


def judge_site_software(
    reports: Iterable[Reports], host_libs: HostLibraryPlan, *, all_jobs: bool = True
) -> list[CheckResult]:
    """Judge for each recipe that has libraries of the site that a process loaded one of them.

    If not `all_jobs` of the image ran, a recipe of which none was loaded is skipped.
    """
    runs = list(reports)
    loaded = {
        path
        for run in runs
        for report in run.good
        for path in report["libraries"]  # type: ignore[attr-defined]  # a sound report's
        if isinstance(path, str)
    }
    checks = []
    for recipe, names in sorted(host_libs.supplied.items()):
        expected = f"{recipe}: {', '.join(names)} from {HOST_LIB_DIR}"
        present = sorted(name for name in names if f"{HOST_LIB_DIR}/{name}" in loaded)
        if present:
            checks.append(CheckResult("PASS", HOST_SITE, expected, ", ".join(present), subject=recipe))
        else:
            hint = f"a job of `{recipe}` must call them: docs/howto/site-libraries.md"
            observed = "no process loaded any"
            status = "FAIL" if all_jobs else "SKIP"
            checks.append(CheckResult(status, HOST_SITE, expected, observed, hint, subject=recipe))
    return checks


def judge_nccl(reports: Iterable[Reports], site: Site | None) -> list[CheckResult]:
    """Judge by NCCL's own logs what carried its messages; nothing if no job reports it.

    Between the hosts of a site with a fast fabric, sockets are a failure: NCCL falls back to them in silence.
    """
    values = [(report["host"], values_of(report)) for run in reports for report in run.good]
    networks = sorted({str(value["network"]) for _, value in values if value.get("network")})
    if not networks:
        return []
    transports = sorted({str(name) for _, value in values for name in list_of(value, "transports")})
    hosts = len({host for host, value in values if value.get("network")})
    fabric = site.fabric if site is not None else None
    fast = fabric is not None and (fabric.provider is not None or fabric.nccl_plugin is not None)
    expected = f"a network of {fabric.name}, not sockets" if fast and fabric else "any network"
    if not transports:
        observed = f"{', '.join(networks)}; no messages between ranks"
        hint = "one rank sends none: test on two GPUs or more"
        return [CheckResult("SKIP", NCCL_NETWORK, expected, observed, hint)]
    observed = f"{', '.join(networks)}; messages on {pluralize(hosts, 'host')} by {', '.join(transports)}"
    if fast and (hosts > 1 or "NET/Socket" in transports) and "Socket" in networks:
        hint = "NCCL fell back to sockets: `--fabric host` brings the site's plug-in; NCCL's log says why"
        return [CheckResult("FAIL", NCCL_NETWORK, expected, observed, hint)]
    return [CheckResult("PASS", NCCL_NETWORK, expected, observed)]


def _real_path(path: str, host_libs: HostLibraryPlan) -> str:
    """Return a path in the private directory with its link followed."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/{host_libs.links.get(name, name)}" if directory == HOST_LIB_DIR else path


def _mpi_of(report: Mapping[str, object]) -> list[Mapping[str, str]]:
    """Return the MPI libraries of a report; a rank may write anything there."""
    entries = list_of(report, "mpi")
    return [
        {str(key): str(value) for key, value in entry.items()} for entry in entries if isinstance(entry, dict)
    ]
