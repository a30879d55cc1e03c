"""Init: the choices for a first spec, and its text, which is checked like every spec."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.edit import scalar
from envbuild.spec.model import Choice, parse_choice
from envbuild.spec.recipe import Recipe
from envbuild.spec.requirements import RequirementFiles
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import variant_for
from envbuild.system.files import exists, is_below, is_directory, read_input, write_new
from envbuild.workflows.arguments import check_outside_store, shell_path
from envbuild.workflows.inputs import MAX_REQUIREMENTS_BYTES, read_spec
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.schema import schema_text

NONE = "none"
SPEC_FILE = "spec.yaml"
SCHEMA_FILE = "spec.schema.json"

# Default recipes; if one does not exist, the first of its kind.
_DEFAULTS = {"framework": "pytorch", "mpi": "mpich"}
_COLUMN = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDraft:
    """Keys of a spec, as text; None is undecided."""

    name: str | None = None
    version: str | None = None
    base: str | None = None
    mpi: str | None = None
    """`NONE` for an image without an MPI."""
    frameworks: tuple[str, ...] | None = None
    accelerator: str | None = None
    fabric: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    requirements: str = ""
    """A file with requirements, relative to the spec's directory."""
    asked_at: Mapping[str, Location] = field(default_factory=dict)
    """Framework → the line of that file which asks for it."""
    system: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The recipes that a spec can name here."""

    recipes: dict[str, Recipe]
    """By name; frozen ones come last."""
    directories: tuple[Path, ...] = ()
    """Directories that are searched first."""

    @staticmethod
    def read(directories: Sequence[Path] = ()) -> Choices:
        """Read all recipes; unreadable ones are left out."""
        recipes = list_recipes(directories).recipes
        ordered = sorted(recipes, key=lambda recipe: (bool(recipe.frozen), recipe.name))
        return Choices(recipes={recipe.name: recipe for recipe in ordered}, directories=tuple(directories))

    def of_kind(self, kind: str) -> tuple[Recipe, ...]:
        """Return the recipes of a kind: ``mpi``, ``framework``, ``fabric``."""
        return tuple(recipe for recipe in self.recipes.values() if recipe.kind == kind)

    def default(self, kind: str) -> str:
        """Return the default recipe of a kind; `NONE` if there is none."""
        names = [recipe.name for recipe in self.of_kind(kind)]
        return _DEFAULTS[kind] if _DEFAULTS[kind] in names else next(iter(names), NONE)

    def completed(self, draft: SpecDraft) -> SpecDraft:
        """Return a draft with the recipes that its frameworks require, and defaults for undecided keys."""
        default = self.default("framework")
        frameworks = list(draft.frameworks if draft.frameworks is not None else [default] * (default != NONE))
        mpi = draft.mpi
        for text in frameworks:
            recipe = self.recipes.get(_choice(text).name)
            for required in recipe.requires if recipe else ():
                kind = self.recipes[required.name].kind if required.name in self.recipes else ""
                if kind == "mpi" and mpi is None:
                    mpi = required.name
                # The list grows during the loop: a required framework may require others.
                if kind == "framework" and required.name not in {_choice(text).name for text in frameworks}:
                    frameworks.append(required.name)
        mpi = mpi or self.default("mpi")
        parts = [*frameworks[:1], *([mpi] if mpi != NONE else [])]
        draft = replace(
            draft,
            frameworks=tuple(frameworks),
            mpi=mpi,
            name=draft.name or "-".join(_choice(text).name for text in parts) or "environment",
            version=draft.version or "1.0",
        )
        return replace(draft, accelerator=draft.accelerator or next(iter(self.accelerators(draft)), "cpu"))

    def with_requirements(self, draft: SpecDraft, file: Path, path: Path) -> SpecDraft:
        """Return a draft that names a file with requirements, and the frameworks that the file asks for.

        RequestError: the file does not lie beside the spec at `path`, or below.
        """
        if not is_below(file, path.parent):
            hint = f"a spec names files beside it: copy the file to `{path.parent.absolute()}`"
            raise RequestError(f"`{file}` does not lie below the directory of `{path}`", hint=hint)
        files = RequirementFiles(lambda path, at: read_input(path, limit_bytes=MAX_REQUIREMENTS_BYTES, at=at))
        files.add(file, Location(path=path))  # reading the spec reports the errors of the file
        owners = {name: recipe for recipe in self.of_kind("framework") for name in recipe.main_distributions}
        asked: dict[str, str] = {}
        asked_at: dict[str, Location] = {}
        for text, at in files.asked():
            requirement = Requirement(text)
            recipe = owners.get(canonicalize_name(requirement.name))
            bounds = str(requirement.specifier)
            if recipe is not None and (bounds or recipe.name not in asked):
                exact = re.fullmatch(r"===?([0-9.]+)", bounds)
                version = exact[1] if exact else bounds
                asked[recipe.name] = f"{recipe.name}@{version}" if version else recipe.name
                asked_at[recipe.name] = at
        frameworks = tuple(asked.values()) if draft.frameworks is None else draft.frameworks
        name = os.path.relpath(file.absolute(), path.parent.absolute())
        return replace(draft, requirements=name, frameworks=frameworks, asked_at=asked_at)

    def accelerators(self, draft: SpecDraft) -> tuple[str, ...]:
        """Return the accelerators that all frameworks of a draft have a variant for, ``cpu`` first."""
        recipes = [
            recipe for text in draft.frameworks or () if (recipe := self.recipes.get(_choice(text).name))
        ]
        names = {name.replace("-", "@", 1) for recipe in recipes for name in recipe.variants} - {"any"}
        return tuple(
            name
            for name in sorted(names | {"cpu"}, key=lambda name: (name != "cpu", name))
            if all(variant_for(_choice(name), recipe) is not None for recipe in recipes)
        )

    def spec_text(self, draft: SpecDraft, path: Path, *, schema: bool = False) -> str:
        """Return the text of a spec with comments; raise all errors of the draft.

        `path` is its file, for the comments; with `schema` it refers to the JSON Schema beside it.
        """
        draft = self.completed(draft)
        text = "\n".join(f"{key}: {value}" for key, value in _values(draft).items())
        try:
            resolved = read_spec(path, recipes=self.directories, content=text.encode())
        except EnvbuildError as error:
            # The file does not exist yet, so no line of it can be shown.
            for single in error.each():
                if single.at is not None and single.at.path == path:
                    places = (at for name, at in draft.asked_at.items() if f"`{name}`" in single.problem)
                    single.at = next(places, None)
            raise
        others = [name for name in self.accelerators(draft) if name != draft.accelerator]
        return _render(draft, resolved, path, schema=schema, accelerators=others)


def spec_path(given: Path) -> Path:
    """Return the spec's path for a file's or directory's name; RequestError if it exists or is invalid."""
    is_yaml = given.suffix in (".yaml", ".yml") and not is_directory(given)
    is_other = not is_yaml and not is_directory(given)
    if is_other and (exists(given) or re.fullmatch(r"\.[A-Za-z]+", given.suffix)):
        hint = f"name a file such as {given.with_suffix('.yaml')}, or a directory"
        raise RequestError(f"`{given}` cannot be the name of a spec", hint=hint)
    path = given if is_yaml else given / SPEC_FILE
    if exists(path):
        raise RequestError(f"`{path}` exists already", hint="name another file; nothing is overwritten")
    return path


