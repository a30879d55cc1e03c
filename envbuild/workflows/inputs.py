"""Inputs: find and read everything that a spec names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.spec.asked import Asked
from envbuild.spec.base import BaseImage
from envbuild.spec.check import CheckInputs, not_known, recipe_not_known, select_and_check
from envbuild.spec.load import Loaded, examine
from envbuild.spec.model import NAME, Choice, EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.recipe_rules import RecipeSource, recipe_errors
from envbuild.spec.select import newest_of_distribution
from envbuild.spec.site import Site, SiteUpstream
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import (
    configuration_homes,
    environment_paths,
    exists,
    is_below,
    is_directory,
    list_directory,
    read_input,
    settings_homes,
)
from envbuild.system.host import architecture
from envbuild.workflows.kinds import refuse_other_kinds

MAX_FILE_BYTES = 64 << 20
_RECIPE = "recipe.yaml"
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Where recipes, base images and sites are looked for; the first directory that has a name wins.

    Attributes
    ----------
    recipes, bases, sites : tuple of Path
        Directories, in the order of search; not all of them need exist.
    """

    recipes: tuple[Path, ...]
    bases: tuple[Path, ...]
    sites: tuple[Path, ...]

    def recipe_names(self) -> tuple[str, ...]:
        """Return the names of all recipes, sorted."""
        found = {
            name
            for directory in self.recipes
            for name in list_directory(directory)
            if re.fullmatch(NAME, name) and exists(directory / name / _RECIPE)
        }
        return tuple(sorted(found))

    def recipe(self, name: str) -> Path | None:
        """Return the directory of a recipe."""
        return next((path / name for path in self.recipes if exists(path / name / _RECIPE)), None)

    def base_names(self) -> tuple[str, ...]:
        """Return the names of all base images, sorted."""
        return _stems(self.bases)

    def base(self, name: str) -> Path | None:
        """Return the file of a base image."""
        return _first_file(self.bases, name)

    def site_names(self) -> tuple[str, ...]:
        """Return the names of all sites, sorted."""
        return _stems(self.sites)

    def site(self, name: str) -> Path | None:
        """Return the file of a site."""
        return _first_file(self.sites, name)


