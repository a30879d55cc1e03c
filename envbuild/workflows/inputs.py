"""The site of a run."""

from __future__ import annotations

from envbuild.inputs.sites import read_site
from envbuild.spec.site import Site
from envbuild.workflows.settings import Settings


def site_of(settings: Settings) -> Site | None:
    """Read the site of a run: the named one, else as `read_spec`; None without one."""
    loaded = read_site(settings.site)
    return loaded.value if loaded is not None else None
