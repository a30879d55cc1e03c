"""Lock: read what is asked, see whether the lock beside it still satisfies it, resolve what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.events import Note, Warned
from envbuild.lock.diff import diff, tool_differences
from envbuild.lock.model import BuildDebPin, DebPin, Lock, PythonPin, RootPin, ToolPin
from envbuild.lock.text import MAX_BYTES, dump, load
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.fit import hidden_packages, judge_lock
from envbuild.resolve.lock import make_lock
from envbuild.resolve.origins import read_machine
from envbuild.rules.judge import Verdict, refuse_or_warn
from envbuild.spec.asked import Asked
from envbuild.system import tools
from envbuild.system.files import read_input, write_atomically
from envbuild.workflows.inputs import read_asked
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.settings import Settings
from envbuild.workflows.words import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """What is asked, and the lock that satisfies it."""

    asked: Asked
    lock: Lock
    path: Path
    """The lock's file."""
    changes: tuple[str, ...]
    """Sentences: what differed from the lock that was there; empty if nothing."""
    verdicts: tuple[Verdict, ...] = ()
    """What the rules say of it and of its site; none of them is *incompatible*."""


def lock_path(spec: Path) -> Path:
    """Return the lock's file of a spec: ``STEM.lock.yaml`` beside it."""
    return spec.parent / f"{spec.stem}.lock.yaml"


def lock_spec(
    spec: Path,
    settings: Settings,
    *,
    refuse_change: bool = False,
    upgrade: Sequence[str] | None = None,
    offline: bool = False,
    sources: Sequence[Path] = (),
    write: bool = True,
    lacking: Callable[[Locked], Sequence[str]] | None = None,
) -> Locked:
    """Return a lock that satisfies a spec: the one beside it, or a new one.

    Parameters
    ----------
    refuse_change : bool
        Whether a lock that does not satisfy the spec is an error.
    upgrade : sequence of str, optional
        Packages that may take newer versions; empty for all, None for none
        but what the spec demands.
    write : bool
        Whether a new lock is written beside the spec.
    lacking : callable, optional
        Which of the layers that a lock's image is composed of the store lacks. Where it lacks none, a lock
        that is to stay needs none of its tools.

    Raises
    ------
    RequestError
        The spec is wrong, cannot be met, the lock was to stay as it is, or
        what was locked does not fit together or its site.
    """
    asked = read_asked(spec, recipes=settings.recipes, site=settings.site)
    path = _place(spec, settings) if write else lock_path(spec)
    previous = _previous(spec)
    pins, unknown = _tool_pins_or_why()
    changes = _changes(previous, asked, pins)
    if refuse_change:
        kept = None if previous is None else Locked(asked=asked, lock=previous, path=path, changes=())
        for change in _not_needed(spec, kept, changes, lacking):
            settings.emit(Note(text=f"{change}: it is not needed, every layer is in the store"))
        changes = ()
    elif unknown is not None:
        raise unknown
    if previous is not None and not changes and upgrade is None:
        return Locked(
            asked=asked,
            lock=previous,
            path=path,
            changes=(),
            verdicts=_fit(asked, previous, settings),
        )
    if previous is not None and upgrade is None and not diff(previous, asked):
        # Only tools differ: the same packages, and other bytes. Named, never silently used.
        for difference in tool_differences(previous, pins):
            hint = "layers that it makes are built anew; `--locked` keeps those of the lock, if all are there"
            settings.emit(Warned(text=difference.sentence, hint=hint))
        lock = replace(previous, tools=tuple(sorted(pins)))
    else:
        with settings.store.directory_for_programs("resolve") as cache_dir:
            context = ResolveContext(
                machine=read_machine(),
                cache_dir=cache_dir,
                emit=settings.emit,
                offline=offline,
                directories=tuple(sources),
            )
            lock = make_lock(asked, previous=previous, upgrade=upgrade, tools=pins, context=context)
    verdicts = _fit(asked, lock, settings)
    if lock != previous and write:
        write_atomically(path, dump(lock).encode())
    changes = () if lock == previous else changes or _version_changes(previous, lock)
    return Locked(asked=asked, lock=lock, path=path, changes=changes, verdicts=verdicts)


def _place(spec: Path, settings: Settings) -> Path:
    """Return where a lock may be written."""
    path = lock_path(spec)
    refuse_in_store(path, settings.store.path, hint="keep the spec and its lock elsewhere")
    return path


