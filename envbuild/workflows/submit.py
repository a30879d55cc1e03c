"""Submit: builds and tests as arrays of Slurm over one store; what has become of them.

Everything is resolved and fetched where this runs: nodes may have no network, and no locks in common. Each
missing layer belongs to one task, so that nothing is built twice. No process waits for the jobs: the store is
the only state.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from envbuild.errors import BuildError, EnvbuildError, MachineError, RequestError, pluralize, render, some
from envbuild.events import Note, Warned
from envbuild.image.file import ImageFile
from envbuild.image.runnable import accelerator_of
from envbuild.launch.schedulers import Array, QueuedTask, Submitter, own_command, work_for
from envbuild.launch.schedulers.follow import submitter
from envbuild.launch.schedulers.slurm import HINT_LIMITS, SCHEDULER, job_options
from envbuild.lock.model import all_pins
from envbuild.plan.model import Layer, input_files
from envbuild.plan.tasks import divide
from envbuild.spec.site import Site
from envbuild.store.gc_roots import Root, add_root
from envbuild.store.store import Store
from envbuild.store.submission import (
    DIRECTORY,
    Submission,
    SubmittedArray,
    SubmittedMember,
    SubmittedTask,
    TaskResult,
    clear_submission,
    read_result,
    read_submission,
    write_submission,
    write_work,
)
from envbuild.system import locks
from envbuild.system.descriptors import with_real_paths
from envbuild.system.links import real_path
from envbuild.workflows.build import (
    BuildRequest,
    PlannedImage,
    check_images,
    fetch_missing,
    images_to_build,
    plan_images,
)
from envbuild.workflows.images import NamedImage
from envbuild.workflows.inputs import site_of
from envbuild.workflows.members import Member, Members
from envbuild.workflows.nodes import facts_of_host, options_of_test
from envbuild.workflows.settings import Settings
from envbuild.workflows.status import statuses
from envbuild.workflows.test import TestRequest
from envbuild.workflows.upstreams import with_upstreams

# What envbuild and the programs that it starts read of a user's environment. Others stay where they are:
# the scheduler keeps a job's environment in files, and tokens and proxies have no business there.
_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "MODULEPATH", "PATH", "PYTHONPATH", "SHELL"),
    *("TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ENVBUILD_CONFIG"),
    *("ENVBUILD_RECIPES", "ENVBUILD_SITE", "ENVBUILD_TMPDIR"),
    *("APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR", "APPTAINER_TMPDIR"),
    *("SINGULARITY_CACHEDIR", "SINGULARITY_CONFIGDIR", "SINGULARITY_TMPDIR"),
)

MemberOutcome = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How jobs are to run."""

    words: Sequence[str] = ()
    """Options of sbatch."""
    partition: str = ""
    at_once: int = 0
    """Tasks of an array that run at the same time (count); 0 for as many as Slurm likes."""
    arguments: Sequence[str] = ()
    """Options of this command line that workers get, too: the store and the site, for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The state of a member of a submission, or of one of its tasks."""

    name: str
    image: str
    state: MemberOutcome
    text: str
    """Why it waits, what runs, or what went wrong."""
    done: int = 0
    tasks: int = 0
    """How many of its tasks are done, of how many (counts)."""
    jobs: tuple[str, ...] = ()
    """Ids of the jobs that its remaining tasks belong to."""
    problem: str = ""
    """The error of the task that failed, with what to do."""
    log: str = ""
    """Its log."""
    warnings: tuple[str, ...] = ()
    code: int = 0
    """Exit code of the task that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionState:
    """The state of the last submission over a store."""

    job_name: str
    members: tuple[MemberState, ...]
    jobs: tuple[str, ...]
    """Ids of all its arrays."""
    has_ended: bool
    """Whether no task waits or runs; False if the scheduler does not say."""

    @property
    def code(self) -> int:
        """The gravest exit code of a member that failed; 0 without one."""
        return max((member.code for member in self.members), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A task to submit."""

    task: SubmittedTask
    work: Mapping[str, object]
    options: tuple[str, ...]
    """Options of sbatch, without the user's."""


