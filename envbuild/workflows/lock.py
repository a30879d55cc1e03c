"""Locks a spec: uses the lock beside it if that satisfies the spec, else makes a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, RequestError, raise_all, some
from envbuild.events import Emit, Note, Warned
from envbuild.image.metadata import image_jobs
from envbuild.inputs.knowledge import read_knowledge
from envbuild.inputs.spec import FindImage, check_is_spec, read_spec
from envbuild.inputs.tools import known_tool_pins, tool_names, tool_pins
from envbuild.lock.diff import (
    architectures,
    diff,
    file_changes,
    new_target_differences,
    package_changes,
    tool_differences,
)
from envbuild.lock.model import Lock, LockFile, ToolPin
from envbuild.lock.pylock import pylock_text
from envbuild.lock.text import MAX_BYTES, dump_file, load_file
from envbuild.plan.model import Layer
from envbuild.quoting import shell_path
from envbuild.resolve.compatibility import hidden_packages, judge_lock
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import DebianRequest, debian_packages
from envbuild.resolve.files import FileCache
from envbuild.resolve.images import ImageBase, image_of_lock, resolve_image
from envbuild.resolve.lock import make_lock, upgradable_names
from envbuild.resolve.origins import read_machine
from envbuild.resolve.uv_errors import ResolutionError
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.judge import RuleResult, refuse_or_warn
from envbuild.rules.rulebook import driver_floor
from envbuild.spec.base import BaseImage
from envbuild.spec.model import RegistryImage
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.spec_edits import recipes_by_name
from envbuild.system.files import is_directory, is_there, read_input, write_atomically
from envbuild.workflows.arguments import check_outside_store, lock_path
from envbuild.workflows.failures import explain_full
from envbuild.workflows.members import Members
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.saving import (
    ATTEMPTS,
    ChangedMeanwhileError,
    Edit,
    changed_meanwhile,
    check_can_save,
    content_of,
    save,
)
from envbuild.workflows.settings import Settings

LOCKED_AT_ONCE = 3
"""Specs that are locked at a time: resolving waits for indexes more than it computes."""
# Changes of a lock that are listed without being asked for.
_FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSummary:
    """A lock as it is shown: hundreds of them fit in memory."""

    spec: Path
    path: Path
    packages: int
    """Number of locked files."""
    changes: tuple[str, ...]
    stale_targets: tuple[str, ...]
    why_release: str
    rule_results: tuple[RuleResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """How the lock beside a spec fails to satisfy it."""

    spec: Path
    path: Path
    changes: tuple[str, ...]
    """Empty if it satisfies the spec."""
    stale_targets: tuple[str, ...]
    """Sentences on targets for other architectures that do not satisfy the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A spec, and the lock that satisfies it."""

    resolved: ResolvedSpec
    lock: Lock
    path: Path
    """The lock's file."""
    changes: tuple[str, ...] = ()
    """How the previous lock did not satisfy the spec, then a line for each package that differs, also from
    the targets for other architectures."""
    stale_targets: tuple[str, ...] = ()
    """Sentences on targets for other architectures that do not satisfy the spec."""
    other_tools: tuple[str, ...] = ()
    """Sentences on tools of this machine that differ from those of a fixed lock."""
    rule_results: tuple[RuleResult, ...] = ()
    """The rules on the lock and its site; none is *incompatible*."""

    @property
    def summary(self) -> LockSummary:
        """The summary, which commands show."""
        return LockSummary(
            spec=self.resolved.path,
            path=self.path,
            packages=len(self.lock.pins),
            changes=self.changes,
            stale_targets=self.stale_targets,
            why_release=self.resolved.why_release,
            rule_results=self.rule_results,
        )


