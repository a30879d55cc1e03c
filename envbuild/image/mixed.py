"""An image with some of the differences of another: layers, lock and manifest. Pure.

A difference is what can be taken as a whole only: the base, the Debian packages on it, the MPI, the
environment, or Python packages that need one another in the versions of one of the two images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.digests import canonical_json, sha256_of
from envbuild.image.metadata import kept_files, packages_of, renewed_layer
from envbuild.image.model import Manifest, Variable
from envbuild.lock.model import DebPin, Lock, PythonPin, RecipePin, ToolPin
from envbuild.lock.text import dump
from envbuild.plan.extended import written_files
from envbuild.plan.model import BuildPlan, FilesStep, Layer, Step, layer_key, step_fields

# Parts that have no Python packages, and that of the MPI.
BASE, SYSTEM, MPI, ENVIRONMENT = "base", "system", "mpi", "environment"
_PYTHON = "python:"
# Kinds of layers in the order in which a plan and an image have them, as `planner.make_plan` writes them.
_PLAN_ORDER = ("base", "system", "wheel", "venv", "built", "links", "files", "metadata")
_IMAGE_ORDER = ("base", "system", "wheel", "built", "venv", "links", "files", "metadata")
_BUILT = ("toolchain", "framework", "source")
# Fields of a step that say who made the layer, not what is in it.
_MAKERS = frozenset({"tools", "revision"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """The parts of an image that envbuild built."""

    manifest: Manifest
    lock: Lock
    plan: BuildPlan
    requirements: Mapping[str, tuple[Requirement, ...]]
    """Distribution → its requirements that apply in the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part that differs between two images, and that can be taken from either."""

    name: str
    """``numpy``, ``torch and 14 more``, ``mpi``, ``base``, ``system`` or ``environment``."""
    parts: frozenset[str]
    needs: tuple[str, ...]
    """Names of other differences that have to be taken with it."""
    before: tuple[str, ...]
    """Packages with versions, variables and files of the first image, that the second has otherwise."""
    after: tuple[str, ...]
    """Those of the second image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The parts of an image with some of the differences."""

    manifest: Manifest
    lock: Lock
    plan: BuildPlan


@dataclass(frozen=True)
class Pair:
    """Two images that are mixed."""

    first: Ingredients
    second: Ingredients
    packer: tuple[ToolPin, ...]
    """The tool of this machine that packs what mixtures write themselves."""

    @property
    def obstacles(self) -> Iterator[tuple[str, str]]:
        """Why the two cannot be mixed: problems with their hints."""
        one, other = self.first, self.second
        again = "build both from specs that agree in it"
        for fact, here, there in (
            ("architecture", one.lock.architecture, other.lock.architecture),
            (
                "Python",
                f"{one.lock.base.python} ({one.lock.base.abi})",
                f"{other.lock.base.python} ({other.lock.base.abi})",
            ),
            ("accelerator", one.manifest.accelerator, other.manifest.accelerator),
            ("compression", one.plan.layers[0].compression, other.plan.layers[0].compression),
        ):
            if here != there:
                yield f"the images differ in their {fact}, {here} and {there}, and cannot be mixed", again
        makers = [_makers(source.plan) for source in (one, other)]
        if unlike := sorted(
            kind for kind in makers[0].keys() & makers[1].keys() if makers[0][kind] != makers[1][kind]
        ):
            layers = ", ".join(unlike)
            problem = f"other tools, or another version of envbuild, made their layers ({layers})"
            yield problem, "build both again from their specs on this machine: `envbuild build SPEC`"

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """All differences, each behind those that it needs."""
        differing = self._differing
        needs = self._needs
        reached = {part: _reached(part, needs) for part in differing}
        # What a part needs reaches fewer parts than itself, or the same ones.
        groups = sorted(
            {
                frozenset({part} | {other for other in reached[part] if part in reached[other]})
                for part in differing
            },
            key=lambda group: (len(reached[min(group)]), min(group)),
        )
        names = {part: self._name(group) for group in groups for part in group}
        return tuple(
            Difference(
                name=self._name(group),
                parts=group,
                needs=tuple(
                    sorted({names[other] for part in group for other in needs[part]} - {names[min(group)]})
                ),
                before=tuple(dict.fromkeys(self._contents(group, self.first, self.second))),
                after=tuple(dict.fromkeys(self._contents(group, self.second, self.first))),
            )
            for group in groups
        )

    def mixture(self, parts: Set[str]) -> Mixture:
        """Return the first image with some parts of the second.

        ValueError (of which a ValidationError is one): the parts do not fit together.
        """
        taken = frozenset(parts)
        lock = self._lock(taken)
        origin = self._source(ENVIRONMENT, taken)
        mpi = self._source(MPI, taken).manifest
        modules = {
            package.name: package.modules
            for source in (self.first, self.second)
            for package in source.manifest.python_packages
            if package.modules is not None
        }
        manifest = origin.manifest.model_copy(
            update={
                "name": lock.name,
                "version": lock.version,
                "file_system": None,
                "base": lock.base.name,
                "glibc": lock.base.glibc,
                "mpi": mpi.mpi,
                "mpi_family": mpi.mpi_family,
                "recipes": {pin.name: pin.version for pin in lock.recipes},
                "unproven": lock.unproven,
                "python_packages": packages_of(lock, modules),
                "lock_digest": sha256_of(dump(lock)),
            }
        )
        return Mixture(manifest=manifest, lock=lock, plan=self._plan(taken, origin, lock, manifest))

    def _source(self, part: str, taken: Set[str]) -> Ingredients:
        return self.second if part in taken else self.first

    def _part(self, layer: str) -> str:
        """Return the part to which a layer of either image belongs."""
        kind, _, name = layer.partition(":")
        if kind in (BASE, SYSTEM):
            return kind
        if kind == "wheel":
            return self._part_of(name)
        if kind in _BUILT:
            return self._part_of(self._built[name])
        if kind == "links" and name in (self.first.manifest.mpi, self.second.manifest.mpi):
            return MPI
        return ENVIRONMENT

    @cached_property
    def _built(self) -> dict[str, str]:
        """Name of a build → the distribution that it makes."""
        return {
            pin.layer.partition(":")[2]
            if pin.layer.startswith(("framework:", "source:"))
            else pin.name: pin.name
            for source in (self.first, self.second)
            for pin in source.lock.python
            if not pin.is_wheel
        }

    @cached_property
    def _of_mpi(self) -> frozenset[str]:
        sources = (self.first, self.second)
        return frozenset(pin.name for source in sources for pin in source.lock.python if pin.layer == MPI)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Parts whose layers others are made from: in a mixture these are other layers, too."""
        plans = (self.first.plan, self.second.plan)
        names = {name for plan in plans for layer in plan.layers for name in layer.inputs}
        return frozenset(map(self._part, names))

    def _part_of(self, distribution: str) -> str:
        return MPI if distribution in self._of_mpi else f"{_PYTHON}{distribution}"

    @cached_property
    def _differing(self) -> frozenset[str]:
        """The parts that differ."""
        one, other = (
            {layer.name: layer for layer in source.plan.layers} for source in (self.first, self.second)
        )
        names = set(one.keys() ^ other.keys())
        names |= {
            name
            for name in one.keys() & other.keys()
            if _content(one[name].step) != _content(other[name].step)
        }
        # It has the lock and the manifest, which always differ.
        parts = {self._part(name) for name in names if name != "metadata"}
        if any(self._environment(self.first, self.second)) or any(self._environment(self.second, self.first)):
            parts.add(ENVIRONMENT)
        if _mpi_pins(self.first) != _mpi_pins(self.second):
            parts.add(MPI)
        return frozenset(parts)

    @cached_property
    def _needs(self) -> dict[str, frozenset[str]]:
        """Part → the other differing parts that must be taken with it."""
        needs: dict[str, set[str]] = {part: set() for part in self._differing}
        for source, other in ((self.first, self.second), (self.second, self.first)):
            there = {pin.name: pin for pin in other.lock.python}
            for pin in source.lock.python:
                part = self._part_of(pin.name)
                for name in self._unmet(pin, source, there):
                    needing, needed = part, self._part_of(name)
                    # If a package of the first image does not go with what the second has, it goes first.
                    if source is self.first:
                        needing, needed = needed, needing
                    if needing in needs and needed in needs:
                        needs[needing].add(needed)
        for one, others in self._together():
            if {one, others} <= needs.keys():
                needs[one].add(others)
                needs[others].add(one)
        return {part: frozenset(others - {part}) for part, others in needs.items()}

    def _together(self) -> Iterator[tuple[str, str]]:
        """Yield parts that are taken together if both differ."""
        # Debian packages are chosen for the packages of a base.
        yield BASE, SYSTEM
        if self.first.manifest.mpi != self.second.manifest.mpi:
            # The environment has variables of the MPI.
            yield MPI, ENVIRONMENT
        for source in (self.first, self.second):
            if source.manifest.mpi and not any(pin.layer == MPI for pin in source.lock.python):
                yield MPI, SYSTEM

    def _unmet(self, pin: PythonPin, source: Ingredients, there: Mapping[str, PythonPin]) -> Iterator[str]:
        """Yield the distributions that one of `source` needs otherwise than the other image has them."""
        yield from (name for name in pin.requires if name not in there)
        for requirement in source.requirements.get(pin.name, ()):
            name = canonicalize_name(requirement.name)
            if name in there and not requirement.specifier.contains(there[name].version, prereleases=True):
                yield name

    def _name(self, group: Set[str]) -> str:
        """Return the name of a difference: that of what was asked for, if it has several packages."""
        requested = {
            self._part_of(canonicalize_name(Requirement(text).name))
            for source in (self.second, self.first)
            for text in source.lock.requests
        }
        order = (BASE, MPI, SYSTEM, ENVIRONMENT)
        first = min(group, key=lambda part: (part not in order, part not in requested, part))
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        return first.removeprefix(_PYTHON) + more

    # What differs, in words

    def _contents(self, group: Set[str], source: Ingredients, other: Ingredients) -> Iterator[str]:
        """Yield what one image has of a difference, and the other has not or otherwise.

        The recipe of an MPI and its package may be the same text.
        """
        if BASE in group:
            yield from _debs(source.lock.base_debs, other.lock.base_debs) or (
                f"base {source.lock.base.name}",
            )
        if SYSTEM in group:
            yield from _debs(source.lock.system_debs, other.lock.system_debs)
        if MPI in group:
            yield from (f"{pin.name} {pin.version}" for pin in source.lock.recipes if pin.kind == "mpi")
        there = {pin.name: pin for pin in other.lock.python}
        for pin in source.lock.python:
            if self._part_of(pin.name) in group and there.get(pin.name) != pin:
                same_version = pin.name in there and there[pin.name].version == pin.version
                yield f"{pin.name} {pin.version}" + (f" ({pin.sha256[:12]})" if same_version else "")
        if ENVIRONMENT in group:
            yield from self._environment(source, other)

    def _environment(self, source: Ingredients, other: Ingredients) -> Iterator[str]:
        """Yield the variables and files that one image has, and the other has not or otherwise."""
        yield from (
            _variable(entry)
            for entry in source.manifest.environment
            if entry not in other.manifest.environment
        )
        here, there = (
            {
                **kept_files(written_files(each.plan, "metadata"), each.lock, each.manifest),
                **{file.path: file for name in ("venv", "files") for file in written_files(each.plan, name)},
            }
            for each in (source, other)
        )
        yield from sorted(path for path, file in here.items() if there.get(path) != file)

    # What a mixture is made from

    def _lock(self, taken: Set[str]) -> Lock:
        base, system = (self._source(part, taken).lock for part in (BASE, SYSTEM))
        sources = (self.first, self.second)

        def chosen(source: Ingredients, part: str) -> bool:
            return self._source(part, taken) is source

        def built(source: Ingredients, layer: str) -> bool:
            name = layer.partition(":")[2]
            return chosen(source, self._part_of(self._built.get(name, name)))

        return replace(
            self.first.lock,
            base=base.base,
            base_debs=base.base_debs,
            base_root=base.base_root,
            base_image=base.base_image,
            system_debs=system.system_debs,
            system_requests=system.system_requests,
            recipes=tuple(self._recipes(taken)),
            unproven=tuple(
                pin.name
                for pin in self._recipes(taken)
                if any(pin.name in source.lock.unproven and pin in source.lock.recipes for source in sources)
            ),
            requests=tuple(
                {
                    text
                    for source in sources
                    for text in source.lock.requests
                    if chosen(source, self._part_of(canonicalize_name(Requirement(text).name)))
                }
            ),
            python=tuple(
                pin
                for source in sources
                for pin in source.lock.python
                if chosen(source, self._part_of(pin.name))
            ),
            build_debs=tuple(
                pin for source in sources for pin in source.lock.build_debs if built(source, pin.layer)
            ),
            build_python=tuple(
                pin for source in sources for pin in source.lock.build_python if built(source, pin.layer)
            ),
        )

    def _recipes(self, taken: Set[str]) -> Iterator[RecipePin]:
        """Yield the recipes: that of the MPI with the MPI, others with their packages."""
        for source in (self.first, self.second):
            for pin in source.lock.recipes:
                if self._source(self._part_of_recipe(pin, taken), taken) is source:
                    yield pin

    def _part_of_recipe(self, pin: RecipePin, taken: Set[str]) -> str:
        if pin.kind == "mpi":
            return MPI
        layer = f"framework:{pin.name}"
        parts = {
            self._part_of(python.name)
            for source in (self.first, self.second)
            for python in source.lock.python
            if python.layer == layer
        } & self._differing
        return min(parts & taken or parts, default=ENVIRONMENT)

    def _plan(self, taken: Set[str], origin: Ingredients, lock: Lock, manifest: Manifest) -> BuildPlan:
        chosen = {
            layer.name: layer
            for source in (self.first, self.second)
            for layer in source.plan.layers
            if self._source(self._part(layer.name), taken) is source
        }
        renewed = renewed_layer(written_files(origin.plan, "metadata"), lock, manifest)
        metadata = chosen["metadata"]
        if not isinstance(metadata.step, FilesStep):
            raise ValueError("the metadata are not a layer of files")
        files = tuple(sorted(renewed, key=lambda file: file.path))
        step = metadata.step.model_copy(update={"files": files, "tools": self.packer})
        chosen["metadata"] = metadata.model_copy(update={"step": step})
        layers: dict[str, Layer] = {}
        for layer in _ordered(chosen.values(), _PLAN_ORDER):
            if absent := [name for name in layer.inputs if name not in layers]:
                raise ValueError(f"layer {layer.name} is made from {', '.join(absent)}, which is not there")
            key = layer_key(layer.step, [layers[name] for name in layer.inputs], layer.compression)
            layers[layer.name] = layer.model_copy(update={"key": key})
        in_image = {*self.first.plan.image, *self.second.plan.image}
        image = _ordered((layer for name, layer in layers.items() if name in in_image), _IMAGE_ORDER)
        return BuildPlan(
            layers=tuple(layers.values()),
            image=tuple(layer.name for layer in image),
            tools=self.packer,
        )


