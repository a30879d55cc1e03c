"""`envbuild inspect`: what an image says of itself."""

from __future__ import annotations

from envbuild.cli.options import ApptainerOption, ImageArgument, JsonOption, StoreOption
from envbuild.cli.streams import put


def command(
    image: ImageArgument,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    json: JsonOption = False,
) -> None:
    """Show an image's name, parts, recipes, environment, jobs and last verdict."""
    from envbuild.workflows.inspect import inspect_image  # noqa: PLC0415  # start-up time
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=None)
    shown = inspect_image(image, settings)
    put(shown.to_json() if json else shown.to_text())