def lock_spec(
    spec: Path,
    settings: Settings,
    *,
    upgrade: Sequence[str] | None = None,
    upgrades_system_alone: bool = False,
    offline: bool = False,
    sources: Sequence[Path] = (),
    edit: Edit | None = None,
    write: bool = True,
    judges: bool = True,
) -> Locked:
    """Return a lock that satisfies a spec: the one beside it or a new one, which `write` puts there.

    The file gets the locks for all architectures that the spec names, and keeps those for others as they are;
    the returned one is for `settings.architecture`, or for the image's.
    `upgrade` names the packages that may get newer versions: all if it is empty; if None, only those for
    which the spec requires it; with `upgrades_system_alone` only Debian's. An `edit` of the spec is written
    with the lock. If spec or lock change meanwhile, it resolves again; ChangedMeanwhileError if that does not
    end, or if there is an `edit`. Without `judges`, a lock that does not fit its site is returned, too, and
    nothing is said of the rules.
    RequestError: the spec is invalid or cannot be satisfied, or the locked packages do not fit together or
    their site.
    """
    check_is_spec(spec)
    path = lock_path(spec)
    if write:
        check_outside_store(path, settings.store.path, hint="keep the spec and its lock elsewhere")
    for attempt in range(1, ATTEMPTS + 1):
        # Before anything is read from them.
        seen = {spec: content_of(spec) if edit is None else edit.before, path: content_of(path)}
        locked, file = _Locking(
            spec=spec,
            settings=settings,
            content=seen[spec] if edit is None else edit.after,
            upgrade=upgrade,
            upgrades_system_alone=upgrades_system_alone,
            offline=offline,
            sources=sources,
            write=write,
            judges=judges,
        ).lock()
        new = {path: dump_file(file).encode()} if file is not None else {}
        if edit is not None and edit.after != edit.before:
            new[spec] = edit.after
        if not new or not write:
            break
        try:
            save(spec, new, seen=seen, emit=settings.emit)
            break
        except ChangedMeanwhileError:
            if edit is not None or attempt == ATTEMPTS:
                raise
            settings.emit(changed_meanwhile(spec))
    return locked


