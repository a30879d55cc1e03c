"""The partitions of a site file that was read: each as a site, with its places in the file."""

from __future__ import annotations

from dataclasses import replace

from envbuild.errors import RequestError, did_you_mean
from envbuild.spec.load import Loaded
from envbuild.spec.site import Site


def in_partition(site: Loaded[Site], name: str) -> Loaded[Site]:
    """Return one partition as a site; RequestError if there is none of that name."""
    if name not in site.value.partitions:
        raise _unknown(site, name)
    # A key's place is in the partition if that has the key.
    prefix = ("partitions", name)
    own = {loc[2:]: at for loc, at in site.document.locations.items() if loc[:2] == prefix and loc[2:]}
    document = replace(site.document, locations={**site.document.locations, **own})
    return replace(site, value=site.value.partition(name), document=document)


def each_partition(site: Loaded[Site]) -> tuple[Loaded[Site], ...]:
    """Return each partition as a site; a site without partitions as it is."""
    return tuple(in_partition(site, name) for name in site.value.partitions) or (site,)


def common_site(site: Loaded[Site]) -> Loaded[Site]:
    """Return the facts that are the same in all partitions."""
    return replace(site, value=site.value.common())


def one_partition(site: Loaded[Site], *, queue: str = "") -> Loaded[Site]:
    """Return the partition with a queue of the scheduler, else the only or the default one.

    RequestError: none of these is known. A site without partitions is returned as it is.
    """
    value = site.value
    names = tuple(value.partitions)
    name = value.partition_of_queue(queue) or value.default_partition or (names[0] if len(names) == 1 else "")
    if name or not names:
        return in_partition(site, name) if name else site
    listed = f", and `{queue}` is a queue of none" if queue else ""
    raise RequestError(
        f"the site `{value.name}` has several partitions: {', '.join(names)}{listed}",
        at=site.at_key("partitions"),
        hint=f"name one, `--site {value.name}/{names[0]}`, or set `default_partition` in the file",
    )


def _unknown(site: Loaded[Site], name: str) -> RequestError:
    value = site.value
    if not value.partitions:
        problem, hint = f"the site `{value.name}` has no partitions", f"name it alone: `{value.name}`"
        return RequestError(problem, at=site.at("name"), hint=hint)
    known = tuple(value.partitions)
    return RequestError(
        f"the site `{value.name}` has no partition `{name}`",
        at=site.at_key("partitions"),
        hint=" ".join(filter(None, [did_you_mean(name, known), f"known: {', '.join(known)}"])),
    )
