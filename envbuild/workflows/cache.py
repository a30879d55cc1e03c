"""Cache: what the store holds, for whom, and what can go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.errors import MachineError, RequestError
from envbuild.store.inventory import Item, areas, items
from envbuild.store.pins import Held, Needs, damaged_pins, held, look, needs_of
from envbuild.store.prune import Pruned, forget, prune
from envbuild.store.store import Store
from envbuild.workflows.keeping import identify
from envbuild.workflows.settings import Settings

# Nobody can say of what is younger that no build is about to use it.
GRACE_S = 600.0

# Kinds of things that have no names for people: one, and several of them.
_SUMMED = {
    "scan": ("note of a layer", "notes of layers"),
    "log": ("log of a build", "logs of builds"),
    "quarantine": ("damaged file from quarantine", "damaged files from quarantine"),
    "leftover": ("leftover of an ended process", "leftovers of ended processes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a store holds, and who needs what.

    Attributes
    ----------
    items : tuple of Item
        Layers, blobs, files and leftovers.
    pins : tuple of Held
        Who needs them.
    needs : Needs
        What those that are not gone need.
    """

    items: tuple[Item, ...]
    pins: tuple[Held, ...]
    needs: Needs

    def needed_by(self, item: Item) -> tuple[str, ...]:
        """Return the labels of what needs an item, sorted."""
        if item.kind == "file":
            return self.needs.files.get(item.id, ())
        found = {*self.needs.keys.get(item.id, ()), *self.needs.blobs.get(item.blob, ())}
        return tuple(sorted(found))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "items": [
                {
                    "kind": item.kind,
                    "id": item.id,
                    "name": item.name,
                    "blob": item.blob or None,
                    "size_bytes": item.size_bytes,
                    "needed_by": list(self.needed_by(item)),
                }
                for item in self.items
            ],
            "pins": [pin_data(each) for each in self.pins],
        }

    def to_text(self, *, files: bool) -> str:
        """Return lines for people: who needs something, then layers, then locked files if asked for."""
        lines = [f"{each.state:<12}{each.pin.label}" for each in self.pins]
        shown = [
            item for item in self.items if item.kind in ("layer", "blob") or (files and item.kind == "file")
        ]
        for item in shown:
            users = self.needed_by(item)
            told = f"{len(users)}: {users[0]}" + (", …" if len(users) > 1 else "") if users else "nobody"
            short = item.id.removeprefix("sha256:")[:12]
            size = f"{item.size_bytes / 1e6:.1f}"
            lines.append(f"{item.kind:<6}{short}  {size:>8} MB  {item.name}  needed by {told}")
        kept = [item for item in self.items if item.kind == "file"]
        if kept and not files:
            total = sum(item.size_bytes for item in kept)
            free = sum(not self.needed_by(item) for item in kept)
            lines.append(f"{len(kept)} locked files, {total / 1e6:.1f} MB, {free} needed by nobody (--files)")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How large a store is, and for whom.

    Attributes
    ----------
    areas : dict of str to int
        Top directory → bytes.
    users : tuple of dict
        ``label``, ``total_bytes`` of what it needs, and ``own_bytes`` that nobody else needs.
    needed_bytes, shared_bytes, free_bytes : int
        Of layers with the notes of them, blobs and files, each blob once: what somebody needs, the part of it
        that several need, and what nobody needs, damaged files and leftovers of ended processes among it.
    """

    areas: dict[str, int]
    users: tuple[dict[str, Any], ...]
    needed_bytes: int
    shared_bytes: int
    free_bytes: int

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "areas": self.areas,
            "users": list(self.users),
            "needed_bytes": self.needed_bytes,
            "shared_bytes": self.shared_bytes,
            "free_bytes": self.free_bytes,
        }

    def to_text(self) -> str:
        """Return lines for people."""
        lines = [f"{size / 1e6:>12.1f} MB  {name}/" for name, size in self.areas.items() if size]
        lines += [
            f"{user['total_bytes'] / 1e6:>12.1f} MB  {user['label']}"
            f" ({user['own_bytes'] / 1e6:.1f} MB for it alone)"
            for user in self.users
        ]
        lines.append(
            f"{self.needed_bytes / 1e6:>12.1f} MB  are needed, {self.shared_bytes / 1e6:.1f} MB of them by"
            f" more than one; {self.free_bytes / 1e6:.1f} MB by nobody"
        )
        return "\n".join(lines)


def pin_data(each: Held) -> dict[str, Any]:
    """Return a pin as plain data, for JSON."""
    pin = each.pin
    return {
        "kind": pin.kind,
        "name": pin.name,
        "asked": pin.asked,
        "state": each.state,
        "digest": pin.digest or None,
        "spec": pin.spec or None,
        "layers": list(pin.keys),
        "blobs": list(pin.blobs),
        "files": list(pin.files),
    }


def list_cache(settings: Settings) -> Listing:
    """Return what a store holds; writes nothing.

    Raises
    ------
    RequestError
        It is no store.
    """
    store = settings.store
    store.check_is_one()
    pins = held(store, identify)
    return Listing(items=tuple(items(store)), pins=tuple(pins), needs=needs(pins))


def usage(settings: Settings) -> Usage:
    """Return how large a store is; writes nothing. Raises as `list_cache`."""
    listing = list_cache(settings)
    sizes: dict[str, int] = {}
    users: dict[str, set[str]] = {}
    for item in listing.items:
        if item.kind in ("layer", "blob", "file"):
            thing = item.blob or item.id
            sizes[thing] = item.size_bytes
            users.setdefault(thing, set()).update(listing.needed_by(item))
        elif item.kind in ("scan", "quarantine", "leftover"):
            # Behind layers and blobs; what was read of one goes with it.
            sizes[str(item.path)] = item.size_bytes
            users[str(item.path)] = users.get(f"sha256:{item.id}", set()) if item.kind == "scan" else set()
    labels = sorted({label for found in users.values() for label in found})
    rows = tuple(
        {
            "label": label,
            "total_bytes": sum(sizes[thing] for thing, found in users.items() if label in found),
            "own_bytes": sum(sizes[thing] for thing, found in users.items() if found == {label}),
        }
        for label in labels
    )
    return Usage(
        areas=areas(settings.store),
        users=rows,
        needed_bytes=sum(sizes[thing] for thing, found in users.items() if found),
        shared_bytes=sum(sizes[thing] for thing, found in users.items() if len(found) > 1),
        free_bytes=sum(sizes[thing] for thing, found in users.items() if not found),
    )


def prune_cache(
    settings: Settings, *, unused_s: float = GRACE_S, keep_bytes: int | None = None, dry_run: bool = False
) -> tuple[Pruned, tuple[Held, ...]]:
    """Take away what nobody needs; the second value are the pins of what is gone, which go too.

    Raises
    ------
    RequestError
        It is no store, or a pin cannot be read, so that nobody knows what it keeps.
    MachineError
        Nothing could be removed.
    """
    store = settings.store
    store.check_is_one()
    gone = tuple(each for each in held(store, identify) if each.state == "gone")
    result = prune(
        store, lambda: _needs_now(store), unused_s=unused_s, keep_bytes=keep_bytes, dry_run=dry_run
    )
    if result.refused and not result.removed:
        _, why = result.refused[0]
        raise MachineError(
            f"nothing in the store `{store.root}` can be removed: {why}", hint="its owner can do it"
        )
    if not dry_run:
        store.sweep()
        try:
            # What was built anew meanwhile has its pin under the same name.
            again = (look(each.path, identify) for each in gone)
            gone = tuple(each for each in again if each is not None and each.state == "gone")
            forget([each.path for each in gone])
        except OSError as error:
            raise MachineError(
                f"`{error.filename}` cannot be removed: {error.strerror}",
                hint="see who owns it: whoever may write to its directory can remove it",
            ) from error
    return result, gone


def removed_lines(pruned: Pruned, gone: Sequence[Held]) -> Iterator[str]:
    """Yield what was or would be taken away, for people: what is of no layer or file is summed up."""
    for item in pruned.removed:
        if item.kind not in _SUMMED:
            short = item.id.removeprefix("sha256:")[:12]
            yield f"{item.kind} {short}  {item.size_bytes / 1e6:.1f} MB  {item.name}"
    for kind, (one, several) in _SUMMED.items():
        sizes = [item.size_bytes for item in pruned.removed if item.kind == kind]
        if sizes:
            what = one if len(sizes) == 1 else several
            yield f"{len(sizes)} {what}  {sum(sizes) / 1e6:.1f} MB"
    for each in gone:
        yield f"pin of what is gone: {each.pin.label}"


def needs(pins: Sequence[Held]) -> Needs:
    """Return what pins keep that are not gone."""
    return needs_of(each.pin for each in pins if each.state != "gone")


def _needs_now(store: Store) -> Needs:
    damaged = damaged_pins(store)
    if damaged:
        raise RequestError(
            f"nobody knows what `{damaged[0]}` keeps: it cannot be read",
            hint="remove it, and build or pin again what it was for; nothing was pruned",
        )
    return needs(held(store, identify))


def to_json(data: Any) -> str:  # noqa: ANN401  # plain data
    """Return plain data as JSON for people and programs."""
    return json.dumps(data, indent=2, ensure_ascii=False)
