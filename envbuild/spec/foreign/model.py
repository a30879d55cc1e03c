"""What is proposed for a file of others, and what became of each piece of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.spec.composing import scalar_is_text, shorten
from envbuild.spec.satisfiable import can_be_met

Outcome = Literal["taken", "needless", "left"]
Look = Callable[[str], Literal["file", "executable", "directory", "absent"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What became of one piece of the file.

    Attributes
    ----------
    outcome : str
        ``taken``, ``needless`` (envbuild does it, or its images need it not) or ``left``.
    text : str
        The piece, on one line.
    what : str
        Where it went, or why it did not.
    """

    line: int
    outcome: Outcome
    text: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What there is to propose.

    Attributes
    ----------
    recipes : mapping of str to (kind, versions)
        Every recipe.
    owners : mapping of str to str
        Canonical name of a distribution → the recipe that brings it.
    bases : mapping of str to str
        Base image → version of its Python.
    look : callable
        What lies at a path beside the file.
    read : callable
        The text of a file beside it; None where it cannot be read.
    """

    recipes: Mapping[str, tuple[str, Sequence[str]]]
    owners: Mapping[str, str]
    bases: Mapping[str, str]
    look: Look
    read: Callable[[str], str | None]


@dataclass(slots=True)
class Proposal:
    """A spec, as far as a file tells it.

    Attributes
    ----------
    base, mpi, accelerator, python : str
        As in a spec; empty for what nothing was said of.
    notes : list of Note
        One for each piece of the file, in its order.
    """

    name: str
    version: str = "1"
    summary: str = ""
    base: str = ""
    python: str = ""
    mpi: str = ""
    accelerator: str = ""
    frameworks: list[str] = field(default_factory=list)
    python_packages: list[str] = field(default_factory=list)
    system_packages: list[str] = field(default_factory=list)
    environment: dict[str, str | dict[str, str]] = field(default_factory=dict)
    files: list[dict[str, str | bool]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def add_python(self, wanted: str) -> str:
        """Add a requirement, to that of the same package where there is one.

        Returns
        -------
        str
            What the spec asks for now; empty where no version can meet both.
        """
        requirement = Requirement(wanted)
        for index, text in enumerate(self.python_packages):
            if text == wanted:
                return text
            both = Requirement(text)
            same = canonicalize_name(both.name) == canonicalize_name(requirement.name)
            if not same or both.marker != requirement.marker:
                continue
            both.extras |= requirement.extras
            both.specifier &= requirement.specifier
            if not can_be_met(both.specifier):
                return ""
            self.python_packages[index] = str(both)
            return str(both)
        self.python_packages.append(wanted)
        return wanted

    def add_framework(self, choice: str) -> str:
        """Take a framework once, with its one constraint; return it, or nothing where there are two."""
        name, _, constraint = choice.partition("@")
        for index, held in enumerate(self.frameworks):
            if held.partition("@")[0] == name:
                if constraint and held not in (name, choice):
                    return ""
                self.frameworks[index] = choice if constraint else held
                return self.frameworks[index]
        self.frameworks.append(choice)
        return choice

    def add_accelerator(self, wanted: str) -> bool:
        """Take an accelerator, the narrower of two that agree; return whether they do."""
        has = self.accelerator
        if not has or f"{wanted}.".startswith((f"{has}.", f"{has}@")):
            self.accelerator = wanted
        return f"{self.accelerator}.".startswith((f"{wanted}.", f"{wanted}@"))

    def spec(self) -> dict[str, object]:
        """Return the spec as data, without what nothing was said of."""
        packages = {"python": self.python_packages, "system": self.system_packages}
        data: dict[str, object] = {
            "name": self.name,
            "version": self.version,
            "summary": self.summary,
            "base": self.base,
            "python": self.python,
            "mpi": self.mpi,
            "frameworks": self.frameworks,
            "accelerator": self.accelerator,
            "packages": {key: value for key, value in packages.items() if value},
            "environment": self.environment,
            "files": self.files,
            "labels": self.labels,
        }
        return {key: value for key, value in data.items() if value}

    def to_yaml(self, source: str) -> str:
        """Return the text of the spec, with what was left out as remarks at its end."""
        text = yaml.dump(self.spec(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        source = shorten(source, 255)  # a name of a file may hold anything
        left = [note for note in self.notes if note.outcome == "left"]
        lines = [
            f"# Proposed from {source}: look it over, then `envbuild lock` tells what cannot be.\n",
            text,
        ]
        if left:
            lines.append(f"# Not taken over from {source}:\n")
        lines += [f"# line {note.line}: {_short(note.text)}\n#   {note.what}\n" for note in left]
        return "".join(lines)

    def to_data(self) -> dict[str, object]:
        """Return spec and notes as JSON data."""
        return {"spec": self.spec(), "notes": [asdict(note) for note in self.notes]}


class _Dumper(yaml.SafeDumper):
    """Writes YAML 1.1, and quotes what our reader would take for a number, too (``1e3``)."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if scalar_is_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"
