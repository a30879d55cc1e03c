"""Begin a spec: what there is to choose from, and the text of a first file that is known to be right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.spec.asked import Asked, ChosenRecipe
from envbuild.spec.base import BaseImage
from envbuild.spec.composing import scalar_is_text
from envbuild.spec.model import Choice, parse_choice
from envbuild.spec.recipe import Recipe
from envbuild.spec.select import variant_for
from envbuild.spec.unknown import recipe_not_known
from envbuild.system.files import exists, is_directory, write_new
from envbuild.workflows.inputs import read_asked, read_bases
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.schema import schema_text
from envbuild.workflows.words import typed

NO_MPI = "none"
SPEC_FILE = "spec.yaml"
SCHEMA_FILE = "spec.schema.json"

# What most come for; where they are not there, the first of their kind.
_FIRST = {"framework": "pytorch", "mpi": "mpich"}
_FIRST_VERSION = "1.0"
_COLUMN = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody chose so far; what is None is not decided.

    Attributes
    ----------
    name, version, base, accelerator : str or None
        As in a spec.
    mpi : str or None
        As in a spec, or `NO_MPI`.
    frameworks : tuple of str or None
        As in a spec.
    fabric, python, system : tuple of str
        As in a spec; the last two stand under its `packages`.
    """

    name: str | None = None
    version: str | None = None
    base: str | None = None
    mpi: str | None = None
    frameworks: tuple[str, ...] | None = None
    accelerator: str | None = None
    fabric: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    system: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What a spec can choose from here.

    Attributes
    ----------
    recipes : dict of str to Recipe
        By name; those that nobody mends any more come last.
    bases : tuple of BaseImage
        By name.
    directories : tuple of Path
        Where recipes are looked for first.
    """

    recipes: dict[str, Recipe]
    bases: tuple[BaseImage, ...]
    directories: tuple[Path, ...] = ()

    def of_kind(self, kind: str) -> tuple[Recipe, ...]:
        """Return the recipes of a kind (``mpi``, ``framework``, ``fabric``)."""
        return tuple(recipe for recipe in self.recipes.values() if recipe.kind == kind)

    def first(self, kind: str) -> str | None:
        """Return the recipe of a kind that is taken where nobody chooses one."""
        names = [recipe.name for recipe in self.of_kind(kind)]
        return _FIRST[kind] if _FIRST[kind] in names else next(iter(names), None)

    def check(self, kind: str, choices: Sequence[str]) -> tuple[str, ...]:
        """Return choices as they were given, and refuse those that no recipe of a kind meets.

        Raises
        ------
        RequestError, ManyErrors
            Some are no names, or name nothing that there is.
        """
        known = [recipe.name for recipe in self.of_kind(kind)]
        mistakes: list[EnvbuildError] = []
        for text in choices:
            try:
                choice = _choice(text)
            except RequestError as error:
                mistakes.append(error)
                continue
            if choice.name not in known:
                mistakes.append(recipe_not_known(choice.name, known))
            elif not any(map(choice.admits, self.recipes[choice.name].versions)):
                proven = ", ".join(self.recipes[choice.name].versions)
                problem = f"no proven version of `{choice.name}` meets `{choice.constraint}`"
                mistakes.append(RequestError(problem, hint=f"proven: {proven}"))
        raise_all(mistakes)
        return tuple(choices)

    def completed(self, wanted: Wanted) -> Wanted:
        """Return a choice with what its frameworks require, and the first of what is not decided."""
        frameworks = list(wanted.frameworks if wanted.frameworks is not None else self._first_frameworks())
        mpi = wanted.mpi
        for text in frameworks:
            recipe = self.recipes.get(_choice(text).name)
            for required in recipe.requires if recipe else ():
                kind = self.recipes[required.name].kind if required.name in self.recipes else ""
                if kind == "mpi" and mpi is None:
                    mpi = required.name
                # The list grows under the loop: what is required may require more.
                if kind == "framework" and required.name not in {_choice(one).name for one in frameworks}:
                    frameworks.append(required.name)
        if mpi is None:
            mpi = self.first("mpi") or NO_MPI
        mine = replace(wanted, frameworks=tuple(frameworks), mpi=mpi)
        accelerator = wanted.accelerator or next(iter(self.accelerators(mine)), "cpu")
        parts = [_choice(text).name for text in (*frameworks[:1], *([mpi] if mpi != NO_MPI else []))]
        return replace(
            mine,
            accelerator=accelerator,
            name=wanted.name or "-".join(parts) or "environment",
            version=wanted.version or _FIRST_VERSION,
        )

    def _first_frameworks(self) -> tuple[str, ...]:
        first = self.first("framework")
        return (first,) if first else ()

    def accelerators(self, wanted: Wanted) -> tuple[str, ...]:
        """Return the accelerators that all chosen frameworks have a variant for, ``cpu`` first."""
        chosen = [self.recipes.get(_choice(text).name) for text in wanted.frameworks or ()]
        names = {name.replace("-", "@", 1) for recipe in chosen if recipe for name in recipe.variants}
        offered = sorted(names - {"any"} | {"cpu"}, key=lambda name: (name != "cpu", name))
        return tuple(
            name
            for name in offered
            if all(variant_for(_choice(name), recipe) is not None for recipe in chosen if recipe)
        )

    def fitting_bases(self, wanted: Wanted) -> tuple[BaseImage, ...]:
        """Return the base images on which a choice is right, the one that would be looked for first."""
        fitting = []
        for base in self.bases:
            try:
                self._examined(replace(wanted, base=base.name), Path(SPEC_FILE))
            except EnvbuildError:
                continue
            fitting.append(base)
        try:
            first = self._examined(replace(wanted, base=None), Path(SPEC_FILE)).base.name
        except EnvbuildError:
            first = ""
        return tuple(sorted(fitting, key=lambda base: base.name != first))

    def draft(self, wanted: Wanted, path: Path, *, schema: bool = False) -> str:
        """Return the text of a spec, which was checked as every spec is.

        Parameters
        ----------
        path : Path
            What its file will be called, for the comments.
        schema : bool
            Whether it names a JSON Schema beside it.

        Raises
        ------
        RequestError, ManyErrors
            All that is wrong with the choice.
        """
        whole = self.completed(wanted)
        asked = self._examined(whole, path)
        return _render(replace(whole, base=whole.base or asked.base.name), asked, path, self, schema=schema)

    def _examined(self, wanted: Wanted, path: Path) -> Asked:
        whole = self.completed(wanted)
        text = "\n".join(f"{key}: {value}" for key, value in _keys(whole))
        try:
            return read_asked(path, recipes=self.directories, content=text.encode())
        except EnvbuildError as error:
            # There is no such file whose line could be looked at.
            for single in error.each():
                if single.at is not None and single.at.path == path:
                    single.at = None
            raise


def offers(recipes: Sequence[Path] = ()) -> Offers:
    """Return what there is to choose from; recipes that cannot be read are left out.

    Parameters
    ----------
    recipes : sequence of Path
        Directories to look for recipes in before all others.
    """
    found = sorted(list_recipes(recipes).recipes, key=lambda recipe: (bool(recipe.frozen), recipe.name))
    return Offers(
        recipes={recipe.name: recipe for recipe in found}, bases=read_bases(), directories=tuple(recipes)
    )


def place_of(given: Path) -> Path:
    """Return the file that is meant by a file's or a directory's name.

    Raises
    ------
    RequestError
        There is one already, or it is a file of another kind.
    """
    is_other = given.suffix not in (".yaml", ".yml") and not is_directory(given)
    if is_other and (exists(given) or re.fullmatch(r"\.[A-Za-z]+", given.suffix)):
        hint = f"name a file such as {given.with_suffix('.yaml')}, or a directory"
        raise RequestError(f"`{given}` is no name of a spec", hint=hint)
    is_file = given.suffix in (".yaml", ".yml") and not is_directory(given)
    path = given if is_file else given / SPEC_FILE
    if exists(path):
        raise RequestError(f"`{path}` is there already", hint="nothing is overwritten: name another file")
    return path


def write(path: Path, text: str, *, schema: bool) -> tuple[Path, ...]:
    """Write a spec, and the JSON Schema beside it; return what was written.

    Raises
    ------
    RequestError
        One of them is there already, or cannot be written.
    """
    refuse_in_store(path)
    beside = path.parent / SCHEMA_FILE
    if schema and exists(beside):
        raise RequestError(f"`{beside}` is there already", hint="leave out `--schema`, or move it away")
    write_new(path, text.encode())
    if not schema:
        return (path,)
    write_new(beside, schema_text("spec").encode())
    return (path, beside)


def _choice(text: str) -> Choice:
    try:
        found = parse_choice(text)
    except ValueError as error:
        raise RequestError(str(error), hint="write a name, or `name@version`") from None
    if not isinstance(found, Choice):
        raise AssertionError("a text is parsed to a choice")
    return found


def _keys(wanted: Wanted) -> list[tuple[str, str]]:
    """Return the lines of a spec: key and its value in YAML."""
    lines = [
        ("name", _scalar(wanted.name or "")),
        ("version", json.dumps(wanted.version, ensure_ascii=False)),
    ]
    if wanted.base is not None:
        lines.append(("base", _scalar(wanted.base)))
    if wanted.mpi not in (None, NO_MPI):
        lines.append(("mpi", _scalar(wanted.mpi or "")))
    if wanted.frameworks:
        lines.append(("frameworks", _list(wanted.frameworks)))
    if wanted.fabric:
        lines.append(("fabric", _list(wanted.fabric)))
    lines.append(("accelerator", _scalar(wanted.accelerator or "")))
    packages = {"python": wanted.python, "system": wanted.system}
    named = [f"{key}: {_list(values)}" for key, values in packages.items() if values]
    if named:
        lines.append(("packages", "{" + ", ".join(named) + "}"))
    return lines


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*", text) and scalar_is_text(text)
    # JSON's strings are YAML's.
    return text if plain else json.dumps(text, ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_scalar, values)) + "]"


def _render(wanted: Wanted, asked: Asked, path: Path, offers: Offers, *, schema: bool) -> str:
    remarks = _remarks(wanted, asked, offers)
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}"] if schema else []
    spec, image = typed(path.name), typed(f"{path.stem}.sif")
    lines.append(f"# `envbuild build {spec}` makes {image}, `envbuild test {image}` proves it.")
    lines.append("# `envbuild schema spec` has every key that may stand here.")
    for key, value in _keys(wanted):
        above, behind = remarks.get(key, ((), ""))
        lines += [f"# {remark}" for remark in above]
        line = f"{key}: {value}"
        lines.append(f"{line:<{_COLUMN}} # {behind}" if behind else line)
    lines.append("")
    if not (wanted.python or wanted.system):
        lines += ["# Further packages, from the Python index and from Debian:"]
        lines += ["# packages: {python: [scipy], system: [git]}"]
    lines += ["# Variables of the image:", '# environment: {OMP_NUM_THREADS: "4"}']
    lines += ["# Ranks (count) and seconds of one job of `envbuild test`:"]
    lines += ["# test: {ranks: 2, timeout_s: 300}"]
    return "\n".join(lines) + "\n"


def _remarks(wanted: Wanted, asked: Asked, offers: Offers) -> dict[str, tuple[Sequence[str], str]]:
    """Return what is said of a key: lines above it, and what stands behind its value."""
    others = [name for name in offers.accelerators(wanted) if name != wanted.accelerator]
    return {
        "version": ((), "in quotes: a version is no number"),
        "base": ((), asked.base.summary),
        "mpi": (_of_recipes([asked.mpi] if asked.mpi else []), ""),
        "frameworks": (_of_recipes(asked.frameworks), ""),
        "accelerator": ((), f"or {', '.join(others)}" if others else ""),
    }


def _of_recipes(recipes: Sequence[ChosenRecipe]) -> list[str]:
    said = []
    for chosen in recipes:
        name, versions = chosen.recipe.name, chosen.variant.versions or chosen.recipe.versions
        said.append(f"{name}: {chosen.recipe.summary}")
        said.append(f"    `{name}@{versions[0]}` for a version; proven: {', '.join(versions)}")
    return said
