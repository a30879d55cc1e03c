"""The binds of a site, as Apptainer takes them."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Bind


def binds_of(binds: Iterable[SiteBind]) -> tuple[Bind, ...]:
    """Return binds of a site file as binds of Apptainer."""
    return tuple(Bind(source=bind.source, target=bind.target, writable=bind.writable) for bind in binds)
