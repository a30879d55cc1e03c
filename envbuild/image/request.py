"""A request for an image: layers in a frame, over an image that is kept or over nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from envbuild.image.compose import Provenance
from envbuild.image.file import ImageFile
from envbuild.plan.model import BuildPlan, Layer
from envbuild.store.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """An image that is to be made: layers in a frame, over an image that is kept or over nothing."""

    plan: BuildPlan
    """Every layer of the image; `plan.image` names them from bottom to top."""
    provenance: Provenance | None
    """None: everything around the file system of `bottom` is kept."""
    bottom: ImageFile | None = None
    """The image that is kept below."""
    new: tuple[str, ...]
    """Names of the layers that `bottom` lacks, from bottom to top."""
    hidden: Collection[str] = ()
    """Paths of `bottom` that are not shown."""
    replaceable: Callable[[Mapping[str, Tree]], Collection[str]] = lambda _: ()
    """Given the trees of the new layers by name, further paths of `bottom` that they may hold differently."""
    conflict_hint: str
    """How to resolve a conflict of two layers."""

    @property
    def new_layers(self) -> list[Layer]:
        """The layers that `bottom` lacks."""
        return [self.plan.layer(name) for name in self.new]
