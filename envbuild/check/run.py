"""Run an image's probe and mini jobs under Apptainer; what came back is judged elsewhere."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.check import judge
from envbuild.check.facts import cut_outputs
from envbuild.check.findings import Finding
from envbuild.check.judge import Ended, Job
from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.known import launcher_named
from envbuild.check.trial import Launch
from envbuild.image.model import Manifest
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer, Bind, not_started

# Every base holds it, so the bind needs no overlay; and what MPI keeps there lands on a real disk,
# not in the small tmpfs of a contained start.
RESULTS = "/tmp"  # noqa: S108  # the path inside the image
# How much of what a launcher and its ranks write is kept.
_OUTPUT_BYTES = 1 << 20
# How often the files are looked at that ranks write.
_LOOK_S = 0.2
# The check of an image's bytes.
PARTS = "S1.digest"
CHANGED = "the file was changed or damaged: build it again, or copy it again from where it came"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image that is tested.

    Attributes
    ----------
    image : Path
        The file.
    manifest : Manifest
        What it says of itself.
    apptainer : Apptainer
        What starts it.
    """

    image: Path
    manifest: Manifest
    apptainer: Apptainer

    def jobs(self) -> list[Job]:
        """Return its mini jobs, as the judge knows them."""
        return [Job(**job.model_dump()) for job in self.manifest.jobs]


def launcher_of(subject: Subject, name: str = "mpiexec") -> Launcher | None:
    """Return what starts the ranks of an image's job; None where nothing can.

    Parameters
    ----------
    name : str
        The launcher that the job names.
    """
    if judge_foreign(subject.manifest):
        return None
    return launcher_named(name, family=subject.manifest.mpi_family, root=host.is_root())


def launch_with(subject: Subject, launcher: Launcher, *, binds: Sequence[Bind] = ()) -> Launch:
    """Return a function that starts a job's ranks in the image and waits for them.

    They have no network but a loopback, no home, and nothing of the host's
    environment. On time-out the whole container is ended with all it holds.

    Parameters
    ----------
    binds : sequence of Bind
        What of the host they see beside the directory of results.
    """

    def launch(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        runtime = subject.apptainer.command(
            subject.image,
            [],
            binds=[Bind(source=directory, target=RESULTS, writable=True), *binds],
            env={**variables, **launcher.environment(), "ENVBUILD_RESULTS": RESULTS},
            cwd=RESULTS,
        )
        argv = launcher.command(runtime, command, ranks)
        return wait_for_ranks(argv, env=host.environment(), directory=directory, limit_s=limit_s)

    return launch


def wait_for_ranks(argv: Sequence[str], *, env: Mapping[str, str], directory: Path, limit_s: float) -> Ended:
    """Start a launcher and wait for its end; of what its ranks write the beginning and the end are kept.

    Parameters
    ----------
    directory : Path
        Where it runs.
    limit_s : float
        Wall-clock limit in seconds.
    """
    over = threading.Event()

    def keep_outputs_short() -> None:
        with contextlib.suppress(OSError):
            cut_outputs(directory)

    def watch() -> None:
        while not over.wait(_LOOK_S):
            keep_outputs_short()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        done = process.run(
            argv, env=env, cwd=directory, timeout_s=limit_s, stdout_bytes=_OUTPUT_BYTES, guarded=True
        )
    finally:
        over.set()
        watcher.join()
        keep_outputs_short()
    return Ended(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)


def probe(subject: Subject, *, limit_s: float) -> list[Finding]:
    """S1 and S3: send the probe into the image and judge the facts that it finds.

    Parameters
    ----------
    limit_s : float
        Wall-clock limit in seconds.

    Raises
    ------
    NotStartedError
        Apptainer started nothing: for the machine's sake, or for what is in the image.
    """
    argv = subject.apptainer.command(
        subject.image, ["/usr/bin/python3", "-I", "-", "/opt", *subject.manifest.imports], cwd="/"
    )
    source = Path(__file__).with_name("probe.py").read_bytes()
    # Apptainer opens the directory that it is started in, and ours may be closed to us.
    env = host.environment()
    done = process.run(argv, env=env, cwd=Path("/"), timeout_s=limit_s, stdin=source, guarded=True)
    try:
        facts = json.loads(done.stdout) if done.ok else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        if not done.timed_out and (refusal := not_started(done, subject.image.name)) is not None:
            raise refusal
        why = (
            f"ended after {limit_s:g} s" if done.timed_out else done.last_lines(3) or f"exit code {done.code}"
        )
        return [no_facts(why)]
    return judge.judge_probe(facts, subject.manifest.model_dump())


def no_facts(why: str) -> Finding:
    """S1: the probe brought nothing back."""
    return Finding("FAIL", "S1.imports", "facts of the image", "none", why)


def judge_bytes(changed: Sequence[str]) -> Finding:
    """S1: the image is, byte by byte, the one that was built.

    Parameters
    ----------
    changed : sequence of str
        What `verify_image` found.
    """
    expected = "all parts as built"
    if changed:
        return Finding("FAIL", PARTS, expected, ", ".join(changed), CHANGED)
    return Finding("PASS", PARTS, expected, expected)


def judge_foreign(manifest: Manifest) -> Finding | None:
    """S1: an image for another architecture cannot be started here; None where it is this one's."""
    if manifest.architecture == host.architecture():
        return None
    hint = "test it on a machine of its architecture, or build it for this one"
    return Finding("FAIL", "S1.architecture", host.architecture(), manifest.architecture, hint)
