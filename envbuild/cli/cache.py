"""`envbuild cache`: what the store holds, for whom, and what can go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli.options import JsonOption, StoreOption, read_age, read_size
from envbuild.cli.output import print_data, print_message
from envbuild.cli.progress import session
from envbuild.errors import counted

app = typer.Typer(
    help="What the store holds, for whom, and what can go.", no_args_is_help=True, rich_markup_mode=None
)

PinnedArgument = Annotated[
    Path, typer.Argument(metavar="IMAGE|LOCK", help="An image or a lock.", show_default=False)
]


@app.command("ls")
def ls(
    files: Annotated[bool, typer.Option("--files", help="List each locked file, too.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List who needs something, and every layer with who needs it."""
    listing = workflows.cache.list_cache(workflows.settings.Settings.of(store=store))
    text = workflows.cache.to_json(listing.to_data()) if json else listing.to_text(files=files)
    if text:
        print_data(text)
    else:
        print_message("the store is empty")


@app.command("du")
def du(store: StoreOption = None, json: JsonOption = False) -> None:
    """Show how large the store is, and what each image has alone and shares."""
    found = workflows.cache.usage(workflows.settings.Settings.of(store=store))
    print_data(workflows.cache.to_json(found.to_data()) if json else found.to_text())


@app.command("verify")
def verify(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Remove what is damaged, so that the next build makes it again."),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Read every byte of the store and tell what is damaged.

    Exit code 4 when something is, and was not removed.
    """
    with session(json=json, store=store) as settings:
        checked = workflows.cache_verify.verify_cache(settings, repair=repair)
    print_data(workflows.cache.to_json(checked.to_data()) if json else checked.to_text())
    if not checked.sound:
        raise typer.Exit(4)


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
        str | None,
        typer.Option(
            "--keep-bytes",
            metavar="SIZE",
            help="Stop when no more than this remains, the longest unused gone first: 500MB, 20GB.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Remove what no image and no pin needs, once no build runs."""
    limit, unused_s = read_size(keep) if keep is not None else None, read_age(older_than)
    with session(json=json, store=store) as settings:
        pruned, gone = workflows.cache.prune_cache(
            settings, unused_s=unused_s, keep_bytes=limit, dry_run=dry_run
        )
    if json:
        data = {
            "dry_run": dry_run,
            "freed_bytes": pruned.freed_bytes,
            "removed": [
                {"kind": item.kind, "id": item.id, "name": item.name, "size_bytes": item.size_bytes}
                for item in pruned.removed
            ],
            "young": [{"kind": item.kind, "id": item.id, "name": item.name} for item in pruned.young],
            "refused": [{"kind": item.kind, "id": item.id, "why": why} for item, why in pruned.refused],
            "gone": [found.root.path for found in gone],
        }
        print_data(workflows.cache.to_json(data))
        return
    for line in workflows.cache.removed_lines(pruned, gone):
        print_data(line)
    for _, why in pruned.refused:
        print_message(f"not removed: {why}")
    if pruned.young:
        print_message(
            f"{len(pruned.young)} more are needed by nothing, and were used within {older_than}:"
            " --older-than 0s removes them, too"
        )
    verb = "would free" if dry_run else "freed"
    images = f", {counted(len(gone), 'image')} forgotten" if gone else ""
    print_message(f"{len(pruned.removed)} removed{images}: that {verb} {pruned.freed_bytes / 1e6:.1f} MB")


@app.command("pin")
def pin(path: PinnedArgument, store: StoreOption = None) -> None:
    """Keep all that an image or a lock needs, until `unpin`.

    What `build` makes is kept without, as long as it is there.
    """
    root = workflows.cache_pin.pin(path, workflows.settings.Settings.of(store=store))
    print_message(f"{root.label}: {len(root.keys)} layers and {len(root.files)} files are kept")
    if not root.keys:
        print_message("no image was built from this lock with this store: its layers are not known yet")


@app.command("unpin")
def unpin(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="What `cache ls` shows: an image, a lock, a directory.", show_default=False
        ),
    ],
    store: StoreOption = None,
) -> None:
    """Take back a pin; forget an image that cannot be reached any more."""
    for root in workflows.cache_pin.unpin(path, workflows.settings.Settings.of(store=store)):
        print_message(f"{root.label}: no longer kept")
