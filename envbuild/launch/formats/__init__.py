"""The texts that start an image at a site: a module for each, whose `FORMAT` is a `TextFormat`.

Every command loads this module: it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from envbuild.launch.runtimes import Start

StartFormat = Literal["edf", "sbatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """A form of text that starts an image."""

    title: str
    """As messages name it: ``an EDF``."""
    first_lines: str
    """Beginning of its files, by which they are recognized."""
    render: Callable[[Start], str]
    """Return the text. RequestError: the runtime does not read it, or not with such an image."""
    runtimes: Collection[str] | None
    """The runtimes that it is for; None for all."""
    scheduler: str
    """The scheduler that starts its ranks (``slurm``); empty if the text starts none."""


def text_format(name: StartFormat) -> TextFormat:
    """Return the form of a name."""
    form: TextFormat = import_module(f"{__name__}.{name}").FORMAT
    return form
