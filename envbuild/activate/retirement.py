"""The versions that users are offered: the default one, and those that are retired.

A retired module is hidden from `avail`, and says at each load on which day it is to be uninstalled. Its
modulefile states that day; ``.version`` hides it.
"""

from __future__ import annotations

from datetime import date

from envbuild.activate.install import foreign_choices, os_errors_explained, write_marker, write_text
from envbuild.activate.installed import InstalledModule
from envbuild.activate.layout import RETIRED, Layout, deprecation, made_by_us, read_default, retired_versions
from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.system.files import read_input

_LIMIT_BYTES = 1 << 20


def choose_default(module: InstalledModule) -> bool:
    """Make a module the default version of its name; return whether it was not before.

    RequestError: it is broken or retired, or a file of others chooses the version.
    """
    layout = module.layout
    errors: list[EnvbuildError] = [*_not_loadable(module), *foreign_choices(layout)]
    if module.retired_until is not None:
        hint = f"`envbuild module retire --undo {layout.label} --root DIR` first"
        errors.append(RequestError(f"{layout.label} is retired", hint=hint))
    raise_all(errors)
    with os_errors_explained(layout.root, "choose a default"):
        return write_marker(layout, default=layout.version, retired=retired_versions(layout))


def retire(module: InstalledModule, until: date) -> None:
    """Retire a module; one that is retired already gets the new day.

    RequestError: it is broken or the chosen default, or a file of others chooses the version.
    """
    layout = module.layout
    errors: list[EnvbuildError] = [*_not_loadable(module), *foreign_choices(layout)]
    if module.default:
        hint = f"choose another one first: `envbuild module default {layout.name}/VERSION --root DIR`"
        errors.append(RequestError(f"{layout.label} is the default version", hint=hint))
    raise_all(errors)
    _write(layout, until)


def end_retirement(module: InstalledModule) -> None:
    """Offer a retired module again; another one stays as it is."""
    if module.retired_until is not None:
        _write(module.layout, None)


def _not_loadable(module: InstalledModule) -> list[EnvbuildError]:
    if made_by_us(module.layout.modulefile) and not module.problems:
        return []
    problem = f"{module.layout.label} cannot be loaded: {'; '.join(module.problems)}"
    return [RequestError(problem, hint="install it again, or uninstall it")]


def _write(layout: Layout, until: date | None) -> None:
    """Write a modulefile with or without the note of a retirement, and then what `avail` hides."""
    with os_errors_explained(layout.root, "retire"):
        text = read_input(layout.modulefile, limit_bytes=_LIMIT_BYTES).decode()
        text = text.partition(f"\n{RETIRED}")[0].rstrip("\n") + "\n"
        write_text(layout.modulefile, text + (_note(layout, until) if until is not None else ""))
        write_marker(layout, default=read_default(layout), retired=retired_versions(layout))


def _note(layout: Layout, until: date) -> str:
    # Names and versions have no character with a meaning in Tcl.
    deprecated = deprecation(layout)
    instead = deprecated.use if deprecated is not None else f"{layout.name}, which is the current version"
    sentence = f"{layout.label} is retired, and will be uninstalled on {until.isoformat()}"
    return (
        f"{RETIRED}{until.isoformat()}\n"
        "if {[module-info mode load]} {\n"
        f'    puts stderr "{sentence}: load {instead}"\n'
        "}\n"
    )
