"""An image on its host's MPI: its side of what is lent, its ranks started, and the proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envbuild.check.facts import Reports
from envbuild.check.findings import Finding
from envbuild.check.judge import Ended
from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.hostmpiexec import HostMpiexec
from envbuild.check.preflight.examine import Preflight
from envbuild.check.run import RESULTS, Subject, wait_for_ranks
from envbuild.check.trial import Launch
from envbuild.image.environment import apply
from envbuild.image.model import Manifest
from envbuild.rules.facts import texts_of
from envbuild.site.inject import PRIVATE, ImageSide, Injection
from envbuild.spec.site import SiteMpi
from envbuild.system import host
from envbuild.system.apptainer import Bind
from envbuild.system.files import sha256

FROM_HOST = "S4.mpi-from-host"
LENT = "S4.fabric-from-host"
_LIBS = "/.singularity.d/libs"


def image_side(manifest: Manifest, found: Preflight) -> ImageSide:
    """Return what of an image decides what it can take from a host.

    Parameters
    ----------
    found : Preflight
        Of the image on its own libraries; asked for the names that the host would lend.
    """
    return ImageSide(
        # If nothing needs an MPI, programs that open one are taken for the image's own MPI's.
        abis=texts_of(found.facts, "mpi.needed_abis") or texts_of(found.facts, "mpi.abis")[:1],
        library_path=library_path(manifest),
        provides=found.provides,
    )


def library_path(manifest: Manifest) -> str:
    """Return LD_LIBRARY_PATH as an image's own environment makes it under Apptainer."""
    own = apply(manifest.environment, {}).get("LD_LIBRARY_PATH", "")
    return f"{own}:{_LIBS}".lstrip(":")


def host_launcher(mpi: SiteMpi, injection: Injection) -> HostMpiexec | None:
    """Return the host's mpiexec; None where the site names none."""
    if mpi.launcher is None:
        return None
    return HostMpiexec(
        program=mpi.launcher, family=family_of(mpi.implementation, injection), root=host.is_root()
    )


def family_of(implementation: str, injection: Injection) -> str:
    """Return whose words the host's launcher takes (``openmpi``, ``mpich``, or the implementation)."""
    if any(abi.startswith("openmpi") for abi in injection.abis):
        return "openmpi"
    return "mpich" if implementation == "cray-mpich" else implementation


def launch_inside(subject: Subject, launcher: Launcher, injection: Injection, stage: Path) -> Launch:
    """Return a function that starts ranks as `envbuild.check.run` does, on the host's libraries.

    The image's own mpiexec starts them, all in one container. What the host's
    MPI wants is set for the ranks alone: the launcher is still the image's, and
    Open MPI's puts its own directory in front of LD_LIBRARY_PATH.

    Parameters
    ----------
    stage : Path
        What `Injection.fill_stage` has filled.
    """

    def launch(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        runtime = subject.apptainer.command(
            subject.image,
            [],
            binds=[Bind(source=directory, target=RESULTS, writable=True), *injection.binds(stage)],
            env={**variables, **launcher.environment(), "ENVBUILD_RESULTS": RESULTS},
            cwd=RESULTS,
        )
        # What a job chooses on purpose stays as it is.
        lent = {**injection.environment, **{name: variables[name] for name in _chosen(variables, injection)}}
        hosted = ["env", *(f"{name}={value}" for name, value in sorted(lent.items())), *command]
        argv = launcher.command(runtime, hosted, ranks)
        return wait_for_ranks(argv, env=host.environment(), directory=directory, limit_s=limit_s)

    return launch


def launch_outside(subject: Subject, launcher: HostMpiexec, injection: Injection, stage: Path) -> Launch:
    """Return a function that has the host's mpiexec start one container a rank.

    What the ranks share they share with the host: network, /dev/shm, /tmp. They
    see what mpiexec tells them, and of the caller's environment nothing else.
    """

    def launch(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        runtime = subject.apptainer.command(
            subject.image,
            [],
            binds=[Bind(source=directory, target=str(directory), writable=True), *injection.binds(stage)],
            env={
                **launcher.environment(),
                **injection.environment,
                **variables,
                "LD_LIBRARY_PATH": injection.environment["LD_LIBRARY_PATH"],
                "ENVBUILD_RESULTS": str(directory),
            },
            cwd=str(directory),
            network=True,
            isolated=False,
            home=False,
        )
        argv = launcher.command(runtime, command, ranks)
        return wait_for_ranks(argv, env=host.environment(), directory=directory, limit_s=limit_s)

    return launch


def _chosen(variables: Mapping[str, str], injection: Injection) -> list[str]:
    return [name for name in variables if name in injection.environment and name != "LD_LIBRARY_PATH"]


def judge_from_host(reports: Iterable[Reports], injection: Injection) -> Finding:
    """S4: every process that loaded an MPI loaded the host's file, from the private directory.

    The path says which file won, its sha256 that it is the host's, and the
    library itself who it is.
    """
    wanted = {f"{PRIVATE}/{name}": sha256(Path(injection.files[name])) for name in injection.mpi}
    expected = f"{injection.implementation} from {PRIVATE}"
    versions: set[str] = set()
    wrong: set[str] = set()
    count = 0
    silent = False
    for report in (report for run in reports for report in run.good):
        # Jobs of an image that an older version built.
        silent |= "mpi" not in report and "libmpi" in str(report["libraries"])
        for each in _loaded(report):
            count += 1
            path, version = each.get("path", ""), each.get("version", "")
            if _real(path, injection) not in wanted:
                wrong.add(f"{path} ({version})")
            elif each.get("sha256") != wanted[_real(path, injection)]:
                wrong.add(f"{path} is another file than {injection.files[Path(path).name]}")
            versions.add(version)
    if silent:
        return Finding(
            "FAIL", FROM_HOST, expected, "jobs that do not say which file", "build the image again"
        )
    if count == 0:
        return Finding("FAIL", FROM_HOST, expected, "no process loaded an MPI", "D0 says what is missing")
    if wrong:
        hint = "the image's own MPI was found first: an RPATH, or a variable that names it"
        return Finding("FAIL", FROM_HOST, expected, ", ".join(sorted(wrong)[:4]), hint)
    return Finding("PASS", FROM_HOST, expected, f"{', '.join(sorted(versions))} in {count} processes")


def judge_lent(reports: Iterable[Reports], injection: Injection) -> Finding:
    """S4: every process that loaded a library which the host lends loaded the host's file."""
    lent = {f"{PRIVATE}/{name}" for name in injection.files}
    seen = {
        path
        for run in reports
        for report in run.good
        for path in report["libraries"]  # type: ignore[attr-defined]  # a sound report's
        if isinstance(path, str) and path.rpartition("/")[2] in injection.files
    }
    expected = f"{', '.join(injection.files) or 'nothing'} from {PRIVATE}"
    if wrong := sorted(seen - lent):
        hint = "the image's own was found first: an RPATH, or a variable that names it"
        return Finding("FAIL", LENT, expected, ", ".join(wrong[:4]), hint)
    if not seen:
        return Finding("SKIP", LENT, expected, "no process loaded any", "no job of the image uses them")
    return Finding("PASS", LENT, expected, ", ".join(sorted(seen)))


def _real(path: str, injection: Injection) -> str:
    """Return a path in the private directory with its link followed."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/{injection.links.get(name, name)}" if directory == PRIVATE else path


def _loaded(report: Mapping[str, object]) -> list[Mapping[str, str]]:
    found = report.get("mpi")
    entries = found if isinstance(found, list) else []
    return [
        {str(key): str(value) for key, value in each.items()} for each in entries if isinstance(each, dict)
    ]
