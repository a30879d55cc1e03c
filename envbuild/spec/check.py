"""Puts a spec together with its recipes and base image, and reports every error between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import (
    MAX_ERRORS,
    EnvbuildError,
    Hint,
    Location,
    RequestError,
    SpecKey,
    did_you_mean,
    raise_all,
)
from envbuild.spec.accelerators import accelerator_of
from envbuild.spec.base import BaseImage
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.corrections import corrected_requirement, spec_line
from envbuild.spec.foreign_wheels import foreign_wheel
from envbuild.spec.load import Loaded
from envbuild.spec.model import NAME, SPEC_KEYS, Choice, EnvSpec
from envbuild.spec.partitions import common_site, each_partition
from envbuild.spec.python_platform import target_of
from envbuild.spec.recipe import BaseRequirement, Recipe, Variant
from envbuild.spec.recipe_rules import RecipeSource, recipe_errors
from envbuild.spec.requirements import RequirementEntry, RequirementFiles
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import (
    BaseConstraint,
    DriverConflict,
    RecipeConstraint,
    accelerator_errors,
    base_conflicts,
    first_fitting_base,
    has_python,
    matching_versions,
    no_fitting_base,
    pick_accelerator_release,
    proven,
    proven_hint,
    unknown_accelerator_errors,
    variant_for,
)
from envbuild.spec.site import Site
from envbuild.spec.spec_rules import spec_errors

Errors = Iterator[EnvbuildError]


class Catalog(Protocol):
    """The recipes and base images that a spec can name."""

    def recipe_names(self) -> tuple[str, ...]:
        """Return the names of all recipes, sorted."""

    def base_names(self) -> tuple[str, ...]:
        """Return the names of all base images, sorted."""

    def readable_recipes(self, names: Iterable[str]) -> list[Recipe]:
        """Read recipes; those with errors, and those that do not exist, are omitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInputs:
    """A spec, and everything that it is checked against."""

    spec: Loaded[EnvSpec]
    base: Loaded[BaseImage] | None
    """The base image that it names, if that exists."""
    bases: tuple[Loaded[BaseImage], ...]
    """Base images to choose from if it names none."""
    base_errors: tuple[EnvbuildError, ...]
    """Errors of base images that were read in the search for one."""
    recipes: Mapping[str, RecipeSource]
    """The recipes that it names, as far as they can be read."""
    catalog: Catalog
    """For errors: what there is besides."""
    faulty: frozenset[str]
    """Names of recipes and base images with errors, which are reported already."""
    site: Loaded[Site] | None
    driver_conflict: DriverConflict
    """Releases of an accelerator that the site does not run."""
    files: dict[str, bytes]
    """Source path in the spec → content."""
    requirements: RequirementFiles
    """Python requirements of the spec and of the files that it names."""
    architecture: str


@dataclass(frozen=True, slots=True)
class _Reference:
    choice: Choice
    kind: str
    at: Location


@dataclass(frozen=True, slots=True)
class _Dependency:
    """A recipe that a recipe of the spec requires."""

    by: str
    choice: Choice
    at: Location


def select_and_check(inputs: CheckInputs, *, errors: Sequence[EnvbuildError] = ()) -> ResolvedSpec:
    """Check a spec against its recipes and base image, and choose versions; raise all errors at once.

    The version of a recipe is the first of its ``versions`` that the spec and all recipes that require it
    allow. Variants are for one release of the accelerator if every recipe has one. Checks that depend on an
    invalid key are skipped. `errors` are those of the files themselves; they are raised with the others.
    """
    check = _Check(inputs)
    all_errors = [*errors, *check.named_base()]
    all_errors += _unknown_recipes(inputs.spec, inputs.catalog)
    recipes, recipe_problems = check.recipes()
    base, base_problems = check.base(recipes)
    all_errors += [*recipe_problems, *base_problems]
    # A base image with errors may be the one that was searched for.
    all_errors += inputs.base_errors if base is None else ()
    all_errors += check.missing_recipes()
    requested, request_problems = _requested(inputs, base.value if base else None)
    requested, left_out = _left_to_recipes(requested, recipes, inputs.spec.path)
    all_errors += request_problems
    all_errors += spec_errors(inputs.spec, recipes, requested, base.value if base else None)
    all_errors += unknown_accelerator_errors(inputs.spec, lambda: _known_variants(inputs), all_errors)
    raise_all(all_errors)
    if base is None:
        raise AssertionError("a base image that does not exist is an error")
    remarks = (*inputs.requirements.remarks, *left_out)
    return _resolved(inputs, base, recipes, requested, remarks, check.why_release)


