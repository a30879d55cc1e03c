"""Whether an image still holds what was built: looked at before anything of it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envbuild.errors import Location, RequestError, raise_all
from envbuild.image.around import changed_around
from envbuild.image.contents import AGAIN
from envbuild.image.sif import PartVerdict, verify_parts


def check_parts(image: Path, *, read: Callable[[int], None] = lambda _: None) -> None:
    """Refuse an image that is not, byte by byte, as it was written: its file systems, and what lies around.

    A verdict belongs to the manifest's digest: installed without this look, a
    damaged image would pass for the one that was tested.

    Parameters
    ----------
    read : callable, optional
        Called with the bytes (count) that were read since the last call.

    Raises
    ------
    RequestError
        A part is damaged, missing, or one that the manifest does not name; or it names none. Or what lies
        around them is not as it was written.
    """
    parts = verify_parts(image, advanced=read)
    at = Location(path=image)
    if not parts:
        raise RequestError(
            "the image names no file systems: there is nothing to install",
            at=at,
            hint="build it anew: `envbuild build SPEC`",
        )
    problems = [_problem(part) for part in parts if not part.ok]
    problems += [f"the image was changed or damaged: {what}" for what in changed_around(image)]
    raise_all([RequestError(problem, at=at, hint=AGAIN) for problem in problems])


def _problem(part: PartVerdict) -> str:
    if part.expected == "absent":
        return f"the image holds a file system that its manifest does not name: {part.observed}"
    name = "+".join(part.layers) or part.role
    if part.observed == "absent":
        return f"the part `{name}` of the image is missing: {part.expected}"
    return f"the part `{name}` of the image is damaged: it should be {part.expected}, and is {part.observed}"