def submit_builds(
    specs: Members[None],
    request: BuildRequest,
    options: JobOptions,
    settings: Settings,
    *,
    tests: bool = False,
) -> SubmissionState:
    """Submit what the images of specs lack, and with `tests` their tests; return what has become of all.

    A spec that cannot be locked leaves the others. RequestError: jobs of an earlier submission have not
    ended, or Slurm refuses these. MachineError: there is no Slurm, or no space.
    """
    site = site_of(settings, queue=options.partition)
    scheduler = submitter(site)
    with _submitting(scheduler, settings):
        images = check_images(specs, request, settings)
        stored = with_upstreams(settings, request.upstreams, offline=request.offline)
        planned = plan_images(images, request, stored)
        with stored.store.in_use(lambda: settings.emit(Note(text="waiting for `envbuild cache prune`"))):
            planned, graph, missing = fetch_missing(planned, request, stored)
        tasks = _build_tasks(images_to_build(planned), missing, request, site)
        if tests:
            tasks += _test_tasks(_untested(planned, settings), _next_level(tasks), site)
        root = Root(
            path=str(settings.store.path / DIRECTORY),
            pinned=True,
            keys=tuple(sorted(graph.layers)),
            files=tuple(sorted({file.sha256 for layer in missing for file in input_files(layer.step)})),
        )
        owners = {key: task.task.id for task in tasks for key in task.task.layers}
        members = [_submitted(member, tasks, owners) for member in planned.items]
        _submit(scheduler, members, tasks, options, settings, root)
    return last_submission(settings)


def submit_tests(requests: Members[TestRequest], options: JobOptions, settings: Settings) -> SubmissionState:
    """Submit tests of images; return what has become of them. Raises as `submit_builds`."""
    site = site_of(settings, queue=options.partition)
    scheduler = submitter(site)
    with _submitting(scheduler, settings):
        tests = requests.each(lambda member, _: _with_accelerator(member.get()), settings)
        tasks = _test_tasks([member.get() for member in tests.done], 0, site)
        members = [_submitted_test(member, tasks) for member in tests.items]
        _submit(scheduler, members, tasks, options, settings, None)
    return last_submission(settings)


def _with_accelerator(request: TestRequest) -> tuple[TestRequest, str]:
    """Return a test, and the accelerator of its image."""
    with ImageFile.open(request.image) as image:
        return request, accelerator_of(image)


def _submitted_test(member: Member[tuple[TestRequest, str]], tasks: Sequence[_Task]) -> SubmittedMember:
    if member.error is not None:
        return _not_submitted(member.name, member.error)
    image = str(member.get()[0].image.absolute())
    return SubmittedMember(name=member.name, image=image, tasks=_ids(tasks, set(), image))


def _not_submitted(name: str, error: EnvbuildError) -> SubmittedMember:
    text = with_real_paths(render(error))
    return SubmittedMember(name=name, image="", tasks=(), error=text, code=error.exit_code)


def _submitted(
    member: Member[PlannedImage], tasks: Sequence[_Task], owners: Mapping[str, str]
) -> SubmittedMember:
    """Return a member as it is stored; `owners` are the ids of tasks by the keys of their layers."""
    if member.error is not None:
        return _not_submitted(member.name, member.error)
    planned = member.get()
    keys = () if planned.built is not None else [layer.key for layer in planned.plan.layers]
    ids, image = {owners[key] for key in keys if key in owners}, str(planned.image.absolute())
    return SubmittedMember(name=member.name, image=image, tasks=_ids(tasks, ids, image))


def last_submission(settings: Settings) -> SubmissionState:
    """Return what has become of the last submission over the store; RequestError if there was none."""
    state = submission_state(settings)
    if state is None:
        hint = "`envbuild build --submit` submits builds; --store DIR names another store"
        raise RequestError(f"nothing was submitted over the store `{settings.store.path}`", hint=hint)
    return state


