"""`envbuild push` and `envbuild pull`: images in registries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.workflows.choices import PushFormat

_Plain = Annotated[
    bool,
    typer.Option(
        "--plain-http",
        help="Without TLS; registries on this machine need no such word, and those that ENVBUILD_PLAIN_HTTP"
        " names (HOST,…), for all commands.",
    ),
]
_Name = Annotated[
    str, typer.Argument(metavar="HOST/NAME:TAG", help="The image in the registry.", show_default=False)
]


def push(
    image: options.Image,
    name: _Name,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="HOST/NAME",
            help="Another name in the same registry: parts that it has are not sent again.",
            show_default=False,
        ),
    ] = "",
    sif: Annotated[
        bool,
        typer.Option(
            "--sif",
            help="Send the whole file, too, for `apptainer pull oras://HOST/NAME:TAG`.",
        ),
    ] = False,
    form: Annotated[
        PushFormat,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="sif, which `envbuild pull` gets bit for bit; or oci (podman, docker), which these and"
            " Kubernetes pull.",
        ),
    ] = "sif",
    plain_http: _Plain = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Push an image to a registry, by its layers: those that the registry has are not sent again.

    Logins are those of podman, Docker and Apptainer (`podman login HOST`).
    """
    if sif and form != "sif":
        raise RequestError(
            f"--sif is not for `--format {form}`",
            hint="push it to two tags: one with --sif, one with --format",
        )
    with session(json=json, store=store) as settings:
        image = workflows.images.image_file(image, settings)
        if form == "sif":
            pushed = workflows.push.push_image(
                image, name, settings.emit, source=source, plain=plain_http, with_sif=sif
            )
        else:
            pushed = workflows.push_oci.push_oci_image(
                image, name, settings.store, settings.emit, source=source, plain=plain_http
            )
    if json:
        print_json(pushed)
    unit = "parts" if form == "sif" else "layers"
    print_message(
        f"{pushed.reference}: pushed ({pushed.size_bytes / 1e6:.1f} MB in {pushed.parts} {unit},"
        f" {pushed.sent_bytes / 1e6:.1f} MB sent, {pushed.digest})"
    )
    if form == "sif":
        print_message(f"next: envbuild pull {'--plain-http ' if plain_http else ''}{pushed.reference}")
    else:
        print_message(f"next: podman pull {'--tls-verify=false ' if plain_http else ''}{pushed.reference}")
    if sif:
        without_tls = "--no-https " if plain_http else ""
        print_message(f"or: apptainer pull {without_tls}oras://{pushed.reference}")


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="HOST/NAME:TAG[@DIGEST]", help="The image in the registry.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.sif", parser=options.output_path, help="The file [NAME.sif]."
        ),
    ] = None,
    have: Annotated[
        Path | None,
        typer.Option("--have", metavar="IMAGE.sif", help="An image whose parts need not be fetched."),
    ] = None,
    plain_http: _Plain = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Pull an image that `envbuild push` sent, bit for bit; layers that this machine has are not fetched.

    Logins are those of podman, Docker and Apptainer (`podman login HOST`).
    """
    with session(json=json, store=store) as settings:
        have = workflows.images.image_file(have, settings) if have is not None else None
        pulled = workflows.pull.pull_image(name, output, settings, have=have, plain=plain_http)
    if json:
        print_json(pulled)
    print_message(
        f"{pulled.path}: pulled ({pulled.size_bytes / 1e6:.1f} MB in {pulled.parts} parts,"
        f" {pulled.fetched_bytes / 1e6:.1f} MB fetched, {pulled.digest})"
    )
