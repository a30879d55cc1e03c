"""The last submission over a store: its members, its tasks, and what became of each task.

    submission/submission.json      members, tasks and the scheduler's jobs
    submission/tasks/L-N.json       the work of task N of level L: a plan, or an image
    submission/results/L-N.json     written by the task, when it starts and when it ends
    submission/logs/JOB_INDEX.log   its output

A task writes its own result alone, so no file needs a lock.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from envbuild.errors import RequestError
from envbuild.formats import NEWER, format_error
from envbuild.store.store import Store
from envbuild.system.removal import remove

SUBMISSION_FORMAT: Final = 1
DIRECTORY = "submission"
_FILE = f"{DIRECTORY}/submission.json"
# 10,000 tasks with 200 layers each need less.
_LIMIT_BYTES = 256 << 20
_RESULT_BYTES = 1 << 20

TaskKind = Literal["layers", "image", "test"]
Outcome = Literal["running", "done", "failed", "stopped"]
_Id = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,6}-[0-9]{1,6}$")]
_Key = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SubmittedTask(_Model):
    """A piece of work that one task of an array does."""

    id: _Id
    """``LEVEL-NUMBER``."""
    kind: TaskKind
    title: str
    """For people: ``12 wheels``, the path of an image."""
    layers: dict[_Key, str] = {}
    """Layers that it alone builds: key → name."""
    image: str = ""
    """Absolute path of the image that it writes or tests."""

    @property
    def level(self) -> int:
        """It begins when all tasks of lower levels have ended."""
        return int(self.id.partition("-")[0])

    @property
    def number(self) -> int:
        """Its number within the level."""
        return int(self.id.partition("-")[2])


class SubmittedArray(_Model):
    """An array of the scheduler: its task `first` + i of a level has index i."""

    job: str
    """The scheduler's id."""
    level: int
    first: int
    tasks: int
    """Count."""


class SubmittedMember(_Model):
    """An image that was submitted."""

    name: str
    """The spec, or the image of a submitted test, as the user named it."""
    image: str
    """Absolute path."""
    tasks: tuple[_Id, ...]
    """All tasks that it needs; none if nothing was left to do."""
    error: str = ""
    """Why it could not be submitted."""
    code: int = 0
    """Exit code of that error."""


class Submission(_Model):
    """Everything that was submitted at once."""

    format: Literal[1] = SUBMISSION_FORMAT
    scheduler: str
    job_name: str
    """The name that all its arrays have."""
    members: tuple[SubmittedMember, ...]
    tasks: tuple[SubmittedTask, ...]
    """By level."""
    arrays: tuple[SubmittedArray, ...] = ()

    def job_of(self, task: SubmittedTask) -> tuple[str, int] | None:
        """Return a task's array and its index there; None if it was not submitted."""
        for array in self.arrays:
            if array.level == task.level and array.first <= task.number < array.first + array.tasks:
                return array.job, task.number - array.first
        return None


class TaskResult(_Model):
    """The state of a task, as it wrote it."""

    outcome: Outcome
    job: str
    """The array and the index, as the scheduler writes them: ``12_3``."""
    node: str
    text: str = ""
    """The error, with what to do; of a test its last line."""
    warnings: tuple[str, ...] = ()
    code: int = 0
    """Exit code."""


def read_submission(store: Store) -> Submission | None:
    """Return the last submission over a store; None if there was none.

    RequestError: a newer version of envbuild wrote it.
    """
    data = _read(store, _FILE, _LIMIT_BYTES) if store.exists else None
    try:
        return Submission.model_validate(data) if data is not None else None
    except ValidationError as error:
        other_format = format_error(error, SUBMISSION_FORMAT)
        if other_format is not None and other_format.is_newer:
            problem = f"the submission over the store `{store.path}` cannot be read: {other_format}"
            raise RequestError(problem, hint=NEWER) from None
    return None


def write_submission(store: Store, submission: Submission) -> None:
    """Write a submission."""
    store.write_sealed(_FILE, json.dumps(submission.model_dump()))


def clear_submission(store: Store) -> None:
    """Remove the last submission, the logs of its tasks included."""
    remove(store.root / DIRECTORY)
    for name in ("", "tasks", "results", "logs"):
        store.directory(f"{DIRECTORY}/{name}" if name else DIRECTORY)


def write_work(store: Store, task: str, work: Mapping[str, object]) -> None:
    """Write the work of a task, as JSON."""
    store.write_sealed(f"{DIRECTORY}/tasks/{task}.json", json.dumps(work))


def read_work(store: Store, task: str) -> dict[str, Any]:
    """Return the work of a task; RequestError if there is none."""
    data = _read(store, f"{DIRECTORY}/tasks/{task}.json", _LIMIT_BYTES)
    if data is None:
        hint = "`envbuild build --submit` submits what is missing"
        raise RequestError(f"the store `{store.path}` has no task {task}", hint=hint)
    return data


def write_result(store: Store, task: str, result: TaskResult) -> None:
    """Write what became of a task."""
    store.write_sealed(f"{DIRECTORY}/results/{task}.json", json.dumps(result.model_dump()))


def read_result(store: Store, task: str) -> TaskResult | None:
    """Return what a task wrote of itself; None if it has not begun."""
    data = _read(store, f"{DIRECTORY}/results/{task}.json", _RESULT_BYTES)
    with contextlib.suppress(ValueError):
        return TaskResult.model_validate(data) if data is not None else None
    return None


def _read(store: Store, name: str, limit_bytes: int) -> dict[str, Any] | None:
    text = store.read_sealed(name, limit_bytes=limit_bytes)
    if text is None:
        return None
    data: dict[str, Any] = json.loads(text)
    del data["seal"]
    return data
