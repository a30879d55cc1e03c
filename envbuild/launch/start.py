"""Start the ranks of an image under Apptainer: the one command line that `test` and `launch` share."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType

from envbuild.image.metadata import embedded_files
from envbuild.image.model import METADATA_DIR
from envbuild.image.runnable import Runnable, own_mpiexec_variables
from envbuild.jobs import envbuild_gpus, imports
from envbuild.jobs.envbuild_gpus import VISIBLE_GPUS
from envbuild.jobs.judge import (
    GpuSurvey,
    Job,
    LaunchResult,
    Package,
    judge_imports,
    modules_to_import,
    tutorial_file,
)
from envbuild.jobs.rank_reports import cut_outputs
from envbuild.jobs.report import IMPORTS, CheckResult
from envbuild.jobs.run import JobResult, StartRanks, run_job
from envbuild.launch.bare import BareEnvironment
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries, LaunchContext
from envbuild.launch.gpus import gpu_flags
from envbuild.launch.launchers import Launcher, Shape, launcher_for
from envbuild.launch.runtimes import Entry, rank_line
from envbuild.launch.schedulers import variables_of_job
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer, Bind
from envbuild.system.removal import remove

# Where ranks see the results directory. Every base has both directories, so the bind needs no overlay.
# In one container that is /tmp: what MPI keeps there is on a real disk then, not in the small tmpfs of a
# contained start. Ranks in one container each share the node's /tmp.
_RESULTS_INSIDE = "/tmp"  # noqa: S108  # the path inside the image
_RESULTS_OUTSIDE = "/mnt"
# How much of the output of a launcher and its ranks is kept.
_OUTPUT_BYTES = 1 << 20
# How much of the answer of a program in an image is kept.
_ANSWER_BYTES = 4 << 20
_WHY = 1000  # characters
# The kernel takes arguments of up to 128 KiB.
_ARGUMENT = 100_000
# A stage that ends its imports itself says which did not end.
_ANSWER_S = 15.0
# How often the output files of ranks are cut.
_CUT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image, and what a start of it needs from this machine."""

    image: Path
    runnable: Runnable
    apptainer: Apptainer
    file_name: str = ""
    """Name of the image's file, for messages, where `image` is the path of an open one."""
    python: str = ""
    """The Python of an image of another tool; empty for `python` on its PATH."""
    programs: str = ""
    """Directory of its own mpiexec and torchrun; empty for PATH."""
    brought: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Job id → its file and the modules that it imports, for jobs that the image does not carry."""
    binds: tuple[Bind, ...] = ()
    """Host paths that it sees."""
    host_libs: HostLibraryPlan | None = None
    """The host's libraries that take the place of the image's own."""
    stage: Path | None = None
    """The staging directory that `HostLibraryPlan.fill_stage` has filled; all nodes must see it."""
    gpu_flags: tuple[str, ...] = ()
    """Apptainer's flags for the GPUs (``--nv``, ``--rocm``); empty without."""
    gpus: int = 0
    """GPUs that the image sees where its ranks start (count)."""
    threads: int = 1
    """Threads of each rank of a job (OMP_NUM_THREADS)."""
    bare: BareEnvironment | None = None
    """The environment on the host in which its ranks start instead; None for the image."""

    @property
    def label(self) -> str:
        """``name/version``, for messages."""
        return f"{self.runnable.name}/{self.runnable.version}"

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The image's jobs."""
        return self.runnable.jobs


def context_of(
    container: Container,
    site: Site | None,
    from_host: HostLibraries = NO_HOST_LIBS,
    *,
    ask_srun: Callable[[], tuple[str, ...]] | None = None,
    across_nodes: bool = False,
) -> LaunchContext:
    """Return the facts that decide how the ranks of a container's image are started."""
    runnable = container.runnable
    return LaunchContext(
        family=runnable.mpi_family,
        version=runnable.recipes.get(runnable.mpi, ""),
        commands=runnable.commands,
        programs=container.programs,
        site=site,
        from_host=from_host,
        ask_srun=ask_srun,
        abis=container.host_libs.abis if container.host_libs else (),
        across_nodes=across_nodes,
    )


