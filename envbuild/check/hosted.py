"""An image on its host's MPI: what the image says of itself, its ranks started, and the proof."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envbuild.check.facts import Reports
from envbuild.check.findings import Finding
from envbuild.check.judge import Ended
from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.hostmpiexec import HostMpiexec
from envbuild.check.run import RESULTS, Subject
from envbuild.check.trial import Launch
from envbuild.errors import MachineError
from envbuild.image.environment import apply
from envbuild.image.model import Manifest
from envbuild.site.inject import PRIVATE, ImageSide, Injection
from envbuild.spec.site import MpiAbi, SiteMpi
from envbuild.system import host, process
from envbuild.system.apptainer import Bind
from envbuild.system.files import sha256

FROM_HOST = "S4.mpi-from-host"
_ABIS: Mapping[str, MpiAbi] = {
    "libmpi_abi.so.1": "standard",
    "libmpi.so.12": "mpich",
    "libmpi.so.20": "openmpi-20",
    "libmpi.so.40": "openmpi-40",
}
_LIBS = "/.singularity.d/libs"


def image_side(subject: Subject, names: Sequence[str], *, limit_s: float) -> ImageSide:
    """Ask an image what it needs of a host that lends its MPI; starts it once, without ranks.

    Parameters
    ----------
    names : sequence of str
        Libraries that the host would lend.
    limit_s : float
        Wall-clock limit in seconds.

    Raises
    ------
    MachineError
        It did not answer.
    """
    argv = subject.apptainer.command(
        subject.image, ["/usr/bin/python3", "-I", "-", "/opt", "--hosting", *names], cwd="/"
    )
    source = Path(__file__).with_name("probe.py").read_bytes()
    done = process.run(argv, env=host.environment(), timeout_s=limit_s, stdin=source)
    try:
        answer = json.loads(done.stdout) if done.ok else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise MachineError(
            f"the image `{subject.image}` did not say which MPI its programs need",
            hint=done.last_lines(3) or "`envbuild test IMAGE` says what is wrong with it",
        )
    return side_of(subject.manifest, answer)


def side_of(manifest: Manifest, answer: Mapping[str, object]) -> ImageSide:
    """Return an image's side of a swap, from its manifest and from what the probe found in it.

    Parameters
    ----------
    answer : mapping
        The probe's JSON: text from a stranger, taken piece by piece.
    """
    provides = answer.get("provides")
    known = provides if isinstance(provides, dict) else {}
    needed = _texts(answer.get("mpi")) or tuple(name for name in _ABIS if name in known)[-1:]
    return ImageSide(
        label=f"{manifest.name}/{manifest.version}",
        family=manifest.mpi_family,
        abis=tuple(dict.fromkeys(_abi(name, manifest.mpi_family) for name in needed if name in _ABIS)),
        glibc=manifest.glibc,
        library_path=library_path(manifest),
        provides={str(name): _texts(versions) for name, versions in known.items()},
        bound_hard=_texts(answer.get("bound_hard")),
    )


def library_path(manifest: Manifest) -> str:
    """Return LD_LIBRARY_PATH as an image's own environment makes it under Apptainer."""
    own = apply(manifest.environment, {}).get("LD_LIBRARY_PATH", "")
    return f"{own}:{_LIBS}".lstrip(":")


def _abi(name: str, family: str) -> MpiAbi:
    # An image knows its own family; a foreign library's is told by its symbols.
    return "openmpi-12" if name == "libmpi.so.12" and family == "openmpi" else _ABIS[name]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


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
        hosted = [
            "env",
            *(f"{name}={value}" for name, value in sorted(injection.environment.items())),
            *command,
        ]
        return _run(launcher.command(runtime, hosted, ranks), directory, limit_s)

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
                **variables,
                **launcher.environment(),
                **injection.environment,
                "ENVBUILD_RESULTS": str(directory),
            },
            cwd=str(directory),
            network=True,
            isolated=False,
            home=False,
        )
        return _run(launcher.command(runtime, command, ranks), directory, limit_s)

    return launch


def _run(argv: Sequence[str], directory: Path, limit_s: float) -> Ended:
    done = process.run(argv, env=host.environment(), cwd=directory, timeout_s=limit_s)
    return Ended(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)


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
