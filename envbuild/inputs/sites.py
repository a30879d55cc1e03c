"""Finds and reads the file of a site: the named one, that of a spec, or the machine's own."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.inputs.catalog import Catalog, ErrorCollector, check_name, find_catalog, load_file
from envbuild.inputs.partition_names import partition_names
from envbuild.rules.facts import facts_from
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import driver_floor, judge_by
from envbuild.rules.tables import at_least
from envbuild.spec.check import not_known
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import SITE_NAME, EnvSpec
from envbuild.spec.partitions import each_partition, in_partition
from envbuild.spec.site import Site
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import (
    HINT_SETTINGS,
    environment_paths,
    exists,
    is_directory,
    is_there,
    read_input,
    settings_homes,
)
from envbuild.system.privacy import check_settings

_YAML = (".yaml", ".yml")


def driver_conflict(site: Loaded[Site] | None, family: str, release: str) -> str:
    """Return why a site, or one of its partitions, does not run a release of an accelerator's software.

    Its driver is too old, or for ROCm its GPUs. Empty if each does, or if that is unknown.
    """
    if site is not None and family == "rocm":
        return next(filter(None, (_rocm_conflict(here, release) for here in each_partition(site))), "")
    floor = driver_floor(release) if family == "cuda" else None
    for here in each_partition(site) if site is not None and floor is not None else ():
        driver = here.value.gpus.driver if here.value.gpus is not None else None
        if driver is not None and floor is not None and at_least(driver, floor) is False:
            return f"needs a driver of at least {floor}, and the site `{here.value.name}` has {driver}"
    return ""


def _rocm_conflict(site: Loaded[Site], release: str) -> str:
    facts = stack_facts(facts_from({"rocm.toolkit": release}, ""), site.value)
    for rule in ("ROCM.of-gpu", "ROCM.driver-window"):
        result = judge_by(facts, rule)
        # Without the release of the driver, its rows are undecided.
        if result is not None and result.warn and not result.missing:
            return f"{result.reason} on the site `{site.value.name}`"
    return ""


def read_site(given: Path | None) -> Loaded[Site] | None:
    """Read the site or partition that a command line names; without one, as `read_spec`."""
    return choose_site(find_catalog(), None, given)


def read_site_file(given: Path | None) -> Loaded[Site] | None:
    """Read the same file as `read_site`, without the sources of packages of the machine's own."""
    return _chosen_site(find_catalog(), None, given)


def read_sites() -> tuple[list[Loaded[Site]], list[EnvbuildError]]:
    """Return all sites that can be named, and the errors of the others and of ``site.yaml``."""
    catalog, reading = find_catalog(), ErrorCollector()
    sites = [reading.collect(partial(_site_named, catalog, name, None)) for name in catalog.site_names()]
    for path in _own_sites():
        reading.collect(partial(_load_own, path))
    return [site for site in sites if site is not None], reading.errors


def choose_site(catalog: Catalog, spec: Loaded[EnvSpec] | None, given: Path | None) -> Loaded[Site] | None:
    """Read the given site, else the one that the spec names, else the machine's own.

    A site without sources of packages gets those of the machine's own.
    """
    site = _chosen_site(catalog, spec, given)
    own = next(iter(_own_sites()), None)
    if site is None or site.value.origins or site.value.find_links or own in (None, site.path):
        return site
    # An image for another machine is built from packages that this machine can reach.
    here = _load_own(own).value
    addresses = {"origins": here.origins, "mirrors": here.mirrors, "find_links": here.find_links}
    return replace(site, value=site.value.model_copy(update=addresses))


def _chosen_site(catalog: Catalog, spec: Loaded[EnvSpec] | None, given: Path | None) -> Loaded[Site] | None:
    """Read the same site as `choose_site`, with the sources of packages of its file alone."""
    listed = environment_paths("ENVBUILD_SITE")
    if given is not None or listed:
        return _site_given(catalog, given if given is not None else listed[0])
    if spec is not None and spec.value.site is not None:
        return _site_named(catalog, spec.value.site, spec.at("site"))
    own = next(iter(_own_sites()), None)
    return None if own is None else _load_own(own)


def _site_given(catalog: Catalog, given: Path) -> Loaded[Site]:
    """Read the value of `--site` or ENVBUILD_SITE: a known site, or a file; behind a slash a partition."""
    by_variable = environment_paths("ENVBUILD_SITE")[:1] == (given,)
    by = ", which ENVBUILD_SITE names" if by_variable else ""
    name, file = str(given), given.parent
    if str(file).endswith(_YAML) and not is_directory(file):
        return in_partition(_site_given(catalog, file), given.name)
    is_name = re.fullmatch(SITE_NAME, name) and not name.endswith(_YAML)
    if is_name and (catalog.site(name.partition("/")[0]) is not None or not exists(given)):
        return _site_named(catalog, name, None, by=by)
    hint = "ENVBUILD_SITE names it; set it to a file that is there" if by_variable else None
    return load(Site, read_input(given, limit_bytes=MAX_BYTES, hint=hint), given)


def _site_named(catalog: Catalog, name: str, at: Location | None, *, by: str = "") -> Loaded[Site]:
    """Read a known site, or the machine's own by its name; of ``NAME/PARTITION`` the partition."""
    site_name, _, partition = name.partition("/")
    path = catalog.site(site_name)
    if path is not None:
        catalog.check(path)
        loaded = load_file(Site, path, hint=HINT_SETTINGS)
        check_name(loaded, loaded.value.name, "site")
    else:
        own = (_load_own(file) for file in _own_sites())
        found = next((site for site in own if site.value.name == site_name), None)
        if found is None:
            known = [catalog.site(stem) or Path() for stem in catalog.site_names()]
            names = [entry for file in known for entry in (file.stem, *partition_names(file))]
            unknown = not_known("site", site_name, names, at)
            raise RequestError(f"{unknown.problem}{by}", at=at, hint=unknown.hint)
        loaded = found
    return in_partition(loaded, partition) if partition else loaded


def _own_sites() -> tuple[Path, ...]:
    return tuple(filter(is_there, (home / "site.yaml" for home in settings_homes())))


def _load_own(path: Path) -> Loaded[Site]:
    check_settings(path)
    return load_file(Site, path, hint=HINT_SETTINGS)
