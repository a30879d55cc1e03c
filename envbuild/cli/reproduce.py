"""`envbuild reproduce`: an image built again from its own lock, and compared."""

from __future__ import annotations

import typer

from envbuild import workflows
from envbuild.cli.options import (
    ApptainerOption,
    FromOption,
    ImageArgument,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    StoreOption,
)
from envbuild.cli.output import print_data, print_messages
from envbuild.cli.progress import session


def command(
    image: ImageArgument,
    sources: FromOption = None,
    offline: OfflineOption = False,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Build an image again from the lock inside it, in an empty store, and say in what the bytes differ."""
    with session(json=json, store=store, apptainer=apptainer, recipes=recipes, site=site) as settings:
        found = workflows.reproduce.reproduce_image(
            image, settings, sources=tuple(sources or ()), offline=offline
        )
    if json:
        print_data(found.to_json())
    print_messages(found.to_text())
    if not found.same:
        raise typer.Exit(4)
