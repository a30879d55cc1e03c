"""`envbuild reproduce`: an image built again from its own lock, and compared."""

from __future__ import annotations

import typer

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
from envbuild.cli.streams import put, say_lines


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
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.reproduce import reproduce_image  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=recipes, site=site, emit=emit)
        found = reproduce_image(image, settings, sources=tuple(sources or ()), offline=offline)
    if json:
        put(found.to_json())
    say_lines(found.to_text())
    if not found.same:
        raise typer.Exit(4)