def upgrades_of(
    specs: Members[None], names: tuple[str, ...] | None, *, system_alone: bool
) -> dict[Path, tuple[str, ...] | None]:
    """Return which of the packages to upgrade each spec has; None if it has none of them.

    Without `names`, for all or for none, and of one spec, these are the same for each.

    Packages that no lock has are left to all: locking reports them, as of one spec. So are all of a spec that
    is not locked yet, or whose lock is damaged.
    """
    if not names or not specs.many:
        return dict.fromkeys((member.path for member in specs.items), names)
    locked: dict[Path, set[str]] = {}
    for member in specs.items:
        with contextlib.suppress(EnvbuildError):
            if (file := read_lock_file(member.path)) is not None:
                locked[member.path] = upgradable_names([*file.targets.values()], system_alone=system_alone)
    somewhere = set().union(*locked.values())
    upgrades: dict[Path, tuple[str, ...] | None] = {}
    for member in specs.items:
        absent = somewhere - locked.get(member.path, somewhere)
        kept = tuple(name for name in names if not {name, canonicalize_name(name)} & absent)
        upgrades[member.path] = kept or None
    return upgrades


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locking:
    """How a spec is locked."""

    spec: Path
    settings: Settings
    content: bytes | None
    """The spec's content if an edit changes it."""
    upgrade: Sequence[str] | None
    upgrades_system_alone: bool
    offline: bool
    sources: Sequence[Path]
    write: bool
    judges: bool

    def lock(self) -> tuple[Locked, LockFile | None]:
        """Return the lock for the image's architecture, and the new lock file if the present one changes.

        The file gets the locks for all architectures that the spec names.
        """
        before = read_lock_file(self.spec)
        locked, file = self._target(before, self.settings.architecture)
        resolved = locked.resolved
        changes: list[str] = []
        for architecture in resolved.spec.architectures_for(resolved.architecture):
            if architecture != resolved.architecture:
                # Another target is for other nodes than the site has, unless its partitions differ.
                sites = [site.value.architecture for site in resolved.sites]
                fits = not sites or not {None, architecture}.isdisjoint(sites)
                other, newer = replace(self, judges=self.judges and fits)._target(
                    file or before, architecture
                )
                file = newer or file
                # Without a lock there was no target either, as the first of them says.
                listed = other.changes if before is not None else other.changes[1:]
                changes += [f"{architecture}: {change}" for change in listed]
        others = _other_locks(file or before, resolved.architecture)
        stale_targets = tuple(_stale_targets(others, self.spec, self.settings, self.content))
        return replace(locked, changes=(*locked.changes, *changes), stale_targets=stale_targets), file

    def _target(self, before: LockFile | None, architecture: str | None) -> tuple[Locked, LockFile | None]:
        """Return the lock for an architecture, and the file with it if it differs from the one `before`."""
        settings = self.settings
        images = _Images(
            settings=settings,
            file=before,
            upgrades=self.upgrade is not None and not self.upgrade,
            offline=self.offline,
            sources=self.sources,
            write=self.write,
        )
        resolved = read_spec(
            self.spec,
            recipes=settings.recipes,
            site=settings.site,
            content=self.content,
            architecture=architecture,
            find_image=images.find,
            once=settings.once,
        )
        previous = before.lock(resolved.architecture) if before is not None else None
        others = _other_locks(before, resolved.architecture)
        pins = _tool_pins(resolved.base, settings)
        changes = file_changes(before, resolved, pins)
        if previous is not None and self.upgrade is None and not diff(previous, resolved):
            # Only tools differ: the same packages give other bytes, which is never silent.
            for difference in tool_differences(previous, pins):
                hint = "layers that it makes are built anew; `--locked` keeps the lock's, if all are there"
                settings.emit(Warned(text=difference.sentence, hint=hint))
            lock = replace(previous, tools=tuple(sorted(pins))) if changes else previous
        else:
            lock = self._resolve(resolved, previous, others, pins, images)
        rule_results = _check_fit(resolved, lock, settings) if self.judges else ()
        if previous is not None:
            changes = (*changes, *package_changes(previous, lock)) if lock != previous else ()
        locked = Locked(
            resolved=resolved,
            lock=lock,
            path=lock_path(self.spec),
            changes=(*changes, *new_target_differences(previous, lock, others)),
            rule_results=rule_results,
        )
        if lock == previous:
            return locked, None
        return locked, LockFile.of(lock) if before is None else before.with_lock(lock)

    def _resolve(
        self,
        resolved: ResolvedSpec,
        previous: Lock | None,
        others: Sequence[Lock],
        pins: tuple[ToolPin, ...],
        images: _Images,
    ) -> Lock:
        if self.write and self.upgrade is None:
            check_can_save(self.spec)
        with resolve_context(self.settings, sources=self.sources, offline=self.offline) as context:
            try:
                return make_lock(
                    resolved,
                    previous=previous,
                    other_targets=others,
                    upgrade=self.upgrade,
                    upgrades_system_alone=self.upgrades_system_alone,
                    tools=pins,
                    context=context,
                    image=images.found,
                )
            except EnvbuildError as error:
                _hint_at_recipes(error, resolved, self.settings)
                _hint_at_debian(error, resolved, context)
                raise


@dataclass(slots=True, kw_only=True)
class _Images:
    """Finds the image of a registry that a spec names as base: in its lock, else in the registry."""

    settings: Settings
    file: LockFile | None
    """The lock beside the spec."""
    upgrades: bool
    """Whether the base takes the image that its tag is now."""
    offline: bool
    sources: Sequence[Path]
    write: bool
    found: ImageBase | None = None
    """The image that was found last."""

    def find(self, image: RegistryImage, architecture: str) -> BaseImage:
        locked = _locked_image(self.file, image, architecture)
        if locked is None or self.upgrades:
            with (
                self.settings.store.in_use(),
                resolve_context(self.settings, sources=self.sources, offline=self.offline) as context,
            ):
                # To say that a tag has moved, its image need not be fetched.
                previous = None if self.write else locked
                locked = resolve_image(image.image, architecture, context, previous=previous)
        self.found = locked
        return locked.definition