def _requested(
    inputs: CheckInputs, base: BaseImage | None
) -> tuple[list[RequirementEntry], Sequence[EnvbuildError]]:
    """Return the Python requirements for a base, and errors of those that it cannot use."""
    requested: list[RequirementEntry] = []
    errors: list[EnvbuildError] = []
    target = target_of(base, inputs.architecture) if base is not None else None
    for entry in inputs.requirements.entries:
        if isinstance(entry, RequirementEntry):
            # The lock keeps what the spec itself says, with its marker.
            in_spec = entry.at.path == inputs.spec.path
            if target is None or in_spec or entry.applies(target.environment):
                requested.append(entry)
            if target is not None and entry.wheel is not None and entry.applies(target.environment):
                problem, hint = foreign_wheel(entry.wheel.file, target)
                errors += [RequestError(problem, at=entry.at, hint=hint)] if problem else []
        elif base is not None and target is not None:
            selected, problems = entry.select(target, base.name)
            requested += selected
            errors += problems
    return requested, errors


def _left_to_recipes(
    requested: Sequence[RequirementEntry], recipes: Sequence[ChosenRecipe], spec: Path
) -> tuple[list[RequirementEntry], list[str]]:
    """Return the requests without lines of files that a recipe decides on, and a remark on each of these.

    A recipe decides on what it owns beside its main distribution, such as `triton` beside `torch`.
    """
    owners = {
        name: chosen.recipe.name
        for chosen in recipes
        for name in {*chosen.recipe.owns} - chosen.recipe.main_distributions
    }
    kept: list[RequirementEntry] = []
    remarks: list[str] = []
    for request in requested:
        is_named = request.wheel is not None or request.repository is not None
        if request.name not in owners or request.at.path == spec or is_named:
            kept.append(request)
        else:
            remarks.append(
                f"{request.at}: `{request.text}` is not used:"
                f" the recipe `{owners[request.name]}` decides on it"
            )
    return kept, remarks


def _resolved(
    inputs: CheckInputs,
    base: Loaded[BaseImage],
    recipes: Sequence[ChosenRecipe],
    requested: Sequence[RequirementEntry],
    remarks: tuple[str, ...],
    why_release: str,
) -> ResolvedSpec:
    site = inputs.site
    return ResolvedSpec(
        spec_file=inputs.spec,
        base_file=base,
        base_digest=sha256_of(canonical_json(base.value.model_dump(mode="json", by_alias=True))),
        recipes=tuple(recipes),
        requested=tuple(requested),
        wheel_directories=tuple(path.absolute() for path, _ in inputs.requirements.directories),
        sites=each_partition(site) if site is not None else (),
        files=inputs.files,
        site_file=common_site(site) if site is not None else None,
        architecture=inputs.architecture,
        why_release=why_release,
        remarks=(*_remarks(inputs.base_errors, base.value, recipes), *remarks),
    )


