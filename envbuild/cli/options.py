"""Options that several verbs share, and readers of their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from envbuild import workflows
from envbuild.cli import completion
from envbuild.cli.output import ask_for_json
from envbuild.errors import RequestError
from envbuild.quoting import shell_path
from envbuild.workflows.choices import LAUNCHERS

if TYPE_CHECKING:
    from envbuild.launch.context import HostLibraries


def _read_launcher(text: str) -> str:
    if text not in LAUNCHERS:
        raise RequestError(f"`{text}` is not a launcher", hint=f"known are {', '.join(LAUNCHERS)}")
    return text


def _image_word(text: str) -> Path:
    """Read the name of an image; an empty one, as of an unset variable, would be the working directory."""
    if not text:
        raise RequestError("the name of an image is empty", hint="name a file, a directory or a module")
    return Path(text)


def day(text: str) -> date:
    """Read a day of the calendar."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()  # noqa: DTZ007  # a day has no time zone
    except ValueError:
        raise RequestError(f"`{text}` is not a day", hint="write one as 2027-01-31") from None


# The owner of the MPI or fabric libraries that an image uses.
LibraryOwner = Literal["image", "host"]
Compression = Literal["zstd", "gzip"]

CompressionOption = Annotated[
    Compression, typer.Option("--compression", help="Of the image: gzip for kernels that read no zstd.")
]
Mpi = Annotated[
    LibraryOwner, typer.Option("--mpi", help="Run on the image's own MPI, or on the one that the site names.")
]
Fabric = Annotated[
    LibraryOwner,
    typer.Option("--fabric", help="Use the image's own fabric libraries, or those that the site names."),
]
Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec, a YAML file.")]
Specs = Annotated[
    list[Path],
    typer.Argument(
        metavar="SPEC", help="Specs, YAML files; a directory stands for the specs in it and below."
    ),
]
Image = Annotated[
    Path,
    typer.Argument(
        metavar="IMAGE", help="The image: a file, or HOST/NAME:TAG in a registry if there is no such file."
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="IMAGE…",
        parser=_image_word,
        help="Images: files, HOST/NAME:TAG in a registry, directories for all modules and SIF files below, or"
        " with --root modules.",
        show_default=False,
    ),
]
ImagesToInstall = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGE…",
        parser=_image_word,
        help="Images: files, HOST/NAME:TAG in a registry, or directories for all images and modules below.",
    ),
]
ModuleRoot = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="DIR", help="Take the words as modules in DIR: NAME/VERSION, or NAME for all."
    ),
]
EveryImage = Annotated[
    list[Path] | None,
    typer.Option("--all", metavar="DIR", help="All modules and SIF files below DIR (repeatable)."),
]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Where layers and files are kept.", envvar="ENVBUILD_STORE"),
]
Upstream = Annotated[
    list[Path] | None,
    typer.Option(
        "--upstream", metavar="DIR", help="Take layers from this store, too; yours or root's (repeatable)."
    ),
]
Apptainer = Annotated[
    Path | None,
    typer.Option("--apptainer", metavar="PATH", help="The Apptainer to use.", envvar="ENVBUILD_APPTAINER"),
]
Recipes = Annotated[
    list[Path] | None,
    typer.Option("--recipes", metavar="DIR", help="Look here for recipes first (repeatable)."),
]
Site = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="SITE",
        help="The site: a name of `envbuild site ls`, or a file; behind a slash a partition.",
        envvar="ENVBUILD_SITE",
        autocompletion=completion.sites,
    ),
]
Architecture = Annotated[
    Literal["amd64", "arm64"] | None,
    typer.Option(
        "--architecture",
        help="The processor, if the spec has several or leaves the choice [the site's, else this machine's].",
        show_default=False,
    ),
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="PEM", help="The private key to sign with (with --sign).")
]
SourceDirectories = Annotated[
    list[Path] | None,
    typer.Option("--from", metavar="DIR", help="Take files that `envbuild fetch` kept (repeatable)."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use no network at all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command line; start nothing.")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", min=1, max=65_536, help="In a job of Slurm on so many nodes."),
]
Launcher = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME",
        parser=_read_launcher,
        help=f"What starts the ranks: {', '.join(LAUNCHERS)} [what fits image, job and site].",
    ),
]
Partition = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Partition of the job.")]
Account = Annotated[str | None, typer.Option("--account", metavar="NAME", help="Account of the job.")]
Time = Annotated[
    str | None, typer.Option("--time", metavar="TIME", help="Limit of the job, as for sbatch (01:00:00).")
]
SlurmOptions = Annotated[
    str | None,
    typer.Option("--slurm", metavar="WORDS", help='Further options of sbatch ("--qos=debug --exclusive").'),
]
Upgrade = Annotated[
    list[str] | None,
    typer.Option("--upgrade", metavar="[NAME…]", help="Take newer versions: of these packages, or of all."),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=ask_for_json, is_eager=True, help="Write data as JSON to standard output."
    ),
]

_SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DAY_S = 86_400.0
_MAX_DIGITS = 30


def check_key(key: Path | None, *, sign: bool) -> None:
    """Check that a key is given if, and only if, something is signed."""
    if sign != (key is not None):
        problem = "--sign needs a private key" if sign else "--key has nothing to sign"
        hint = "write `--sign --key PEM`; `envbuild sign --new-key FILE` makes a key"
        raise RequestError(problem, hint=hint)


def given_again(
    *, recipes: Sequence[Path] | None = None, site: Path | None = None, architecture: str | None = None
) -> str:
    """Return options of this command that the next one needs, too, each with a space before it."""
    given = [("--recipes", path) for path in recipes or ()]
    given += [("--site", site)] if site is not None else []
    words = [f" {option} {shell_path(path)}" for option, path in given]
    return "".join([*words, f" --architecture {architecture}" if architecture is not None else ""])


def names_to_upgrade(words: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the packages that `--upgrade` names: empty for all, None without it."""
    return None if words is None else () if "*" in words else tuple(words)


def output_path(text: str) -> Path:
    """Read the path of an output file, whose slash at the end `Path` would lose."""
    return workflows.arguments.output_path(text)


def output(metavar: str, text: str) -> Any:  # noqa: ANN401  # typer's own
    """Return the option that names a command's output file."""
    return typer.Option("-o", "--output", metavar=metavar, parser=output_path, help=text)


def directory(text: str) -> Path:
    """Read the path of a directory; an empty one would be the working directory."""
    if not text:
        raise RequestError("the name of a directory is empty", hint="name a directory, `.` for this one")
    return Path(text)


def read_timeout(text: str) -> float:
    """Read a limit of at most a day: ``90``, ``90s``, ``5min``, ``1.5h``; in seconds."""
    hint = "write 90s, 5min or 1h"
    value = _seconds(text, units=("", "s", "sec", "m", "min", "h"))
    if value is None:
        raise RequestError(f"`{text}` is not a duration", hint=hint)
    if not 0 < value <= _DAY_S:
        raise RequestError(f"`{text}` is not between 0 and 24h", hint=hint)
    return value


Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=read_timeout,
        help="Limit for each run of a job (90s, 5min) [what the image says].",
    ),
]


def read_age(text: str) -> float:
    """Read an age: ``0``, ``90s``, ``12h``, ``30d``, ``2w``; in seconds."""
    value = _seconds(text, units=tuple(_SECONDS))
    if value is None:
        raise RequestError(f"`{text}` is not a time", hint="write 10min, 12h or 30d")
    return value


def _seconds(text: str, *, units: Sequence[str]) -> float | None:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match and match[2] in units else None


def read_size(text: str) -> int:
    """Read an amount of data: ``500MB``, ``20GB``, ``1.5GiB``; in bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip())
    if match is None or (match[3] and not match[2]) or len(match[1]) > _MAX_DIGITS:
        raise RequestError(f"`{text}` is not an amount of data", hint="write 500MB, 20GB or 20GiB")
    power = " KMGT".index(match[2] or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def with_image(words: Sequence[str], named: Path, image: Path) -> list[str]:
    """Return the words of a command line with another name of the image in place of the one that it has."""
    return [str(image) if Path(word) == named else word for word in words]


def first_given(**values: object) -> str:
    """Return the first option that was given, by the name of its parameter; empty if none was."""
    given = next((name for name, value in values.items() if value), "")
    return f"--{given.replace('_', '-')}" if given else ""


def host_libraries(mpi: LibraryOwner, fabric: LibraryOwner) -> HostLibraries:
    """Return the libraries of the host that replace the image's own."""
    return workflows.hosting.HostLibraries(mpi=mpi == "host", fabric=fabric == "host")