def _locked_image(file: LockFile | None, image: RegistryImage, architecture: str) -> ImageBase | None:
    """Return the image that a lock has for a base; None if it has another base, or no such target."""
    lock = file.lock(architecture) if file is not None else None
    locked = image_of_lock(lock) if lock is not None else None
    return locked if locked is not None and locked.pin.image == image.image else None


def image_finder(spec: Path, file: LockFile | None) -> FindImage:
    """Return a function that finds the image of a registry that is the base of a spec in a lock alone."""

    def find(image: RegistryImage, architecture: str) -> BaseImage:
        if (locked := _locked_image(file, image, architecture)) is not None:
            return locked.definition
        problem = f"the lock does not have the base `{image}` for {architecture}"
        raise RequestError(problem, hint=f"`envbuild lock {shell_path(spec)}` reads it in its registry")

    return find


def _other_locks(file: LockFile | None, architecture: str) -> list[Lock]:
    """Return the locks of a file for other architectures."""
    return [lock for lock in file.locks if lock.architecture != architecture] if file else []


def _stale_targets(
    others: Sequence[Lock], spec: Path, settings: Settings, content: bytes | None
) -> Iterator[str]:
    """Yield a sentence for each lock for another architecture that does not satisfy the spec."""
    for other in others:
        try:
            there = read_spec(
                spec,
                recipes=settings.recipes,
                site=settings.site,
                content=content,
                target=other,
                find_image=image_finder(spec, LockFile.of(other)),
                once=settings.once,
            )
            differences = [difference.sentence for difference in diff(other, there)]
        except EnvbuildError as error:
            differences = [single.problem for single in error.each()]
        if differences:
            yield (
                f"the target for {other.architecture} does not satisfy the spec ({some(differences, 2)});"
                f" `envbuild lock {shell_path(spec)} --architecture {other.architecture}` renews it"
            )


def _hint_at_recipes(error: EnvbuildError, resolved: ResolvedSpec, settings: Settings) -> None:
    """Name the recipes that build what errors say has no wheel."""
    recipes = recipes_by_name(list_recipes(settings.recipes).recipes)
    for single in error.each():
        if not isinstance(single, ResolutionError):
            continue
        names = {recipes[name].name for name in single.unavailable & recipes.keys()}
        for name in sorted(names - {chosen.recipe.name for chosen in resolved.recipes}):
            remedy = f"`envbuild add {shell_path(resolved.path)} {name}`"
            single.hint = f"`{name}` has a recipe: {remedy}, without the Python package; {single.hint}"


def _hint_at_debian(error: EnvbuildError, resolved: ResolvedSpec, context: ResolveContext) -> None:
    """Name `packages.system` in errors about names without wheels, if Debian has packages of these names."""
    asked = {request.name for request in resolved.requested}
    unavailable = {
        name: single
        for single in error.each()
        if isinstance(single, ResolutionError)
        for name in sorted(single.unavailable & asked)
    }
    if context.offline:
        return
    with contextlib.suppress(EnvbuildError):
        for name in debian_packages(DebianRequest.of(resolved), sorted(unavailable), context):
            command = f"`envbuild add {shell_path(resolved.path)} {name} --system`"
            hint = f"Debian has a package `{name}`: name it under `packages.system` ({command})"
            unavailable[name].hint = f"{hint}; {unavailable[name].hint}"


def write_pylock(locked: Locked, directory: Path, store: Path) -> Path:
    """Write the Python packages of a lock as pylock.toml beside the files that `envbuild fetch` kept.

    RequestError: there is no such directory, or it is inside the store.
    """
    if not is_directory(directory):
        hint = f"`envbuild fetch {shell_path(locked.resolved.path)} --to {shell_path(directory)}` fills it"
        raise RequestError(f"there is no directory `{directory}`", hint=hint)
    path = directory / "pylock.toml"
    check_outside_store(path, store)
    write_atomically(path, pylock_text(locked.lock).encode())
    return path


