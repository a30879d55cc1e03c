"""Reproduce: build an image again from the lock and plan inside it, in an empty store, and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.build.run import BuildContext, build_layers, require_layer
from envbuild.build.workdir import traversable_directory
from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.events import Note, Warned, task
from envbuild.image.compare import Comparison, ImageDifference, compare_images
from envbuild.image.compose import compose
from envbuild.image.extension import ExtensionNote, read_note
from envbuild.image.foreign import read_foreign
from envbuild.image.model import Manifest
from envbuild.image.sif import LOCK, MANIFEST, PLAN, read_data, read_manifest
from envbuild.image.verify import check_image_is_whole
from envbuild.lock.diff import tool_differences
from envbuild.lock.model import Lock, ToolPin
from envbuild.lock.text import load
from envbuild.plan.model import BuildPlan, InputFile, input_files
from envbuild.resolve.fetch import FileOrigins
from envbuild.resolve.request import OriginRule, PythonRequest
from envbuild.resolve.roots import FinishedRoot
from envbuild.spec.python_platform import PythonTarget
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.system import host, tools
from envbuild.system.files import sha256, unchanged
from envbuild.workflows.arguments import check_sources
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.fetch import all_pins, fetch_inputs
from envbuild.workflows.inputs import read_base, read_recipe, read_site
from envbuild.workflows.lock import tool_pins
from envbuild.workflows.plan import finished_layers
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference:
    """A difference, and the layer that it is in."""

    layer: str
    """Name of the layer; ``SIF`` for everything around the file system."""
    path: str
    kind: str
    detail: str
    """See `envbuild.image.compare.ImageDifference`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """The result of building an image again."""

    image: Path
    expected: str
    observed: str
    """``sha256:…`` of the image's file, and of the one that was built again."""
    identical: bool
    """Whether the files are the same."""
    same: bool
    """Whether the files are the same except for signatures that were added since."""
    tools: tuple[str, ...]
    """Sentences on tools of this machine that differ from the lock's."""
    older: tuple[str, ...]
    """Layers whose steps have changed in this version of envbuild."""
    added: tuple[str, ...]
    """Kinds of objects that were added to the image since it was built."""
    differences: tuple[LayerDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provenance:
    """The data in an image from which it can be built again."""

    image: Path
    manifest: Manifest
    lock: Lock
    plan: BuildPlan
    plan_text: str
    note: ExtensionNote | None
    """What was added to it."""

    @property
    def tools(self) -> tuple[ToolPin, ...]:
        """The tools that made its layers: those of its lock, and those of machines that extended it."""
        return (*self.lock.tools, *(self.note.tools if self.note else ()))


def reproduce_image(
    image: Path, settings: Settings, *, sources: Sequence[Path] = (), offline: bool = False
) -> Reproduced:
    """Build an image again from the data in it, in an empty store, and compare.

    The store of `settings` provides and keeps only locked files. `sources` are directories that `envbuild
    fetch` filled. RequestError: it is not an image of this version of envbuild, it was changed or damaged, or
    locked files are missing.
    """
    check_sources(sources)
    with unchanged(image) as check:
        reproduced = _reproduce(image, settings, sources=sources, offline=offline)
        check()
    return reproduced


def _reproduce(image: Path, settings: Settings, *, sources: Sequence[Path], offline: bool) -> Reproduced:
    provenance = _read_provenance(image)
    with task(settings.emit, "verify", f"read {image.name}", total_bytes=image.stat().st_size) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    other_tools = _other_tools(provenance)
    for sentence in other_tools:
        settings.emit(Warned(text=sentence, hint="what it makes may have other bytes than the image's"))
    older = tuple(
        f"{name} (revision {there}, here {here})"
        for name, (there, here) in provenance.plan.older_steps().items()
    )
    with traversable_directory() as work, settings.store.in_use():
        locate = _fetch(provenance, settings, work, sources=sources, offline=offline)
        # Private, since others can enter `work`.
        (work / "store").mkdir(mode=0o700)
        store = Store(work / "store")
        context = BuildContext(
            store=store,
            apptainer=settings.find_apptainer(),
            locate=locate,
            emit=settings.emit,
        )
        with explain_failure("reproduce", settings):
            build_layers(provenance.plan, context)
        again = work / "again.sif"
        records = {layer.name: require_layer(layer, store) for layer in provenance.plan.image_layers}
        compose(
            again,
            finished_layers(records.values(), provenance.plan, store),
            manifest=provenance.manifest,
            lock=provenance.lock,
            plan=provenance.plan_text,
            note=provenance.note.to_json().encode() if provenance.note else b"",
            advanced=lambda _: None,
        )
        with task(settings.emit, "compare", f"compare with {image.name}"):
            comparison = compare_images(image, again)
            expected, observed = sha256(image), sha256(again)
        return Reproduced(
            image=image,
            expected=f"sha256:{expected}",
            observed=f"sha256:{observed}",
            identical=comparison.identical,
            same=not comparison.differences,
            tools=other_tools,
            older=older,
            added=comparison.added,
            differences=tuple(_differences(comparison, records)),
        )


def _read_provenance(image: Path) -> _Provenance:
    manifest = read_manifest(image)
    lock_text = _text(image, LOCK)
    lock = load(lock_text.encode(), image, hint=_ANEW)
    if sha256_of(lock_text) != manifest.lock_digest:
        raise RequestError(
            f"the lock in `{image.name}` is not the one that it was built from",
            at=Location(path=image),
            hint=_ANEW,
        )
    plan_text = _text(image, PLAN)
    try:
        plan = BuildPlan.from_json(plan_text)
    except ValueError as error:
        raise RequestError(
            f"the plan in `{image.name}` cannot be carried out: {error}",
            at=Location(path=image),
            hint="copy the image again from where it came, or use the version of envbuild that built it",
        ) from error
    provenance = _Provenance(
        image=image,
        manifest=manifest,
        lock=lock,
        plan=plan,
        plan_text=plan_text,
        note=read_note(read_foreign(image)),
    )
    locked = {pin.sha256 for pin in all_pins(lock)}
    used = {file.name: file.sha256 for layer in plan.layers for file in input_files(layer.step)}
    strange = sorted(name for name, digest in used.items() if digest not in locked)
    strange += sorted(
        {
            tool.name
            for layer in plan.layers
            for tool in layer.step.tools
            if ToolPin(name=tool.name, version=tool.version, digest=tool.digest) not in provenance.tools
        }
    )
    if strange:
        raise RequestError(
            f"the plan in `{image.name}` uses what its lock does not have: {', '.join(strange)}",
            at=Location(path=image),
            hint=_ANEW,
        )
    if lock.base.architecture != host.architecture():
        raise RequestError(
            f"`{image.name}` is for {lock.base.architecture}, and this machine is {host.architecture()}",
            at=Location(path=image),
            hint="build it again on a machine of its architecture",
        )
    return provenance


_ANEW = "the image was changed, or made by something else: build it anew from its spec"


def _text(image: Path, name: str) -> str:
    try:
        return read_data(image, name).decode()
    except ValueError as error:
        raise RequestError(
            f"the `{name}` in `{image.name}` is not text", at=Location(path=image), hint=_ANEW
        ) from error


def _other_tools(provenance: _Provenance) -> tuple[str, ...]:
    here = tool_pins([pin.name for pin in provenance.lock.tools if pin.name in tools.NAMES])
    sentences = [difference.sentence for difference in tool_differences(provenance.lock, here)]
    return (
        *sentences,
        *(
            f"{pin.name} {pin.version} of a machine that extended the image is not the one here"
            for pin in dict.fromkeys(provenance.note.tools if provenance.note else ())
            if pin not in here
        ),
    )


def _fetch(
    provenance: _Provenance, settings: Settings, work: Path, *, sources: Sequence[Path], offline: bool
) -> Callable[[InputFile], Path]:
    """Fetch every locked file that the plan uses; return a function that locates them."""
    try:
        return fetch_inputs(
            provenance.plan.layers,
            provenance.lock,
            _origins(provenance, settings),
            settings,
            work=work,
            sources=sources,
            offline=offline,
        )
    except EnvbuildError as error:
        for single in error.each():
            # The usual hint, newer versions, helps a spec but not an image.
            if isinstance(single, RequestError):
                single.hint = "`--from DIR` takes them from where `envbuild fetch SPEC --to DIR` kept them"
        raise


def _origins(provenance: _Provenance, settings: Settings) -> FileOrigins:
    """Return where the files of a lock come from."""
    lock = provenance.lock
    base = read_base(lock.base.name)
    site = read_site(settings.site)
    rules: list[OriginRule] = []
    for pin in lock.recipes:
        try:
            recipe = read_recipe(pin.name, recipes=settings.recipes).loaded.value
            variant = recipe.variants[pin.variant]
        except (EnvbuildError, KeyError):
            text = f"the recipe `{pin.name}` for {pin.variant} is not here"
            settings.emit(Note(text=f"{text}: files of its own origins may not be found"))
            continue
        if variant.origins:
            names = frozenset({*recipe.owns, *recipe.companions})
            locked = [python for python in lock.python if python.name in recipe.owns]
            requirements = tuple(Requirement(f"{python.name}==={python.version}") for python in locked)
            rules.append(OriginRule(origins=variant.origins, names=names, requirements=requirements))
    target = PythonTarget(
        version=lock.base.python,
        abi=lock.base.abi,
        glibc=lock.base.glibc,
        architecture=lock.base.architecture,
    )
    return FileOrigins(
        python=PythonRequest(target=target, path=provenance.image, origin_rules=tuple(rules)),
        site=site.value if site else None,
        components=base.value.components,
        root=FinishedRoot.of(base.value, base.path),
    )


def _differences(comparison: Comparison, records: Mapping[str, LayerRecord]) -> Iterator[LayerDifference]:
    """Yield the differences of two images with the layers that they are in."""
    differs_inside = any(difference.inside for difference in comparison.differences)
    for difference in comparison.differences:
        # The manifest has the digests of layers, whose differences are reported already.
        if differs_inside and not difference.inside and difference.path == MANIFEST:
            continue
        yield LayerDifference(
            layer=_holder(difference, records),
            path=difference.path,
            kind=difference.kind,
            detail=difference.detail,
        )


def _holder(difference: ImageDifference, records: Mapping[str, LayerRecord]) -> str:
    """Return the layer of a path: the uppermost that holds it or, failing that, a directory above it."""
    if not difference.inside:
        return "SIF"
    path = difference.path.strip("/")
    while path:
        holding = [name for name, record in records.items() if path in record.tree]
        if holding:
            return holding[-1]
        path = path.rpartition("/")[0]
    return "image"
