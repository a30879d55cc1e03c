"""What is wrong with the directories that envbuild writes to. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.model import Directory, Finding, Machine, yours

# What a build of the example needs beside what it keeps, measured: 6 GB; a store of it 3 GB.
NEEDED_TEMPORARY_BYTES = 8_000_000_000
NEEDED_STORE_BYTES = 5_000_000_000
NEEDED_INODES = 200_000
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "afs", "fuse.sshfs"})


def findings(machine: Machine) -> Iterator[Finding]:
    """Yield what is wrong with the store and with the directory for temporary files."""
    yield from _store(machine)
    yield from _temporary(machine)


def _store(machine: Machine) -> Iterator[Finding]:
    store = machine.store
    elsewhere = "name another with --store DIR or ENVBUILD_STORE"
    for problem, remedy in machine.store_refused.items():
        why = "who can write to a store decides what images hold"
        yield yours("store.refused", "blocks", ("fetch", "build", "layer", "cache"), problem, why, remedy)
    if not store.writable:
        yield yours(
            "store.read-only",
            "blocks",
            ("fetch", "build", "layer"),
            f"the store `{store.path}` cannot be written",
            "layers and files are kept there; only images whose layers are all in it can be composed",
            elsewhere,
        )
        return
    yield from _room(
        "store",
        store,
        NEEDED_STORE_BYTES,
        f"`envbuild cache prune`, or {elsewhere}",
        ("fetch", "build", "layer"),
    )
    if not store.hard_links:
        yield yours(
            "store.hard-links",
            "hampers",
            ("build",),
            f"the file system of the store `{store.path}` has no hard links",
            "wheels are copied in place of being linked: builds take longer and more room",
            elsewhere,
        )
    if not store.locks:
        yield yours(
            "store.locks",
            "hampers",
            ("lock",),
            f"the file system of the store `{store.path}` has no locks",
            "two that resolve at once may do the same work twice, or wait in vain",
            f"{elsewhere}; on Lustre an administrator mounts it with `-o flock`",
        )
    if not store.attributes:
        yield yours(
            "store.attributes",
            "hampers",
            ("build",),
            f"the file system of the store `{store.path}` has no extended attributes",
            "a finished root with file capabilities (`base-images` of kind tar) is unpacked without them",
            elsewhere,
        )


def _temporary(machine: Machine) -> Iterator[Finding]:
    place = machine.temporary
    elsewhere = "name a local directory with ENVBUILD_TMPDIR"
    if not place.writable:
        yield yours(
            "tmp.read-only",
            "blocks",
            ("build", "reproduce"),
            f"`{place.path}` cannot be written",
            "builds work there",
            elsewhere,
        )
        return
    if not place.passable and not machine.root:
        yield yours(
            "tmp.not-passable",
            "hampers",
            ("build", "reproduce"),
            f"other users' processes cannot pass through `{place.path}`",
            "subordinate ids do a build's work: /var/tmp or /tmp is taken instead",
            f"{elsewhere}, all of whose parents have mode 0711 or more",
        )
    if place.no_exec:
        yield yours(
            "tmp.no-exec",
            "blocks",
            ("build", "reproduce"),
            f"nothing can be started below `{place.path}` (noexec)",
            "packages' own scripts run there",
            elsewhere,
        )
    if place.file_system in _NETWORK_FILE_SYSTEMS:
        yield yours(
            "tmp.network",
            "hampers",
            ("build", "reproduce", "test"),
            f"`{place.path}` is on a network file system ({place.file_system})",
            "roots of many small files are slow there, and subordinate ids may be refused",
            elsewhere,
        )
    yield from _room("tmp", place, NEEDED_TEMPORARY_BYTES, elsewhere, ("build", "reproduce"))


def _room(name: str, place: Directory, needed: int, mend: str, verbs: tuple[str, ...]) -> Iterator[Finding]:
    short = 0 <= place.free_bytes < needed
    if short or 0 <= place.free_inodes < NEEDED_INODES:
        seen = (
            f"{place.free_bytes / 1e9:.1f} GB are free, of {needed / 1e9:.0f} GB"
            if short
            else f"{place.free_inodes} files can still be made, of {NEEDED_INODES}"
        )
        yield yours(
            f"{name}.space",
            "hampers",
            verbs,
            f"in `{place.path}` {seen} that an image with a framework takes",
            "a build that finds the disk full ends, and resumes when there is room",
            mend,
        )
