"""What reproducing an image found, for people and as data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.errors import counted

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference:
    """A difference, and the layer that it is in.

    Attributes
    ----------
    layer : str
        Name of the layer; ``SIF`` for what lies around the file system.
    path, kind, detail : str
        As `envbuild.image.compare.Difference` has them.
    """

    layer: str
    path: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """What building an image again found.

    Attributes
    ----------
    expected, observed : str
        ``sha256:…`` of the image's file, and of the one that was built again.
    identical : bool
        Whether the files are the same.
    same : bool
        Whether all that a build makes is the same: signatures may have been added since.
    damaged : tuple of str
        Layers of the image whose bytes are not those that its own manifest names.
    tools : tuple of str
        Sentences: which tools here are not those of the lock.
    older : tuple of str
        Layers whose steps this version of envbuild carries out otherwise.
    added : tuple of str
        What was added to the image after it was built.
    """

    image: Path
    expected: str
    observed: str
    identical: bool
    same: bool
    damaged: tuple[str, ...]
    tools: tuple[str, ...]
    older: tuple[str, ...]
    added: tuple[str, ...]
    differences: tuple[LayerDifference, ...]

    def to_json(self) -> str:
        """Return it as JSON, one line; all differences."""
        return json.dumps({**asdict(self), "image": str(self.image)})

    def to_text(self) -> str:
        """Return it as lines for people; of each layer the first differences."""
        lines = []
        if self.damaged:
            lines.append(f"its own manifest names other bytes: {', '.join(self.damaged)}")
        for layer in dict.fromkeys(difference.layer for difference in self.differences):
            found = [difference for difference in self.differences if difference.layer == layer]
            count = counted(len(found), "difference")
            lines.append(f"layer {layer}: {count}" if layer != "SIF" else f"SIF: {count}")
            for one in found[:_SHOWN]:
                lines.append(f"  {one.path}: {one.kind}" + f" ({one.detail})" * bool(one.detail))
            if len(found) > _SHOWN:
                lines.append(f"  … and {len(found) - _SHOWN} more (--json tells all)")
        for name in self.older if not self.same else ():
            lines.append(f"layer {name} was made by an older step of envbuild: other bytes are expected")
        for sentence in self.tools if not self.same else ():
            lines.append(f"{sentence}: other bytes are expected where it is used")
        if self.identical:
            told = f"the same bytes (file {self.expected[:19]})"
        elif self.same:
            told = f"the same but for what was added since: {', '.join(self.added)}"
        else:
            told = f"is not reproduced: {self.expected[:19]} there, {self.observed[:19]} built again"
        return "\n".join([*lines, f"{self.image}: {told}"])
