"""Write a new recipe from the template beside this file: it builds, and its job can pass and fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import TypeAdapter, ValidationError

from envbuild.errors import EnvbuildError, MachineError, RequestError, raise_all
from envbuild.inputs.catalog import read_bases
from envbuild.inputs.sites import read_site
from envbuild.resolve.index import offered_release
from envbuild.resolve.origins import python_sources, read_machine
from envbuild.spec.fields import Distribution, ProvenVersion
from envbuild.spec.model import MAX_NAME, NAME, ModuleName
from envbuild.spec.python_platform import target_of
from envbuild.system.files import exists
from envbuild.system.host import architecture
from envbuild.system.leftovers import private_work
from envbuild.workflows.arguments import check_outside_store

_TEMPLATE = Path(__file__).with_name("recipe-template")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecipe:
    """A recipe that was written, and what the index has of its release."""

    directory: Path
    release: str
    """Distribution and version (``tabulate 0.9.0``)."""
    found: str = ""
    """The files that the index has, in words; empty if it was not asked."""


def new_recipe(
    name: str,
    version: str,
    directory: Path,
    *,
    distribution: str | None = None,
    module: str | None = None,
    ask_index: bool = False,
) -> NewRecipe:
    """Write all files of a recipe to `directory`/NAME, or none.

    The recipe installs `distribution` (default: the recipe's name) and imports `module` (default: the
    distribution's name). With `ask_index`, an index is asked for the release, and the recipe is bounded to
    the base images with a Python for which it has a wheel. RequestError: the name or a value is invalid, the
    recipe exists, or the index lacks the release. MachineError: it cannot be written.
    """
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        hint = "use lower-case letters, digits, `-`, `_` and `.`, starting with a letter or digit"
        raise RequestError(f"`{name}` is not a valid recipe name", hint=hint)
    target = directory / name
    check_outside_store(target)
    if exists(target):
        raise RequestError(f"`{target}` already exists", hint="choose another name; nothing was written")
    distribution = distribution or name
    module = module or re.sub(r"[-.]+", "_", distribution.lower())
    raise_all([*_value_errors(version, distribution, module)])
    release = f"{distribution} {version}"
    found, bounds = _look_up(distribution, version) if ask_index else ("", "")
    values = {
        "name": name,
        "version": version,
        "distribution": distribution,
        "module": module,
        "check": re.sub(r"[^a-z0-9]+", "-", name) + ".sums",
        "python": bounds,
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATE),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # no HTML
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with private_work(directory, before=f".{name}-") as work:
            for template in templates.list_templates():
                file = work / name / template.removesuffix(".j2")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(templates.get_template(template).render(values))
            (work / name).rename(target)
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror}",
            hint="free some space, or name another directory",
        ) from error
    return NewRecipe(directory=target, release=release, found=found)


def _look_up(distribution: str, version: str) -> tuple[str, str]:
    """Return the files that the index has of a release, in words, and bounds of the Python that follow.

    RequestError: the index lacks the release.
    """
    site = read_site(None)
    sources = python_sources(site.value if site else None, read_machine())
    bases = [base for base in read_bases() if base.root is None and not base.python.is_legacy]
    targets = {target.version: target for target in (target_of(base, architecture()) for base in bases)}
    release = offered_release(canonicalize_name(distribution), version, sources, [*targets.values()])
    if release is None:
        return "the index cannot be asked, so nothing is known of its files", ""
    if not release.exists:
        newest = f"its newest release is {release.newest}" if release.newest else "check the name"
        raise RequestError(
            f"the index has no {distribution} {version}",
            hint=f"{newest}; with `--offline` the recipe is written without a look at the index",
        )
    if not release.wheels_for:
        missing = f"no wheel for {_pythons(targets)}"
        return f"{missing}, only a source archive: build it with `source` in recipe.yaml", ""
    bounds = python_bounds(release.wheels_for, [*targets])
    others = [version for version in targets if version not in release.wheels_for]
    only = f", and none for {_pythons(others)}: see `base` in recipe.yaml" if others else ""
    return f"a wheel for {_pythons(release.wheels_for)}{only}", bounds


def python_bounds(fitting: Sequence[str], known: Sequence[str]) -> str:
    """Return bounds (PEP 440) that take the fitting ones of all known Pythons; empty if all of them fit.

    A Python between two fitting ones is not excluded.
    """
    ordered = sorted(known, key=Version)
    first, last = (
        ordered.index(version) for version in (min(fitting, key=Version), max(fitting, key=Version))
    )
    lower = [f">={ordered[first]}"] if first else []
    upper = [f"<{ordered[last + 1]}"] if ordered[last + 1 :] else []
    return ",".join([*lower, *upper])


def _pythons(versions: Iterable[str]) -> str:
    """Return ``Python 3.9, 3.11 and 3.13``."""
    *others, last = sorted(versions, key=Version)
    return f"Python {', '.join(others)} and {last}" if others else f"Python {last}"


def _value_errors(version: str, distribution: str, module: str) -> Iterator[EnvbuildError]:
    """Yield the values that no recipe can hold, by their names on the command line."""
    values = (
        ("VERSION", TypeAdapter[str](ProvenVersion), version, "name a release that the package index has"),
        ("--distribution", TypeAdapter[str](Distribution), distribution, "the default is the recipe's name"),
        ("--import", TypeAdapter[str](ModuleName), module, "the default is the distribution's name"),
    )
    for name, kind, text, hint in values:
        try:
            kind.validate_python(text)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            yield RequestError(f"{name}: {reason}", hint=hint)