def own_launcher(container: Container, name: str = "mpiexec") -> Launcher | None:
    """Return the image's own launcher for jobs whose `launcher` is `name`; None if it has none for here."""
    if judge_architecture(container):
        return None
    context = context_of(container, None)
    found = (launcher_for(each, context) for each in ("mpiexec", "torchrun") if name in (each, "any"))
    return next((launcher for launcher in found if launcher is not None), None)


def line_of_ranks(
    container: Container,
    launcher: Launcher,
    command: Sequence[str],
    shape: Shape,
    *,
    variables: Mapping[str, str] | None = None,
    results: Path | None = None,
    user_set: Collection[str] = (),
    torch_env: bool = True,
) -> list[str]:
    """Return the command line that starts a command on the ranks of an image on this machine.

    Ranks of an image with PyTorch get the variables by which they meet, unless `torch_env` is false.

    `results` is the directory that the ranks of a test write to: they see neither home nor environment of
    the user, and in one container only a loopback network and a minimal /dev. Without it the ranks are the
    user's own work, and see what Apptainer shows by default. The launcher does not change the variables of
    `user_set`.
    """
    spans = launcher.spans_nodes
    here = not spans and not container.apptainer.elsewhere
    chosen = {name: os.environ[name] for name in VISIBLE_GPUS if name in os.environ and here}
    chosen |= variables or {}
    bare = container.bare
    # Ranks without a container share their user namespace.
    needed = launcher.variables(separate=bare is None)
    if not spans:
        # Images of envbuild set them; those of other tools, and older ones, do not.
        of_image = {variable.name for variable in container.runnable.environment}
        needed = {name: value for name, value in needed.items() if name not in of_image}
    env = {name: value for name, value in needed.items() if name not in user_set} | chosen
    binds, cwd = list(container.binds), None
    if results is not None:
        cwd = _RESULTS_OUTSIDE if spans else _RESULTS_INSIDE
        binds.insert(0, Bind(source=results, target=cwd, writable=True))
        env["ENVBUILD_RESULTS"] = cwd
    job = [*container.runnable.rank_words, *command] if torch_env else list(command)
    if container.host_libs is not None and container.stage is not None:
        binds += container.host_libs.binds(container.stage)
        host_env = dict(container.host_libs.environment)
        # A job's deliberate choice wins, except over where the host's libraries are.
        host_env |= {name: chosen[name] for name in chosen.keys() & host_env.keys() - {"LD_LIBRARY_PATH"}}
        if spans:
            env |= host_env
        else:
            # The launcher is still the image's, and Open MPI's puts its directory first in
            # LD_LIBRARY_PATH: only the ranks get what the host's MPI needs.
            job = ["env", *(f"{name}={value}" for name, value in sorted(host_env.items())), *job]
    is_closed = results is not None and not spans
    if bare is not None:
        paths = {bind.target: str(bind.source) for bind in binds}
        words = bare.enter(container.runnable.environment, env, paths)
        job = [bare.on_host(word, paths) for word in job]
    else:
        words = container.apptainer.command(
            container.image,
            [],
            flags=container.gpu_flags,
            binds=binds,
            env=env,
            cwd=cwd,
            network=not is_closed,
            isolated=is_closed,
            home=results is None,
        )
    # For another machine, the user there is not known to be root.
    as_root = host.is_root() and not container.apptainer.elsewhere
    # Those that the user has set reach other nodes only by the launcher: the container's are in its line.
    of_user = tuple(sorted({*needed} & {*user_set} - {*env}))
    shape = replace(shape, as_root=as_root, oversubscribe=results is not None, variables=of_user)
    return rank_line(launcher, Entry(words=words), job, shape)


def environment_of(launcher: Launcher | None) -> dict[str, str]:
    """Return the environment of a launcher: its cluster and job, and nothing else of the user's."""
    return host.environment(extra=variables_of_job(launcher.job_variables if launcher is not None else ()))


def program_line(
    container: Container,
    command: Sequence[str],
    *,
    variables: Mapping[str, str] = MappingProxyType({}),
    prompt: str = "",
) -> list[str]:
    """Return the command line that starts one program of the user in an image; a shell with a `prompt`."""
    of_mpi = own_mpiexec_variables(container.runnable)
    own = {name: value for name, value in of_mpi.items() if name not in os.environ}
    binds = list(container.binds)
    if container.host_libs is not None and container.stage is not None:
        binds += container.host_libs.binds(container.stage)
        own |= container.host_libs.environment
    return container.apptainer.command(
        container.image,
        command,
        action="shell" if prompt else "exec",
        flags=container.gpu_flags,
        binds=binds,
        env={**own, **variables, **({"PS1": prompt} if prompt else {})},
        network=True,
        isolated=False,
    )


