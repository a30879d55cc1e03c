"""Does what was asked fit together? Every mistake that spec, recipes and base image make between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.spec.asked import Asked, ChosenRecipe
from envbuild.spec.base import BaseImage
from envbuild.spec.bases import (
    Need,
    clashes,
    finished_root_mistakes,
    first_fitting,
    has_python,
    none_fits,
)
from envbuild.spec.building import against_mistakes, source_mistakes
from envbuild.spec.contents import (
    content_mistakes,
    link_mistakes,
    search_path_mistakes,
    shared_name_mistakes,
    variable_mistakes,
)
from envbuild.spec.jobs import job_mistakes
from envbuild.spec.load import Loaded
from envbuild.spec.model import SPEC_KEYS, Choice, EnvSpec
from envbuild.spec.recipe import BaseRequirement, Recipe, Variant
from envbuild.spec.site import Site
from envbuild.spec.unknown import not_known, recipe_not_known, unknown_among_spared
from envbuild.spec.variants import (
    accelerator_mistakes,
    admitted,
    mixed_accelerators,
    narrowed,
    proven,
    proven_hint,
    unknown_accelerator,
    variant_for,
)

Mistakes = Iterator[EnvbuildError]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSource:
    """A recipe as it was found.

    Attributes
    ----------
    directory : str
        Name of its directory; the recipe must have the same.
    files : dict of str to bytes
        Relative path → content of recipe.yaml, ``verify/*.py`` and ``patches/*.patch``.
    """

    directory: str
    loaded: Loaded[Recipe]
    files: dict[str, bytes]

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical JSON of relative path → sha256 of the content."""
        return _digest({path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a spec is checked against.

    Attributes
    ----------
    base : Loaded or None
        The base image that it names, if there is one.
    bases : tuple of Loaded
        Those to choose from, where it names none.
    recipes : dict of str to RecipeSource
        The recipes that it names, as far as they were found.
    known_recipes, known_bases : tuple of str
        The names of all that could be chosen.
    passed_over : tuple of EnvbuildError
        What is wrong with base images that were looked at and that it does not name.
    known_variants : tuple of str
        Those of all recipes, where none that it names can judge the accelerator's release.
    faulty : frozenset of str
        Names of recipes and base images that are there with mistakes, told already.
    required_kinds : dict of str to str
        The kinds of the recipes that those require and it does not name, as far as they were found.
    files : dict of str to bytes
        Source path in the spec → content.
    architecture : str
        In Debian's words.
    """

    spec: Loaded[EnvSpec]
    base: Loaded[BaseImage] | None
    bases: tuple[Loaded[BaseImage], ...]
    passed_over: tuple[EnvbuildError, ...]
    recipes: Mapping[str, RecipeSource]
    known_recipes: tuple[str, ...]
    known_bases: tuple[str, ...]
    known_variants: tuple[str, ...]
    faulty: frozenset[str]
    required_kinds: Mapping[str, str]
    site: Loaded[Site] | None
    files: dict[str, bytes]
    architecture: str


@dataclass(frozen=True, slots=True)
class _Wish:
    """One place of the spec that names a recipe."""

    choice: Choice
    kind: str
    loc: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one recipe of the spec requires of another."""

    by: str
    choice: Choice
    loc: tuple[str | int, ...]


def put_together(parts: Parts, *, told: Sequence[EnvbuildError] = ()) -> Asked:
    """Check a spec against its recipes and base image, and choose versions.

    The version of a recipe is the first of its ``versions`` that the
    constraint admits, and those of all recipes that require it. Variants are
    for one release of the accelerator where all recipes have one. What rests on
    a key that is wrong already is not judged.

    Parameters
    ----------
    told : sequence of EnvbuildError
        Mistakes found before; they are raised together with those found here.

    Raises
    ------
    RequestError, ManyErrors
        All mistakes at once, in the order of their places.
    """
    mistakes = [*told, *_base_mistakes(parts), *unknown_among_spared(parts.spec, parts.known_recipes)]
    chosen: list[tuple[_Wish, ChosenRecipe]] = []
    demands = tuple(_demands(parts))
    accelerator = narrowed(parts.spec.value.accelerator, list(_wanted(parts, demands)))
    for wish in _wishes(parts.spec.value):
        source = parts.recipes.get(wish.choice.name)
        if source is None:
            mistakes += _unknown_recipe(parts, wish)
            continue
        asked_of = _asked_of(wish, demands)
        found = [*recipe_mistakes(source), *_choice_mistakes(parts, wish, source, demands)]
        mistakes += found
        variant = variant_for(accelerator, source.loaded.value, asked_of)
        if not found and variant is not None:
            chosen.append((wish, _choose(source, asked_of, *variant)))
    located = [(choice, wish.loc) for wish, choice in chosen]
    base, found = _settle_base(parts, located)
    mistakes += found
    # One of them may be what was looked for.
    mistakes += parts.passed_over if base is None else ()
    mistakes += _missing_recipes(parts, demands)
    mistakes += _repeated(parts.spec, "frameworks", "framework")
    mistakes += _repeated(parts.spec, "fabric", "fabric's library")
    mistakes += shared_name_mistakes(parts.spec, located)
    if base is not None:
        mistakes += finished_root_mistakes(parts.spec, located, base.value)
    mistakes += content_mistakes(parts.spec, [choice for choice, _ in located])
    mistakes += variable_mistakes(parts.spec, located)
    mistakes += against_mistakes(parts.spec, located)
    mistakes += mixed_accelerators(parts.spec, located)
    mistakes += unknown_accelerator(parts.spec, parts.known_variants, mistakes)
    raise_all(mistakes)
    if base is None:
        raise AssertionError("a base image that is not there is a mistake")
    return Asked(
        spec=parts.spec.value,
        path=parts.spec.path,
        base=base.value,
        base_path=base.path,
        passed_over=parts.passed_over,
        base_digest=_digest(base.value.model_dump(mode="json", by_alias=True)),
        recipes=tuple(choice for _, choice in chosen),
        site=parts.site.value if parts.site is not None else None,
        spec_places=parts.spec.places,
        site_places=parts.site.places if parts.site is not None else {},
        files=parts.files,
        architecture=parts.architecture,
        system_places={
            name: parts.spec.at("packages", "system", number)
            for number, name in enumerate(parts.spec.value.packages.system)
        },
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _wishes(spec: EnvSpec) -> Iterator[_Wish]:
    if spec.mpi is not None:
        yield _Wish(spec.mpi, "mpi", ("mpi",))
    for index, choice in enumerate(spec.frameworks):
        yield _Wish(choice, "framework", ("frameworks", index))
    for index, choice in enumerate(spec.fabric):
        yield _Wish(choice, "fabric", ("fabric", index))


def _demands(parts: Parts) -> Iterator[_Demand]:
    for wish in _wishes(parts.spec.value):
        source = parts.recipes.get(wish.choice.name)
        for choice in source.loaded.value.requires if source else ():
            yield _Demand(wish.choice.name, choice, wish.loc)


def _asked_of(wish: _Wish, demands: Sequence[_Demand]) -> tuple[Choice, ...]:
    """Return what the spec and other recipes ask of the version of a recipe."""
    others = (demand.choice for demand in demands if demand.choice.name == wish.choice.name)
    return (wish.choice, *others)


def _wanted(
    parts: Parts, demands: Sequence[_Demand], but: _Wish | None = None
) -> Iterator[tuple[Recipe, tuple[Choice, ...]]]:
    """Yield the recipes of the spec that can be, without one, and what is asked of the version of each."""
    for wish in _wishes(parts.spec.value):
        source, asked_of = parts.recipes.get(wish.choice.name), _asked_of(wish, demands)
        recipe = source.loaded.value if source and wish != but else None
        if recipe is not None and recipe.variants and admitted(recipe.versions, *asked_of):
            yield recipe, asked_of


def _choose(
    source: RecipeSource, asked_of: Sequence[Choice], variant_name: str, variant: Variant
) -> ChosenRecipe:
    recipe = source.loaded.value
    return ChosenRecipe(
        recipe=recipe,
        version=admitted(proven(recipe, variant), *asked_of)[0],
        variant_name=variant_name,
        variant=variant,
        files=source.files,
        digest=source.digest,
    )


def _base_mistakes(parts: Parts) -> Mistakes:
    spec = parts.spec
    if "base" in spec.left_out:
        return
    choice, at = spec.value.base, spec.at("base")
    if choice is None:
        return
    if parts.base is None:
        if choice.name not in parts.faulty:
            yield not_known("base image", choice.name, parts.known_bases, at)
        return
    base = parts.base.value
    if not choice.admits(base.version):
        problem = f"the base image `{base.name}` does not meet `{choice.constraint}`"
        yield RequestError(problem, at=at, hint=f"it is {base.distribution} {base.version}")
    if parts.architecture not in base.architectures:
        problem = f"the base image `{base.name}` is not made for {parts.architecture}"
        yield RequestError(problem, at=at, hint=f"it is made for {', '.join(base.architectures)}")
    wanted = spec.value.python
    if wanted and not has_python(base, wanted):
        problem = f"the Python of the base image `{base.name}` does not meet `{wanted}`"
        yield RequestError(problem, at=spec.at("python"), hint=f"it is Python {base.python.version}")


def _settle_base(
    parts: Parts, located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]]
) -> tuple[Loaded[BaseImage] | None, list[EnvbuildError]]:
    """Return the base image, named or looked for; and what clashes with it, or keeps all from being right."""
    spec = parts.spec
    needs = [
        Need(by=f"`{one.recipe.name}` {one.version}", at=spec.at(*loc), requirement=one.recipe.base)
        for one, loc in located
    ]
    if "base" in spec.left_out:
        return None, []
    if spec.value.base is not None:
        return parts.base, list(clashes(spec, needs, parts.base.value)) if parts.base else []
    if spec.value.python:
        requirement = BaseRequirement(python=spec.value.python)
        needs.append(Need(by="the spec", at=spec.at("python"), requirement=requirement))
    base = first_fitting(needs, parts.bases, parts.architecture)
    return base, [] if base else list(none_fits(needs, parts.bases, parts.architecture))


def _unknown_recipe(parts: Parts, wish: _Wish) -> Mistakes:
    if wish.kind == "mpi" and wish.choice.name == "none":
        hint = "leave the line out for an image without an MPI"
        yield RequestError("`none` is no MPI", at=parts.spec.at("mpi"), hint=hint)
    elif wish.choice.name not in parts.faulty:
        yield recipe_not_known(wish.choice.name, parts.known_recipes, parts.spec.at(*wish.loc))


def recipe_mistakes(source: RecipeSource) -> Mistakes:
    """Tell mistakes that a recipe makes with itself."""
    recipe, loaded = source.loaded.value, source.loaded
    if recipe.name != source.directory:
        problem = f"the recipe's name is `{recipe.name}`, but its directory is `{source.directory}`"
        yield RequestError(problem, at=loaded.at("name"), hint="they must be the same")
    if not recipe.variants:
        problem = "`variants`: needs at least one entry"
        yield RequestError(problem, at=loaded.at("variants"), hint="such as `cpu`")
    elif recipe.kind == "mpi" and "cpu" not in recipe.variants:
        problem = "an MPI recipe needs the variant `cpu`, which serves every accelerator"
        yield RequestError(problem, at=loaded.at("variants"), hint="add `cpu`")
    if recipe.kind == "fabric" and recipe.owns:
        problem = "a fabric's recipe consists of Debian packages, and owns no distribution"
        yield RequestError(problem, at=loaded.at("owns"), hint="name Debian packages under `system`")
    for name, variant in recipe.variants.items():
        for place, version in enumerate(variant.versions):
            if version not in recipe.versions:
                at = loaded.at("variants", name, "versions", place)
                problem = f"`{version}` is not among the recipe's `versions`"
                yield RequestError(problem, at=at, hint="add it to `versions`, or take it out here")
    yield from search_path_mistakes(loaded, recipe.environment)
    yield from link_mistakes(loaded)
    yield from source_mistakes(source.loaded, source.files)
    yield from job_mistakes(loaded, source.files)


def _choice_mistakes(parts: Parts, wish: _Wish, source: RecipeSource, demands: Sequence[_Demand]) -> Mistakes:
    spec, recipe, at = parts.spec, source.loaded.value, parts.spec.at(*wish.loc)
    if recipe.kind != wish.kind:
        article = {"mpi": "an MPI", "framework": "a framework", "fabric": "a fabric's library"}
        problem = f"the recipe `{recipe.name}` is {article[recipe.kind]}, not {article[wish.kind]}"
        yield RequestError(problem, at=at, hint=f"name it under `{SPEC_KEYS[recipe.kind]}`")
        return
    asked_of = _asked_of(wish, demands)
    found = variant_for(spec.value.accelerator, recipe, asked_of)
    versions = proven(recipe, found[1]) if found else recipe.versions
    wanted = [(recipe, asked_of), *_wanted(parts, demands, but=wish)]
    if not admitted(versions, wish.choice):
        problem = f"no proven version of `{recipe.name}` meets `{wish.choice.constraint}`"
        yield RequestError(problem, at=at, hint=proven_hint(recipe, found, wanted))
    elif not admitted(versions, *asked_of):
        others = [demand for demand in demands if demand.choice.name == wish.choice.name]
        told = [f"`{demand.by}` requires `{demand.choice}`" for demand in others if demand.choice.constraint]
        spec_too = [f"the spec asks for `{wish.choice}`"] if wish.choice.constraint else []
        problem = f"no proven version of `{recipe.name}` is right for all: {', '.join([*spec_too, *told])}"
        yield RequestError(problem, at=at, hint=proven_hint(recipe, found, wanted))
    if "accelerator" not in spec.left_out:
        yield from accelerator_mistakes(parts.spec, at, recipe, wanted)
    if recipe.needs_mpi and spec.value.mpi is None and "mpi" not in spec.left_out:
        problem = f"the recipe `{recipe.name}` needs an MPI, and the spec has none"
        yield RequestError(problem, at=at, hint="add a line such as `mpi: mpich`")


def _missing_recipes(parts: Parts, demands: Sequence[_Demand]) -> Mistakes:
    """Tell which recipes others require, and the spec does not name."""
    if {*SPEC_KEYS.values()} & parts.spec.left_out:
        return
    named = {wish.choice.name for wish in _wishes(parts.spec.value)}
    for demand in demands:
        if demand.choice.name not in named:
            problem = f"the recipe `{demand.by}` requires `{demand.choice}`, and the spec has none"
            yield RequestError(problem, at=parts.spec.at(*demand.loc), hint=_missing_hint(parts, demand))
    for wish in _wishes(parts.spec.value):
        source = parts.recipes.get(wish.choice.name)
        wanted = source.loaded.value.requires_one_of if source else ()
        if wanted and not named & set(wanted):
            told = ", ".join(f"`{name}`" for name in wanted)
            problem = f"the recipe `{wish.choice.name}` requires one of {told}, and the spec has none"
            yield RequestError(problem, at=parts.spec.at(*wish.loc), hint="name one beside it")


def _missing_hint(parts: Parts, demand: _Demand) -> str:
    name, has = demand.choice.name, parts.spec.value.mpi
    kind = parts.required_kinds.get(name)
    if kind == "mpi":
        return f"write `mpi: {name}`" + (f" in the place of `mpi: {has.name}`" if has is not None else "")
    if kind is not None:
        return f"name `{name}` under `{SPEC_KEYS[kind]}`"
    if name in parts.known_recipes:
        return f"the recipe `{name}` cannot be read: `envbuild recipes check {name}` says why"
    return f"no recipe is called so; `envbuild recipes check {demand.by}` holds that recipe to the rules"


def _repeated(spec: Loaded[EnvSpec], key: str, what: str) -> Mistakes:
    first: dict[str, int] = {}
    for index, choice in enumerate(getattr(spec.value, key)):
        if choice.name in first:
            hint = f"it was first named at {spec.at(key, first[choice.name])}"
            problem = f"the {what} `{choice.name}` is named twice"
            yield RequestError(problem, at=spec.at(key, index), hint=hint)
        first.setdefault(choice.name, index)