def write_spec(path: Path, text: str, *, schema: bool) -> tuple[Path, ...]:
    """Write a spec, and the JSON Schema beside it if requested; return the files."""
    check_outside_store(path)
    beside = path.parent / SCHEMA_FILE
    if schema and exists(beside):
        raise RequestError(f"`{beside}` exists already", hint="leave out `--schema`, or move it away")
    write_new(path, text.encode(), parents=True)
    if not schema:
        return (path,)
    write_new(beside, schema_text("spec").encode())
    return (path, beside)


def _choice(text: str) -> Choice:
    try:
        choice = parse_choice(text)
    except ValueError as error:
        raise RequestError(str(error), hint="write a name, or `name@version`") from None
    if not isinstance(choice, Choice):
        raise AssertionError("a text is parsed to a choice")
    return choice


def _values(draft: SpecDraft) -> dict[str, str]:
    """Return the keys of a spec with their values in YAML."""
    named_file = [f"{{file: {scalar(draft.requirements)}}}"] if draft.requirements else []
    python = [*named_file, *map(scalar, draft.python)]
    packages = {"python": f"[{', '.join(python)}]" if python else "", "system": _list(draft.system)}
    named = ", ".join(f"{key}: {value}" for key, value in packages.items() if value)
    values = {
        "name": scalar(draft.name or ""),
        "version": json.dumps(draft.version, ensure_ascii=False),
        "base": scalar(draft.base) if draft.base is not None else "",
        "mpi": scalar(draft.mpi) if draft.mpi not in (None, NONE) else "",
        "frameworks": _list(draft.frameworks or ()),
        "fabric": _list(draft.fabric),
        "accelerator": scalar(draft.accelerator or ""),
        "packages": f"{{{named}}}" if named else "",
    }
    return {key: value for key, value in values.items() if value}


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(scalar, values))}]" if values else ""


def _render(
    draft: SpecDraft, resolved: ResolvedSpec, path: Path, *, schema: bool, accelerators: Sequence[str]
) -> str:
    above = {
        "mpi": _recipe_lines([resolved.mpi] if resolved.mpi else []),
        "frameworks": _recipe_lines(resolved.frameworks),
    }
    behind = {
        "version": "in quotes: a version is no number",
        "base": resolved.base.summary,
        "accelerator": f"or {', '.join(accelerators)}" if accelerators else "",
    }
    spec, image = shell_path(path.name), shell_path(f"{path.stem}.sif")
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}"] if schema else []
    lines.append(f"# `envbuild build {spec}` makes {image}, `envbuild test {image}` proves it.")
    lines.append("# `envbuild schema spec` has every key that may stand here.")
    for key, value in _values(replace(draft, base=draft.base or resolved.base.name)).items():
        lines += [f"# {line}" for line in above.get(key, ())]
        remark = behind.get(key)
        lines.append(f"{f'{key}: {value}':<{_COLUMN}} # {remark}" if remark else f"{key}: {value}")
    lines.append("")
    if not (draft.python or draft.requirements or draft.system):
        lines += ["# Further packages, from the Python index and from Debian:"]
        lines += ["# packages: {python: [scipy], system: [git]}"]
    lines += ["# Variables of the image:", '# environment: {OMP_NUM_THREADS: "4"}']
    lines += ["# Ranks (count) and seconds of one job of `envbuild test`:"]
    lines += ["# test: {ranks: 2, timeout_s: 300}"]
    return "\n".join(lines) + "\n"


def _recipe_lines(recipes: Sequence[ChosenRecipe]) -> list[str]:
    lines = []
    for chosen in recipes:
        name, versions = chosen.recipe.name, chosen.variant.versions or chosen.recipe.versions
        lines.append(f"{name}: {chosen.recipe.summary}")
        lines.append(f"    `{name}@{versions[0]}` for a version; proven: {', '.join(versions)}")
    return lines
