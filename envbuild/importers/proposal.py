"""The spec that is proposed for a file, and a note for each piece of the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import ValidationError

from envbuild.importers.commands import (
    SECONDARY,
)
from envbuild.spec.accelerators import ACCELERATORS, CUDA
from envbuild.spec.base import BaseImage
from envbuild.spec.model import MAX_NAME, Choice, EnvSpec, parse_choice
from envbuild.spec.recipe import Recipe
from envbuild.spec.secrets import shown
from envbuild.spec.select import has_python, variant_for

Outcome = Literal["changed", "unsupported", "taken", "skipped"]
FindWithoutWheels = Callable[[Sequence[str], str], Collection[str] | None]
_ACCELERATOR = re.compile(
    rf"(?<![a-z0-9])(?:{CUDA.label.pattern}|({'|'.join(ACCELERATORS)})[:-]?(\d+(?:\.\d+)?)?|gpu|nvcr)(?![a-z0-9])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportNote:
    """A piece of the file, and its place in the spec or the reason why it has none.

    `outcome` is ``changed`` if the spec has it in another form than the file, ``skipped`` if an image of
    envbuild does not need it.
    """

    line: int
    outcome: Outcome
    text: str
    explanation: str
    key: str = ""
    """Key of the spec that a note on a framework, an MPI or the accelerator is about; else empty."""

    @property
    def rank(self) -> int:
        """Its place among the notes: first what changes how the image works."""
        if self.outcome in ("changed", "unsupported"):
            return int(self.explanation in SECONDARY)
        return 2 if self.outcome == "taken" else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The data of a spec, and notes in the order of what changes how the image works."""

    spec: dict[str, Any]
    notes: list[ImportNote]
    requested: dict[str, tuple[str, int]]
    """Framework → the constraint on its version as the file has it, and the line."""


def spec_rejects(**entries: object) -> str:
    """Return why a spec rejects entries; empty if it accepts them."""
    try:
        EnvSpec.model_validate({"name": "x", "version": "1", **entries})
    except ValidationError as error:
        message: str = error.errors(include_url=False, include_input=False)[0]["msg"]
        return shown(message.removeprefix("Value error, "), most=300)
    return ""