@contextlib.contextmanager
def resolve_context(
    settings: Settings, *, sources: Sequence[Path], offline: bool
) -> Iterator[ResolveContext]:
    """Yield the context of a resolver; `sources` are directories that `envbuild fetch` filled."""
    with explain_full(settings.store), settings.store.directory_for_programs("resolve") as cache_dir:
        yield ResolveContext(
            machine=read_machine(),
            cache_dir=cache_dir,
            files=FileCache(settings.store.directory("files")),
            readable=partial(settings.store.for_programs, work=cache_dir),
            emit=settings.emit,
            offline=offline,
            directories=tuple(sources),
        )


def read_locked(spec: Path, settings: Settings, *, judges: bool = True) -> Locked:
    """Return the lock beside a spec, which must not change; this machine's tools may differ.

    Without `judges`, nothing is said of the rules.

    RequestError: there is no lock, or it does not satisfy the spec; or as `lock_spec`.
    """
    file = read_lock_file(spec)
    resolved = _read_with_lock(spec, settings, file)
    lock = file.lock(resolved.architecture) if file is not None else None
    pins = _known_tool_pins(resolved.base, settings)
    if file is not None and lock is None:
        raise RequestError(
            f"the lock `{lock_path(spec)}` has no target for {resolved.architecture}, only for"
            f" {architectures(file)}",
            hint=f"`envbuild lock {shell_path(spec)}` adds it, and keeps what is there",
        )
    if lock is None or diff(lock, resolved):
        reject_lock(spec, file_changes(file, resolved, pins))
    return Locked(
        resolved=resolved,
        lock=lock,
        path=lock_path(spec),
        other_tools=tuple(difference.sentence for difference in tool_differences(lock, pins)),
        rule_results=_check_fit(resolved, lock, settings) if judges else (),
    )


def report_choices(locked: Locked, emit: Emit) -> None:
    """Report what a lock's spec chose, what changed, and what is frozen or untested."""
    for note in lock_notes(locked):
        emit(note)
    for remark in locked.resolved.remarks:
        emit(Warned(text=remark))
    locked_names = {pin.name for pin in locked.lock.python}
    for name in sorted(locked.resolved.spec.imports.keys() - locked_names):
        hint = "remove it from `imports`, or ask for it under `packages.python`"
        emit(Warned(text=f"`imports` names `{name}`, which is not among the image's packages", hint=hint))


def _driver_notes(locked: Locked) -> list[Note]:
    """Say which driver the release of CUDA needs, where no rule compares it with that of a site."""
    # With a site whose driver is unknown the rule warns.
    is_judged = any(
        result.rule == "CUDA.driver-floor" and (result.outcome != "unknown" or result.warn)
        for result in locked.rule_results
    )
    toolkit = facts_of_lock(locked.lock).get("cuda.toolkit")
    floor = driver_floor(str(toolkit.value)) if toolkit is not None else None
    if toolkit is None or floor is None or is_judged:
        return []
    text = f"accelerator: CUDA {toolkit.value} needs a driver of at least {floor}"
    return [Note(text=f"{text}; `nvidia-smi` on a compute node shows yours, and `site:` compares them")]


def lock_notes(locked: Locked) -> list[Note]:
    """Return remarks on the accelerator's release, on jobs that need an MPI, on stale targets and on changes.

    Of many changes the first are shown, and the rest with `-v`.
    """
    why = locked.resolved.why_release
    notes = [Note(text=f"accelerator: {why}")] if why else []
    notes += _driver_notes(locked)
    skipped = [job.id for job in image_jobs(locked.resolved) if job.launcher == "mpiexec"]
    if locked.resolved.mpi is None and skipped:
        skips = f"without an MPI, `test` runs {some(skipped, 2)} only under srun"
        notes.append(Note(text=f"{skips}; `mpi: mpich` in the spec adds one"))
    notes += [Note(text=f"lock: {sentence}") for sentence in locked.stale_targets]
    shown = len(locked.changes) if len(locked.changes) <= _FEW else _FEW - 1
    changes = [
        Note(text=f"lock: {change}", detail=number >= shown) for number, change in enumerate(locked.changes)
    ]
    if more := len(changes) - shown:
        changes.append(Note(text=f"lock: {more} more changes (`-v` lists them)"))
    return [*notes, *changes]


