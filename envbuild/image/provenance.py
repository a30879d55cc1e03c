"""Whether an image can be built again from the lock and plan in it."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.digests import sha256_of
from envbuild.errors import Location, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.sif import LOCK
from envbuild.lock.diff import tool_differences
from envbuild.lock.model import ToolPin, all_pins
from envbuild.plan.model import input_files

HINT_REBUILD_FROM_SPEC = "the image was changed, or made by something else: build it anew from its spec"


def check_provenance(image: ImageFile) -> None:
    """Check that an image can be built again from its lock and plan; RequestError: it cannot."""
    manifest, lock, plan = image.manifest, image.lock, image.plan
    if sha256_of(image.data(LOCK)) != manifest.lock_digest:
        raise RequestError(
            f"the lock in `{image.path.name}` is not the one that it was built from",
            at=Location(path=image.path),
            hint=HINT_REBUILD_FROM_SPEC,
        )
    locked = {pin.sha256 for pin in all_pins(lock)}
    # Those of its lock, and those of machines that extended it.
    tools = (*lock.tools, *(image.note.tools if image.note else ()))
    used = {file.name: file.sha256 for layer in plan.layers for file in input_files(layer.step)}
    unknown = sorted(name for name, digest in used.items() if digest not in locked)
    unknown += sorted(
        {
            tool.name
            for layer in plan.layers
            for tool in layer.step.tools
            if ToolPin(name=tool.name, version=tool.version, digest=tool.digest) not in tools
        }
    )
    if unknown:
        raise RequestError(
            f"the plan in `{image.path.name}` uses what its lock does not have: {', '.join(unknown)}",
            at=Location(path=image.path),
            hint=HINT_REBUILD_FROM_SPEC,
        )


def other_tools(image: ImageFile, here: Sequence[ToolPin]) -> tuple[str, ...]:
    """Return sentences on the tools that made an image and differ from those of this machine."""
    sentences = [difference.sentence for difference in tool_differences(image.lock, here)]
    return (
        *sentences,
        *(
            f"{pin.name} {pin.version} of a machine that extended the image is not the one here"
            for pin in dict.fromkeys(image.note.tools if image.note else ())
            if pin not in here
        ),
    )