def submission_state(settings: Settings) -> SubmissionState | None:
    """Return what has become of the last submission over the store; None if there was none."""
    submission = read_submission(settings.store)
    if submission is None:
        return None
    # The queue first: a task that is not in it, and has no result then, has ended without one.
    queue = _queue(submission, settings)
    results = {task.id: read_result(settings.store, task.id) for task in submission.tasks}
    jobs = {task.id: submission.job_of(task) for task in submission.tasks}
    lost = [
        job[0]
        for id_, job in jobs.items()
        if job is not None and queue is not None and job not in queue and not _has_ended(results[id_])
    ]
    ended = SCHEDULER.ended(sorted(set(lost)))
    states = {
        task.id: _task_state(task, results[task.id], jobs[task.id], queue, ended, settings.store)
        for task in submission.tasks
    }
    return SubmissionState(
        job_name=submission.job_name,
        members=tuple(_member_state(member, states) for member in submission.members),
        jobs=tuple(array.job for array in submission.arrays),
        has_ended=all(state.state in ("done", "failed") for state in states.values()),
    )


def release_ended(settings: Settings) -> None:
    """Let `prune` take what the last submission needs, if all its tasks have ended."""
    with contextlib.suppress(RequestError):
        state = submission_state(settings)
        if state is not None and state.has_ended:
            root = Root(path=str(settings.store.path / DIRECTORY), pinned=True)
            (settings.store.root / root.name).unlink(missing_ok=True)


@contextlib.contextmanager
def _submitting(scheduler: Submitter, settings: Settings) -> Iterator[None]:
    """Keep other submissions over the store away; RequestError if jobs of one have not ended."""
    store = settings.store
    lock = store.directory(DIRECTORY).with_name("submission.lock")
    with locks.exclusive(lock, lambda: settings.emit(Note(text="waiting for another submission"))):
        jobs = sorted({task.job for task in scheduler.queued(_job_name(store))}, key=int)
        if jobs:
            listed = ", ".join(jobs)
            raise RequestError(
                f"jobs of the last submission over the store `{store.path}` have not ended: {listed}",
                hint=f"`envbuild status --submitted` shows them, and `scancel {' '.join(jobs)}` cancels them",
            )
        yield


def _job_name(store: Store) -> str:
    """Return the name of all jobs over a store: they can be found even if no id was recorded."""
    return f"envbuild-{hashlib.sha256(os.fsencode(real_path(store.path))).hexdigest()[:12]}"


def _build_tasks(
    images: Sequence[PlannedImage], missing: Sequence[Layer], request: BuildRequest, site: Site | None
) -> list[_Task]:
    """Return the tasks that build the missing layers and write the images."""
    sizes = {pin.sha256: pin.size_bytes for image in images for pin in all_pins(image.locked.lock)}
    names = {layer.key: layer.name for layer in missing}
    division = divide([image.plan for image in images], names.keys(), sizes)
    options = ("--nodes=1", "--ntasks=1", *job_options(work_for(site, for_gpus=False)))
    tasks = []
    for level, plans in enumerate(division.levels):
        for number, plan in enumerate(plans):
            layers = {layer.key: layer.name for layer in plan.image_layers}
            title = some([*layers.values()], 2)
            task = SubmittedTask(id=f"{level}-{number}", kind="layers", title=title, layers=layers)
            tasks.append(_Task(task=task, work={"plan": plan.to_json()}, options=options))
    for number, (image, own) in enumerate(zip(images, division.own, strict=True)):
        path = str(image.image.absolute())
        task = SubmittedTask(
            id=f"{len(division.levels)}-{number}",
            kind="image",
            title=image.image.name,
            layers={key: names[key] for key in own},
            image=path,
        )
        work = {
            "spec": str(image.spec.absolute()),
            "image": path,
            # A compute node may have another one.
            "architecture": image.locked.lock.architecture,
            "compression": request.compression,
        }
        tasks.append(_Task(task=task, work=work, options=options))
    return tasks


