"""Sites: list them, show one, draft the file of this machine, compare a file with the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envbuild.errors import EnvbuildError, RequestError
from envbuild.inputs.sites import read_site_file, read_sites
from envbuild.jobs.report import CheckResult
from envbuild.rules.from_site import facts_of_site
from envbuild.site.compare import compare
from envbuild.site.probe import probe
from envbuild.spec.load import Loaded
from envbuild.spec.model import MAX_NAME, NAME
from envbuild.spec.partitions import common_site, each_partition
from envbuild.spec.site import Site
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import exists, is_directory, read_input, write_new
from envbuild.system.survey import Survey
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.inputs import partition_here

_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteListing:
    """All sites that `--site` and a spec can name."""

    sites: tuple[Loaded[Site], ...]
    """Sorted by name; behind each site its partitions, as sites."""
    errors: tuple[EnvbuildError, ...] = ()
    """Errors of the other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """A site file compared with this machine."""

    path: Path
    site: str
    """The name of the site, or of the partition that was compared (``lumi/g``)."""
    others: tuple[str, ...]
    """Partitions that were left out, because it is unknown in which one this machine is."""
    findings: tuple[CheckResult, ...]
    """Differences, in the order of the file's keys: their `subject`."""

    @property
    def holds(self) -> bool:
        """Whether all values that can be read on this machine are the same."""
        return all(finding.status != "FAIL" for finding in self.findings)


def list_sites() -> SiteListing:
    """Return all sites."""
    read, errors = read_sites()
    sites = [
        entry for site in read for entry in (site, *(each_partition(site) if site.value.partitions else ()))
    ]
    return SiteListing(sites=tuple(sites), errors=tuple(errors))


def show_site(given: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a site's file, and its data with the facts that rules read.

    Of a partition, the text is the site as it combines with it; of a site with partitions, the facts are
    those that all share.
    """
    loaded = _loaded(given)
    data = loaded.value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "/" in loaded.value.name:
        head = f"# {loaded.path}, combined with its partition\n"
        text = head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH)
    else:
        text = read_input(loaded.path, limit_bytes=MAX_BYTES).decode(errors="replace")
    facts: dict[str, dict[str, Any]] = {}
    for path, fact in facts_of_site(common_site(loaded).value).items():
        section, _, name = path.partition(".")
        facts.setdefault(section, {})[name] = fact.value
        facts.setdefault("origins", {})[path] = fact.source
    return text, {"file": str(loaded.path), "site": data, "facts": facts}


def probe_machine(*, output: Path | None, mpi: Sequence[Path]) -> str:
    """Return the draft of a site file for this machine, and write it to `output` if given.

    The stem of `output` becomes the site's name. `mpi` are directories where an MPI is installed.
    RequestError: one does not exist, or the output exists or cannot be written.
    """
    for path in mpi:
        if not is_directory(path):
            hint = "--mpi takes the directory where an MPI is installed"
            raise RequestError(f"there is no directory `{path}`", hint=hint)
    name = "here" if output is None else output.stem
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        hint = "its stem becomes the site's name: lower-case letters, digits, `.`, `_` and `-`"
        raise RequestError(f"`{output}` cannot be a site's file", hint=hint)
    if output is not None:
        if exists(output):
            # A user may have added values that no probe can read.
            hint = "name another file, and merge them; `envbuild site check` lists what has changed"
            raise RequestError(f"`{output}` already exists", hint=hint)
        check_outside_store(output)
    text = probe(Survey(), name=name, mpi=[str(path.absolute()) for path in mpi]).text()
    if output is not None:
        write_new(output, text.encode())
    return text


def check_site(given: Path | None) -> SiteReport:
    """Compare a site file, given by name or path, with this machine; by default the machine's own.

    Of a site with partitions it is the named one, else that of this job of Slurm, else what all share.
    """
    loaded = _loaded(given)
    here = partition_here(loaded)
    return SiteReport(
        path=loaded.path,
        site=here.value.name,
        others=tuple(loaded.value.partitions) if here.value.name == loaded.value.name else (),
        findings=compare(here.value, Survey()),
    )


def _loaded(given: Path | None) -> Loaded[Site]:
    loaded = read_site_file(given)
    if loaded is None:
        hint = "name one, or draft it: `envbuild site probe -o ~/.config/envbuild/site.yaml`"
        raise RequestError("neither this user nor this machine has a site file", hint=hint)
    return loaded
