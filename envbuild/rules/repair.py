"""How an image that a machine refuses is repaired, and which of its layers that changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from envbuild.rules.facts import Facts, is_of_host, text_of, texts_of
from envbuild.rules.judge import RuleResult
from envbuild.rules.knowledge import Knowledge, Row
from envbuild.rules.rows import holds

Release = Literal["newer", "older", ""]
"""The release of what the image has that helps; empty if the facts do not say which."""
_ARCHITECTURE = "ARCH.same"
_BASE = "base"
# In the order of an image, from the bottom.
_PARTS = (_BASE, "mpi", "accelerator", "fabric", "framework", "packages")
_PART_OF_GROUP = {
    **dict.fromkeys(("architecture", "python", "glibc", "libstdcxx"), _BASE),
    **dict.fromkeys(("mpi", "pmi"), "mpi"),
    **dict.fromkeys(("asked", "cuda", "rocm", "nccl", "cudnn"), "accelerator"),
    "fabric": "fabric",
    "packages": "packages",
}
_STEPS: dict[Release, str] = {
    "newer": "`envbuild lock SPEC --upgrade` takes newer releases",
    "older": "an older release in the spec",
    "": "a change of the spec, or `envbuild lock SPEC --upgrade`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change of an image after which a machine takes it."""

    release: Release | None
    """None if the same releases help, built for another architecture."""
    architecture: str = ""
    """The architecture for which the image is built again; empty if its own is right."""
    layers: tuple[str, ...]
    """Layers whose content changes: ``base``, ``mpi``, ``accelerator``, ``fabric``, ``framework NAME``,
    ``packages``; all of them if the base changes."""
    is_extended: bool = False
    """Whether `envbuild extend` has added to the image."""

    @property
    def steps(self) -> str:
        """The steps of the repair, for people."""
        again = "; then `envbuild extend NEW.sif --like IMAGE` adds its packages again"
        there = f" on a machine of {self.architecture}" if self.architecture else ""
        # The lock has a target for each architecture: the spec stays as it is.
        change = f"{_STEPS[self.release]}, and " if self.release is not None else ""
        return f"{change}`envbuild build SPEC`{there}{again if self.is_extended else ''}"


def repair_of(
    results: Iterable[RuleResult], stack: Facts, knowledge: Knowledge, *, is_extended: bool
) -> Repair | None:
    """Return how an image is repaired that rules refuse in a stack; None if no change of it helps."""
    releases: set[Release] = set()
    parts: set[str] = set()
    architecture = ""
    for result in results:
        if result.rule == _ARCHITECTURE:
            architecture = text_of(stack, "architecture.host")
            parts.add(_BASE)
            continue
        own = [path for path in result.facts if not is_of_host(path)]
        if changed := {part for path in own for part in _parts_of(path, stack)}:
            parts |= changed
            releases.add(_release(result, stack, knowledge))
    if not parts:
        return None
    if _BASE in parts:
        frameworks = (f"framework {name}" for name in texts_of(stack, "frameworks"))
        parts |= {*(part for part in _PARTS if part != "framework" and _has(part, stack)), *frameworks}
    order = sorted(parts, key=lambda part: (_PARTS.index(part.partition(" ")[0]), part))
    release = releases.pop() if len(releases) == 1 else "" if releases else None
    return Repair(release=release, architecture=architecture, layers=tuple(order), is_extended=is_extended)


def _has(part: str, stack: Facts) -> bool:
    """Return whether an image has a part, or may have it."""
    if part == "mpi":
        return text_of(stack, "mpi.family") != ""
    if part == "accelerator":
        return text_of(stack, "asked.accelerator") != "cpu"
    return part != "fabric"


def _parts_of(path: str, stack: Facts) -> Iterator[str]:
    """Yield the layers whose content decides a fact of an image."""
    group, _, rest = path.partition(".")
    if group == "frameworks" and rest:
        yield f"framework {rest.partition('.')[0]}"
    elif group == "jax":
        yield "framework jax"
    elif path not in ("mpi.source", "frameworks", "packages") and group in _PART_OF_GROUP:
        yield _PART_OF_GROUP[group]
        # The build of a framework brings or names the libraries of its accelerator.
        if group in ("cuda", "rocm", "nccl", "cudnn"):
            for name in texts_of(stack, "frameworks"):
                if text_of(stack, f"frameworks.{name}.accelerator") in ("cuda", "rocm"):
                    yield f"framework {name}"


def _release(result: RuleResult, stack: Facts, knowledge: Knowledge) -> Release:
    """Return which release helps, by the rows that say so."""
    rows = (row for row in knowledge.of_rule(result.rule) if row.subject == result.subject)
    broken = [row for row in rows if row.reason == result.title and _concerns(row, stack)]
    releases = {_release_of_row(row) for row in broken}
    return releases.pop() if len(releases) == 1 else ""


def _concerns(row: Row, stack: Facts) -> bool:
    return all(
        path not in stack or holds(path, stack[path].value, wanted) is not False
        for path, wanted in row.if_.items()
    )


def _release_of_row(row: Row) -> Release:
    """Return which release of what the image has a broken row leaves, by the bounds of its ranges."""
    releases: set[Release] = set()
    for path, wanted in (row.needs or row.if_).items():
        bound = _bound(wanted) if isinstance(wanted, str) else ""
        # The machine does not reach what the image needs, or the image is above what is known to be good.
        is_too_new = is_of_host(path) == bool(row.needs)
        if bound:
            releases.add("older" if is_too_new == (bound == "lower") else "newer")
    return releases.pop() if len(releases) == 1 else ""


def _bound(wanted: str) -> Literal["lower", "upper", ""]:
    """Return whether a range has a bound on one side alone."""
    signs = set(re.findall(r"[<>]", wanted))
    return "lower" if signs == {">"} else "upper" if signs == {"<"} else ""
