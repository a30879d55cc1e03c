"""`envbuild reproduce`: build an image again from its own lock, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_messages
from envbuild.cli.progress import session
from envbuild.errors import pluralize

if TYPE_CHECKING:
    from envbuild.workflows.reproduce import Reproduced

# Number of differences shown per layer.
_SHOWN = 10


def command(
    image: options.Image,
    sources: options.SourceDirectories = None,
    offline: options.Offline = False,
    sign: Annotated[
        bool, typer.Option("--sign", help="If the bytes are the same, sign that in the image.")
    ] = False,
    key: options.Key = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Rebuild an image from the lock inside it, in an empty store, and report how the bytes differ."""
    options.check_key(key, sign=sign)
    with session(json=json, store=store, apptainer=apptainer, recipes=recipes, site=site) as settings:
        image = workflows.images.image_file(image, settings)
        reproduced = workflows.reproduce.reproduce_image(
            image, settings, sources=sources or (), offline=offline, key=key
        )
    if json:
        print_json(reproduced)
    print_messages(format_reproduced(reproduced), problem=not reproduced.same)
    if not reproduced.same:
        raise typer.Exit(4)


def format_reproduced(reproduced: Reproduced) -> str:
    """Return the first differences of each layer, and a summary."""
    lines = []
    for layer in dict.fromkeys(difference.layer for difference in reproduced.differences):
        differences = [difference for difference in reproduced.differences if difference.layer == layer]
        count = pluralize(len(differences), "difference")
        lines.append(f"layer {layer}: {count}" if layer != "SIF" else f"SIF: {count}")
        for difference in differences[:_SHOWN]:
            detail = f" ({difference.detail})" if difference.detail else ""
            lines.append(f"  {difference.path}: {difference.kind}{detail}")
        if len(differences) > _SHOWN:
            lines.append(f"  … and {len(differences) - _SHOWN} more (--json shows all)")
    if not reproduced.same:
        lines += [
            f"layer {name} was made by an older step of envbuild: other bytes are expected"
            for name in reproduced.older
        ]
        lines += [f"{sentence}: other bytes are expected where it is used" for sentence in reproduced.tools]
    if reproduced.identical:
        outcome = f"the same bytes (file {reproduced.expected[:19]})"
    elif reproduced.same:
        outcome = f"the same but for what was added since: {', '.join(reproduced.added)}"
    else:
        outcome = (
            f"is not reproduced: {reproduced.expected[:19]} there, {reproduced.observed[:19]} built again"
        )
    lines.append(f"{reproduced.image}: {outcome}")
    if reproduced.signed_by:
        key = reproduced.signed_by[7:19]
        lines.append(f"{reproduced.image}: signed by key {key}: built again, with the same bytes")
    return "\n".join(lines)
