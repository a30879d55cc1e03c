"""Modules of a machine as parts of its site file: where an MPI is, and software that the site supplies."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from envbuild.site.libraries import VERSION
from envbuild.spec.model import NAME, Text
from envbuild.spec.site import HostVariable, SiteSupply, SuppliedLibrary
from envbuild.spec.validators import validator
from envbuild.system.modules import LoadedModule
from envbuild.system.survey import Survey

_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "LIBRARY_PATH")
# Variables that list directories, or that the module system and EasyBuild keep for themselves.
_NOT_OF_SOFTWARE = re.compile(
    r"_.*|.*PATH|LOADEDMODULES|LMOD_.*|MODULES?_.*|EB(ROOT|VERSION|DEVEL).*|(ACLOCAL|PKG_CONFIG|CMAKE)_.*"
)


def prefixes(module: LoadedModule) -> tuple[str, ...]:
    """Return the directories below which a module's software may be installed."""
    found = [*module.gained("CMAKE_PREFIX_PATH")]
    for path in module.gained("PATH", *_LIBRARY_PATHS):
        parent, _, name = path.rstrip("/").rpartition("/")
        if name in ("bin", "lib", "lib64") and parent:
            found.append(parent)
    return tuple(dict.fromkeys(found))


def library_directories(module: LoadedModule, machine: Survey) -> tuple[str, ...]:
    """Return the directories of a module's libraries: those that it names, else those below its prefixes."""
    named = module.gained(*_LIBRARY_PATHS)
    below = [posixpath.join(prefix, name) for prefix in prefixes(module) for name in ("lib", "lib64")]
    return tuple(path for path in named or below if machine.names(path) and _is(SuppliedLibrary, path))


def supply_name(module: LoadedModule) -> str:
    """Return the name under which a site supplies a module's software; empty if none can be made."""
    name = module.name.partition("/")[0].lower()
    return name if re.fullmatch(NAME, name) else ""


def supply_of(module: LoadedModule, machine: Survey) -> SiteSupply:
    """Return what a site supplies by a module, as far as its variables say."""
    version = re.match(VERSION, module.name.partition("/")[2])
    return SiteSupply(
        version=version[0] if version else None,
        libraries=library_directories(module, machine),
        environment=dict(_environment(module)),
    )


def _environment(module: LoadedModule) -> Iterator[tuple[str, str]]:
    for name, text in sorted(module.set.items()):
        # Others are of the user or of the container.
        if not _NOT_OF_SOFTWARE.fullmatch(name) and _is(HostVariable, name) and _is(Text, text):
            yield name, text


def _is(kind: Any, text: str) -> bool:  # noqa: ANN401  # an annotated text
    try:
        validator(kind).validate_python(text)
    except ValidationError:
        return False
    return True