def _untested(planned: Members[PlannedImage], settings: Settings) -> list[tuple[TestRequest, str]]:
    """Return tests of images, with their accelerators, but for those that passed on a host like this one."""
    images = [member.get() for member in planned.done]
    made = Members.of([image.image for image in images if image.built is not None], many=False)
    named = made.each(lambda member, _: NamedImage(path=member.path), settings)
    passed = {member.path for member in statuses(named, settings).done if member.get().state == "passed"}
    return [
        (TestRequest(image=image.image), image.locked.lock.accelerator)
        for image in images
        if image.image not in passed
    ]


def _test_tasks(tests: Sequence[tuple[TestRequest, str]], level: int, site: Site | None) -> list[_Task]:
    """Return the tasks that test images; those for one accelerator follow each other, for one array."""
    tasks = []
    for number, (request, accelerator) in enumerate(sorted(tests, key=lambda test: test[1])):
        image = str(request.image.absolute())
        work = {
            "image": image,
            "ranks": request.ranks,
            "timeout_s": request.timeout_s,
            "mpi": request.from_host.mpi,
            "fabric": request.from_host.fabric,
            "launcher": request.launcher,
            "quick": request.quick,
            "require_gpu": request.require_gpu,
        }
        task = SubmittedTask(id=f"{level}-{number}", kind="test", title=request.image.name, image=image)
        tasks.append(_Task(task=task, work=work, options=tuple(options_of_test(site, 1, accelerator))))
    return tasks


def _next_level(tasks: Sequence[_Task]) -> int:
    return 1 + max((task.task.level for task in tasks), default=-1)


def _ids(tasks: Sequence[_Task], layers: Collection[str], image: str) -> tuple[str, ...]:
    """Return the ids of the tasks that an image needs: those with some ids, and its own."""
    return tuple(task.task.id for task in tasks if task.task.id in layers or task.task.image == image)


def _submit(
    scheduler: Submitter,
    members: Sequence[SubmittedMember],
    tasks: Sequence[_Task],
    options: JobOptions,
    settings: Settings,
    root: Root | None,
) -> None:
    """Write a submission and its tasks to the store, and submit its arrays, a level after the other.

    If the scheduler refuses one, those before it are cancelled.
    """
    store = settings.store
    submission = Submission(
        scheduler=scheduler.name,
        job_name=_job_name(store),
        members=tuple(members),
        tasks=tuple(task.task for task in tasks),
    )
    groups = [
        (level, own, list(group))
        for (level, own), group in groupby(tasks, key=lambda task: (task.task.level, task.options))
    ]
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    variables |= facts_of_host(settings)

    def array(level: int, own: Sequence[str], first: int, count: int, after: Sequence[str]) -> Array:
        words = own_command(["worker", str(level), str(first), *options.arguments])
        return Array(
            name=submission.job_name,
            script=f"#!/bin/sh\nexec {shlex.join(words)}\n",
            tasks=count,
            at_once=options.at_once,
            after=tuple(after),
            options=(*own, *options.words),
            directory=Path.cwd(),
            logs=store.path / DIRECTORY / "logs",
            variables=variables,
        )

    for own in dict.fromkeys(own for _, own, _ in groups):
        scheduler.check(array(0, own, 0, 1, ()))
    clear_submission(store)
    for task in tasks:
        write_work(store, task.task.id, task.work)
    write_submission(store, submission)
    if root is not None:
        add_root(store, root)
    most = scheduler.most_tasks() if tasks else 1
    before: list[str] = []
    current: list[str] = []
    try:
        for level, own, group in groups:
            for start in range(0, len(group), most):
                part = group[start : start + most]
                if submission.arrays and submission.arrays[-1].level != level:
                    before, current = current, []
                first = part[0].task.number
                job = scheduler.submit_array(array(level, own, first, len(part), before))
                settings.emit(Note(text=f"{scheduler.title} job {job}: {pluralize(len(part), 'task')}"))
                current.append(job)
                added = SubmittedArray(job=job, level=level, first=first, tasks=len(part))
                submission = submission.model_copy(update={"arrays": (*submission.arrays, added)})
                write_submission(store, submission)
        # sbatch may accept more time than the partition allows.
        if tasks and (stuck := scheduler.stuck(submission.job_name)) is not None:
            problem = f"{scheduler.title} job {stuck.job} cannot start as it is asked for: {stuck.reason}"
            raise RequestError(problem, hint=HINT_LIMITS)
    except BaseException:
        for submitted in submission.arrays:
            scheduler.cancel(submitted.job)
        raise


