"""One owner for each path: what the layers of an image hold differently is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from envbuild.errors import BuildError, pluralize
from envbuild.events import Emit, Warned
from envbuild.image.files import ImageFiles
from envbuild.squashfs.reader import Entry
from envbuild.store.tree import WHITEOUT, Tree, collisions

_WHEEL = "wheel:"
_SHOWN = 10
# The owner of what lies in an image and is in no layer: what has no data, and all of another tool's image.
_IMAGE = "the image"


def check_conflicts(
    trees: Mapping[str, Tree],
    order: Sequence[str],
    emit: Emit,
    *,
    below: ImageFiles | None = None,
    owner_of: Callable[[Entry], str] | None = None,
    hidden: Collection[str] = (),
    hint: str,
) -> None:
    """Check that each path belongs to one layer; BuildError if layers hold a path differently.

    `trees` are those of the new layers, `order` the names of all layers from bottom to top. The others are
    layers of an image that is kept below, of which the paths `hidden` do not count; `owner_of` returns the
    layer of one of its entries, empty for one that has no data. Without `owner_of` another tool built it:
    directories keep their modes, and a file of the same content keeps what it is.
    """
    kept = _trees_of(below, trees, hidden, owner_of) if below is not None else {}
    layers = {name: trees.get(name) or kept.get(name, {}) for name in (_IMAGE, *order)}
    shown = {
        name: {path: entry for path, entry in tree.items() if entry != WHITEOUT}
        for name, tree in layers.items()
    }
    if conflicts := _find(shown, emit):
        lines = "".join(f"\n  {conflict}" for conflict in conflicts[:_SHOWN])
        raise BuildError(f"layers conflict in {pluralize(len(conflicts), 'file')}{lines}", hint=hint)


def unchanged_files(trees: Mapping[str, Tree], below: ImageFiles, hidden: Collection[str]) -> set[str]:
    """Return the files of an image below that new layers have with the same content: absolute paths.

    The bytecode that the image has of such a module stays, too.
    """
    paths = {path for tree in trees.values() for path in tree}
    same = {
        f"/{path}"
        for tree in trees.values()
        for path, entry in tree.items()
        if (found := below.entries.get(f"/{path}")) is not None
        and found.path not in hidden
        and found.kind == "file"
        and entry.endswith(f" {below.sha256(found)}")
    }
    for path in paths:
        directory, _, name = path.rpartition("/")
        module = f"/{directory.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"
        if directory.endswith("/__pycache__") and module in same and f"/{path}" in below.entries:
            same.add(f"/{path}")
    return same


def _find(trees: Mapping[str, Tree], emit: Emit) -> list[str]:
    """Return the paths that layers hold differently, each with the two layers; `trees` from bottom to top.

    `system` may differ from `base`. Of two wheels' files the later by name wins, as with pip, with a warning.
    """
    conflicts = []
    for path, lower, upper in collisions(trees):
        are_wheels = lower.startswith(_WHEEL) and upper.startswith(_WHEEL)
        # A file in place of a directory would hide all that lies in it.
        are_directories = {trees[name][path].startswith("d ") for name in (lower, upper)}
        if are_wheels and len(are_directories) == 1:
            names = lower.removeprefix(_WHEEL), upper.removeprefix(_WHEEL)
            text = f"{names[0]} and {names[1]} both bring `/{path}`: that of {names[1]} is taken"
            emit(Warned(text=text))
        elif (lower, upper) != ("base", "system"):
            conflicts.append(f"/{path}: {lower} and {upper}")
    return conflicts


def _trees_of(
    below: ImageFiles,
    new: Mapping[str, Tree],
    hidden: Collection[str],
    owner_of: Callable[[Entry], str] | None,
) -> dict[str, dict[str, str]]:
    """Return owner → path → entry of what an image has at the paths of new layers."""
    trees: dict[str, dict[str, str]] = {}
    entries = {path: entry for tree in new.values() for path, entry in tree.items()}
    for path in sorted(entries):
        found = below.entries.get(f"/{path}")
        if found is None or found.path in hidden:
            continue
        owner = (owner_of(found) if owner_of is not None else "") or _IMAGE
        if owner not in new:
            new_mode = entries[path].split(" ")[1] if owner_of is None and entries[path][0] in "df" else ""
            trees.setdefault(owner, {})[path] = _text(found, below, new_mode or f"{found.mode:04o}")
    return trees


def _text(entry: Entry, files: ImageFiles, mode: str) -> str:
    """Return an entry in the words of `envbuild.store.tree.Tree`."""
    match entry.kind:
        case "directory":
            return f"d {mode}"
        case "link":
            return f"l {entry.target}"
        case _:
            return f"f {mode} {files.sha256(entry)}"