@dataclass(slots=True)
class _Reader:
    """Reads what a spec names and collects what is wrong with it, apart from what it only comes across."""

    catalog: Catalog
    mistakes: list[EnvbuildError] = field(default_factory=list)
    passed_over: list[EnvbuildError] = field(default_factory=list)
    faulty: set[str] = field(default_factory=set)

    def model(self, model: type[M], path: Path, *, at: Location | None = None) -> Loaded[M] | None:
        content = self.content(path, limit_bytes=MAX_BYTES, at=at)
        return None if content is None else self.examined(model, content, path)

    def examined(self, model: type[M], content: bytes, path: Path) -> Loaded[M] | None:
        loaded, mistakes = examine(model, content, path)
        self.mistakes += mistakes
        return loaded

    def content(self, path: Path, *, limit_bytes: int, at: Location | None = None) -> bytes | None:
        try:
            return read_input(path, limit_bytes=limit_bytes, at=at)
        except EnvbuildError as error:
            self.mistakes.append(error)
            return None

    def content_below(self, directory: Path, name: str) -> bytes | None:
        """Read a file that becomes part of an image: never one from elsewhere, such as a private key."""
        path = directory / name
        if not is_below(path, directory) and not _is_of_recipe_beside(path, directory):
            problem = f"`{name}` leads out of the recipe's directory"
            hint = "a symbolic link may lead to a job or patch of a recipe beside it; copy the file"
            self.mistakes.append(RequestError(problem, at=Location(path=path), hint=hint))
            return None
        return self.content(path, limit_bytes=MAX_BYTES)

    def recipe(self, name: str) -> RecipeSource | None:
        directory = self.catalog.recipe(name)
        if directory is None:
            return None
        names = [
            f"{kind}/{name}"
            for kind, suffix in (("verify", ".py"), ("patches", ".patch"))
            for name in list_directory(directory / kind)
            if name.endswith(suffix)
        ]
        files = {
            name: content
            for name in (_RECIPE, *names)
            if (content := self.content_below(directory, name)) is not None
        }
        # Of the same bytes whose digest is kept; and what cannot be read is told once.
        own = files.get(_RECIPE)
        loaded = None if own is None else self.examined(Recipe, own, directory / _RECIPE)
        if loaded is None or len(files) != len(names) + 1:
            self.faulty.add(name)
            return None
        return RecipeSource(directory=name, loaded=loaded, files=files)

    def base(self, choice: Choice) -> Loaded[BaseImage] | None:
        path = self.catalog.base(choice.name)
        if path is None:
            return self.base_of_distribution(choice) if choice.constraint else None
        loaded = self.model(BaseImage, path, at=Location(path=path))
        if loaded is None:
            self.faulty.add(choice.name)
            return None
        self.same_name(loaded, loaded.value.name, "base image")
        return loaded

    def base_of_distribution(self, choice: Choice) -> Loaded[BaseImage] | None:
        """Find what `debian@12` names by looking into all base images."""
        return newest_of_distribution(choice, self.bases())

    def bases(self) -> tuple[Loaded[BaseImage], ...]:
        """Read all base images; one with mistakes is passed over."""
        found = []
        for name in self.catalog.base_names():
            alone = _Reader(self.catalog)
            base = alone.base(Choice(name=name))
            self.passed_over += alone.mistakes
            if base is not None and not alone.mistakes:
                found.append(base)
        return tuple(found)

    def site(self, spec: Loaded[EnvSpec] | None, given: Path | None) -> Loaded[Site] | None:
        own = next(filter(exists, _own_sites()), None)
        listed = environment_paths("ENVBUILD_SITE")
        if given is not None or listed:
            chosen = self.site_given(given if given is not None else listed[0])
        elif spec is not None and spec.value.site is not None:
            chosen = self.site_named(spec.value.site, spec.at("site"))
        else:
            return None if own is None else self.model(Site, own)
        if chosen is not None and chosen.value.upstreams and chosen.path.absolute() not in _own_sites():
            self.mistakes.append(
                RequestError(
                    "only `site.yaml` of the user or the machine can name `upstreams`",
                    at=chosen.at("upstreams"),
                    hint=f"move them to {_own_sites()[0]}, or use --upstream DIR",
                )
            )
        if chosen is None or chosen.value.origins or chosen.value.find_links or own is None:
            return chosen
        # An image for another machine is built from the packages that this one reaches.
        here = self.model(Site, own)
        if here is None:
            return None
        addresses = {
            "origins": here.value.origins,
            "mirrors": here.value.mirrors,
            "find_links": here.value.find_links,
        }
        return replace(chosen, value=chosen.value.model_copy(update=addresses))

    def site_given(self, given: Path) -> Loaded[Site] | None:
        """Read what `--site` or ENVBUILD_SITE names: a site that is known, or a file."""
        name = str(given)
        is_name = re.fullmatch(NAME, name) and not name.endswith((".yaml", ".yml"))
        if is_name and (self.catalog.site(name) is not None or not exists(given)):
            return self.site_named(name, None)
        return self.model(Site, given)

    def site_named(self, name: str, at: Location | None) -> Loaded[Site] | None:
        path = self.catalog.site(name)
        if path is None:
            self.mistakes.append(not_known("site", name, self.catalog.site_names(), at))
            return None
        loaded = self.model(Site, path)
        if loaded is not None:
            self.same_name(loaded, loaded.value.name, "site")
        return loaded

    def same_name(self, loaded: Loaded[M], name: str, what: str) -> None:
        if name != loaded.path.stem:
            problem = f"the {what}'s name is `{name}`, but its file is `{loaded.path.name}`"
            self.mistakes.append(RequestError(problem, at=loaded.at("name"), hint="they must be the same"))

    def files(self, spec: Loaded[EnvSpec]) -> dict[str, bytes]:
        """Read the files that the image is to carry."""
        directory = spec.path.parent
        result: dict[str, bytes] = {}
        for index, entry in enumerate(spec.value.files):
            at = spec.at("files", index, "source")
            path = directory / entry.source
            if not is_below(path, directory):
                problem = f"`{entry.source}` leads out of the spec's directory"
                hint = "a symbolic link may not; copy the file"
                self.mistakes.append(RequestError(problem, at=at, hint=hint))
                continue
            content = self.content(path, limit_bytes=MAX_FILE_BYTES, at=at)
            if content is not None:
                result[entry.source] = content
        return result


