"""Facts that tables know from others: the ABIs of an MPI's release, the GPU code of a published build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envbuild.compat.builtin import builtin
from envbuild.compat.facts import Facts
from envbuild.compat.sections import FrameworkFacts

# A table, or several of which the first that knows counts.
Tables = str | tuple[str, ...]
# Fact → the table that knows it from the family and version of the image's MPI.
_OF_MPI: Mapping[str, Tables] = {
    "mpi.abis": "abis-of-mpi",
    "mpi.sonames": "sonames-of-mpi",
    "mpi.providers": "providers-of-mpi",
    "pmi.spoken": "pmi-of-mpi",
    # What is known of the one build that images have comes before what any may have.
    "pmi.optional": ("optional-pmi-of-image-mpi", "optional-pmi-of-mpi"),
}
_OF_HOST_MPI: Mapping[str, Tables] = {"pmi.spoken": "pmi-of-mpi", "pmi.optional": "optional-pmi-of-mpi"}


def look_up(table: str, *keys: str | None) -> tuple[str, ...] | None:
    """Return what a table of this program says; None where a key is unknown or no row fits."""
    known = [key for key in keys if key is not None]
    return builtin().tables[table].find(known) if len(known) == len(keys) else None


def pmi_of(family: str, version: str, *, host: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what an MPI speaks to srun, and what it may have been built to speak; empty where unknown.

    Parameters
    ----------
    host : bool
        Whether it is the host's; an image's own is one build, of which more is known.
    """
    added: dict[str, tuple[str, ...]] = {}
    for path, tables in _OF_HOST_MPI.items():
        _add(added, {}, path, tables if host else _OF_MPI[path], family, version)
    return added.get("pmi.spoken", ()), added.get("pmi.optional", ())


def derived(facts: Facts) -> Facts:
    """Add what tables know to the facts of an image or of a whole stack.

    What is known already stays. Which PMI is spoken follows the MPI that
    programs run on: the host's where ``mpi.source`` is ``host``.
    """
    added: dict[str, tuple[str, ...]] = {}
    origins = dict(facts.origins)
    for path, table in _OF_MPI.items():
        if facts.mpi.source == "host" and path in _OF_HOST_MPI:
            continue
        if facts.at(path) is None:
            _add(added, origins, path, table, facts.mpi.family, facts.mpi.version)
    if facts.mpi.source == "host":
        host = facts.host_mpi
        for path, table in _OF_HOST_MPI.items():
            if facts.at(path) is None:
                _add(added, origins, path, table, host.implementation, host.version or host.base_version)
    update = {
        section: getattr(facts, section).model_copy(update=dict(_of_section(added, section)))
        for section in ("mpi", "pmi")
    }
    frameworks = facts.frameworks
    if frameworks is not None:
        frameworks = {name: _with_code(name, one, facts, origins) for name, one in frameworks.items()}
    return facts.model_copy(update={**update, "frameworks": frameworks, "origins": origins})


def on_host_mpi(facts: Facts) -> Facts:
    """Return the facts of the same stack with the host's MPI in place of the image's."""
    mpi = facts.mpi.model_copy(update={"source": "host"})
    pmi = facts.pmi.model_copy(update={"spoken": None, "optional": None})
    return derived(facts.model_copy(update={"mpi": mpi, "pmi": pmi}))


def _add(
    added: dict[str, tuple[str, ...]],
    origins: dict[str, str],
    path: str,
    tables: Tables,
    family: str | None,
    version: str | None,
) -> None:
    for table in (tables,) if isinstance(tables, str) else tables:
        found = look_up(table, family, version)
        if found is not None:
            added[path] = found
            origins[path] = f"table:{table}"
            return


def _of_section(added: dict[str, tuple[str, ...]], section: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path, value in added.items():
        head, _, fact = path.partition(".")
        if head == section:
            yield fact, value


def _with_code(name: str, one: FrameworkFacts, facts: Facts, origins: dict[str, str]) -> FrameworkFacts:
    keys = (name, one.version, one.accelerator, one.toolkit, facts.architecture.image)
    code = look_up("code-of-framework", *keys)
    if code is None:
        return one
    added = {fact: code for fact in ("architectures", "published") if getattr(one, fact) is None}
    origins.update({f"frameworks.{name}.{fact}": "table:code-of-framework" for fact in added})
    return one.model_copy(update=added)
