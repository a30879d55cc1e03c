"""The choices for a first spec, and its text with comments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.edit import scalar
from envbuild.spec.model import Choice, parse_choice
from envbuild.spec.recipe import Recipe
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import variant_for

NONE = "none"


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
    proven: bool | None = None
    """Whether recipes take only versions with a test result; None as for True."""
    fabric: tuple[str, ...] = ()
    from_site: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    requirements: str = ""
    """A file with requirements, relative to the spec's directory."""
    requested_at: Mapping[str, Location] = field(default_factory=dict)
    """Framework → the line of that file which requests it."""
    system: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The recipes that a spec can name here."""

    recipes: dict[str, Recipe]
    """By name; frozen ones come last."""
    directories: tuple[Path, ...] = ()
    """Directories that are searched first."""

    @staticmethod
    def of(recipes: Iterable[Recipe], directories: Sequence[Path] = ()) -> Choices:
        """Return the choices among recipes, which were searched in `directories` first."""
        ordered = sorted(recipes, key=lambda recipe: (bool(recipe.frozen), recipe.name))
        return Choices(recipes={recipe.name: recipe for recipe in ordered}, directories=tuple(directories))

    def of_kind(self, kind: str) -> tuple[Recipe, ...]:
        """Return the recipes of a kind: ``mpi``, ``framework``, ``fabric``, ``site``."""
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


def bare_text(draft: SpecDraft) -> str:
    """Return the text of a spec without comments."""
    return "\n".join(f"{key}: {value}" for key, value in _values(draft).items())


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
    entries = ", ".join(f"{key}: {value}" for key, value in packages.items() if value)
    values = {
        "name": scalar(draft.name or ""),
        "version": json.dumps(draft.version, ensure_ascii=False),
        "base": scalar(draft.base) if draft.base is not None else "",
        "mpi": scalar(draft.mpi) if draft.mpi not in (None, NONE) else "",
        "frameworks": _list(draft.frameworks or ()),
        "fabric": _list(draft.fabric),
        "from_site": _list(draft.from_site),
        "proven": "false" if draft.proven is False else "",
        "accelerator": scalar(draft.accelerator or ""),
        "packages": f"{{{entries}}}" if entries else "",
    }
    return {key: value for key, value in values.items() if value}


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(scalar, values))}]" if values else ""


def render_spec(
    draft: SpecDraft,
    resolved: ResolvedSpec,
    *,
    spec: str,
    image: str,
    accelerators: Sequence[str],
    schema: bool,
) -> str:
    """Return the text of a spec with comments.

    `spec` and `image` are the words of command lines for its file and its image, `accelerators` the others
    that it could name; with `schema` it refers to the JSON Schema beside it.
    """
    above = {
        "mpi": _recipe_lines([resolved.mpi] if resolved.mpi else []),
        "frameworks": _recipe_lines(resolved.frameworks),
    }
    behind = {
        "version": "in quotes: a version is not a number",
        "base": resolved.base.summary,
        "accelerator": f"or {', '.join(accelerators)}" if accelerators else "",
    }
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
