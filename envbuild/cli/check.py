"""`envbuild check`: what an image would load, known without running it."""

from __future__ import annotations

import typer

from envbuild.cli.options import ImageArgument, JsonOption, SiteOption, StoreOption, put, say


def command(
    image: ImageArgument, site: SiteOption = None, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Simulate the loader over the image's layers; exit code 4 when anything would not start."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.check import check_image  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=None, recipes=None, site=site, emit=emit)
        checked = check_image(image, settings)
    if json:
        put(checked.to_json())
    say(checked.to_text())
    raise typer.Exit(0 if checked.preflight.passed else 4)
