"""Options that several verbs share, and what they stand for."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from envbuild.cli import values
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from envbuild.workflows.hosting import Lend


class Mpi(enum.Enum):
    """Whose MPI or fabric an image runs on."""

    IMAGE = "image"
    HOST = "host"


class Compression(enum.Enum):
    """What the file system of an image is compressed by."""

    ZSTD = "zstd"
    GZIP = "gzip"


CompressionOption = Annotated[
    Compression,
    typer.Option("--compression", help="Of the image: gzip for kernels that read no zstd."),
]
MpiOption = Annotated[
    Mpi, typer.Option("--mpi", help="Run on the image's own MPI, or on the one that the site names.")
]
FabricOption = Annotated[
    Mpi,
    typer.Option("--fabric", help="Use the image's own fabric libraries, or those that the site names."),
]
SpecArgument = Annotated[
    Path, typer.Argument(metavar="SPEC", help="The spec, a YAML file.", show_default=False)
]
ImageArgument = Annotated[Path, typer.Argument(metavar="IMAGE.sif", help="The image.", show_default=False)]
StoreOption = Annotated[
    Optional[Path],  # noqa: UP045  # typer reads it at run time
    typer.Option(
        "--store",
        metavar="DIR",
        help="Where layers and files are kept.",
        envvar="ENVBUILD_STORE",
        show_default=False,
    ),
]
UpstreamOption = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--upstream",
        metavar="DIR",
        help="Take layers from this store, too; yours or root's (repeatable).",
        show_default=False,
    ),
]
ApptainerOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--apptainer",
        metavar="PATH",
        help="The Apptainer to use.",
        envvar="ENVBUILD_APPTAINER",
        show_default=False,
    ),
]
RecipesOption = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--recipes", metavar="DIR", help="Look here for recipes first (repeatable).", show_default=False
    ),
]
SiteOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--site",
        metavar="SITE",
        help="The site: a name of `envbuild site ls`, or a file.",
        envvar="ENVBUILD_SITE",
        show_default=False,
        autocompletion=values.sites,
    ),
]
FromOption = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--from",
        metavar="DIR",
        help="Take files that `envbuild fetch` kept (repeatable).",
        show_default=False,
    ),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use no network at all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write data as JSON to standard output.")]

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DAY_S = 86_400.0


def seconds(text: str) -> float:
    """Read a duration: ``90``, ``90s``, ``5min``, ``1.5h``; in seconds.

    Raises
    ------
    RequestError
        It is none, not above zero, or longer than a day.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip())
    if found is None or found[2] not in _UNITS:
        raise RequestError(f"`{text}` is not a duration", hint="write 90s, 5min or 1h")
    value = float(found[1]) * _UNITS[found[2]]
    if not 0 < value <= _DAY_S:
        raise RequestError(f"`{text}` is not between 0 and 24h", hint="write 90s, 5min or 1h")
    return value


def span(text: str) -> float:
    """Read a time that may be long: ``0``, ``90s``, ``12h``, ``30d``; in seconds.

    Raises
    ------
    RequestError
        It is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip())
    units = {**_UNITS, "d": _DAY_S, "w": 7 * _DAY_S}
    if found is None or found[2] not in units:
        raise RequestError(f"`{text}` is not a time", hint="write 10min, 12h or 30d")
    return float(found[1]) * units[found[2]]


_MAX_DIGITS = 30


def amount(text: str) -> int:
    """Read an amount of data: ``500MB``, ``20GB``, ``1.5GiB``; in bytes.

    Raises
    ------
    RequestError
        It is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip())
    if found is None or (found[3] and not found[2]) or len(found[1]) > _MAX_DIGITS:
        raise RequestError(f"`{text}` is not an amount of data", hint="write 500MB, 20GB or 20GiB")
    power = " KMGT".index(found[2] or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def lending(mpi: Mpi, fabric: Mpi) -> Lend:
    """Return what the site's host is asked to lend."""
    from envbuild.workflows.hosting import Lend  # noqa: PLC0415  # start-up time

    return Lend(mpi=mpi is Mpi.HOST, fabric=fabric is Mpi.HOST)
