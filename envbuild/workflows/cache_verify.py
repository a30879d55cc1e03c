"""Cache verify: whether the store is whole, and what makes it whole again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envbuild.errors import MachineError, RequestError
from envbuild.events import Note, task
from envbuild.store.roots import Needs, find_roots, needs_of
from envbuild.store.verify import REPLACEABLE, Damage, Verified, remove_damaged, verify
from envbuild.system.descriptors import named
from envbuild.workflows.keeping import identify
from envbuild.workflows.settings import Settings
from envbuild.workflows.words import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What `cache verify` verified.

    Attributes
    ----------
    specs : dict of str to str
        Label of what needs something → the spec that builds it.
    repaired : bool
        Whether what is damaged was removed.
    """

    verified: Verified
    needs: Needs
    specs: dict[str, str]
    repaired: bool

    @property
    def sound(self) -> bool:
        """Whether nothing damaged is left."""
        return all(map(self.is_removed, self.verified.damages))

    def is_removed(self, damage: Damage) -> bool:
        """Return whether a damaged thing was removed: only what can be made or fetched again is."""
        return self.repaired and damage.what in REPLACEABLE

    def users(self, damage: Damage) -> tuple[str, ...]:
        """Return the labels of what needs a damaged thing, sorted."""
        labels = {*self.needs.files.get(damage.id, ())}
        for key in (damage.id, *damage.keys):
            labels.update(self.needs.keys.get(key, ()))
        return tuple(sorted(labels))

    def remedy(self, damage: Damage) -> str:
        """Return what makes a damaged thing whole again."""
        if damage.what == "root":
            return "remove it, and build or pin again what it was for: until then nothing is pruned"
        if damage.what == "unknown":
            return "remove it"
        specs = sorted({self.specs[label] for label in self.users(damage) if label in self.specs})
        build = f"`envbuild build {typed(specs[0])}`" if specs else "the next build that needs it"
        again = f"{build} {'fetches' if damage.what == 'file' else 'makes'} it again"
        return again if self.repaired else f"`envbuild cache verify --repair` removes it, and {again}"

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        verified = self.verified
        return {
            "passed": self.sound,
            "layers": verified.layers,
            "blobs": verified.blobs,
            "files": verified.files,
            "size_bytes": verified.size_bytes,
            "damages": [
                {
                    "what": damage.what,
                    "id": damage.id,
                    "path": named(str(damage.path)),
                    "problem": damage.problem,
                    "needed_by": list(self.users(damage)),
                    "remedy": self.remedy(damage),
                    "removed": self.is_removed(damage),
                }
                for damage in verified.damages
            ],
        }

    def to_text(self) -> str:
        """Return lines for people: each damage with its remedy, and a summary."""
        lines = []
        for damage in self.verified.damages:
            removed = " (removed)" if self.is_removed(damage) else ""
            users = ", ".join(self.users(damage)) or "nothing"
            lines.append(f"{damage.what} {damage.path}: {damage.problem}{removed}")
            lines.append(f"  needed by {users}; {self.remedy(damage)}")
        verified = self.verified
        count = len(verified.damages)
        outcome = f"{count} damaged" if count else "all whole"
        lines.append(
            f"{verified.layers} layers, {verified.blobs} blobs, {verified.files} locked files,"
            f" {verified.size_bytes / 1e6:.1f} MB read: {outcome}"
        )
        return "\n".join(lines)


def verify_cache(settings: Settings, *, repair: bool = False) -> Checked:
    """Read the whole store; with `repair` remove what is damaged, once no build runs.

    Raises
    ------
    RequestError
        It is no store of the user's, or not there.
    MachineError
        Something cannot be read or removed.
    """
    store, emit = settings.store, settings.emit
    if not store.exists:
        # "All whole" of a misspelled name would be believed.
        raise RequestError(
            f"there is no store at `{store.path}`",
            hint="the first build makes it; --store DIR or ENVBUILD_STORE names another",
        )
    if not repair:
        return _verify(settings, repair=False)
    with store.alone(lambda: emit(Note(text="waiting for builds that use the store"))):
        return _verify(settings, repair=True)


def _verify(settings: Settings, *, repair: bool) -> Checked:
    store = settings.store
    with task(settings.emit, "verify", f"what {store.path} holds") as running:
        try:
            verified = verify(store, advanced=running.advance)
            is_known = not any(damage.what == "root" for damage in verified.damages)
            roots = find_roots(store, identify) if is_known else ()
            if repair:
                remove_damaged(store, verified.damages)
        except OSError as error:
            raise MachineError(
                f"`{error.filename}` cannot be read or removed: {error.strerror}", hint="see who may use it"
            ) from error
    return Checked(
        verified=verified,
        needs=needs_of(roots),
        specs={stored.root.label: stored.root.spec for stored in roots if stored.root.spec},
        repaired=repair,
    )