def _is_of_recipe_beside(path: Path, directory: Path) -> bool:
    """Return whether a link leads to a file under ``verify/`` or ``patches/`` of a recipe in one catalog."""
    catalog = directory.parent
    return is_below(path, catalog) and path.resolve().parent.name in ("verify", "patches")


def find_catalog(recipes: Sequence[Path] = ()) -> Catalog:
    """Return the directories to look in: given ones, ``ENVBUILD_RECIPES``, the user's, the machine's, ours.

    Raises
    ------
    RequestError
        A directory that was given is not there.
    """
    listed = environment_paths("ENVBUILD_RECIPES")
    origins = ["--recipes"] * len(recipes) + ["ENVBUILD_RECIPES"] * len(listed)
    for path, origin in zip((*recipes, *listed), origins, strict=True):
        if not is_directory(path):
            hint = f"{origin} takes a directory that holds NAME/{_RECIPE}"
            raise RequestError(f"there is no directory `{path}`", hint=hint)
    homes = configuration_homes()
    return Catalog(
        recipes=(*recipes, *listed, *(home / "recipes" for home in homes)),
        bases=tuple(home / "base-images" for home in homes),
        sites=tuple(home / "sites" for home in homes),
    )


def read_asked(
    spec_path: Path,
    *,
    recipes: Sequence[Path] = (),
    site: Path | None = None,
    content: bytes | None = None,
) -> Asked:
    """Read a spec and everything that it names, and check that it fits together.

    Parameters
    ----------
    content : bytes, optional
        What is to be in the spec's file; read from it if absent.
    recipes : sequence of Path
        Directories to look for recipes in before all others.
    site : Path, optional
        The site's settings: a file, or the name of a known site; otherwise
        ``ENVBUILD_SITE``, the site that the spec names, or ``site.yaml`` of
        the user or the machine.

    Raises
    ------
    RequestError, ManyErrors
        All mistakes of the spec, recipes, base image and site at once.
    """
    reader = _Reader(find_catalog(recipes))
    if content is None:
        refuse_other_kinds(spec_path)
        content = read_input(spec_path, limit_bytes=MAX_BYTES, hint="`envbuild init` writes a first spec")
    spec, reader.mistakes = examine(EnvSpec, content, spec_path)
    settings = reader.site(spec, site)
    if spec is None:
        raise_all(reader.mistakes)
        raise AssertionError("a spec that cannot be read has a mistake")
    named = spec.value.base
    wrong_base = "base" in spec.invalid_keys
    base = None if named is None or wrong_base else reader.base(named)
    choices = [*spec.value.frameworks, *spec.value.fabric, *([spec.value.mpi] if spec.value.mpi else [])]
    sources = {name: reader.recipe(name) for name in sorted({choice.name for choice in choices})}
    inputs = CheckInputs(
        spec=spec,
        base=base,
        bases=() if named is not None or wrong_base else reader.bases(),
        base_errors=tuple(reader.passed_over),
        recipes={name: source for name, source in sources.items() if source is not None},
        known_recipes=reader.catalog.recipe_names(),
        known_bases=reader.catalog.base_names(),
        known_variants=_known_variants(reader.catalog, spec.value.accelerator, sources.values()),
        faulty=frozenset(reader.faulty),
        required_kinds=_kinds(reader.catalog, _unnamed(sources)),
        site=settings,
        files=reader.files(spec),
        architecture=architecture(),
    )
    return select_and_check(inputs, errors=reader.mistakes)