def start_ranks(
    container: Container,
    launcher: Launcher,
    command: Sequence[str],
    shape: Shape,
    directory: Path,
    variables: Mapping[str, str],
    limit_s: float,
) -> LaunchResult:
    """Start the ranks of a test and wait for them; after `limit_s` seconds all their processes end.

    The launcher runs in the results directory.
    """
    argv = line_of_ranks(container, launcher, command, shape, variables=variables, results=directory)
    return wait_for_ranks(argv, env=environment_of(launcher), directory=directory, limit_s=limit_s)


def wait_for_ranks(
    argv: Sequence[str], *, env: Mapping[str, str], directory: Path, limit_s: float
) -> LaunchResult:
    """Start a launcher and wait for its end; the middle of long rank outputs is cut out meanwhile.

    It runs in `directory`, where ranks write their outputs.
    """
    over = threading.Event()

    def keep_outputs_short() -> None:
        with contextlib.suppress(OSError):
            cut_outputs(directory)

    def watch() -> None:
        while not over.wait(_CUT_S):
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
    return LaunchResult(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)


def run_image_job(
    container: Container, launcher: Launcher, job: Job, *, shape: Shape, limit_s: float
) -> JobResult:
    """Run a job of an image on its ranks and judge it; `limit_s` limits each run.

    `shape` is that of the run on all ranks.
    """
    if (contents := container.brought.get(job.id)) is not None:
        return run_external_job(container, launcher, job, contents, shape=shape, limit_s=limit_s)
    with _results_of(launcher) as directory:
        start = _starter(container, launcher, shape)
        return run_job(job, start, directory, ranks=shape.ranks, limit_s=limit_s, threads=container.threads)


def run_external_job(
    container: Container,
    launcher: Launcher,
    job: Job,
    contents: Mapping[str, bytes],
    *,
    shape: Shape,
    limit_s: float,
) -> JobResult:
    """Run a job that an image does not carry; `contents`: name of a file → its content.

    The files of jobs are bound over the image's own, or where it would have them.
    """
    brought = {f"jobs/{job.recipe}/{name}": content for name, content in contents.items()}
    texts = {**embedded_files(), **brought}
    with _results_of(launcher) as directory:
        for name, text in texts.items():
            path = directory / "envbuild" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        bind = Bind(source=directory / "envbuild", target=METADATA_DIR)
        container = replace(container, binds=(*container.binds, bind))
        start = _starter(container, launcher, shape)
        return run_job(job, start, directory, ranks=shape.ranks, limit_s=limit_s, threads=container.threads)


def _starter(container: Container, launcher: Launcher, shape: Shape) -> StartRanks:
    """Return the function that starts the ranks of each run of a job."""

    def start(
        command: Sequence[str], ranks: int, results: Path, variables: Mapping[str, str], limit_s: float
    ) -> LaunchResult:
        # A job names the image's own Python; that of another tool's image lies elsewhere.
        line = [container.python or command[0], *command[1:]]
        # A run on one rank needs no more nodes than that.
        here = shape if ranks == shape.ranks else Shape(ranks=ranks)
        return start_ranks(container, launcher, line, here, results, variables, limit_s)

    return start


def _results_of(launcher: Launcher) -> contextlib.AbstractContextManager[Path]:
    # All nodes must see it: then it is in the working directory.
    return results_directory(Path.cwd() if launcher.spans_nodes else None)


