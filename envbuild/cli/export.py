"""`envbuild export`: an image in the forms of other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.workflows.choices import FORM_OF_RUNTIME, POD_FORMATS, SCRIPT_FORMATS, AnyFormat


def command(
    image: options.Image,
    form: Annotated[
        AnyFormat,
        typer.Option(
            "--format",
            metavar="FORM",
            help="squashfs, shifter or oci; the runtime that reads one (charliecloud, docker, enroot, podman,"
            " pyxis); or a text that starts the image at a site (edf, sbatch, pbs, reframe; for Kubernetes"
            " jobset, trainjob).",
        ),
    ],
    output: Annotated[
        str,  # a path would lose a slash at its end
        typer.Option("-o", "--output", metavar="PATH", help="The file; for shifter a directory."),
    ],
    site: options.Site = None,
    runtime: Annotated[
        str,
        typer.Option("--runtime", metavar="NAME", help="For these: the site's runtime [the first]."),
    ] = "",
    named: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="NAME",
            help="For these: the image at the site, by path, reference or EDF; for jobset and trainjob"
            " HOST/NAME@sha256:… [the last push].",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="For jobset and trainjob: name of the job [the image's]."
        ),
    ] = "",
    user: Annotated[
        str,
        typer.Option(
            "--user",
            metavar="UID[:GID]",
            help="For jobset and trainjob: whose pods they are [those that the site file names].",
        ),
    ] = "",
    json: options.Json = False,
) -> None:
    """Write an image in another form: for Charliecloud and enroot, Shifter, registries, or jobs of a site."""
    path = Path(output) if form == "shifter" else workflows.arguments.output_path(output)
    with session(json=json, site=site) as settings:
        is_script, is_job = form in SCRIPT_FORMATS, form in POD_FORMATS
        if not (is_script or is_job) and named:
            raise RequestError(
                "--image names the image in a text that starts it", hint=f"leave it out for {form}"
            )
        if not is_script and runtime:
            raise RequestError(
                "--runtime is for edf, sbatch, pbs and reframe", hint=f"leave it out for {form}"
            )
        if not is_job and (name or user):
            hint = f"leave them out for {form}"
            raise RequestError("--name and --user are for jobset and trainjob", hint=hint)
        if is_script and not named:
            workflows.images.check_is_a_file(image)
        image = workflows.images.image_file(image, settings)
        match form:
            case "edf" | "sbatch" | "pbs" | "reframe":
                written = workflows.export_script.export_script(
                    image, form, path, image_name=named, runtime_name=runtime, settings=settings
                )
            case "jobset" | "trainjob":
                written = workflows.export_pods.export_pods(
                    image, form, path, reference=named, name=name, user=user, settings=settings
                )
            case "squashfs" | "shifter" | "oci":
                written = workflows.export.export_image(image, form, path, settings.emit)
            case _:
                written = workflows.export.export_image(image, FORM_OF_RUNTIME[form], path, settings.emit)
    if json:
        print_json(written)
    files = ", ".join(str(path) for path in written.files)
    is_text = is_script or is_job
    size = f"{written.size_bytes} bytes" if is_text else f"{written.size_bytes / 1e6:.1f} MB"
    print_message(f"{files}: written ({written.format}, {size}, {written.identity[:19]})")
