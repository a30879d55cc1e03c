"""Makes a lock for a spec: resolves what changed, keeps what did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.events import task
from envbuild.lock.diff import diff, other_versions
from envbuild.lock.model import (
    BasePin,
    DebPin,
    Lock,
    PythonPin,
    RecipePin,
    RootPin,
    SuppliedPin,
    Target,
    ToolPin,
)
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.debian import DebianRequest, Debs, resolve_debian
from envbuild.resolve.images import ImageBase
from envbuild.resolve.python import imported, resolve_build_tools, resolve_python, same_python
from envbuild.resolve.roots import root_pins
from envbuild.spec.model import first_problem
from envbuild.spec.recipe import Recipe
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system.network import ProxyError

# Words for all Debian packages.
_DEBIAN = ("apt", "debian", "debs", "system", "os", "base")
_OTHER_ADDRESS = "set another address of the archive or index under `origins` of the site file"


def _supplied(recipe: Recipe) -> SuppliedPin | None:
    if recipe.supplied is None:
        return None
    return SuppliedPin(**recipe.supplied.model_dump())


def make_lock(
    resolved: ResolvedSpec,
    *,
    previous: Lock | None,
    other_targets: Sequence[Target] = (),
    upgrade: Sequence[str] | None,
    upgrades_system_alone: bool = False,
    tools: tuple[ToolPin, ...],
    context: ResolveContext,
    image: ImageBase | None = None,
) -> Lock:
    """Return a lock that satisfies a spec, with the versions of the `previous` lock where they fit.

    `previous` is for the architecture of the spec. Packages that it does not have take the versions of the
    `other_targets`, those for other architectures, where they exist and fit.

    Debian packages are resolved again only if the base or the system requests changed; Python distributions
    only if their requests or the base's Python did. `upgrade` names the packages that may take newer
    versions: empty for all, None for none; with `upgrades_system_alone` of Debian's. `image` is the base if
    that is an image of a registry. RequestError: a package
    is unknown, or requirements clash.
    MachineError: an archive or index cannot be reached.
    """
    scopes = {difference.scope for difference in diff(previous, resolved)} if previous is not None else set()
    update = _LockUpdate(
        resolved=resolved,
        previous=previous,
        other_targets=other_targets,
        scopes=scopes,
        upgrade=_upgradable(
            resolved.path,
            _targets(previous, other_targets),
            upgrade,
            system_alone=upgrades_system_alone,
        ),
        context=context,
    )
    errors: list[EnvbuildError] = []
    debs = Debs()
    root: tuple[RootPin, ...] = ()
    wheels: tuple[PythonPin, ...] = ()
    build_tools: tuple[PythonPin, ...] = ()
    # The two do not depend on each other: errors of both are reported at once.
    with task(context.emit, "resolve", "resolve packages"):
        with _collected(errors):
            if image is not None:
                root = image.layers
            elif resolved.base.root is not None:
                root = (
                    previous.base_root
                    if previous is not None and "base" not in scopes
                    else root_pins(resolved.base_file, resolved.architecture)
                )
            else:
                debs = update.debian()
        with _collected(errors):
            wheels = update.python()
            build_tools = update.build_tools(wheels)
        raise_all(errors)
    with _collected(errors):
        return Lock(
            name=resolved.spec.name,
            version=resolved.spec.version,
            architecture=resolved.architecture,
            accelerator=str(resolved.spec.accelerator),
            base=BasePin(
                name=resolved.base.name,
                digest=resolved.base_digest,
                python=resolved.base.python.version,
                abi=resolved.base.python.abi,
                glibc=resolved.base.glibc,
            ),
            recipes=tuple(
                RecipePin(
                    name=chosen.recipe.name,
                    kind=chosen.recipe.kind,
                    version=chosen.version,
                    variant=chosen.variant_name,
                    digest=chosen.digest,
                    supplied=_supplied(chosen.recipe),
                )
                for chosen in resolved.recipes
            ),
            requests=resolved.python.texts,
            system_requests=resolved.system_requests,
            base_debs=debs.base,
            system_debs=debs.system,
            python=wheels,
            tools=tools,
            base_image=image.pin if image is not None else None,
            base_root=root,
            build_debs=debs.build,
            build_python=build_tools,
            unproven=tuple(chosen.recipe.name for chosen in resolved.recipes if not chosen.is_proven),
        )
    raise errors[0]


@contextmanager
def _collected(errors: list[EnvbuildError]) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        # Answers of archives and indexes are untrusted; making a pin of one validates it.
        problem = f"an archive or index returned invalid metadata: {first_problem(error)}"
        errors.append(RequestError(problem, hint=_OTHER_ADDRESS))
    except ProxyError:
        raise  # nothing else can be asked either
    except EnvbuildError as error:
        # A store that cannot be written stops both in the same words.
        known = {reported.problem for reported in errors}
        errors += [single for single in error.each() if single.problem not in known]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockUpdate:
    """A lock to be renewed, and what changed since."""

    resolved: ResolvedSpec
    previous: Lock | None
    other_targets: Sequence[Target]
    scopes: set[str]
    """Scopes of the differences between the old lock and the spec."""
    upgrade: Upgrade
    context: ResolveContext

    def debian(self) -> Debs:
        previous = self.previous
        if (
            previous is not None
            and self._keeps({"base", "system", "build"}, _debs(previous), self.upgrade)
            and self._same_builds(previous)
        ):
            build = tuple(pin for pin in previous.build_debs if pin.layer in self._built_layers())
            return Debs(base=previous.base_debs, system=previous.system_debs, build=build)
        with task(self.context.emit, "lock:debian", "resolve Debian packages"):
            return resolve_debian(
                DebianRequest.of(self.resolved),
                previous=_debs(previous) if previous is not None else (),
                preferred=[pin for target in self.other_targets for pin in _debs(target)],
                upgrade=self.upgrade,
                context=self.context,
            )

    def python(self) -> tuple[PythonPin, ...]:
        previous, resolved = self.previous, self.resolved
        if (
            previous is not None
            and self._keeps({"python"}, previous.python, self.upgrade.of_python)
            and same_python(resolved.target, previous)
        ):
            # The owner of a distribution may have changed nevertheless.
            return tuple(replace(pin, layer=resolved.owner(pin.name)) for pin in previous.python)
        with task(self.context.emit, "lock:python", "resolve Python packages"):
            pins = [pin for target in self._targets for pin in target.python]
            upgrade = self.upgrade.of_python
            return resolve_python(resolved, previous=pins, upgrade=upgrade, context=self.context)

    def build_tools(self, image: tuple[PythonPin, ...]) -> tuple[PythonPin, ...]:
        previous, resolved = self.previous, self.resolved
        if not resolved.builds:
            return ()
        if (
            previous is not None
            and self._keeps({"build"}, previous.build_python, self.upgrade.of_python)
            and same_python(resolved.target, previous)
            and self._same_builds(previous)
            and _sources(image) == _sources(previous.python)
            and not any(other_versions(previous.build_python, image))
            and all(
                imported(build, image) == imported(build, previous.python)
                for build in resolved.builds.values()
            )
        ):
            return tuple(pin for pin in previous.build_python if pin.layer in self._built_layers())
        with task(self.context.emit, "lock:build", "resolve what the builds from source import"):
            pins = [pin for target in self._targets for pin in target.build_python]
            return resolve_build_tools(
                resolved, image, previous=pins, upgrade=self.upgrade.of_python, context=self.context
            )

    @property
    def _targets(self) -> tuple[Target, ...]:
        return _targets(self.previous, self.other_targets)

    def _keeps(self, scopes: set[str], pins: Sequence[DebPin | PythonPin], upgrade: Upgrade) -> bool:
        return not self.scopes & scopes and not any(upgrade.covers(pin.name) for pin in pins)

    def _built_layers(self) -> set[str]:
        return {build.layer for build in self.resolved.builds.values()}

    def _same_builds(self, previous: Lock) -> bool:
        """Return whether the recipes that build from source are unchanged since the lock was made."""
        before = {(pin.name, pin.version, pin.digest) for pin in previous.recipes}
        built = (chosen for chosen in self.resolved.recipes if chosen.recipe.source)
        return {(chosen.recipe.name, chosen.version, chosen.digest) for chosen in built} <= before


def _sources(pins: Iterable[PythonPin]) -> set[str]:
    return {pin.sha256 for pin in pins if not pin.is_wheel}


def _debs(target: Target) -> tuple[DebPin, ...]:
    # An image's pin overrides a toolchain's.
    return (*target.build_debs, *target.base_debs, *target.system_debs)


def _targets(previous: Lock | None, other_targets: Sequence[Target]) -> tuple[Target, ...]:
    """Return the targets in ascending order of preference."""
    return (*other_targets, *([previous] if previous is not None else []))


def upgradable_names(targets: Sequence[Target], *, system_alone: bool) -> set[str]:
    """Return the names of the packages that a lock has, and of the source packages of Debian's.

    With `system_alone`, those of Debian alone.
    """
    debs = {name for target in targets for pin in _debs(target) for name in (pin.name, pin.source)}
    of_python = () if system_alone else targets
    return debs | {pin.name for target in of_python for pin in (*target.python, *target.build_python)}


def _upgradable(
    spec: Path, targets: Sequence[Target], upgrade: Sequence[str] | None, *, system_alone: bool
) -> Upgrade:
    """Return the packages as the lock names them; reject names that it does not have."""
    if not upgrade or not targets:
        return Upgrade() if upgrade is None else Upgrade(None, is_of_system=system_alone)
    known = sorted(upgradable_names(targets, system_alone=system_alone))
    names = [name if name in known else str(canonicalize_name(name)) for name in upgrade]
    errors: list[EnvbuildError] = [
        RequestError(
            f"`{name}` is not locked, so it cannot be upgraded",
            at=Location(path=spec),
            hint="`--upgrade --system` takes newer Debian packages, and keeps Python's"
            if name.lower() in _DEBIAN
            else did_you_mean(name, known) or "the lock lists what is: name one of those, or none for all",
        )
        for name in names
        if name not in known
    ]
    raise_all(errors)
    # Archives renew all packages of a source at once, and some of them need each other's version.
    debs = [pin for target in targets for pin in _debs(target)]
    sources = {pin.source for pin in debs if {pin.name, pin.source} & {*names}}
    of_sources = {pin.name for pin in debs if pin.source in sources}
    return Upgrade(frozenset({*names, *of_sources}), is_of_system=system_alone)
