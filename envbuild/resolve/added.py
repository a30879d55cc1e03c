"""Some requests more, or less: what is locked stays, and an index is asked for what is new alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.lock.model import Lock, PythonPin


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What is new among requests, and what is locked that the others need.

    Attributes
    ----------
    requests : tuple of str
        Those that were not resolved before, sorted.
    kept : dict of str to PythonPin
        Distribution → what is locked of it.
    """

    requests: tuple[str, ...]
    kept: Mapping[str, PythonPin]


def addition(
    requests: Sequence[str],
    previous: Lock,
    *,
    origins: Mapping[str, str],
    environment: Mapping[str, str],
) -> Addition | None:
    """Tell the new requests from those that a lock has; None where all have to be resolved together. Pure.

    Parameters
    ----------
    origins : mapping of str to str
        Distribution → origin that its recipe names.
    environment : mapping of str to str
        The environment markers of the base's Python.
    """
    before = set(previous.requests)
    if any(Requirement(text).extras for text in before.difference(requests)):
        return None  # nobody noted what the extra alone had brought
    pins = {pin.name: pin for pin in previous.python}
    wanted = [Requirement(text) for text in requests if text in before]
    todo = [str(canonicalize_name(one.name)) for one in wanted if _holds(one, environment)]
    kept: dict[str, PythonPin] = {}
    while todo:
        name = todo.pop()
        if name not in pins:
            return None  # somebody took it out of the lock
        if name not in kept:
            kept[name] = pins[name]
            todo += pins[name].requires
    if any(pin.origin != origins.get(name, "pypi") for name, pin in kept.items()):
        return None
    gone = [pin for pin in previous.python if pin.name not in kept]
    if any(name in kept and kept[name].requires for pin in gone for name in pin.requires):
        return None  # it may have asked for an extra of what stays
    return Addition(requests=tuple(sorted(set(requests) - before)), kept=kept)


def _holds(wanted: Requirement, environment: Mapping[str, str]) -> bool:
    return wanted.marker is None or wanted.marker.evaluate(dict(environment))


def together(kept: Mapping[str, PythonPin], found: Collection[PythonPin]) -> list[PythonPin] | None:
    """Return what is kept and what was pinned beside it; None where a file of what is kept would be another.

    If none is, both together are a resolution: what is kept needs nothing but itself, and what is new was
    resolved as if it had been alone. Who asks for what is told anew: an extra that is new brings more.
    """
    pins = dict(kept)
    for pin in found:
        if pin.name not in kept:
            pins[pin.name] = pin
        elif (pin.file, pin.sha256, pin.origin) != (
            kept[pin.name].file,
            kept[pin.name].sha256,
            kept[pin.name].origin,
        ):
            return None
        else:
            requires = {*kept[pin.name].requires, *pin.requires}
            pins[pin.name] = replace(kept[pin.name], requires=tuple(sorted(requires)))
    return list(pins.values())
