"""Changes between versions of modules, for the people who use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from envbuild.activate.installed import InstalledModule, find_installed, not_installed
from envbuild.activate.layout import parse_module
from envbuild.errors import EnvbuildError, RequestError, collected, raise_all
from envbuild.image.file import ImageFile
from envbuild.rules.package_query import Ecosystem
from envbuild.workflows.images import NamedImage
from envbuild.workflows.module import existing_root, judge_module
from envbuild.workflows.packages import KnownPackages, packages_of
from envbuild.workflows.report_page import inline, table
from envbuild.workflows.settings import Settings

_WORDS: dict[Ecosystem, str] = {"deb": "Debian", "pypi": "Python"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A package that differs between two images."""

    ecosystem: Ecosystem
    name: str
    before: str
    """Its version; empty if the image did not have it."""
    now: str
    """The same of the later image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChange:
    """The difference between two versions of a module."""

    name: str
    before: str
    now: str
    is_default: bool
    """Whether `module load NAME` was made to take the later version."""
    retired_until: date | None
    """The day on which the earlier version is to be uninstalled; None unless it is retired."""
    verdict: str
    """The word for the test verdict on the later version, and its circumstances."""
    higher: tuple[str, ...]
    """Versions above a chosen default, from which it was moved back or which it has not reached."""
    packages: tuple[PackageChange, ...]
    gaps: tuple[str, ...]
    """Why further packages may differ."""


def module_changes(
    names: Sequence[str], settings: Settings, *, root: Path, before: str | None = None
) -> tuple[ModuleChange, ...]:
    """Compare modules with the versions before them.

    `names` are ``NAME/VERSION``, or ``NAME`` for the default version, else the highest that is not retired;
    without any, all names that have several versions. The version before is the next lower one, or `before`;
    if the lowest one is the default, as after a move back, it is the next higher one. RequestError: one is
    not installed, or has no version before it; all are reported at once.
    """
    installed = find_installed(existing_root(root))
    by_name: dict[str, list[InstalledModule]] = {}
    for module in installed:
        by_name.setdefault(module.layout.name, []).append(module)
    errors: list[EnvbuildError] = []
    pairs: list[tuple[InstalledModule, InstalledModule]] = []
    if not names:
        names = [name for name, versions in by_name.items() if _before(versions, _current(versions))]
    for name in dict.fromkeys(names):
        with collected(errors):
            base, version = parse_module(name)
            pairs.append(_pair(by_name.get(base, []), name, version, before, root))
    raise_all(errors)
    return tuple(_change(old, new, by_name[new.layout.name], settings) for old, new in pairs)


def _current(versions: Sequence[InstalledModule]) -> InstalledModule:
    offered = [module for module in versions if module.retired_until is None] or versions
    return next((module for module in versions if module.default), offered[-1])


def _pair(
    versions: Sequence[InstalledModule], name: str, version: str | None, before: str | None, root: Path
) -> tuple[InstalledModule, InstalledModule]:
    by_version = {module.layout.version: module for module in versions}
    if not versions or (version is not None and version not in by_version):
        raise not_installed(name, root)
    new = _current(versions) if version is None else by_version[version]
    if before is not None:
        if before not in by_version:
            raise not_installed(f"{new.layout.name}/{before}", root)
        return by_version[before], new
    old = _before(versions, new)
    if old is None:
        hint = "name a higher version, or the one to compare with: --from VERSION"
        raise RequestError(f"no version of {new.layout.name} is below {new.layout.version}", hint=hint)
    return old, new


def _before(versions: Sequence[InstalledModule], new: InstalledModule) -> InstalledModule | None:
    """Return the version that users had before `new`; None if no other one is known to be it."""
    at = versions.index(new)
    if at > 0:
        return versions[at - 1]
    return versions[1] if new.default and len(versions) > 1 else None


def _change(
    old: InstalledModule, new: InstalledModule, versions: Sequence[InstalledModule], settings: Settings
) -> ModuleChange:
    listed = judge_module(new, settings, settings.this_host())
    higher = [module for module in versions[versions.index(new) + 1 :] if module.retired_until is None]
    before, now = (_packages(module, settings) for module in (old, new))
    return ModuleChange(
        name=new.layout.name,
        before=old.layout.version,
        now=new.layout.version,
        is_default=new.default,
        retired_until=old.retired_until,
        verdict=f"{listed.word} ({listed.text})" if listed.text else listed.word,
        higher=tuple(module.layout.version for module in higher) if new.default else (),
        packages=tuple(_package_changes(before, now)),
        gaps=tuple(dict.fromkeys([*before.gaps.values(), *now.gaps.values()])),
    )


def _packages(module: InstalledModule, settings: Settings) -> KnownPackages:
    with ImageFile.open(NamedImage.of(module).file(settings)) as image:
        return packages_of(image)


def _package_changes(before: KnownPackages, now: KnownPackages) -> Iterator[PackageChange]:
    old, new = ({(one.ecosystem, one.name): one.version for one in known.packages} for known in (before, now))
    for ecosystem, name in sorted(old.keys() | new.keys()):
        versions = old.get((ecosystem, name), ""), new.get((ecosystem, name), "")
        if versions[0] != versions[1]:
            yield PackageChange(ecosystem=ecosystem, name=name, before=versions[0], now=versions[1])


def markdown(changes: Sequence[ModuleChange]) -> str:
    """Return the changes as a page for users."""
    return "\n".join(["# Changes of modules", *(line for change in changes for line in _section(change)), ""])


def _section(change: ModuleChange) -> Iterator[str]:
    old, new = f"{change.name}/{change.before}", f"{change.name}/{change.now}"
    yield from ("", f"## {inline(change.name)}: {inline(change.before)} → {inline(change.now)}", "")
    if change.is_default:
        yield f"- `module load {change.name}` loads {inline(new)}; running jobs keep what they loaded."
    else:
        yield f"- `module load {new}` loads it."
    if change.retired_until is not None:
        yield f"- {inline(old)} is retired, and will be uninstalled on {change.retired_until.isoformat()}."
    elif change.before not in change.higher:
        yield f"- `module load {old}` still loads the version before."
    for version in change.higher:
        yield f"- {inline(f'{change.name}/{version}')} is a higher version, and not the default."
    yield f"- Test: {inline(change.verdict)}"
    for gap in change.gaps:
        yield f"- Further packages may differ: {inline(gap)}"
    yield ""
    if not change.packages:
        yield "No package that the images name has changed."
        return
    rows = [
        (package.name, _WORDS[package.ecosystem], package.before or "not there", package.now or "removed")
        for package in change.packages
    ]
    yield from table(("package", "of", "before", "now"), rows)
