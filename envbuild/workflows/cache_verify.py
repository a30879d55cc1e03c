"""Cache verify: whether the store is whole, who needs what is not, and what makes it whole again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import MachineError, RequestError
from envbuild.events import TaskAdvanced, TaskDone, TaskFailed, TaskStarted
from envbuild.store.pins import Needs, held
from envbuild.store.verify import Damage, Verified, put_aside, verify
from envbuild.system import clock
from envbuild.workflows.cache import needs
from envbuild.workflows.keeping import identify
from envbuild.workflows.settings import Settings
from envbuild.workflows.words import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What `cache verify` found.

    Attributes
    ----------
    moved : tuple of Path
        What was put aside.
    """

    verified: Verified
    needs: Needs
    specs: dict[str, str]
    moved: tuple[Path, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing damaged is left in its place."""
        return all(damage.path in self.moved for damage in self.verified.damages)

    def users(self, damage: Damage) -> tuple[str, ...]:
        """Return the labels of what needs a damaged thing, sorted."""
        found = {*self.needs.files.get(damage.id, ()), *self.needs.blobs.get(damage.id, ())}
        for key in (damage.id, *damage.keys):
            found.update(self.needs.keys.get(key, ()))
        return tuple(sorted(found))

    def mend(self, damage: Damage) -> str:
        """Say what makes a damaged thing whole again."""
        if damage.what == "stranger":
            return "remove it"
        if damage.what == "unreadable":
            return "its owner can look, or let others (`chmod a+rX`)"
        if damage.what == "pin":
            return "remove it, and build or pin again what it was for: until then nothing is pruned"
        if damage.what == "note":
            return "`--repair` puts it aside; nothing uses it, and it is found out anew"
        users = self.users(damage)
        specs = sorted({self.specs[label] for label in users if label in self.specs})
        again = f"`envbuild build {typed(specs[0])}`" if specs else "the next build that needs it"
        text = f"{again} {'fetches' if damage.what == 'file' else 'makes'} it anew"
        if damage.path not in self.moved:
            text = f"`envbuild cache verify --repair` puts it aside, and {text}"
        return text

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        found = self.verified
        return {
            "passed": self.sound,
            "layers": found.layers,
            "blobs": found.blobs,
            "files": found.files,
            "notes": found.notes,
            "size_bytes": found.size_bytes,
            "damages": [
                {
                    "what": damage.what,
                    "id": damage.id,
                    "path": str(damage.path),
                    "problem": damage.problem,
                    "needed_by": list(self.users(damage)),
                    "mend": self.mend(damage),
                    "put_aside": damage.path in self.moved,
                }
                for damage in found.damages
            ],
        }

    def to_text(self) -> str:
        """Return lines for people: each damage with its mend, and a summary."""
        lines = []
        for damage in self.verified.damages:
            aside = " (put aside)" if damage.path in self.moved else ""
            users = ", ".join(self.users(damage)) or "nobody"
            lines.append(f"{damage.what} {damage.path}: {damage.problem}{aside}")
            lines.append(f"  needed by {users}; {self.mend(damage)}")
        found = self.verified
        count = len(found.damages)
        outcome = f"{count} damaged" if count else "all whole"
        lines.append(
            f"{found.layers} layers, {found.blobs} blobs, {found.files} locked files, {found.notes} notes,"
            f" {found.size_bytes / 1e6:.1f} MB read: {outcome}"
        )
        return "\n".join(lines)


def verify_cache(settings: Settings, *, repair: bool) -> Checked:
    """Read all of a store and hold it to its names; with `repair` put aside what is damaged.

    Raises
    ------
    RequestError
        It is no store, or not there.
    MachineError
        Something cannot be put aside.
    """
    store, started, task = settings.store, clock.seconds(), "verify"
    store.check_is_one()
    if not store.root.exists():
        # "All whole" of a misspelled name would be believed.
        raise RequestError(
            f"there is no store at `{store.root}`",
            hint="the first build makes it; --store DIR or ENVBUILD_STORE names another",
        )
    settings.emit(TaskStarted(task=task, title=f"what {store.root} holds"))
    found = verify(store, read=lambda count: settings.emit(TaskAdvanced(task=task, bytes=count)))
    pins = held(store, identify)
    moved: list[Path] = []
    if repair and found.damages:
        try:
            # A pin is not put aside: what it kept would be free to go.
            kept = ("pin", "unreadable")
            moved = put_aside(store, [damage for damage in found.damages if damage.what not in kept])
        except OSError as error:
            settings.emit(TaskFailed(task=task))
            raise MachineError(
                f"`{error.filename}` cannot be put aside: {error.strerror}",
                hint="its owner, or the store's, can do it",
            ) from error
    settings.emit(TaskDone(task=task, seconds=clock.seconds() - started))
    # A record whose blob is gone vanishes with it: what was not there cannot be moved, and is dealt with.
    moved += [damage.path for damage in found.damages if repair and not damage.path.exists()]
    return Checked(
        verified=found,
        needs=needs(pins),
        specs={each.pin.label: each.pin.spec for each in pins if each.pin.spec},
        moved=tuple(dict.fromkeys(moved)),
    )