@contextlib.contextmanager
def results_directory(parent: Path | None = None) -> Iterator[Path]:
    """Make a private directory for what ranks report, and remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix="envbuild-test-", dir=parent))
    try:
        yield path
    finally:
        # Files of a job may resist removal; that says nothing about the image.
        with contextlib.suppress(OSError):
            remove(path)


def check_imports(
    container: Container,
    packages: Sequence[Package],
    *,
    limit_s: float,
) -> list[CheckResult]:
    """Import packages and modules of an image in it, and run the tutorials of its recipes, in one start.

    All ends after `limit_s` seconds. For the Python of an image of another tool a user's directory of
    packages is the image's. NotStartedError: Apptainer started nothing, because of the machine or
    because of the image.
    """
    runnable, python = container.runnable, container.python
    request = imports.request(
        modules_to_import(packages),
        runnable.imports,
        [tutorial_file(recipe) for recipe in runnable.tutorials],
        sites=sorted({site for package in packages for site in package.sites}),
        python=python or "python",
        flags=() if python else ("-s",),
        limit_s=limit_s,
    )
    text = json.dumps(request)
    pieces = [text[start : start + _ARGUMENT] for start in range(0, len(text), _ARGUMENT)]
    results, why = _ask_inside(
        container, imports, pieces, limit_s=limit_s + _ANSWER_S, python=python or "/usr/bin/python3"
    )
    if not isinstance(results, dict):
        return [imports_failed(why)]
    return judge_imports(packages, runnable.imports, runnable.tutorials, results)


def _ask_inside(
    container: Container,
    script: ModuleType,
    arguments: Sequence[str],
    *,
    limit_s: float,
    launcher: Launcher | None = None,
    python: str = "/usr/bin/python3",
) -> tuple[object, str]:
    """Run a file of `envbuild.jobs` in a container; return what it prints as JSON, and why it may be useless.

    A `launcher` of the host starts it where it starts ranks. NotStartedError: Apptainer started nothing.
    """
    outside = launcher is not None and launcher.spans_nodes
    line = container.apptainer.command(
        container.image,
        [python, "-I", "-", *arguments],
        flags=container.gpu_flags,
        env={name: os.environ[name] for name in VISIBLE_GPUS if name in os.environ and not outside},
        cwd="/",
        isolated=not outside,
        home=False,
    )
    if launcher is not None and outside:
        shape = Shape(ranks=1, as_root=host.is_root(), oversubscribe=True)
        line = rank_line(launcher, Entry(words=line), [], shape)
    done = process.run(
        line,
        env=environment_of(launcher if outside else None),
        # Apptainer opens the directory that it is started in, and ours may be closed to it.
        cwd=Path.cwd() if outside else Path("/"),
        timeout_s=limit_s,
        stdin=Path(str(script.__file__)).read_bytes(),
        stdout_bytes=_ANSWER_BYTES,
        guarded=True,
    )
    why = f"ended after {limit_s:g} s" if done.timed_out else done.last_lines(3) or f"exit code {done.code}"
    why = why[-_WHY:]
    subject = container.file_name or container.image.name
    if (refusal := container.apptainer.not_started(done, subject)) is not None:
        raise refusal
    try:
        return json.loads(done.stdout) if done.ok else None, why
    except (ValueError, RecursionError):
        return None, why


def with_gpus(
    container: Container, launcher: Launcher | None, site: Site | None, *, limit_s: float
) -> tuple[Container, GpuSurvey]:
    """Return the container with the GPUs that it sees where its ranks start, and what a kernel gave on each.

    An image that is not for GPUs is asked nothing. Raises NotStartedError if Apptainer starts nothing.
    """
    if container.runnable.accelerator == "cpu":
        return container, GpuSurvey()
    spans = launcher is not None and launcher.spans_nodes
    flags = gpu_flags(container.apptainer, container.runnable.accelerator, site, elsewhere=spans)
    container = replace(container, gpu_flags=flags)
    data, why = _ask_inside(container, envbuild_gpus, ["kernel"], limit_s=limit_s, launcher=launcher)
    try:
        survey = GpuSurvey.from_data(data)
    except ValueError:
        survey = GpuSurvey(error=why)
    return replace(container, gpus=len(survey.gpus)), survey


def imports_failed(why: str) -> CheckResult:
    """Fail the import check: nothing could be imported at all."""
    return CheckResult("FAIL", IMPORTS, "results of the imports", "none", why)


def judge_architecture(container: Container) -> CheckResult | None:
    """Fail an image for another architecture that cannot start here; None if it can, or is this machine's."""
    architecture = container.runnable.architecture
    if architecture == host.architecture() or container.apptainer.emulator is not None:
        return None
    hint = f"test it on a machine with {architecture}; `--emulate` tries here what needs no such processor"
    return CheckResult("FAIL", "image.architecture", host.architecture(), architecture, hint)