def read_site(given: Path | None) -> Loaded[Site] | None:
    """Read the site that a command line names; see `read_asked` for what is taken otherwise.

    Raises
    ------
    RequestError, ManyErrors
        There is none of this name, or all mistakes of its file.
    """
    reader = _Reader(find_catalog())
    loaded = reader.site(None, given)
    raise_all(reader.mistakes)
    return loaded


def read_upstreams() -> tuple[SiteUpstream, ...]:
    """Return the stores of others that the user's and the machine's ``site.yaml`` name, in this order.

    Raises
    ------
    RequestError, ManyErrors
        All mistakes of these files.
    """
    reader = _Reader(find_catalog())
    sites = [reader.model(Site, path) for path in filter(exists, _own_sites())]
    raise_all(reader.mistakes)
    return tuple(upstream for site in sites if site is not None for upstream in site.value.upstreams)


def _own_sites() -> tuple[Path, ...]:
    return tuple(home / "site.yaml" for home in settings_homes())


def read_bases() -> tuple[BaseImage, ...]:
    """Read all base images that a spec could name, by name; those with mistakes are left out."""
    return tuple(base.value for base in _Reader(find_catalog()).bases())


def read_base(name: str) -> Loaded[BaseImage]:
    """Read one base image, as a spec that names it would.

    Raises
    ------
    RequestError, ManyErrors
        There is none of this name, or all mistakes of its file.
    """
    reader = _Reader(find_catalog())
    known = reader.catalog.base_names()
    if name not in known:  # looked up among names, so that a path is none
        raise not_known("base image", name, known, None)
    found = reader.base(Choice(name=name))
    raise_all(reader.mistakes)
    if found is None:
        raise AssertionError("a base image that cannot be read has a mistake")
    return found


def read_recipe(name: str, *, recipes: Sequence[Path] = ()) -> RecipeSource:
    """Read one recipe, as a spec that names it would.

    Parameters
    ----------
    recipes : sequence of Path
        Directories to look for it in before all others.

    Raises
    ------
    RequestError, ManyErrors
        There is none of this name, or all mistakes that it makes with itself.
    """
    reader = _Reader(find_catalog(recipes))
    known = reader.catalog.recipe_names()
    if name not in known:  # looked up among names, so that a path is none
        raise recipe_not_known(name, known)
    source = reader.recipe(name)
    if source is not None:
        reader.mistakes += recipe_errors(source)
    raise_all(reader.mistakes)
    if source is None:
        raise AssertionError("a recipe that cannot be read has a mistake")
    return source


def _unnamed(sources: Mapping[str, RecipeSource | None]) -> Iterator[str]:
    """Yield the recipes that those of a spec require, and it does not name."""
    for source in sources.values():
        for choice in source.loaded.value.requires if source else ():
            if choice.name not in sources:
                yield choice.name


def _kinds(catalog: Catalog, names: Iterable[str]) -> dict[str, str]:
    """Return the kinds of recipes; what is wrong with one that a spec does not name is not its mistake."""
    reader = _Reader(catalog)
    found = {name: reader.recipe(name) for name in set(names)}
    return {name: source.loaded.value.kind for name, source in found.items() if source is not None}


def _known_variants(
    catalog: Catalog, accelerator: Choice, sources: Iterable[RecipeSource | None]
) -> tuple[str, ...]:
    """Return the variants of all recipes, where none of a spec's has one that could judge a release."""
    own = {name for source in sources if source for name in source.loaded.value.variants}
    if not accelerator.constraint or any(name.startswith(f"{accelerator.name}-") for name in own):
        return ()
    found = map(_Reader(catalog).recipe, catalog.recipe_names())
    return tuple(name for source in found if source for name in source.loaded.value.variants)


def _stems(directories: Sequence[Path]) -> tuple[str, ...]:
    files = {name for path in directories for name in list_directory(path) if name.endswith(".yaml")}
    stems = {name.removesuffix(".yaml") for name in files}
    return tuple(sorted(stem for stem in stems if re.fullmatch(NAME, stem)))


def _first_file(directories: Sequence[Path], name: str) -> Path | None:
    return next((path / f"{name}.yaml" for path in directories if exists(path / f"{name}.yaml")), None)