def _remarks(
    base_errors: Sequence[EnvbuildError], base: BaseImage, recipes: Sequence[ChosenRecipe]
) -> Iterator[str]:
    """Yield sentences on base images that cannot be read, and on what is frozen or untested."""
    unread = {error.at.path: error for error in reversed(base_errors) if error.at}
    for path, error in sorted(unread.items()):
        yield f"`{path}` is not a valid base image: {error.problem}"
    frozen, untried = {base.name: base.frozen}, {base.name: base.untried}
    for chosen in recipes:
        frozen[chosen.recipe.name] = chosen.recipe.frozen
        untried[f"{chosen.recipe.name} for {chosen.variant_name}"] = chosen.variant.untried
    yield from (f"{name} is frozen: {why}" for name, why in frozen.items() if why)
    yield from (f"{name} is untried: {why}" for name, why in untried.items() if why)
    for chosen in recipes:
        row = accelerator_of(chosen.variant_name)
        if row is not None and row.all_devices_extra in chosen.device_extras:
            yield (
                f"{chosen.recipe.name} brings the code for every GPU of {row.name}: no site with"
                " `gpus.architectures` is named"
            )
        if not chosen.is_proven:
            yield f"{chosen.recipe.name} {chosen.version} has no test result yet"


class _Check:
    """The checks of one spec that choose its recipes and its base image."""

    def __init__(self, inputs: CheckInputs) -> None:
        self._inputs = inputs
        self._spec = inputs.spec
        self._references = tuple(_references(inputs.spec))
        self.why_release = ""
        self._dependencies = tuple(
            _Dependency(reference.choice.name, choice, reference.at)
            for reference in self._references
            if (source := inputs.recipes.get(reference.choice.name)) is not None
            for choice in source.loaded.value.requires
        )

    def named_base(self) -> Errors:
        """Yield the errors of the base image that the spec names."""
        spec, inputs = self._spec, self._inputs
        choice, at = spec.value.base, spec.at("base")
        if choice is None or "base" in spec.invalid_keys:
            return
        if inputs.base is None:
            if isinstance(choice, Choice) and choice.name not in inputs.faulty:
                yield not_known("base image", choice.name, inputs.catalog.base_names(), at)
            return
        base = inputs.base.value
        if isinstance(choice, Choice) and not choice.admits(base.version):
            problem = f"the base image `{base.name}` does not meet `{choice.constraint}`"
            yield RequestError(problem, at=at, hint=f"it is {base.distribution} {base.version}")
        if inputs.architecture not in base.architectures:
            problem = f"the base image `{base.name}` is not made for {inputs.architecture}"
            yield RequestError(problem, at=at, hint=f"it is made for {', '.join(base.architectures)}")
        python = spec.value.python
        if python and not has_python(base, python):
            problem = f"the Python of the base image `{base.name}` does not meet `{python}`"
            yield RequestError(problem, at=spec.at("python"), hint=f"it is Python {base.python.version}")

    def recipes(self) -> tuple[list[ChosenRecipe], list[EnvbuildError]]:
        """Return the recipes with versions and variants that suit all, and the errors of the others."""
        errors: list[EnvbuildError] = []
        chosen: list[ChosenRecipe] = []
        accelerator, self.why_release = pick_accelerator_release(
            self._spec.value.accelerator, self._candidates(), self._inputs.driver_conflict
        )
        for reference in self._references:
            source = self._inputs.recipes.get(reference.choice.name)
            if source is None:  # unknown, or with errors, which are reported already
                continue
            problems = [*recipe_errors(source), *self._choice_errors(reference, source)]
            errors += problems
            choices = self._choices(reference)
            variant = variant_for(accelerator, source.loaded.value, choices)
            if not problems and variant is not None:
                chosen.append(self._choose(reference, source, *variant))
        return chosen, errors

    def base(
        self, recipes: Sequence[ChosenRecipe]
    ) -> tuple[Loaded[BaseImage] | None, Sequence[EnvbuildError]]:
        """Return the base image, named or chosen, and the constraints that conflict with it or with all."""
        spec, inputs = self._spec, self._inputs
        constraints = [
            BaseConstraint(
                by=f"`{chosen.recipe.name}` {chosen.version}", at=chosen.at, requirement=chosen.recipe.base
            )
            for chosen in recipes
        ]
        constraints += [
            BaseConstraint(by=f"`{at.path.name}`", at=at, requirement=BaseRequirement(python=python))
            for python, at in inputs.requirements.pythons
        ]
        if "base" in spec.invalid_keys:
            return None, ()
        if spec.value.base is not None:
            named = inputs.base
            return named, list(base_conflicts(spec, constraints, named.value)) if named else ()
        if spec.value.python:
            requirement = BaseRequirement(python=spec.value.python)
            constraints.append(BaseConstraint(by="the spec", at=spec.at("python"), requirement=requirement))
        base = first_fitting_base(constraints, inputs.bases, inputs.architecture)
        return base, () if base else list(no_fitting_base(constraints, inputs.bases, inputs.architecture))

    def missing_recipes(self) -> Errors:
        """Yield an error for each recipe that others require and the spec does not name."""
        if {*SPEC_KEYS.values()} & self._spec.invalid_keys:
            return
        named = {reference.choice.name for reference in self._references}
        for dependency in self._dependencies:
            if dependency.choice.name not in named:
                problem = (
                    f"the recipe `{dependency.by}` requires `{dependency.choice}`, and the spec has none"
                )
                yield RequestError(problem, at=dependency.at, hint=self._missing_hint(dependency))
        for reference in self._references:
            source = self._inputs.recipes.get(reference.choice.name)
            alternatives = source.loaded.value.requires_one_of if source else ()
            if alternatives and not named & set(alternatives):
                listed = ", ".join(f"`{name}`" for name in alternatives)
                problem = (
                    f"the recipe `{reference.choice.name}` requires one of {listed}, and the spec has none"
                )
                yield RequestError(problem, at=reference.at, hint="name one beside it")

    def _missing_hint(self, dependency: _Dependency) -> Hint:
        name, mpi = dependency.choice.name, self._spec.value.mpi
        catalog = self._inputs.catalog
        kind = next((recipe.kind for recipe in catalog.readable_recipes([name])), None)
        if kind == "mpi":
            written: list[str | SpecKey] = ["write ", SpecKey("mpi", name)]
            return written if mpi is None else [*written, " instead of ", SpecKey("mpi", mpi.name)]
        if kind is not None:
            # A user who meant another framework sees by it that the recipe is not for that one.
            source = self._inputs.recipes.get(dependency.by)
            purpose = f" (`{dependency.by}`: {source.loaded.value.summary})" if source else ""
            return [f"name `{name}` ", SpecKey(SPEC_KEYS[kind], holds_names=True), purpose]
        if name in catalog.recipe_names():
            return f"the recipe `{name}` cannot be read: `envbuild recipes check {name}` says why"
        return f"no recipe has that name; `envbuild recipes check {dependency.by}` checks the recipe"

    def _choices(self, reference: _Reference) -> tuple[Choice, ...]:
        """Return the constraints of the spec and of other recipes on the version of a recipe."""
        name = reference.choice.name
        others = (dependency.choice for dependency in self._dependencies if dependency.choice.name == name)
        return (reference.choice, *others)

    def _candidates(self, but: _Reference | None = None) -> list[RecipeConstraint]:
        """Return the recipes of the spec that have a matching version, except one."""
        candidates: list[RecipeConstraint] = []
        for reference in self._references:
            source, choices = self._inputs.recipes.get(reference.choice.name), self._choices(reference)
            recipe = source.loaded.value if source and reference != but else None
            if recipe is None or not recipe.variants:
                continue
            if matching_versions(recipe.versions, *choices):
                candidates.append((recipe, choices))
            elif not self._spec.value.proven and self._release(reference, recipe):
                candidates.append((recipe, ()))
        return candidates

    def _choice_errors(self, reference: _Reference, source: RecipeSource) -> Errors:
        spec, recipe, at = self._spec, source.loaded.value, reference.at
        if recipe.kind != reference.kind:
            article = {
                "mpi": "an MPI",
                "framework": "a framework",
                "fabric": "a fabric's library",
                "site": "supplied by sites",
            }
            problem = f"the recipe `{recipe.name}` is {article[recipe.kind]}, not {article[reference.kind]}"
            key = SpecKey(SPEC_KEYS[recipe.kind], holds_names=True)
            yield RequestError(problem, at=at, hint=["name it ", key])
            return
        choices = self._choices(reference)
        candidates: list[RecipeConstraint] = [(recipe, choices), *self._candidates(but=reference)]
        yield from self._version_errors(reference, recipe, choices, candidates)
        if "accelerator" not in spec.invalid_keys:
            yield from accelerator_errors(spec, at, recipe, candidates)
        if recipe.needs_mpi and spec.value.mpi is None and "mpi" not in spec.invalid_keys:
            problem = f"the recipe `{recipe.name}` needs an MPI, and the spec has none"
            yield RequestError(problem, at=at, hint=["add a line such as ", SpecKey("mpi", "mpich")])

    def _version_errors(
        self,
        reference: _Reference,
        recipe: Recipe,
        choices: Sequence[Choice],
        candidates: Sequence[RecipeConstraint],
    ) -> Errors:
        variant = variant_for(self._spec.value.accelerator, recipe, choices)
        versions = proven(recipe, variant[1]) if variant else recipe.versions
        release = "" if matching_versions(versions, *choices) else self._release(reference, recipe)
        if release and not self._spec.value.proven:
            return
        hint = proven_hint(recipe, variant, candidates)
        if release:
            hint += ["; ", SpecKey("proven", "false"), f" takes {release} without a test result"]
        elif recipe.source is None and not matching_versions(recipe.versions, reference.choice):
            any_one = " takes any one release (`X.Y`) without a test result"
            hint += ["; ", SpecKey("proven", "false"), any_one]
        if not matching_versions(versions, reference.choice):
            problem = f"no proven version of `{recipe.name}` meets `{reference.choice.constraint}`"
            yield RequestError(problem, at=reference.at, hint=hint)
        elif not matching_versions(versions, *choices):
            demands = [f"the spec asks for `{reference.choice}`"] if reference.choice.constraint else []
            demands += [
                f"`{dependency.by}` requires `{dependency.choice}`"
                for dependency in self._dependencies
                if dependency.choice.name == recipe.name and dependency.choice.constraint
            ]
            problem = f"no proven version of `{recipe.name}` is right for all: {', '.join(demands)}"
            yield RequestError(problem, at=reference.at, hint=hint)

    def _release(self, reference: _Reference, recipe: Recipe) -> str:
        """Return the release that a spec asks for (``2.5``), if wheels of it may do without a proof."""
        choices = self._choices(reference)
        release = re.fullmatch(r"==([0-9]+(?:\.[0-9]+)*)(?:\.\*)?", reference.choice.constraint)
        # A recipe that builds from source does so for the versions that it knows.
        if release is None or recipe.source is not None:
            return ""
        return release[1] if all(choice.admits(release[1]) for choice in choices) else ""

    def _choose(
        self, reference: _Reference, source: RecipeSource, variant_name: str, variant: Variant
    ) -> ChosenRecipe:
        recipe = source.loaded.value
        matching = matching_versions(proven(recipe, variant), *self._choices(reference))
        return ChosenRecipe(
            recipe=recipe,
            version=matching[0] if matching else self._release(reference, recipe),
            is_proven=bool(matching),
            device_extras=self._device_extras(variant_name) if variant.has_device_extras else (),
            variant_name=variant_name,
            variant=variant,
            files=source.files,
            digest=source.digest,
            at=reference.at,
            jobs=source.jobs,
        )

    def _device_extras(self, variant_name: str) -> tuple[str, ...]:
        """Return the extras for the GPUs of all partitions of the site; for unknown ones that for all."""
        row, site = accelerator_of(variant_name), self._inputs.site
        if row is None:
            return ()
        gpus = [here.value.gpus for here in each_partition(site)] if site is not None else []
        own = [part.architectures for part in gpus if part is not None and part.vendor == row.vendor]
        return row.device_extras({name for names in own for name in names} if all(own) else ())


