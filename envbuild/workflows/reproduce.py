"""Reproduce: build an image again from the lock and plan inside it, in an empty store, and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.build.run import BuildContext
from envbuild.build.workdir import traversable_directory
from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Note, Warned, task
from envbuild.image.compare import (
    LayerDifference,
    compare_images,
    differences_by_layer,
)
from envbuild.image.compose import Provenance
from envbuild.image.file import ImageFile
from envbuild.image.provenance import HINT_REBUILD_FROM_SPEC, check_provenance, other_tools
from envbuild.image.request import ImageRequest
from envbuild.image.verify import check_image_is_whole
from envbuild.inputs.catalog import read_base, read_recipe
from envbuild.inputs.sites import read_site
from envbuild.inputs.tools import tool_pins
from envbuild.plan.model import InputFile
from envbuild.preflight.image_facts import facts_of_other_format
from envbuild.resolve.fetch import FileOrigins
from envbuild.resolve.roots import FinishedRoot
from envbuild.spec.base import by_digest
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.python_request import OriginRule, PythonRequest
from envbuild.store.store import Store
from envbuild.system import tools
from envbuild.workflows.arguments import check_architecture, check_sources
from envbuild.workflows.fetch import fetch_inputs
from envbuild.workflows.make import make_image
from envbuild.workflows.settings import Settings


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
    signed_by: str = ""
    """``SHA256:…``, the name of the key that signed that the files are the same; empty if none did."""


def reproduce_image(
    image: Path,
    settings: Settings,
    *,
    sources: Sequence[Path] = (),
    offline: bool = False,
    key: Path | None = None,
) -> Reproduced:
    """Build an image again from the data in it, in an empty store, and compare.

    If the files are the same, the private key `key` signs that in the image.
    The store of `settings` provides and keeps only locked files. `sources` are directories that `envbuild
    fetch` filled. RequestError: it is not an image of this version of envbuild, it was changed or damaged, or
    locked files are missing.
    """
    check_sources(sources)
    signing = None
    if key is not None:
        # Only signatures need the package `cryptography`.
        from envbuild.workflows.sign import Signing  # noqa: PLC0415

        signing = Signing.of(image, key, settings)
    with ImageFile.open(image) as opened:
        reproduced = _reproduce(opened, settings, sources=sources, offline=offline)
        opened.check_unchanged()
    if signing is not None and reproduced.same:
        return replace(reproduced, signed_by=signing.sign_reproduced(reproduced.expected).key)
    return reproduced


def _reproduce(image: ImageFile, settings: Settings, *, sources: Sequence[Path], offline: bool) -> Reproduced:
    check_provenance(image)
    check_architecture(
        image.path, image.lock.architecture, hint="build it again on a machine of its architecture"
    )
    with task(settings.emit, "verify", f"read {image.path.name}", total_bytes=image.size_bytes) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    differing_tools = other_tools(
        image, tool_pins([pin.name for pin in image.lock.tools if pin.name in tools.NAMES])
    )
    for sentence in differing_tools:
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
        made = make_image(
            again,
            ImageRequest(
                plan=image.plan,
                new=image.plan.image,
                provenance=Provenance(
                    manifest=image.manifest,
                    lock=image.lock,
                    plan=image.plan_text,
                    note=image.note.to_json().encode() if image.note else b"",
                    facts=facts_of_other_format(image),
                ),
                conflict_hint=HINT_REBUILD_FROM_SPEC,
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
            tools=differing_tools,
            older=older,
            added=comparison.added,
            differences=tuple(
                differences_by_layer(comparison, {name: record.tree for name, record in made.records.items()})
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
            origins_of_image(image, settings),
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


def origins_of_image(image: ImageFile, settings: Settings) -> FileOrigins:
    """Return where the files of a lock come from."""
    lock = image.lock
    image_pin = lock.base_image
    base = read_base(lock.base.name) if image_pin is None else None
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
        components=base.value.components if base is not None else ("main",),
        root=FinishedRoot.of(base) if base is not None else None,
        image=by_digest(image_pin.image, image_pin.digest) if image_pin is not None else "",
    )
