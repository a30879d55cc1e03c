"""torchrun of an image with PyTorch: it starts ranks without an MPI, in one container on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.jobs.launchers import torchrun_words
from envbuild.launch.context import LaunchContext
from envbuild.launch.launchers import Launcher, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun(Launcher):
    """The torchrun of an image."""

    def words(self, shape: Shape) -> list[str]:
        """Return its words."""
        return torchrun_words(shape.ranks or 1, program=self.program)


def choose(context: LaunchContext) -> Torchrun | None:
    """Choose the image's torchrun; None for an image without."""
    if "torchrun" not in context.commands:
        return None
    return Torchrun(program=context.program("torchrun"), starts=frozenset(("torchrun", "any")))