def _fit(asked: Asked, lock: Lock, settings: Settings) -> tuple[Verdict, ...]:
    """Judge a lock before anything is written or built; refuse what is incompatible."""
    raise_all(list(hidden_packages(asked, lock)))
    verdicts = judge_lock(asked, lock)
    refuse_or_warn(verdicts, settings.emit)
    return verdicts


def _not_needed(
    spec: Path,
    kept: Locked | None,
    changes: tuple[str, ...],
    lacking: Callable[[Locked], Sequence[str]] | None,
) -> tuple[str, ...]:
    """Return in what tools here differ from those of a lock that is to stay, and needs none of them.

    Raises
    ------
    RequestError
        There is more that differs, or layers would have to be made with other tools.
    """
    if kept is None or lacking is None or diff(kept.lock, kept.asked):
        refuse(spec, changes)
        return ()
    names = lacking(kept) if changes else ()
    if names:
        listed = "\n".join(f"  {change}" for change in changes)
        raise RequestError(
            f"the store lacks finished layers of the lock `{kept.path}`: {', '.join(names)}; and it was made"
            f" with other tools than this machine's\n{listed}",
            hint="`envbuild layer import DIR` takes layers from where they were made;"
            f" `envbuild lock {typed(spec)}` takes this machine's tools, and all that they make is"
            " built anew",
        )
    return changes


def lock_changes(spec: Path, settings: Settings) -> tuple[str, ...]:
    """Return in what the lock beside a spec does not satisfy it; empty if it does. Resolves nothing."""
    asked = read_asked(spec, recipes=settings.recipes, site=settings.site)
    pins, _ = _tool_pins_or_why()
    return _changes(_previous(spec), asked, pins)


def refuse(spec: Path, changes: Sequence[str]) -> None:
    """Raise what a lock that does not satisfy its spec deserves; nothing if there are no changes.

    Raises
    ------
    RequestError
        Naming all that differs.
    """
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise RequestError(
            f"the lock `{lock_path(spec)}` does not satisfy the spec\n{listed}",
            hint=f"`envbuild lock {typed(spec)}` renews it",
        )


def _previous(spec: Path) -> Lock | None:
    path = lock_path(spec)
    if not path.exists():
        return None
    hint = f"take it back from version control; or delete it and run `envbuild lock {typed(spec)}`"
    return load(read_input(path, limit_bytes=MAX_BYTES), path, hint=hint)


def _changes(previous: Lock | None, asked: Asked, pins: tuple[ToolPin, ...]) -> tuple[str, ...]:
    if previous is None:
        return ("there was no lock",)
    found = (*diff(previous, asked), *tool_differences(previous, pins))
    return tuple(difference.sentence for difference in found)


def _version_changes(previous: Lock | None, lock: Lock) -> tuple[str, ...]:
    """Say which pins an upgrade moved."""
    before = {} if previous is None else _versions(previous)
    now = _versions(lock)
    return tuple(
        f"{name} {before.get(name, 'none')} → {now.get(name, 'none')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )


def _versions(lock: Lock) -> dict[str, str]:
    pins: tuple[DebPin | PythonPin | RootPin, ...] = (
        *lock.base_root,
        *lock.base_debs,
        *lock.system_debs,
        *lock.python,
    )
    builds: tuple[BuildDebPin | PythonPin, ...] = (*lock.build_debs, *lock.build_python)
    of_builds = {f"{pin.name} (to build {pin.layer.partition(':')[2]})": pin.version for pin in builds}
    return {pin.name: pin.version for pin in pins} | of_builds


def _tool_pins_or_why() -> tuple[tuple[ToolPin, ...], EnvbuildError | None]:
    """Return the tools of this machine, and why others cannot be identified."""
    try:
        return _pins(tools.NAMES), None
    except EnvbuildError as error:
        pins: list[ToolPin] = []
        for name in tools.NAMES:
            with contextlib.suppress(EnvbuildError):
                pins += _pins([name])
        return tuple(sorted(pins)), error


def _pins(names: Sequence[str]) -> tuple[ToolPin, ...]:
    identities = tools.identify(names)
    return tuple(
        sorted(ToolPin(name=tool.name, version=tool.version, digest=tool.digest) for tool in identities)
    )
