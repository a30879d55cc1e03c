"""Worker: one task of a submission, on the node where the scheduler started it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuild.build.run import BuildContext, missing_layers
from envbuild.errors import BuildError, EnvbuildError, RequestError, raise_all, render
from envbuild.events import Emit, Event, Warned
from envbuild.inputs.tools import tool_pins
from envbuild.launch.context import HostLibraries
from envbuild.launch.nodes import judge_limits
from envbuild.launch.schedulers.slurm import SCHEDULER
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import BuildPlan, InputFile, Layer
from envbuild.resolve.files import FileCache, WrongBytes, check
from envbuild.store.store import Store
from envbuild.store.submission import (
    DIRECTORY,
    Submission,
    SubmittedTask,
    TaskResult,
    read_result,
    read_submission,
    read_work,
    write_result,
)
from envbuild.system import host
from envbuild.system.descriptors import with_real_paths
from envbuild.workflows.build import BuildRequest, build_images
from envbuild.workflows.inputs import site_of
from envbuild.workflows.lock import read_locked
from envbuild.workflows.make import make_layers
from envbuild.workflows.members import Members
from envbuild.workflows.nodes import submitted_from
from envbuild.workflows.plan import plan_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import TestRequest, test_image
from envbuild.workflows.upstreams import with_upstreams

_SUBMIT_AGAIN = "`envbuild build --submit` submits what is missing"
_MOST_WARNINGS = 20


def run_task(level: int, first: int, upstreams: Sequence[Path], settings: Settings) -> TaskResult:
    """Do the task of a submission that this job is: number `first` + its index of a level.

    The result is written to the store, also of a task that fails. RequestError: this is not a job of a
    submission.
    """
    here, submission = SCHEDULER.task_of(os.environ), read_submission(settings.store)
    tasks = {task.id: task for task in submission.tasks} if submission is not None else {}
    task = tasks.get(f"{level}-{first + here[1]}") if here is not None else None
    if here is None or submission is None or task is None:
        problem = "this is not a task of the store's last submission"
        raise RequestError(problem, hint="`envbuild build --submit` starts its own jobs")
    job, store = f"{here[0]}_{here[1]}", settings.store
    warnings: list[str] = []
    settings = replace(settings, emit=_collecting(settings.emit, warnings))

    def result(outcome: str, text: str = "", code: int = 0) -> TaskResult:
        written = TaskResult(
            outcome=outcome,
            job=job,
            node=host.name(),
            text=with_real_paths(text),
            warnings=tuple(warnings[:_MOST_WARNINGS]),
            code=code,
        )
        write_result(store, task.id, written)
        return written

    result("running")
    try:
        _warn_of_limits(task, settings)
        text, code = _do(task, submission, upstreams, settings)
    except EnvbuildError as error:
        return result("failed", render(error), error.exit_code)
    except KeyboardInterrupt:
        result("stopped", "it was ended by a signal", 130)
        raise
    except BaseException as error:
        result("failed", f"{type(error).__name__}: {error}", 1)
        raise
    return result("failed" if code else "done", text, code)


def _collecting(emit: Emit, warnings: list[str]) -> Emit:
    def collect(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.text + (f" ({event.hint})" if event.hint else ""))
        emit(event)

    return collect


def _warn_of_limits(task: SubmittedTask, settings: Settings) -> None:
    """Warn of limits that this job inherited, and that its work may not fit into."""
    site = site_of(settings) if task.kind == "test" else None
    uses_fabric = task.kind == "test" and (bool(site is not None and site.fabric) or host.has_rdma())
    for warning in judge_limits(host.limits(), uses_fabric=uses_fabric):
        settings.emit(warning)


def _do(
    task: SubmittedTask, submission: Submission, upstreams: Sequence[Path], settings: Settings
) -> tuple[str, int]:
    """Do a task; return a line on its result, and an exit code."""
    work = read_work(settings.store, task.id)
    if task.kind == "layers":
        settings = with_upstreams(settings, upstreams, offline=True)
        return _build_layers(work, submission, settings), 0
    if task.kind == "image":
        return _build_image(work, task, submission, upstreams, settings)
    report = test_image(_test_request(work), settings)
    return report.last_line, 0 if report.passed else 4


def _build_layers(work: Mapping[str, Any], submission: Submission, settings: Settings) -> str:
    """Build the layers of a task; a wheel that fails leaves the others. Raise the errors of all that fail."""
    store, plan = settings.store, BuildPlan.from_json(work["plan"])
    graph = LayerGraph.of([plan])
    missing = missing_layers(graph, store)
    _check_owned(missing, set(graph.image_keys), submission, store)
    _check_tools(missing)
    failures: dict[str, EnvbuildError] = {}
    if missing:
        with store.in_use(), store.stage() as stage:
            context = BuildContext(
                store=store,
                apptainer=settings.find_apptainer(),
                locate=lambda file: store.for_programs(_stored(file, store), stage),
                emit=settings.emit,
            )
            failures = make_layers(graph, context, settings, missing=missing, verb="build")
    store.freshen(graph.layers)
    raise_all(list(failures.values()))
    return f"{len(missing)} of {len(plan.image)} built"


def _build_image(
    work: Mapping[str, Any],
    task: SubmittedTask,
    submission: Submission,
    upstreams: Sequence[Path],
    settings: Settings,
) -> tuple[str, int]:
    spec, image = Path(work["spec"]), Path(work["image"])
    settings = replace(settings, architecture=work["architecture"])
    stored = with_upstreams(settings, upstreams, offline=True)
    plan = plan_image(read_locked(spec, stored), compression=work["compression"])
    missing = missing_layers(LayerGraph.of([plan]), stored.store)
    _check_owned(missing, task.layers.keys(), submission, stored.store)
    request = BuildRequest(
        output=image, locked=True, offline=True, compression=work["compression"], upstreams=upstreams
    )
    built = build_images(Members.of([spec], many=False), request, settings).only
    problem = next((check.line() for check in built.preflight.checks() if check.status == "FAIL"), "")
    return problem or f"{built.size_bytes / 1e6:.0f} MB, {built.digest[:19]}", 4 if problem else 0


def _test_request(work: Mapping[str, Any]) -> TestRequest:
    return TestRequest(
        image=Path(work["image"]),
        ranks=work["ranks"],
        timeout_s=work["timeout_s"],
        from_host=HostLibraries(mpi=work["mpi"], fabric=work["fabric"]),
        launcher=work["launcher"],
        quick=work["quick"],
        require_gpu=work["require_gpu"],
        submitted_from=submitted_from(),
    )


def _check_owned(
    missing: Sequence[Layer], owned: Collection[str], submission: Submission, store: Store
) -> None:
    """Raise a BuildError unless a task builds all missing layers itself: name the task that did not."""
    for layer in missing:
        if layer.key in owned:
            continue
        owner = next((task for task in submission.tasks if layer.key in task.layers), None)
        if owner is None:
            raise BuildError(
                f"layer {layer.name} is not in the store, and no task of the submission builds it",
                hint=f"the spec or its lock changed meanwhile: {_SUBMIT_AGAIN}",
            )
        result = read_result(store, owner.id)
        why = "it never ran" if result is None else result.text.partition("\n")[0] or result.outcome
        log = store.path / DIRECTORY / f"logs/{result.job}.log" if result is not None else None
        raise BuildError(
            f"layer {layer.name} was not built by task {owner.id} ({owner.title}): {why}",
            hint=(f"its log is `{log}`; " if log is not None else "") + _SUBMIT_AGAIN,
        )


def _check_tools(missing: Sequence[Layer]) -> None:
    """Raise a RequestError if this node's tools are not those that the layers' keys name."""
    pins = sorted({tool for layer in missing for tool in layer.step.tools})
    here = {tool.name: tool for tool in tool_pins([tool.name for tool in pins])} if pins else {}
    for pin in pins:
        if (tool := here[pin.name]) != pin:
            version = tool.version if tool.version != pin.version else "another build of it"
            raise RequestError(
                f"the layers are made with {pin.name} {pin.version}, and {host.name()} has {version}",
                hint="use one installation on all nodes, or nodes like the one that submits (`--partition`)",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFile:
    """A locked file, by name and digest."""

    file_name: str
    sha256: str
    directory: str = ""
    size_bytes: int | None = None


def _stored(file: InputFile, store: Store) -> Path:
    """Return a locked file of the store, verified."""
    stored = _StoredFile(file_name=file.name, sha256=file.sha256)
    path = FileCache(store.root / "files").path(stored)
    try:
        check(path, stored)
    except WrongBytes as error:
        raise RequestError(f"`{file.name}` in the store: {error}", hint=_SUBMIT_AGAIN) from None
    return path
