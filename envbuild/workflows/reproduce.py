"""Reproduce: build an image again from the lock and plan inside it, in an empty store, and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.build.run import BuildContext
from envbuild.build.workdir import traversable_directory
from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.events import Note, Warned, task
from envbuild.image.compare import Comparison, ImageDifference, compare_images
from envbuild.image.compose import Provenance
from envbuild.image.file import ImageFile
from envbuild.image.sif import LOCK, MANIFEST
from envbuild.image.verify import check_image_is_whole
from envbuild.lock.diff import tool_differences
from envbuild.lock.model import ToolPin
from envbuild.plan.model import InputFile, input_files
from envbuild.resolve.fetch import FileOrigins
from envbuild.resolve.roots import FinishedRoot
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.python_request import OriginRule, PythonRequest
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.system import host, tools
from envbuild.workflows.arguments import check_sources
from envbuild.workflows.fetch import all_pins, fetch_inputs
from envbuild.workflows.inputs import read_base, read_recipe, read_site
from envbuild.workflows.lock import tool_pins
from envbuild.workflows.make import ImageRequest, make_image
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


def reproduce_image(
    image: Path, settings: Settings, *, sources: Sequence[Path] = (), offline: bool = False
) -> Reproduced:
    """Build an image again from the data in it, in an empty store, and compare.

    The store of `settings` provides and keeps only locked files. `sources` are directories that `envbuild
    fetch` filled. RequestError: it is not an image of this version of envbuild, it was changed or damaged, or
    locked files are missing.
    """
    check_sources(sources)
    with ImageFile.open(image) as opened:
        reproduced = _reproduce(opened, settings, sources=sources, offline=offline)
        opened.check_unchanged()
    return reproduced


def _reproduce(image: ImageFile, settings: Settings, *, sources: Sequence[Path], offline: bool) -> Reproduced:
    _check_provenance(image)
    with task(settings.emit, "verify", f"read {image.path.name}", total_bytes=image.size_bytes) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    other_tools = _other_tools(image)
    for sentence in other_tools:
        settings.emit(Warned(text=sentence, hint="what it makes may have other bytes than the image's"))
    older = tuple(
        f"{name} (revision {there}, here {here})" for name, (there, here) in image.plan.older_steps().items()
    )
    with traversable_directory() as work, settings.store.in_use():
        locate = _fetch(image, settings, work, sources=sources, offline=offline)
        # Private, since others can enter `work`.
        (work / "store").mkdir(mode=0o700)
        store = Store(work / "store")
        context = BuildContext(
            store=store,
            apptainer=settings.find_apptainer(),
            locate=locate,
            emit=settings.emit,
        )
        again = work / "again.sif"
        records = make_image(
            again,
            ImageRequest(
                plan=image.plan,
                new=image.plan.image,
                provenance=Provenance(
                    manifest=image.manifest,
                    lock=image.lock,
                    plan=image.plan_text,
                    note=image.note.to_json().encode() if image.note else b"",
                ),
                conflict_hint=_HINT_ANEW,
            ),
            store,
            settings,
            context=context,
            verb="reproduce",
        )
        with (
            task(settings.emit, "compare", f"compare with {image.path.name}"),
            ImageFile.open(again) as second,
        ):
            comparison = compare_images(image, second)
            expected, observed = (file.digest_of(0, file.size_bytes) for file in (image, second))
        return Reproduced(
            image=image.path,
            expected=expected,
            observed=observed,
            identical=comparison.identical,
            same=not comparison.differences,
            tools=other_tools,
            older=older,
            added=comparison.added,
            differences=tuple(_differences(comparison, records)),
        )


def _check_provenance(image: ImageFile) -> None:
    """Check that an image can be built again from its lock and plan; RequestError: it cannot."""
    manifest, lock, plan = image.manifest, image.lock, image.plan
    if sha256_of(image.data(LOCK)) != manifest.lock_digest:
        raise RequestError(
            f"the lock in `{image.path.name}` is not the one that it was built from",
            at=Location(path=image.path),
            hint=_HINT_ANEW,
        )
    locked = {pin.sha256 for pin in all_pins(lock)}
    # Those of its lock, and those of machines that extended it.
    known = (*lock.tools, *(image.note.tools if image.note else ()))
    used = {file.name: file.sha256 for layer in plan.layers for file in input_files(layer.step)}
    strange = sorted(name for name, digest in used.items() if digest not in locked)
    strange += sorted(
        {
            tool.name
            for layer in plan.layers
            for tool in layer.step.tools
            if ToolPin(name=tool.name, version=tool.version, digest=tool.digest) not in known
        }
    )
    if strange:
        raise RequestError(
            f"the plan in `{image.path.name}` uses what its lock does not have: {', '.join(strange)}",
            at=Location(path=image.path),
            hint=_HINT_ANEW,
        )
    if lock.architecture != host.architecture():
        raise RequestError(
            f"`{image.path.name}` is for {lock.architecture}, and this machine is {host.architecture()}",
            at=Location(path=image.path),
            hint="build it again on a machine of its architecture",
        )


_HINT_ANEW = "the image was changed, or made by something else: build it anew from its spec"


def _other_tools(image: ImageFile) -> tuple[str, ...]:
    here = tool_pins([pin.name for pin in image.lock.tools if pin.name in tools.NAMES])
    sentences = [difference.sentence for difference in tool_differences(image.lock, here)]
    return (
        *sentences,
        *(
            f"{pin.name} {pin.version} of a machine that extended the image is not the one here"
            for pin in dict.fromkeys(image.note.tools if image.note else ())
            if pin not in here
        ),
    )


def _fetch(
    image: ImageFile, settings: Settings, work: Path, *, sources: Sequence[Path], offline: bool
) -> Callable[[InputFile], Path]:
    """Fetch every locked file that the plan uses; return a function that locates them."""
    try:
        return fetch_inputs(
            image.plan.layers,
            image.lock,
            _origins(image, settings),
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


def _origins(image: ImageFile, settings: Settings) -> FileOrigins:
    """Return where the files of a lock come from."""
    lock = image.lock
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
        architecture=lock.architecture,
    )
    return FileOrigins(
        python=PythonRequest(target=target, path=image.path, origin_rules=tuple(rules)),
        site=site.value if site else None,
        components=base.value.components,
        root=FinishedRoot.of(base),
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
