"""Checks of a spec against the recipes that it chose: packages, files, variables, names that collide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envbuild.errors import EnvbuildError, Hint, RequestError, SpecKey
from envbuild.spec.accelerators import ACCELERATORS
from envbuild.spec.base import BaseImage
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.locales import LOCALE_HINT, has_locales, missing_locale
from envbuild.spec.model import SPEC_KEYS, EnvSpec, Prepend, RegistryImage
from envbuild.spec.recipe_rules import search_path_errors
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.reserved import reserved_at

Errors = Iterator[EnvbuildError]


def spec_errors(
    spec: Loaded[EnvSpec],
    recipes: Sequence[ChosenRecipe],
    requested: Sequence[RequirementEntry],
    base: BaseImage | None,
) -> Errors:
    """Yield the errors that a spec and its chosen recipes make together."""
    frameworks = [choice.name for choice in spec.value.frameworks]
    yield from _repeated(spec, ("frameworks",), frameworks, "framework", "named")
    libraries = [choice.name for choice in spec.value.fabric]
    yield from _repeated(spec, ("fabric",), libraries, "fabric's library", "named")
    supplied = [choice.name for choice in spec.value.from_site]
    yield from _repeated(spec, ("from_site",), supplied, "recipe", "named")
    yield from _shared_names(recipes)
    if base is not None and base.root is not None:
        yield from _finished_root(spec, recipes, base)
    yield from _python_packages(spec.path, requested, recipes)
    yield from _from_source(spec, requested, recipes, base)
    packages = spec.value.packages.system
    yield from _repeated(spec, ("packages", "system"), packages, "package", "listed")
    yield from _targets(spec)
    yield from _variables(spec, recipes)
    if base is not None and base.root is None:  # a finished root may bring any locale
        yield from _locales(spec, recipes, base)
    yield from _gpus_of_launch(spec)
    yield from _compiled_against(recipes)
    yield from _mixed_accelerators(recipes)


def _gpus_of_launch(spec: Loaded[EnvSpec]) -> Errors:
    launch = spec.value.launch
    if launch is not None and launch.gpus_per_rank and spec.value.accelerator.name == "cpu":
        yield RequestError(
            "ranks ask for GPUs, and the image is for CPUs",
            at=spec.at("launch", "gpus_per_rank"),
            hint="name the GPUs that it is for, such as `accelerator: cuda`",
        )


def _repeated(
    spec: Loaded[EnvSpec], loc: tuple[str, ...], names: Sequence[str], kind: str, verb: str
) -> Errors:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            hint = f"it was first {verb} at {spec.at(*loc, first[name])}"
            problem = f"the {kind} `{name}` is {verb} twice"
            yield RequestError(problem, at=spec.at(*loc, index), hint=hint)
        first.setdefault(name, index)


def _shared_names(recipes: Sequence[ChosenRecipe]) -> Errors:
    claims: tuple[tuple[str, Callable[[ChosenRecipe], Sequence[str]]], ...] = (
        ("own the distribution", lambda chosen: chosen.recipe.owns),
        ("have the job", lambda chosen: [job.id for job in chosen.jobs]),
    )
    for verb, names in claims:
        holder: dict[str, str] = {}
        for chosen in recipes:
            for name in names(chosen):
                other = holder.setdefault(name, chosen.recipe.name)
                if other != chosen.recipe.name:
                    problem = f"the recipes `{other}` and `{chosen.recipe.name}` both {verb} `{name}`"
                    yield RequestError(problem, at=chosen.at, hint="they cannot be in one image")


def _finished_root(spec: Loaded[EnvSpec], recipes: Sequence[ChosenRecipe], base: BaseImage) -> Errors:
    hint = "if the root has it, list it under `packages` of the base image; else use a base made of packages"
    if isinstance(spec.value.base, RegistryImage):
        hint = "name an image in which it is installed, or a base made of packages"
    for number, name in enumerate(spec.value.packages.system):
        if name not in base.packages:
            problem = f"`{name}` cannot be added: the base image `{base.name}` is a finished root"
            yield RequestError(problem, at=spec.at("packages", "system", number), hint=hint)
    for index, package in enumerate(spec.value.packages.from_source):
        missing = sorted(set(() if isinstance(package, str) else package.system) - set(base.packages))
        if missing:
            problem = f"{', '.join(missing)} cannot be added: the base image `{base.name}` is a finished root"
            yield RequestError(problem, at=spec.at("packages", "from_source", index), hint=hint)
    for chosen in recipes:
        build = chosen.build()
        needed = {*chosen.recipe.system, *(build.system if build else ())}
        missing = sorted(needed - set(base.packages))
        if missing:
            problem = (
                f"the recipe `{chosen.recipe.name}` needs {', '.join(missing)}, "
                f"and the base image `{base.name}` is a finished root"
            )
            yield RequestError(problem, at=chosen.at, hint=hint)


def _admits(requirement: Requirement, owner: ChosenRecipe) -> bool:
    """Return whether a requirement admits the version of a recipe, in the build for its accelerator."""
    written = str(requirement.specifier)
    exact = re.fullmatch(r"===?(?P<version>[^,+]+)\+(?P<local>[a-z0-9.]+)", written)
    if exact is None:
        return requirement.specifier.contains(owner.version, prereleases=True)
    family, _, release = owner.variant_name.partition("-")
    row = ACCELERATORS.get(family)
    is_build = row.release_of(exact["local"]) in (release, "") if row and release else True
    is_build &= bool(re.fullmatch(row.label.pattern if row else "cpu", exact["local"]))
    return is_build and SpecifierSet(f"=={exact['version']}").contains(owner.version, prereleases=True)


def _other_version_hint(requirement: Requirement, owner: ChosenRecipe, key: SpecKey) -> Hint:
    """Return what to do about a requirement that excludes the version of a recipe, or its build."""
    release, _, label = str(requirement.specifier).partition("+")
    if label and SpecifierSet(release.replace("===", "==")).contains(owner.version, prereleases=True):
        builds = ", ".join(name.replace("-", "@", 1) for name in sorted(owner.recipe.variants))
        return (
            f"write `{requirement.name}{release}`: `accelerator` decides on the build, and `+{label}` is not"
            f" that of `{owner.variant_name.replace('-', '@', 1)}`; there are {builds}"
        )
    versions = ", ".join(owner.recipe.versions)
    return ["remove the line, or choose another version ", key, f": {versions}"]


def _python_packages(
    spec_path: Path, requested: Sequence[RequirementEntry], recipes: Sequence[ChosenRecipe]
) -> Errors:
    owners = {name: chosen for chosen in recipes for name in chosen.recipe.owns}
    named = {request.name: request for request in reversed(requested) if request.wheel or request.repository}
    first: dict[str, RequirementEntry] = {}
    for request in requested:
        text, at, name, requirement = request.text, request.at, request.name, request.requirement
        in_spec = at.path == spec_path
        owner = owners.get(name)
        other = named.get(name)
        is_named = request.wheel is not None or request.repository is not None
        if owner is not None and (in_spec or is_named):
            recipe, key = owner.recipe, SpecKey(SPEC_KEYS[owner.recipe.kind], holds_names=True)
            problem = f"the package `{name}` belongs to the recipe `{recipe.name}`"
            choice = f": `{recipe.name}@{recipe.versions[0]}`"
            yield RequestError(problem, at=at, hint=["remove it here; choose a version ", key, choice])
        elif owner is not None and name in owner.distributions and not _admits(requirement, owner):
            recipe, key = owner.recipe, SpecKey(SPEC_KEYS[owner.recipe.kind], holds_names=True)
            problem = f"`{text}` excludes {owner.version}, which the recipe `{recipe.name}` brings"
            yield RequestError(problem, at=at, hint=_other_version_hint(requirement, owner, key))
        elif requirement.specifier.is_unsatisfiable():
            hint = "its bounds exclude one another: loosen one"
            yield RequestError(f"no version can meet `{text}`", at=at, hint=hint)
        elif other is not None and is_named and not _same_file(request, other):
            hint = f"the other is named at {other.at}"
            yield RequestError(f"two files of `{name}` are named", at=at, hint=hint)
        elif other is not None and other.wheel and not _holds(requirement, other.requirement):
            hint = f"change it, or the wheel that is named at {other.at}"
            yield RequestError(f"`{text}` excludes the wheel of `{name}` that is named", at=at, hint=hint)
        elif in_spec and name in first and requirement.marker is None:
            hint = f"it was first listed at {first[name].at}; write it once"
            yield RequestError(f"the package `{name}` is listed twice", at=at, hint=hint)
        if in_spec and requirement.marker is None and not is_named:
            first.setdefault(name, request)


def _from_source(
    spec: Loaded[EnvSpec],
    requested: Sequence[RequirementEntry],
    recipes: Sequence[ChosenRecipe],
    base: BaseImage | None,
) -> Errors:
    key = ("packages", "from_source")
    packages = spec.value.packages.from_source
    names = [package if isinstance(package, str) else package.name for package in packages]
    yield from _repeated(spec, key, names, "package", "listed")
    owners = {name: chosen.recipe for chosen in recipes for name in chosen.recipe.owns}
    wheels = {request.name: request.at for request in requested if request.wheel is not None}
    for request in requested:
        if request.repository is not None and base is not None and base.python.is_legacy:
            problem = f"`{request.name}` cannot be built for Python {base.python.version}"
            yield RequestError(problem, at=request.at, hint="build a wheel of it yourself, and name that")
    for index, name in enumerate(names):
        at = spec.at(*key, index)
        if name in owners:
            problem = f"the package `{name}` belongs to the recipe `{owners[name].name}`"
            yield RequestError(problem, at=at, hint="remove it here: the recipe says what is installed")
        elif name in wheels:
            problem = f"`{name}` cannot be built: a wheel of it is named"
            yield RequestError(problem, at=at, hint=f"remove it here, or the wheel at {wheels[name]}")
        elif base is not None and base.python.is_legacy:
            problem = f"`{name}` cannot be built for Python {base.python.version}"
            yield RequestError(problem, at=at, hint="build a wheel of it yourself, and name that")


def _same_file(request: RequirementEntry, other: RequirementEntry) -> bool:
    return (request.hashes, request.repository) == (other.hashes, other.repository)


def _holds(requirement: Requirement, exact: Requirement) -> bool:
    """Return whether the one version of a requirement (`===`) meets another, whatever the markers say."""
    (version,) = (part.version for part in exact.specifier)
    return requirement.specifier.contains(version, prereleases=True)


def _targets(spec: Loaded[EnvSpec]) -> Errors:
    files: dict[str, int] = {}
    directories: dict[str, int] = {}
    for index, entry in enumerate(spec.value.files):
        target, at = entry.target, spec.at("files", index, "target")
        if reserved := reserved_at(target):
            problem = f"a file may not go to `{target}`: {reserved.tree} is reserved"
            yield RequestError(problem, at=at, hint=reserved.why)
        above = [str(parent) for parent in PurePosixPath(target).parents]
        if target in files:
            hint = f"the first is at {spec.at('files', files[target], 'target')}"
            yield RequestError(f"two files have the target `{target}`", at=at, hint=hint)
        other = next((files[path] for path in above if path in files), directories.get(target))
        if other is not None:
            problem = f"`{target}` and `{spec.value.files[other].target}`: one file cannot lie in the other"
            yield RequestError(problem, at=at, hint=f"the other is at {spec.at('files', other, 'target')}")
        files.setdefault(target, index)
        for path in above:
            directories.setdefault(path, index)


def _variables(spec: Loaded[EnvSpec], recipes: Sequence[ChosenRecipe]) -> Errors:
    setters: dict[str, tuple[str, str | Prepend]] = {}
    for chosen in recipes:
        for name, setting in chosen.recipe.environment.items():
            recipe, other = setters.setdefault(name, (chosen.recipe.name, setting))
            if _disagree(setting, other):
                problem = f"the recipes `{recipe}` and `{chosen.recipe.name}` set `{name}` differently"
                yield RequestError(problem, at=chosen.at, hint="they cannot be in one image")
    yield from search_path_errors(spec, spec.value.environment)
    for name, setting in spec.value.environment.items():
        recipe, other = setters.get(name, ("", setting))
        if _disagree(setting, other):
            shown = f"`{other}`" if isinstance(other, str) else f"`{{prepend: {other.prepend}}}`"
            problem = f"the recipe `{recipe}` sets the variable `{name}` already"
            at = spec.at_key("environment", name)
            yield RequestError(problem, at=at, hint=f"to {shown}; remove it here")


def _locales(spec: Loaded[EnvSpec], recipes: Sequence[ChosenRecipe], base: BaseImage) -> Errors:
    """Yield an error for each variable that names a locale which the image will not have."""
    of_recipes = (name for chosen in recipes for name in chosen.recipe.system)
    if has_locales((*base.packages, *spec.value.packages.system, *of_recipes)):
        return
    settings = [
        (chosen.at, f"the recipe `{chosen.recipe.name}` sets `{name}`", name, setting)
        for chosen in recipes
        for name, setting in chosen.recipe.environment.items()
    ]
    settings += [
        (spec.at("environment", name), f"`environment.{name}`", name, setting)
        for name, setting in spec.value.environment.items()
    ]
    for at, setter, name, setting in settings:
        if isinstance(setting, str) and (locale := missing_locale(name, setting)):
            yield RequestError(f"{setter}: the image has no locale `{locale}`", at=at, hint=LOCALE_HINT)


def _disagree(setting: str | Prepend, other: str | Prepend) -> bool:
    """Return whether two settings of a variable conflict: prepends add up, equal values agree."""
    if isinstance(setting, Prepend) and isinstance(other, Prepend):
        return False
    return setting != other


def _compiled_against(recipes: Sequence[ChosenRecipe]) -> Errors:
    """Yield an error if a recipe compiles against one whose headers are in no layer."""
    by_name = {chosen.recipe.name: chosen.recipe for chosen in recipes}
    without_layer = {chosen.layer: chosen.recipe.name for chosen in recipes if not chosen.recipe.owns}
    for chosen in recipes:
        source = chosen.recipe.source
        for name in source.against if source else ():
            required = by_name.get(name)
            if required is not None and (required.kind == "mpi" or required.source is not None):
                problem = f"the recipe `{chosen.recipe.name}` cannot compile against `{name}`"
                hint = "write `mpi`" if required.kind == "mpi" else "that is built from source as well"
                yield RequestError(problem, at=chosen.at, hint=hint)
            other = without_layer.get("mpi" if name == "mpi" else f"framework:{name}")
            if other is not None:
                problem = (
                    f"the recipe `{chosen.recipe.name}` compiles against `{other}`,"
                    " which owns no distribution"
                )
                another: Hint = "name one that owns its distribution"
                if name == "mpi":
                    another = [
                        "write another MPI, such as ",
                        SpecKey("mpi", "mpich"),
                        ": its headers are in a layer",
                    ]
                yield RequestError(problem, at=chosen.at, hint=another)


def _mixed_accelerators(recipes: Sequence[ChosenRecipe]) -> Errors:
    """Yield an error for variants of different major releases: one process loads one CUDA."""
    first: dict[str, ChosenRecipe] = {}
    for chosen in recipes:
        family, _, release = chosen.variant_name.partition("-")
        if not release:
            continue
        other = first.setdefault(family, chosen)
        if other.variant_name.partition(".")[0] != chosen.variant_name.partition(".")[0]:
            problem = (
                f"the recipe `{other.recipe.name}` is for {other.variant_name}, "
                f"and `{chosen.recipe.name}` for {chosen.variant_name}"
            )
            both = [name for name in other.recipe.variants if name in chosen.recipe.variants]
            shared = next((name.partition("-")[2] for name in both if name.startswith(f"{family}-")), "")
            hint: Hint = "make an image of each"
            if shared:
                hint = ["both have ", SpecKey("accelerator", f"{family}@{shared}")]
            yield RequestError(problem, at=chosen.at, hint=hint)