def check_tools(locked: Locked, missing: Sequence[Layer], settings: Settings) -> None:
    """Raise a RequestError if layers of a fixed lock are missing and would be built with other tools."""
    if missing and locked.other_tools:
        names = ", ".join(layer.name for layer in missing)
        listed = "\n".join(f"  {sentence}" for sentence in locked.other_tools)
        raise RequestError(
            f"layers of the lock `{locked.path}` are missing: {names};"
            f" and this machine's tools differ from the lock's\n{listed}",
            hint="`envbuild layer import DIR` takes layers from where they were made;"
            f" `envbuild lock {shell_path(locked.resolved.path)}` uses this machine's tools, and all layers"
            " that they make are built anew",
        )
    for sentence in locked.other_tools:
        settings.emit(Note(text=f"{sentence}: it is not needed, every layer is in the store"))


def _check_fit(resolved: ResolvedSpec, lock: Lock, settings: Settings) -> tuple[RuleResult, ...]:
    """Judge a lock before anything is written or built; reject an incompatible one."""
    raise_all(list(hidden_packages(resolved, lock)))
    results = judge_lock(resolved, lock, read_knowledge())
    refuse_or_warn(results, settings.emit)
    return results


def check_lock(spec: Path, settings: Settings) -> LockState:
    """Return how the lock beside a spec fails to satisfy it. Resolves nothing."""
    file = read_lock_file(spec)
    resolved = _read_with_lock(spec, settings, file)
    changes = [*file_changes(file, resolved, _known_tool_pins(resolved.base, settings))]
    for architecture in resolved.spec.architectures_for(resolved.architecture):
        if file is not None and architecture != resolved.architecture and file.lock(architecture) is None:
            changes.append(f"there is no target for {architecture}")
    return LockState(
        spec=spec,
        path=lock_path(spec),
        changes=tuple(changes),
        stale_targets=tuple(_stale_targets(_other_locks(file, resolved.architecture), spec, settings, None)),
    )


def _read_with_lock(spec: Path, settings: Settings, file: LockFile | None) -> ResolvedSpec:
    return read_spec(
        spec,
        recipes=settings.recipes,
        site=settings.site,
        architecture=settings.architecture,
        find_image=image_finder(spec, file),
        once=settings.once,
    )


def _tool_pins(base: BaseImage, settings: Settings) -> tuple[ToolPin, ...]:
    names = tool_names(base)
    return settings.once.get(("tools", names), lambda: tool_pins(names))


def _known_tool_pins(base: BaseImage, settings: Settings) -> tuple[ToolPin, ...]:
    return settings.once.get(("known tools", tool_names(base)), lambda: known_tool_pins(base))


def reject_lock(spec: Path, changes: Sequence[str]) -> NoReturn:
    """Raise a RequestError for a lock that does not satisfy its spec."""
    listed = "\n".join(f"  {change}" for change in changes)
    raise RequestError(
        f"the lock `{lock_path(spec)}` does not satisfy the spec\n{listed}",
        hint=f"`envbuild lock {shell_path(spec)}` renews it",
    )


def read_lock_file(spec: Path) -> LockFile | None:
    """Return the lock beside a spec; None if there is none."""
    path = lock_path(spec)
    if not is_there(path):
        return None
    hint = (
        "restore it from version control, use the version of envbuild that wrote it, or delete it and run"
        f" `envbuild lock {shell_path(spec)}`"
    )
    return load_file(read_input(path, limit_bytes=MAX_BYTES), path, hint=hint)
