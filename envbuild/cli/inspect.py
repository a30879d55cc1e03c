"""`envbuild inspect`: what an image says of itself."""

from __future__ import annotations

from envbuild import workflows
from envbuild.cli.options import ApptainerOption, ImageArgument, JsonOption, StoreOption
from envbuild.cli.output import print_data


def command(
    image: ImageArgument,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    json: JsonOption = False,
) -> None:
    """Show an image's name, parts, recipes, environment, jobs and last verdict."""
    settings = workflows.settings.Settings.of(store=store, apptainer=apptainer)
    shown = workflows.inspect.inspect_image(image, settings)
    print_data(shown.to_json() if json else shown.to_text())