class Draft:
    """The spec that is proposed so far, and its notes."""

    def __init__(self, recipes: Sequence[Recipe], bases: Sequence[BaseImage]) -> None:
        self.bases = bases
        # By their names and by the distributions that they bring.
        self.recipes = {name: recipe for recipe in reversed(recipes) for name in (recipe.name, *recipe.owns)}
        self.notes: list[ImportNote] = []
        self.line = 0
        self.name = ""
        self.from_conda: dict[tuple[str, str], tuple[ImportNote, str]] = {}  # requirement → note and text
        self.notes_of_accelerator: list[ImportNote] = []
        self.prefixes: dict[str, str] = {}  # directory in which nothing lies → why

        self.base = self.python = self.accelerator = ""
        self.needs_untested = False  # a version of a recipe without a test result
        self.requested: dict[str, tuple[str, int]] = {}
        self.without_version: set[str] = set()  # recipes whose version is not that of the file
        self.mpi: dict[str, str] = {}  # recipe → with its constraint; at most one
        self.frameworks: dict[str, str] = {}
        self.requirements: dict[tuple[str, str], str] = {}  # by name and marker
        self.commits: dict[str, dict[str, str]] = {}  # by name
        self.notes_of: dict[tuple[str, str], list[ImportNote]] = {}
        self.needs_mpi = False
        self.debian: list[str] = []
        self.environment: dict[str, str | dict[str, str]] = {}
        self.notes_of_variable: dict[str, list[tuple[ImportNote, str]]] = {}  # and the value of each
        self.files: dict[str, dict[str, str | bool]] = {}  # by target

    def proposal(self, name: str) -> Proposal:
        """Return the proposal; `name` is its name if the file states none."""
        with_mpi = [name for name in self.frameworks if self.recipes[name].needs_mpi]
        if with_mpi and not self.needs_mpi and not self.mpi:
            self.line = 1
            self.note(
                "changed", ", ".join(with_mpi), "mpi: mpich, as it needs an MPI and the file names none"
            )
        if (self.needs_mpi or with_mpi) and not self.mpi:
            self.mpi = {"mpich": "mpich"}
        python = [*self.requirements.values(), *self.commits.values()]
        packages = {"python": python, "system": self.debian}
        spec = {
            "name": re.sub(r"[^a-z0-9._-]+", "-", (self.name or name).lower())[:MAX_NAME].strip("-._")
            or "imported",
            "version": "1",
            "base": self.base,
            "python": self.python,
            "mpi": "".join(self.mpi.values()),
            "frameworks": list(self.frameworks.values()),
            "proven": False if self.needs_untested else None,
            "accelerator": self.accelerator,
            "packages": {key: value for key, value in packages.items() if value},
            "environment": self.environment,
            "files": list(self.files.values()),
        }
        spec = {key: value for key, value in spec.items() if value or value is False}
        if spec.keys() == {"name", "version"}:
            self.line = 1
            self.note("unsupported", "the whole file", "nothing in it fits into a spec")
        notes = sorted(self.notes, key=lambda note: (note.rank, note.line))
        return Proposal(spec=spec, notes=notes, requested=self.requested)

    def note(self, outcome: Outcome, text: str, explanation: str, *, key: str = "") -> ImportNote:
        """Add a note on a piece of the line that is read."""
        note = ImportNote(line=self.line, outcome=outcome, text=shown(text), explanation=explanation, key=key)
        self.notes.append(note)
        return note

    def replace_note(self, note: ImportNote, outcome: Outcome, explanation: str) -> None:
        """Correct a note."""
        self.notes = [
            replace(note, outcome=outcome, explanation=explanation) if other is note else other
            for other in self.notes
        ]

    def take_base(self, text: str, image: str, tag: str) -> None:
        """Take the base image that corresponds to a tag of Debian or Python."""
        parts = re.split(r"[-.]", tag)
        python = re.match(r"3\.\d+", tag) if image == "python" else None
        bases = [
            base for base in self.bases if base.suite in parts or (not python and base.version == parts[0])
        ]
        if python:
            bases = [base for base in bases or self.bases if base.python.version == python[0]]
        if bases:
            self.base = min(base.name for base in bases)
            self.python = python[0] if python else ""
            self.note("taken", text, f"base: {self.base}")
        else:
            available = ", ".join(f"{base.name} (Python {base.python.version})" for base in self.bases)
            self.note("unsupported", text, f"no base image matches; there are {available}")

    def check_wheels(self, without_wheels: FindWithoutWheels) -> None:
        """Take back what comes from conda and has no wheel."""
        texts = [self.requirements[key] for key in self.from_conda]
        without = without_wheels(texts, self.python) if texts else frozenset()
        if without is None:
            self.line = 1
            self.note("unsupported", "dependencies", "no index could be asked which of them have wheels")
            return
        for key, (note, text) in self.from_conda.items():
            if self.requirements[key] in without:
                del self.requirements[key]
                self.notes.remove(note)
                self.line = note.line
                self.note("unsupported", text, "neither a wheel nor a Debian package of it is known")

    def check_companions(self) -> None:
        """Leave out what a framework decides, and add the framework that a package belongs to."""
        for key in list(self.requirements):
            name = key[0]
            owner = next((recipe for recipe in self.recipes.values() if name in recipe.companions), None)
            if owner is not None and owner.name not in self.frameworks:
                note = self.notes_of[key][0]
                self.line = note.line
                self.take_recipe(note.text, owner.name)
                self.replace_note(self.notes[-1], "changed", f"frameworks: {owner.name}, to which it belongs")
            recipe = self.recipes.get(name)
            if recipe is not None and name in recipe.owns and recipe.name in self.frameworks:
                del self.requirements[key]
                for note in self.notes_of[key]:
                    self.replace_note(note, "skipped", f"the recipe `{recipe.name}` decides on it")
            elif owner is not None and owner.name in self.without_version:
                requirement = Requirement(self.requirements[key])
                if requirement.specifier:
                    reason = f"without `{requirement.specifier}`, as `{owner.name}` has another version"
                    requirement.specifier = SpecifierSet()
                    self.requirements[key] = str(requirement)
                    for note in self.notes_of[key]:
                        self.replace_note(note, "changed", reason)
        for name in list(self.frameworks):
            for required in self.recipes[name].requires:
                recipe = self.recipes.get(required.name)
                if recipe is not None and recipe.kind == "framework" and recipe.name not in self.frameworks:
                    self.frameworks = {recipe.name: str(required), **self.frameworks}
                    self.line = 1
                    self.note(
                        "changed", name, f"frameworks: {required}, which `{name}` requires", key="frameworks"
                    )

    def take_python(self, text: str, version: str) -> None:
        """Take a release of Python, or bounds: as conda, PEP 440 or a Debian package write them."""
        written = version.replace(" ", "")
        written = "" if re.fullmatch(r"={0,2}3(?:\.\*)?", written) else written
        exact = re.fullmatch(r"={0,2}([23]\.\d+)(?:\.\d+)?(?:\.?\*)?(?:=\S*)?", written)
        constraint = exact[1] if exact else written.replace("=<", "<=").replace("=>", ">=")
        try:
            specifier = f"=={constraint}.*" if exact else constraint
            fits = not constraint or any(has_python(base, specifier) for base in self.bases)
        except ValueError:
            fits = False
        if fits and self.python not in ("", constraint):
            self.note("changed", text, f"python: {self.python} is taken already")
        elif fits:
            # The base image with Python 2 is for old programs alone.
            is_open = constraint and not exact and SpecifierSet(constraint).contains("2.7")
            self.python = constraint = f">=3,{constraint}" if is_open else constraint
            self.note(
                "taken", text, f"python: {self.python}" if constraint else "every base image has Python 3"
            )
        else:
            reason = f"no base image has Python {constraint or written}; there are {self.pythons()}"
            if all(note.explanation != reason for note in self.notes):
                self.note("unsupported", text, reason)

    def pythons(self) -> str:
        """Return the releases of Python that base images have."""
        releases = {base.python.version for base in self.bases}
        return ", ".join(sorted(releases, key=lambda release: [int(part) for part in release.split(".")]))

    def take_recipe(self, text: str, name: str, specifier: str = "", build: str = "") -> None:
        """Take a framework or MPI, with the version if the recipe has it, and the accelerator of a build."""
        recipe = self.recipes.get(name)
        if recipe is None or (recipe.kind == "mpi" and self.mpi and name not in self.mpi):
            reason = (
                f"an image has one MPI, here {''.join(self.mpi)}"
                if recipe
                else f"there is no recipe `{name}`"
            )
            self.note("unsupported", text, reason)
            return
        key, chosen = ("mpi", self.mpi) if recipe.kind == "mpi" else ("frameworks", self.frameworks)
        constraint = re.sub(r"\+[\w.]+|^===?(?=[\d.]+(?:\+|$))", "", specifier)
        constraint = re.sub(r"^==([\d.]+)\.\*$", r"\1", constraint)
        if recipe.kind == "framework" and (constraint or name not in self.requested):
            self.requested[name] = (constraint, self.line)
        # Tags of images may be releases of a vendor.
        may_be_untested = recipe.kind == "framework" and recipe.source is None and "/" not in build
        earlier = chosen.get(name, name)
        if constraint and _has_version(recipe, constraint):
            chosen[name] = f"{name}@{constraint}"
            self.note("taken", text, f"{key}: {chosen[name]}", key=key)
        elif constraint and may_be_untested and re.fullmatch(r"\d+(?:\.\d+)+", constraint):
            chosen[name] = f"{name}@{constraint}"
            self.needs_untested = True
            explanation = f"{key}: {chosen[name]}, with `proven: false`: it has no test result"
            self.note("changed", text, explanation, key=key)
        elif constraint:
            chosen.setdefault(name, name)
            self.without_version.add(name)
            has = ", ".join(recipe.versions)
            explanation = f"{key}: {chosen[name]}; the recipe has no `{constraint}`, but {has}"
            if may_be_untested:
                explanation += f"; with `proven: false` write one release that meets it: `{name}@X.Y`"
            self.note("changed", text, explanation, key=key)
        else:
            self.note("taken", text, f"{key}: {chosen.setdefault(name, name)}", key=key)
        if "@" in earlier and earlier != chosen[name]:
            self.note("changed", text, f"{chosen[name]} replaces {earlier}, which stands above")
        self.take_accelerator(text, build)

    def take_accelerator(self, text: str, build: str) -> bool:
        """Take the accelerator of a build, a release before none; return whether its name contains one."""
        matches = list(_ACCELERATOR.finditer(build))
        if not matches:
            return False
        match = next((match for match in matches if match[1] or match[4]), matches[0])
        family = match[3] or next((found[3] for found in matches if found[3]), None) or "cuda"
        version = f"{match[1]}.{match[2]}" if match[1] else match[4]
        accelerator = family + (f"@{version}" if version else "")
        if not self.accelerator or (family == self.accelerator and version):
            self.accelerator = accelerator
            note = self.note("taken", text, f"accelerator: {self.accelerator}", key="accelerator")
            self.notes_of_accelerator.append(note)
        elif (
            version and accelerator != self.accelerator and not self.accelerator.startswith(f"{accelerator}.")
        ):
            self.note(
                "changed", text, f"an image has one accelerator, here {self.accelerator}", key="accelerator"
            )
        return True

    def check_accelerator(self) -> None:
        """Take the accelerator without its release if a framework has variants for other releases only."""
        family, _, release = self.accelerator.partition("@")
        asked = Choice(name=family, constraint=f"=={release}.*" if release else "")
        any_release = Choice(name=family)
        for recipe in (self.recipes[name] for name in self.frameworks):
            if variant_for(asked, recipe) or not variant_for(any_release, recipe):
                continue
            others = [name.replace("-", "@", 1) for name in recipe.variants if name.startswith(family)]
            self.take_other_release(f"the recipe `{recipe.name}` has {', '.join(others)}")
            return
        releases = {
            variant.partition("-")[2]
            for recipe in self.recipes.values()
            for variant in recipe.variants
            if variant.startswith(f"{family}-")
        }
        if release and releases and not any(f"{found}.".startswith(f"{release}.") for found in releases):
            self.take_other_release(f"the recipes have {', '.join(sorted(releases))}")

    def take_other_release(self, reason: str) -> None:
        """Take the accelerator without its release."""
        family = self.accelerator.partition("@")[0]
        # Earlier ones are of what the last one replaced.
        for note in self.notes_of_accelerator[-1:]:
            self.replace_note(note, "changed", f"accelerator: {family}; {reason}")
        self.accelerator = family

    def check_paths(self) -> None:
        """Leave out directories in which nothing of the image lies."""
        for name, noted in self.notes_of_variable.items():
            setting = self.environment.get(name)
            if setting is None or not any(
                self.why_empty(part) for _, text in noted for part in text.split(":")
            ):
                continue
            parts = (setting["prepend"] if isinstance(setting, dict) else setting).split(":")
            kept = ":".join(part for part in parts if not self.why_empty(part))
            if not kept:
                del self.environment[name]
            elif isinstance(setting, dict):
                self.environment[name] = {"prepend": kept}
            else:
                self.environment[name] = kept
            for note, written in noted:
                stale = {part: reason for part in written.split(":") if (reason := self.why_empty(part))}
                reason = "; ".join(
                    f"nothing lies at {', '.join(f'`{part}`' for part in stale if stale[part] == why)}: {why}"
                    for why in dict.fromkeys(stale.values())
                )
                if stale:
                    self.replace_note(note, "changed", shown(reason, most=300))

    def why_empty(self, path: str) -> str:
        """Return why nothing of the image lies at a path; empty if something may."""
        if path.startswith("/usr/local/mpi/"):
            return "the image has its MPI in /opt/mpi"  # NVIDIA's images have it there
        if path.startswith("/root/.local/"):
            return "the image has its environment in /opt/env"
        if re.match(r"/usr/local/(?:cuda|nvidia)(?=[-/\d]|$)", path):
            return "CUDA's libraries come with the wheels"
        if re.match(r"/(?:(?:opt|root|usr/local)/)?\.?(?:mini|ana)?(?:conda|forge|mamba)\d*(?=/|$)", path):
            return "the image has its environment in /opt/env"
        above = (top for top in self.prefixes if path == top or path.startswith(f"{top}/"))
        top = next((top for top in above if top not in ("/", "/usr", "/usr/local")), "")
        return self.prefixes.get(top, "")


def _has_version(recipe: Recipe, constraint: str) -> bool:
    try:
        choice = parse_choice(f"{recipe.name}@{constraint}")
    except ValueError:
        return False
    return isinstance(choice, Choice) and any(choice.admits(version) for version in recipe.versions)
