"""What an image says of itself: the manifest that travels in every form of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# Raised whenever a key comes, goes or changes its meaning.
MANIFEST_FORMAT = 5

# Where the image keeps its own story; owned by the metadata layer.
STORY = "/.envbuild"
JUDGE = f"{STORY}/judge.py"
JOBS = f"{STORY}/jobs"
MANIFEST_PATH = f"{STORY}/manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    """The data of a layer in an image.

    Attributes
    ----------
    name : str
        Of the layer.
    digest : str
        ``sha256:…`` of the layer's own squashfs, by which the store knows it.
    offset, size_bytes : int
        Where its data begin in the file system of the image, and their length.
    data : str
        ``sha256:…`` of its data.
    """

    name: str
    digest: str
    offset: int
    size_bytes: int
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The file system of an image.

    Attributes
    ----------
    size_bytes : int
        Its length.
    layers : tuple of ImageLayer
        From bottom to top, in which order their data lie.
    tables_offset : int
        Where its tables begin, in bytes; they end with the file system.
    tables : str
        ``sha256:…`` of its superblock and its tables.
    """

    size_bytes: int
    layers: tuple[ImageLayer, ...]
    tables_offset: int
    tables: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable of the image: a literal, or a prepend.

    Attributes
    ----------
    operation : str
        ``set``, ``prepend`` (joined by ``:``) or ``unset``.
    value : str
        A literal; never expanded.
    """

    name: str
    operation: Literal["set", "prepend", "unset"]
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A mini job that the image carries under `JOBS`; fields as in `spec.model.VerifyJob`.

    Attributes
    ----------
    recipe : str
        Whose it is; its file is ``JOBS/<recipe>/<file>``.
    """

    id: str
    recipe: str
    file: str
    title: str
    expect: dict[str, str]
    same_on_all_ranks: tuple[str, ...]
    compare_with_single: dict[str, float]
    compare_with_reported: dict[str, dict[str, float]]
    hint: str
    timeout_s: float | None
    launcher: str = "mpiexec"
    environment: dict[str, str] = field(default_factory=dict)
    says: dict[str, tuple[str, ...]] = field(default_factory=dict)
    own_mpi: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The image's own story, as canonical JSON in the SIF and under `STORY`.

    Attributes
    ----------
    architecture : str
        In Debian's words (``amd64``).
    file_system : FileSystem or None
        None in the copy that lies inside the image, which cannot know its own digest.
    recipes : dict of str to str
        Recipe name → version.
    mpi : str
        Name of the MPI recipe; empty for none.
    mpi_family : str
        Whose launcher that MPI has (``openmpi``); empty for none.
    imports : tuple of str
        Python modules that must import.
    lacks : tuple of str
        Libraries that its recipes say nothing brings, and nothing proven needs.
    commands : tuple of str
        Commands that get a wrapper.
    conflicts : tuple of str
        Modules that conflict.
    ranks, timeout_s
        Defaults of `envbuild test` (count; seconds).
    """

    name: str
    version: str
    summary: str
    architecture: str
    file_system: FileSystem | None
    environment: tuple[Variable, ...]
    base: str
    glibc: str
    python: str
    mpi: str
    mpi_family: str
    recipes: dict[str, str]
    imports: tuple[str, ...]
    lacks: tuple[str, ...]
    commands: tuple[str, ...]
    conflicts: tuple[str, ...]
    jobs: tuple[Job, ...]
    ranks: int
    timeout_s: float
    labels: dict[str, str]
    lock_digest: str
    format: int = MANIFEST_FORMAT

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, one line and its end."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")) + "\n"

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical text: the image's identity, whatever file holds it."""
        return "sha256:" + hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            It is no manifest, or of a format that this version does not know.
        """
        data = json.loads(text)
        found = data.get("format") if isinstance(data, dict) else None
        if isinstance(found, int) and found < MANIFEST_FORMAT:
            raise ValueError("an earlier version of envbuild made the image")
        if found != MANIFEST_FORMAT:
            what = f"format {found}" if isinstance(found, int) else "no format"
            raise ValueError(f"its manifest has {what}, this version of envbuild reads {MANIFEST_FORMAT}")
        try:
            if (system := data["file_system"]) is not None:
                layers = tuple(ImageLayer(**layer) for layer in system["layers"])
                data["file_system"] = FileSystem(**{**system, "layers": layers})
            data["environment"] = tuple(Variable(**variable) for variable in data["environment"])
            data["jobs"] = tuple(_job(job) for job in data["jobs"])
            for name in ("imports", "lacks", "commands", "conflicts"):
                data[name] = tuple(data[name])
            return Manifest(**data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a manifest: {error}") from error


def _job(data: dict[str, Any]) -> Job:
    says = {name: tuple(texts) for name, texts in data["says"].items()}
    return Job(**{**data, "same_on_all_ranks": tuple(data["same_on_all_ranks"]), "says": says})
