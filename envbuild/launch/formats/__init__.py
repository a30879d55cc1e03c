"""The texts that start an image at a site: a module for each, whose `FORMAT` it is; of pods, with a `render`.

Every command loads this module: it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from envbuild.launch.runtimes import SiteLaunch

ScriptFormat = Literal["edf", "sbatch", "pbs", "reframe"]
# Of jobs of Kubernetes, which start an image that a registry has.
PodFormat = Literal["jobset", "trainjob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """A form of text that starts an image."""

    title: str
    """As messages name it: ``an EDF``."""
    first_lines: str
    """Beginning of its files, by which they are recognized."""
    render: Callable[[SiteLaunch], str]
    """Return the text. RequestError: the runtime does not read it, or not with such an image."""
    runtimes: Collection[str] | None
    """The runtimes that it is for; None for all."""
    image_format: Callable[[str], str]
    """Runtime → the format of `export` that the text names; empty for a SIF."""
    scheduler: str
    """The scheduler that starts its ranks (``slurm``); empty if the text starts none."""
    directory: str = ""
    """Working directory of the spec's `launch`, in words; empty if the text does not run that."""


def text_format(name: ScriptFormat) -> TextFormat:
    """Return the form of a name."""
    form: TextFormat = import_module(f"{__name__}.{name}").FORMAT
    return form
