"""What an image takes from its host to drive the host's interconnect, planned before anything starts."""

from __future__ import annotations

from pathlib import Path

from envbuild.compat.from_site import fabric_settings
from envbuild.elf.loader import closure
from envbuild.errors import RequestError
from envbuild.site.files import HostTree, host_search
from envbuild.site.inject import PRIVATE, Injection
from envbuild.site.lent import ImageSide, LentFiles, named
from envbuild.spec.site import Site, SiteFabric
from envbuild.system.files import exists


def fabric_names(site: Site, *, tree: HostTree | None = None) -> tuple[str, ...]:
    """Return the names of what a site's fabric libraries would load, sorted: what to ask an image for.

    Raises
    ------
    RequestError
        The site lends nothing of its fabric, or a library is not there.
    """
    fabric = _fabric_of(site)
    host = tree or HostTree()
    names: set[str] = set()
    for path in _libraries(fabric):
        loads = closure(path, host, host_search(fabric.search, named(host, path).machine))
        names.update(name for each in loads.objects for name in each.found.needed)
    return tuple(sorted(names))


def plan_fabric(site: Site, image: ImageSide, *, tree: HostTree | None = None) -> Injection:
    """Return what an image takes from a site to use the host's libfabric, providers and NCCL plug-in.

    Its environment chooses the fabric and refuses any other: what follows from
    the provider, and the site's own on top. NCCL finds the plug-in by its name,
    in the private directory.

    Parameters
    ----------
    tree : HostTree, optional
        The host's files; this machine's own if absent.

    Raises
    ------
    RequestError
        A rule forbids it, a file is missing, or the site lends nothing of its fabric.
    """
    fabric = _fabric_of(site)
    host = tree or HostTree()
    found: dict[str, str] = {}
    for path in _libraries(fabric):
        library = named(host, path)
        files = LentFiles(image, host, search=fabric.search, companions=(), machine=library.machine)
        files.add_named(path, library)
        found = {**files.found, **found}
    return Injection(
        implementation="",
        version="",
        abis=(),
        mpi=(),
        files=dict(sorted(found.items())),
        links={},
        companions=(),
        environment={**fabric_settings(fabric), "LD_LIBRARY_PATH": f"{PRIVATE}:{image.library_path}"},
        # A login node has none of them.
        devices=tuple(path for path in fabric.devices if exists(Path(path))),
    )


def _fabric_of(site: Site) -> SiteFabric:
    fabric = site.fabric
    if fabric is None or not (fabric.libraries or fabric.nccl_plugin or fabric_settings(fabric)):
        raise RequestError(
            f"the site `{site.name}` lends nothing of its fabric",
            hint="add `fabric:` with `provider:`, `libraries:`, `nccl_plugin:` or `environment:` to its file",
        )
    return fabric


def _libraries(fabric: SiteFabric) -> tuple[str, ...]:
    return (*fabric.libraries, *([fabric.nccl_plugin] if fabric.nccl_plugin else []))
