"""`envbuild cache`: the contents of the store, their users, and what can be removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import pluralize
from envbuild.formats import NEWER
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.store.gc_roots import StoredRoot
    from envbuild.store.prune import Pruned
    from envbuild.store.usage import StoreListing, StoreReport, StoreUsage
    from envbuild.store.verify import Damage

app = typer.Typer(
    help="List, check and prune what the store holds.", no_args_is_help=True, rich_markup_mode=None
)

PinnedArgument = Annotated[Path, typer.Argument(metavar="IMAGE|LOCK", help="An image or a lock.")]
# Singular and plural of kinds that are only counted.
_SUMMED = {
    "scan": ("scan of an image", "scans of images"),
    "log": ("log of a build", "logs of builds"),
    "leftover": ("unfinished download", "unfinished downloads"),
}


@app.command("ls")
def ls(
    files: Annotated[bool, typer.Option("--files", help="List each locked file, too.")] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """List images and pins, every layer with those that need it, and images of registries."""
    listing = workflows.cache.list_cache(workflows.settings.Settings.of(store=store))
    if json:
        print_json(_listing_data(listing))
    elif lines := list(_listing_lines(listing, files=files)):
        print_data("\n".join(lines))
    else:
        print_message("the store is empty")


def _listing_data(listing: StoreListing) -> dict[str, object]:
    items = [
        {
            "kind": item.kind,
            "id": item.id,
            "name": item.name,
            "blob": item.blob or None,
            "size_bytes": item.size_bytes,
            "needed_by": listing.needed_by(item),
        }
        for item in listing.items
    ]
    roots = [
        {
            "path": stored.root.path,
            "pinned": stored.root.pinned,
            "state": stored.state,
            "digest": stored.root.digest or None,
            "spec": stored.root.spec or None,
            "layers": stored.root.keys,
            "files": stored.root.files,
        }
        for stored in listing.roots
    ]
    return {"items": items, "roots": roots}


def _listing_lines(listing: StoreListing, *, files: bool) -> Iterator[str]:
    for stored in listing.roots:
        yield f"{stored.state:<12}{stored.root.label}"
    kinds = ("layer", "blob", "image", "file") if files else ("layer", "blob", "image")
    for item in listing.items:
        if item.kind in kinds:
            users = listing.needed_by(item)
            needed = f"{len(users)}: {users[0]}" + (", …" if len(users) > 1 else "") if users else "nothing"
            size = f"{item.size_bytes / 1e6:.1f}"
            yield f"{item.kind:<6}{_short(item.id)}  {size:>8} MB  {item.name}  needed by {needed}"
    if newer := sum(item.kind == "newer" for item in listing.items):
        yield f"{pluralize(newer, 'layer')} of a newer version of envbuild: `cache prune` leaves them"
    locked = [item for item in listing.items if item.kind == "file"]
    if locked and not files:
        total = sum(item.size_bytes for item in locked)
        free = sum(not listing.needed_by(item) for item in locked)
        yield f"{len(locked)} locked files, {total / 1e6:.1f} MB, {free} needed by nothing (--files)"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


@app.command("du")
def du(store: options.Store = None, json: options.Json = False) -> None:
    """Show how large the store is, and what each image has alone and shares."""
    usage = workflows.cache.usage(workflows.settings.Settings.of(store=store))
    if json:
        print_json(usage)
    else:
        print_data(_format_usage(usage))


def _format_usage(usage: StoreUsage) -> str:
    lines = [f"{size / 1e6:>12.1f} MB  {name}/" for name, size in usage.areas.items() if size]
    lines += [
        f"{user.total_bytes / 1e6:>12.1f} MB  {user.label} ({user.own_bytes / 1e6:.1f} MB for it alone)"
        for user in usage.users
    ]
    lines.append(
        f"{usage.needed_bytes / 1e6:>12.1f} MB  are needed, {usage.shared_bytes / 1e6:.1f} MB of them by"
        f" more than one; {usage.free_bytes / 1e6:.1f} MB by nothing"
    )
    return "\n".join(lines)


@app.command("verify")
def verify(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged parts, so that the next build makes them again.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Read every byte of the store and report damage.

    Exit code 4 if damage remains.
    """
    with session(json=json, store=store) as settings:
        report = workflows.cache.verify_cache(settings, repair=repair)
    if json:
        print_json(_report_data(report))
    else:
        print_data(_format_report(report))
    if not report.sound:
        raise typer.Exit(4)


def _report_data(report: StoreReport) -> dict[str, object]:
    verified = report.verified
    damages = [
        {
            "kind": damage.kind,
            "id": damage.id,
            "path": damage.path,
            "problem": damage.problem,
            "needed_by": report.needed_by(damage),
            "remedy": _remedy(report, damage),
            "removed": report.is_removed(damage),
        }
        for damage in verified.damages
    ]
    return {
        "passed": report.sound,
        "layers": verified.layers,
        "blobs": verified.blobs,
        "files": verified.files,
        "images": verified.images,
        "size_bytes": verified.size_bytes,
        "damages": damages,
    }