def _references(spec: Loaded[EnvSpec]) -> Iterator[_Reference]:
    if spec.value.mpi is not None:
        yield _Reference(spec.value.mpi, "mpi", spec.at("mpi"))
    for index, choice in enumerate(spec.value.frameworks):
        yield _Reference(choice, "framework", spec.at("frameworks", index))
    for index, choice in enumerate(spec.value.fabric):
        yield _Reference(choice, "fabric", spec.at("fabric", index))
    for index, choice in enumerate(spec.value.from_site):
        yield _Reference(choice, "site", spec.at("from_site", index))


def not_known(
    kind: str, name: str, known: Sequence[str], at: Location | None, listed: str = ""
) -> RequestError:
    """Return the error for an unknown name; the hint has the nearest one, and `listed` or all known ones."""
    all_known = listed or f"known: {', '.join(known)}"
    words = [did_you_mean(name, known), all_known if known else "none is known here"]
    return RequestError(f"unknown {kind} `{name}`", at=at, hint=" ".join(word for word in words if word))


def recipe_not_known(name: str, known: Sequence[str], at: Location | None = None) -> RequestError:
    """Return the error for an unknown recipe; there are too many to list them all."""
    return not_known("recipe", name, known, at, "`envbuild recipes ls` lists all")


def _known_variants(inputs: CheckInputs) -> tuple[str, ...]:
    """Return the variants of all recipes, unless a recipe of the spec has one for its accelerator."""
    accelerator, catalog = inputs.spec.value.accelerator, inputs.catalog
    own = {name for source in inputs.recipes.values() for name in source.loaded.value.variants}
    if not accelerator.constraint or any(name.startswith(f"{accelerator.name}-") for name in own):
        return ()
    recipes = catalog.readable_recipes(catalog.recipe_names())
    return tuple(name for recipe in recipes for name in recipe.variants)