def _queue(submission: Submission, settings: Settings) -> dict[tuple[str, int], QueuedTask] | None:
    """Return the tasks that wait or run; None if the scheduler does not answer."""
    if not submission.arrays:
        return {}
    try:
        queued = SCHEDULER.queued(submission.job_name)
    except MachineError as error:
        settings.emit(Warned(text=f"states are those that tasks wrote: {error.problem}", hint=error.hint))
        return None
    return {(task.job, task.index): task for task in queued}


def _has_ended(result: TaskResult | None) -> bool:
    return result is not None and result.outcome != "running"


def _task_state(
    task: SubmittedTask,
    result: TaskResult | None,
    job: tuple[str, int] | None,
    queue: Mapping[tuple[str, int], QueuedTask] | None,
    ended: Mapping[tuple[str, int], str],
    store: Store,
) -> MemberState:
    """Return what has become of a task, as of a member with this task alone."""

    def state(outcome: MemberOutcome, text: str, code: int = 0) -> MemberState:
        id_ = f"{job[0]}_{job[1]}" if job is not None else ""
        return MemberState(
            name=task.title,
            image=task.image,
            state=outcome,
            text=text,
            problem=text if outcome == "failed" else "",
            jobs=(job[0],) if job is not None else (),
            log=str(store.path / DIRECTORY / f"logs/{id_}.log") if outcome == "failed" and id_ else "",
            warnings=result.warnings if result is not None else (),
            code=code,
        )

    waiting = queue.get(job) if queue is not None and job is not None else None
    if waiting is not None and waiting.state == "PENDING":
        # Also one that ran on a node that failed, and that is to run again.
        return state("queued", waiting.reason)
    if result is not None and result.outcome == "done":
        return state("done", result.text)
    if result is not None and _has_ended(result):
        code = result.code if result.outcome == "failed" else BuildError.exit_code
        return state("failed", result.text, code)
    if waiting is not None or (queue is None and result is not None):
        node = result.node if result is not None else waiting.node if waiting is not None else ""
        return state("running", f"on {node}" if node else "")
    if queue is None:
        return state("queued", "")
    how = ended.get(job, "") if job is not None else ""
    return state("failed", f"it ended without a result{f': {how}' if how else ''}", BuildError.exit_code)


def _member_state(member: SubmittedMember, states: Mapping[str, MemberState]) -> MemberState:
    """Return what has become of a member: the first task that failed decides, else what is left."""
    if member.error:
        return MemberState(
            name=member.name,
            image=member.image,
            state="failed",
            text=member.error,
            problem=member.error,
            code=member.code,
        )
    tasks = [states[id_] for id_ in member.tasks]
    left = [task for task in tasks if task.state != "done"]
    failed = next((task for task in tasks if task.state == "failed"), None)
    running = [task for task in tasks if task.state == "running"]
    done = len(tasks) - len(left)
    if failed is not None:
        text = f"{failed.name}: {failed.text}"
    elif running:
        text = some([f"{task.name} {task.text}".strip() for task in running], 2)
    else:
        text = left[0].text if left else tasks[-1].text if tasks else "is up to date"
    return MemberState(
        name=member.name,
        image=member.image,
        state="failed" if failed is not None else "running" if running else "queued" if left else "done",
        text=text,
        done=done,
        tasks=len(tasks),
        jobs=tuple(dict.fromkeys(job for task in left for job in task.jobs)),
        problem=failed.problem if failed is not None else "",
        log=failed.log if failed is not None else "",
        warnings=tuple(dict.fromkeys(warning for task in tasks for warning in task.warnings)),
        code=failed.code if failed is not None else 0,
    )