def _format_report(report: StoreReport) -> str:
    verified, lines = report.verified, []
    for damage in verified.damages:
        removed = " (removed)" if report.is_removed(damage) else ""
        users = ", ".join(report.needed_by(damage)) or "nothing"
        lines.append(f"{damage.kind} {damage.path}: {damage.problem}{removed}")
        lines.append(f"  needed by {users}; {_remedy(report, damage)}")
    newer = sum(damage.kind == "newer" for damage in verified.damages)
    counts = {"damaged": len(verified.damages) - newer, "of a newer version": newer}
    outcome = ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "all whole"
    images = f" {pluralize(verified.images, 'image')}," if verified.images else ""
    lines.append(
        f"{verified.layers} layers, {verified.blobs} blobs, {verified.files} locked files,{images}"
        f" {verified.size_bytes / 1e6:.1f} MB read: {outcome}"
    )
    return "\n".join(lines)


def _remedy(report: StoreReport, damage: Damage) -> str:
    """Return how a damaged item is replaced."""
    if damage.kind == "root":
        return "remove it, and build or pin again what it was for: until then nothing is pruned"
    if damage.kind == "newer":
        return f"leave it: {NEWER}"
    if damage.kind == "unknown":
        return "remove it, unless a newer version of envbuild wrote it"
    if damage.kind == "image":
        again = "the next command that names it pulls it again"
        return again if report.repaired else f"`envbuild cache verify --repair` removes it, and {again}"
    labels = report.needed_by(damage)
    specs = sorted({report.specs[label] for label in labels if label in report.specs})
    build = f"`envbuild build {shell_path(specs[0])}`" if specs else "the next build that needs it"
    again = f"{build} {'fetches' if damage.kind == 'file' else 'makes'} it again"
    return again if report.repaired else f"`envbuild cache verify --repair` removes it, and {again}"


@app.command("prune")
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would go.")] = False,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="Leave what was used within this time: 0s, 12h, 30d."
        ),
    ] = "1d",
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep-bytes",
            metavar="SIZE",
            parser=options.read_size,
            help="Stop when no more than this remains, the longest unused gone first: 500MB, 20GB.",
        ),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Remove what no image and no pin needs, once no build runs."""
    unused_s = options.read_age(older_than)
    with session(json=json, store=store) as settings:
        pruned, forgotten = workflows.cache.prune_cache(
            settings, unused_s=unused_s, keep_bytes=keep, dry_run=dry_run
        )
    if json:
        print_json(_pruned_data(pruned, forgotten, dry_run=dry_run))
        return
    for line in _pruned_lines(pruned, forgotten):
        print_data(line)
    for _, why in pruned.failed:
        print_message(f"not removed: {why}", problem=True)
    if newer := Counter(item.kind for item in pruned.newer):
        blobs = f", and {pluralize(newer['blob'], 'blob')} that they may name" if newer["blob"] else ""
        layers = pluralize(newer["newer"], "layer")
        print_message(f"left as they are: {layers} of a newer version of envbuild{blobs}")
    if unused := len(pruned.recently_used):
        verb = "is" if unused == 1 else "are"
        age = f"{pluralize(unused, 'unused item')} {verb} younger than {older_than}"
        print_message(f"{age}; --older-than 0s removes them, too")
    verb = "would free" if dry_run else "freed"
    images = f", {pluralize(len(forgotten), 'image')} forgotten" if forgotten else ""
    print_message(f"{len(pruned.removed)} removed{images}: that {verb} {pruned.freed_bytes / 1e6:.1f} MB")


def _pruned_data(pruned: Pruned, forgotten: tuple[StoredRoot, ...], *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "freed_bytes": pruned.freed_bytes,
        "removed": [
            {"kind": item.kind, "id": item.id, "name": item.name, "size_bytes": item.size_bytes}
            for item in pruned.removed
        ],
        "recently_used": [
            {"kind": item.kind, "id": item.id, "name": item.name} for item in pruned.recently_used
        ],
        "newer": [{"kind": item.kind, "id": item.id, "name": item.name} for item in pruned.newer],
        "failed": [{"kind": item.kind, "id": item.id, "why": why} for item, why in pruned.failed],
        "gone": [stored.root.path for stored in forgotten],
    }


def _pruned_lines(pruned: Pruned, forgotten: tuple[StoredRoot, ...]) -> Iterator[str]:
    for item in pruned.removed:
        if item.kind not in _SUMMED:
            yield f"{item.kind} {_short(item.id)}  {item.size_bytes / 1e6:.1f} MB  {item.name}"
    for kind, (singular, plural) in _SUMMED.items():
        sizes = [item.size_bytes for item in pruned.removed if item.kind == kind]
        if sizes:
            yield f"{len(sizes)} {singular if len(sizes) == 1 else plural}  {sum(sizes) / 1e6:.1f} MB"
    for stored in forgotten:
        yield f"forgotten: {stored.root.label}"


@app.command("pin")
def pin(path: PinnedArgument, store: options.Store = None) -> None:
    """Keep all that an image or a lock needs, until `unpin`.

    Images that `build` wrote need no pin as long as they exist.
    """
    root = workflows.cache.pin(path, workflows.settings.Settings.of(store=store))
    print_message(f"{root.label}: {len(root.keys)} layers and {len(root.files)} files are kept")
    if not root.keys:
        print_message("no image was built from this lock with this store: its layers are not known yet")


@app.command("unpin")
def unpin(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="An image, lock or directory that `cache ls` shows."),
    ],
    store: options.Store = None,
) -> None:
    """Remove a pin; forget an image that is out of reach."""
    for root in workflows.cache.unpin(path, workflows.settings.Settings.of(store=store)):
        print_message(f"{root.label}: no longer kept")