def _unknown_recipes(spec: Loaded[EnvSpec], catalog: Catalog) -> Iterator[RequestError]:
    """Yield an error, with the line to write, for each name of a recipe that does not exist.

    Lists with other errors are read as well; values that are not names are skipped.
    """
    values, known = spec.document.value, catalog.recipe_names()
    owners: dict[str, str] | None = None
    for key in SPEC_KEYS.values():
        written = values.get(key)
        is_list = isinstance(written, tuple)
        if not is_list and key in spec.invalid_keys:
            continue
        for index, entry in enumerate(written[:MAX_ERRORS] if isinstance(written, tuple) else [written]):
            name, _, constraint = entry.partition("@") if isinstance(entry, str) else ("", "", "")
            if not re.fullmatch(NAME, name) or name in known:
                continue
            at = spec.at(key, index) if is_list else spec.at(key)
            if (key, name) == ("mpi", "none"):
                hint = "leave the line out for an image without an MPI"
                yield RequestError("`none` is not an MPI", at=at, hint=hint)
                continue
            error = recipe_not_known(name, known, at)
            if owners is None:
                recipes = catalog.readable_recipes(reversed(known))
                owners = {name: recipe.name for recipe in recipes for name in recipe.owns}
            if name in owners:
                corrected = f"{owners[name]}@{constraint}" if constraint else owners[name]
                line = spec_line(values, (key,), corrected, index) if is_list else f"{key}: {corrected}"
                error.hint = f"the recipe `{owners[name]}` brings it: write `{line}`"
                if isinstance(written, tuple) and owners[name] in {
                    str(entry).partition("@")[0] for entry in written
                }:
                    error.hint = f"the recipe `{owners[name]}`, which is named as well, brings it: remove it"
            elif key == "frameworks" and did_you_mean(name, known) is None:
                line = spec_line(values, ("packages", "python"), corrected_requirement(entry) or name)
                error.hint = f"`envbuild recipes ls` lists all; for a Python package write `{line}`"
            yield error