def _ordered(layers: Iterable[Layer], kinds: Sequence[str]) -> list[Layer]:
    """Return layers by kind, wheels by name; others keep their order."""

    def rank(layer: Layer) -> tuple[int, str]:
        kind, _, name = layer.name.partition(":")
        return kinds.index("built" if kind in _BUILT else kind), name if kind == "wheel" else ""

    return sorted(layers, key=rank)


def _content(step: Step) -> str:
    """Return what a step makes, without who makes it, as text."""
    fields = {name: value for name, value in step_fields(step).items() if name not in _MAKERS}
    return canonical_json({"kind": step.kind, **fields})


def _makers(plan: BuildPlan) -> dict[str, set[tuple[tuple[ToolPin, ...], int]]]:
    """Return kind of step → the tools and revisions by which a plan makes such layers."""
    makers: dict[str, set[tuple[tuple[ToolPin, ...], int]]] = {}
    for layer in plan.layers:
        makers.setdefault(layer.step.kind, set()).add((layer.step.tools, layer.step.revision))
    return makers


def _reached(part: str, needs: Mapping[str, Set[str]]) -> set[str]:
    """Return a part and all that it needs."""
    reached: set[str] = set()
    todo = [part]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += needs[name]
    return reached


def _mpi_pins(source: Ingredients) -> list[tuple[str, str]]:
    return [(pin.name, pin.version) for pin in source.lock.recipes if pin.kind == "mpi"]


def _debs(pins: Sequence[DebPin], others: Sequence[DebPin]) -> list[str]:
    return [f"{pin.name} {pin.version}" for pin in pins if pin not in others]


def _variable(entry: Variable) -> str:
    """Return ``NAME=value``, ``NAME=value:…`` for a prepend, ``unset NAME``."""
    if entry.operation == "unset":
        return f"unset {entry.name}"
    return f"{entry.name}={entry.value}" + (":…" if entry.operation == "prepend" else "")
