"""Members: the files that a command takes at once; one that fails leaves the others done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from envbuild.errors import EnvbuildError, RequestError, from_os_error, is_user_error, pluralize
from envbuild.events import (
    Emit,
    Event,
    MemberDone,
    Note,
    TaskAdvanced,
    TaskDone,
    TaskFailed,
    TaskStarted,
    Warned,
)
from envbuild.system.links import real_path
from envbuild.system.process import thread_pool
from envbuild.workflows.settings import Settings

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Generic[T]):
    """One of the files, images or modules that a command takes."""

    name: str
    """As people read it in a table: a path as the user named it, or ``NAME/VERSION``; unique."""
    path: Path
    result: T | None = None
    """The result of the steps so far; None after an error."""
    error: EnvbuildError | None = None

    def get(self) -> T:
        """Return the result; raise the error of a member that failed."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None only if that is the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Members(Generic[T]):
    """All members of a run, in a stable order."""

    items: tuple[Member[T], ...]
    many: bool
    """Whether the user named several, or a directory: a table shows them, even if it holds one."""

    @staticmethod
    def of(paths: Iterable[Path], *, many: bool) -> Members[None]:
        """Return members that are named by their paths."""
        return Members(items=tuple(Member(name=str(path), path=path) for path in paths), many=many)

    @property
    def done(self) -> tuple[Member[T], ...]:
        """The members without an error."""
        return tuple(member for member in self.items if member.error is None)

    @property
    def failed(self) -> tuple[Member[T], ...]:
        """The members with an error."""
        return tuple(member for member in self.items if member.error is not None)

    @property
    def only(self) -> T:
        """The result of the one member that the user named; raises its error."""
        (member,) = self.items
        return member.get()

    def each(
        self,
        work: Callable[[Member[T], Settings], R],
        settings: Settings,
        *,
        threads: int = 1,
        last: bool = False,
    ) -> Members[R]:
        """Return the members with the results of `work` on each that has not failed.

        An error for users becomes that of its member, and the others go on; a bug and an interrupt end all.
        `work` takes the settings to use: with many members, messages begin with the member's name. Up to
        `threads` run at a time. After the `last` step an event reports each member.
        """
        if threads == 1 or len(self.done) <= 1:
            items = [self._step(work, settings, member, last=last) for member in self.items]
        else:
            with thread_pool(threads) as pool:
                items = list(pool.map(partial(self._step, work, settings, last=last), self.items))
        return Members(items=tuple(items), many=self.many)

    def _step(
        self, work: Callable[[Member[T], Settings], R], settings: Settings, member: Member[T], *, last: bool
    ) -> Member[R]:
        own = replace(settings, emit=_named(settings.emit, member.name)) if self.many else settings
        result, error = None, member.error
        if error is None:
            try:
                result = work(member, own)
            except EnvbuildError as failure:
                error = failure
            except OSError as failure:
                if not is_user_error(failure):
                    raise
                error = from_os_error(failure)
        if self.many and (last or (error is not None and member.error is None)):
            settings.emit(MemberDone(member=member.name, problem=problem_of(error)))
        return Member(name=member.name, path=member.path, result=result, error=error)

    def exit_code(self, code: Callable[[T], int] = lambda _: 0) -> int:
        """Return the gravest exit code of the members: the highest; `code` is that of a result."""
        codes = [code(member.get()) for member in self.done]
        return max((*codes, *(member.error.exit_code for member in self.items if member.error)), default=0)

    def check_outputs(self, outputs: Callable[[Member[T]], Iterable[Path]]) -> None:
        """Raise a RequestError if two members would write one file."""
        writers: dict[Path, Member[T]] = {}
        for member in self.done:
            for path in outputs(member):
                real = real_path(path.parent) / path.name
                if (other := writers.setdefault(real, member)) is not member:
                    raise RequestError(
                        f"`{other.name}` and `{member.name}` would both write `{path}`",
                        hint="rename one of the two",
                    )


def problem_of(error: EnvbuildError | None) -> str:
    """Return the first problem of an error, and how many more there are; empty without one."""
    if error is None:
        return ""
    first, *more = error.each()
    return first.problem.partition("\n")[0] + (f" (and {pluralize(len(more), 'more error')})" if more else "")


def _named(emit: Emit, name: str) -> Emit:
    """Return a sink that names a member in messages and tasks, so that those of several can mix."""

    def named(event: Event) -> None:
        match event:
            case Note() | Warned():
                event = replace(event, text=f"{name}: {event.text}")
            case TaskStarted():
                event = replace(event, task=f"{event.task}@{name}", title=f"{name}: {event.title}")
            case TaskAdvanced() | TaskDone() | TaskFailed():
                event = replace(event, task=f"{event.task}@{name}")
        emit(event)

    return named
