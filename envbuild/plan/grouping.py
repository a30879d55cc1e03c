"""Which wheels and layers lie together: so that images share the most and start with few overlays. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from envbuild.lock.model import Lock, PythonPin
from envbuild.plan.model import PrefixStep, SourceStep, Step, SystemStep, UnpackStep

ACCELERATOR = "accelerator"

# Each overlay costs 25-30 ms at every start of the image (one FUSE mount).
MAX_OVERLAYS = 3

# A merge is a copy in the store, made anew for each image: what is heavier than this stays alone,
# whatever the start costs.
HEAVY_BYTES = 25_000_000

# A package's wheel that is smaller than this is a layer of its own, installed and compiled once for all
# images: what holds it is merged from such layers in a moment. Merging packs again, so that larger ones
# are installed together, into the layer `LARGE`.
SMALL_BYTES = 4_000_000

LARGE = "python:large"


def overlay_groups(sizes: Mapping[str, int], limit: int = MAX_OVERLAYS) -> list[list[str]]:
    """Merge the lightest layers into one, so that `limit` groups are left; heavy ones stay alone.

    Layers commute, so any of them can be merged; only `system` is stacked on
    the base, and what it is merged with lies lowest. What is light is copied
    for every image; what is heavy is shared.

    Parameters
    ----------
    sizes : mapping
        Layer → length of the files that it is made from, in bytes; from bottom to top.

    Returns
    -------
    list of list of str
        Groups from bottom to top.
    """
    names = list(sizes)
    if len(names) <= limit:
        return [[name] for name in names]
    # Of equally light ones the topmost: it is small and changes most.
    lightest = sorted(names, key=lambda name: (sizes[name], -names.index(name)))
    merged = {name for name in lightest[: len(names) - limit + 1] if sizes[name] < HEAVY_BYTES}
    alone = [[name] for name in names if name not in merged]
    together = [name for name in names if name in merged]
    if not together:
        return alone
    return [together, *alone] if "system" in merged else [*alone, together]


def input_bytes(step: Step, sizes: Mapping[str, int]) -> int:
    """Return how much a step installs or builds, in bytes of its files (sha256 → length)."""
    match step:
        case SystemStep():
            files = step.debs
        case PrefixStep() | UnpackStep():
            files = step.wheels
        case SourceStep():
            files = (step.archive,)
        case _:
            files = ()
    return sum(sizes[file.sha256] for file in files)


def accelerator_layers(lock: Lock) -> dict[str, tuple[PythonPin, ...]]:
    """Return the layers that the accelerator's wheels make, from bottom to top.

    What the heaviest framework needs is one layer, as in an image that holds
    this framework alone; the next one's layer holds what it needs beyond.
    Frameworks that pin the same wheels share them in one image; among images,
    where the heaviest framework needs the same.
    """
    pins = {pin.name: pin for pin in lock.python}
    left = {pin.name for pin in lock.python if pin.layer == ACCELERATOR}
    owned: dict[str, list[str]] = {}
    for pin in lock.python:
        kind, _, framework = pin.layer.partition(":")
        if kind == "framework":
            owned.setdefault(framework, []).append(pin.name)
    needs = {framework: lock.needed_by(names) & left for framework, names in owned.items()}

    def heaviest(framework: str) -> tuple[int, str]:
        return -sum(pins[name].size_bytes for name in needs[framework]), framework

    found = {}
    for framework in sorted(needs, key=heaviest):
        own = needs[framework] & left
        if own:
            found[f"{ACCELERATOR}:{framework}"] = tuple(pins[name] for name in sorted(own))
            left -= own
    if left:
        found[ACCELERATOR] = tuple(pins[name] for name in sorted(left))
    return found
