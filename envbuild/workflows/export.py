"""Export: an image in the forms of other runtimes; one merge of its layers feeds all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envbuild.build.merge import Blob, merged
from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.image import shifter
from envbuild.image.around import changed_around
from envbuild.image.compose import bill_of_image, compose
from envbuild.image.contents import AGAIN, file_systems
from envbuild.image.definition import check_expressible, definition_file
from envbuild.image.model import MANIFEST_PATH, Manifest, Part
from envbuild.image.oci import write_archive
from envbuild.image.outputs import Output, check_outputs, place_for_work, publish, writing
from envbuild.image.sif import LOCK, PLAN, read_data, read_manifest, read_sif, verify_parts
from envbuild.image.squashfs import Squashfs
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.plan.flat import flattened
from envbuild.plan.text import load_plan
from envbuild.system import clock, squashfs
from envbuild.system.files import sha256, write_atomically
from envbuild.system.leftovers import private_work
from envbuild.system.squashfs import Compression
from envbuild.workflows.places import refuse_in_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One form of an image, as it was written.

    Attributes
    ----------
    files : tuple of Path
        What it consists of.
    size_bytes : int
        Their length together.
    identity : str
        Of ``shifter`` the id, of ``sif-flat`` the image's digest, of ``oci`` that of its manifest
        for registries, else ``sha256:…`` of the file.
    """

    format: str
    files: tuple[Path, ...]
    size_bytes: int
    identity: str

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {**asdict(self), "files": [str(path) for path in self.files]}

    def to_text(self) -> str:
        """Return a line for people."""
        files = ", ".join(str(path) for path in self.files)
        return f"{files}: written ({self.format}, {self.size_bytes / 1e6:.1f} MB, {self.identity[:19]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What an image's forms are made from.

    Attributes
    ----------
    image : Path
        The SIF.
    blobs : tuple of Blob
        Its file systems, the root first.
    lock, plan : str
        As the image carries them.
    """

    image: Path
    manifest: Manifest
    blobs: tuple[Blob, ...]
    lock: str
    plan: str


def to_json(written: Sequence[Written]) -> str:
    """Return what was written as JSON that ends in a newline."""
    return json.dumps({"outputs": [one.to_data() for one in written]}, indent=2) + "\n"


def export_one(
    image: Path, form: str, path: Path, emit: Emit, *, compression: Compression | None = None
) -> Written:
    """Write an image in one other form; see `export_image`."""
    output = Output(format=form, path=path)
    return export_image(image, [output], emit, compression=compression)[0]


def export_image(
    image: Path,
    outputs: Sequence[Output],
    emit: Emit,
    *,
    compression: Compression | None = None,
) -> list[Written]:
    """Write an image in other forms.

    Parameters
    ----------
    compression : str, optional
        In place of each format's own.

    Raises
    ------
    RequestError
        It is no image of ours, it is not as it was written, or an output cannot be written.
    """
    manifest = read_manifest(image)
    check_outputs(outputs, keep=(image,))
    for output in outputs:
        refuse_in_store(output.path)
    for output in outputs:
        if compression and not output.compression(compression):
            raise RequestError(
                f"the form {output.format} has no squashfs to compress by {compression}",
                hint="leave the compression out, or name a form that has one: shifter, charliecloud",
            )
        if output.format == "shifter" and compression == "zstd":
            emit(
                Warned(
                    text="Shifter mounts by the node's kernel, which may lack zstd", hint="gzip is its own"
                )
            )
    check_forms(outputs, manifest, lambda: load(read_data(image, LOCK), image))
    _refuse_changed(image, emit)
    return _write_outputs(outputs, _source_of(image, emit), emit, compression=compression)


def _refuse_changed(image: Path, emit: Emit) -> None:
    """Read an image as a whole, and refuse one that is not as it was written."""
    task = "verify"
    size = sum(part.size for part in read_sif(image).partitions)
    emit(TaskStarted(task=task, title=f"read {image.name}", total_bytes=size))
    started = clock.seconds()
    broken = [verdict for verdict in verify_parts(image, advanced=_advancing(emit, task)) if not verdict.ok]
    wrong = ["+".join(verdict.layers) or verdict.role for verdict in broken]
    wrong += changed_around(image)
    if wrong:
        emit(TaskFailed(task=task))
        names = ", ".join(wrong)
        raise RequestError(
            f"`{image.name}` does not hold what was built: {names}",
            at=Location(path=image),
            hint=AGAIN,
        )
    emit(TaskDone(task=task, seconds=clock.seconds() - started))


def check_forms(outputs: Sequence[Output], manifest: Manifest, lock: Callable[[], Lock]) -> None:
    """Refuse forms that an image cannot take, before it is looked at.

    Parameters
    ----------
    manifest : Manifest
        Its parts may be unknown yet.
    lock : callable
        Returns its lock, which few forms need.

    Raises
    ------
    RequestError
        A definition file that cannot be; variables that Shifter would misread: all at once.
    """
    forms = {output.format for output in outputs}
    errors: list[EnvbuildError] = []
    if "def" in forms:
        try:
            check_expressible(lock())
        except EnvbuildError as error:
            errors.append(error)
    if "shifter" in forms:
        errors += [
            RequestError(
                f"Shifter would misread the variable {name}: {why}",
                hint="change the variable in the spec, and build again",
            )
            for name, why in shifter.misread(manifest.environment)
        ]
    raise_all(errors)


def _source_of(image: Path, emit: Emit) -> _Source:
    """Return what an image's forms are made from; its file systems are known to be its own."""
    blobs = []
    with file_systems(image) as layers:
        for part, layer in zip(read_sif(image).partitions, layers, strict=True):
            opaque, left = _attributes(layer)
            if left:
                shown = ", ".join(sorted(left)[:5])
                emit(Warned(text=f"extended attributes are left out: {shown} ({len(left)} in all)"))
            blobs.append(Blob(path=image, offset=part.offset, opaque=opaque))
    return _Source(
        image=image,
        manifest=read_manifest(image),
        blobs=tuple(blobs),
        lock=read_data(image, LOCK).decode(),
        plan=read_data(image, PLAN).decode(),
    )


def _attributes(image: Squashfs) -> tuple[frozenset[str], frozenset[str]]:
    """Return the opaque directories, and the extended attributes that are none of overlayfs's."""
    if not image.has_attributes:
        return frozenset(), frozenset()
    opaque: set[str] = set()
    left: set[str] = set()
    for entry in image.walk():
        if entry.opaque:
            opaque.add(entry.path)
        left |= {f"{name} of {entry.path}" for name, _ in entry.attributes if ".overlay." not in name}
    return frozenset(opaque), frozenset(left)


def _write_outputs(
    outputs: Sequence[Output],
    source: _Source,
    emit: Emit,
    *,
    compression: Compression | None = None,
) -> list[Written]:
    """Write all outputs, which were checked; the layers are merged once."""
    wanted = {output: output.compression(compression) for output in outputs}
    written: dict[Output, Written] = {}
    merged = [output for output in outputs if wanted[output]]
    if merged:
        # All of it is made beside the first of them.
        with writing(merged[0].path):
            written |= _files(outputs, wanted, source, emit)
    for output in outputs:
        if output.format == "oci":
            with writing(output.path):
                written[output] = _write_oci(output, source, emit)
        elif output not in written:
            lock = load(source.lock.encode(), output.path)
            write_atomically(output.path, definition_file(source.manifest, lock, source.plan).encode())
            written[output] = _written(output, output.path)
    return [written[output] for output in outputs]


def _files(
    outputs: Sequence[Output],
    wanted: dict[Output, Compression | None],
    source: _Source,
    emit: Emit,
) -> Iterator[tuple[Output, Written]]:
    """Merge once, make one squashfs for each compression, and let it take its places."""
    flat = [output for output in outputs if wanted[output]]
    with private_work(place_for_work(flat), before=".export-") as work:
        inner = _flat_story(source.manifest, work)
        started = clock.seconds()
        emit(TaskStarted(task="merge", title=f"merge {len(source.blobs)} layers"))
        with merged([*source.blobs, inner], beside=work, with_root=True) as dumps:
            emit(TaskDone(task="merge", seconds=clock.seconds() - started))
            for kind in dict.fromkeys(wanted[output] for output in flat):
                if kind is None:
                    continue
                made = work / f"{kind}.squashfs"
                started = clock.seconds()
                emit(TaskStarted(task=kind, title=f"make a squashfs, {kind}"))
                squashfs.make_of_dumps(dumps, made, compression=kind)
                emit(TaskDone(task=kind, seconds=clock.seconds() - started))
                mine = [output for output in flat if wanted[output] == kind]
                # A SIF is composed from the squashfs, which the last of the others may take away.
                mine.sort(key=lambda output: output.format != "sif-flat")
                for output in mine:
                    yield output, _write(output, made, source, emit, keep=output is not mine[-1])


def _said_when_flat(manifest: Manifest) -> str:
    """Return what an image says in its top layer where it is flat."""
    return replace(manifest, form="flat", parts=()).to_json()


def _flat_story(manifest: Manifest, work: Path) -> Blob:
    """Return a top layer in which the image says that it is flat, as one that was built so does."""
    tree = work / "story"
    path = tree / MANIFEST_PATH.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(_said_when_flat(manifest))
    for made, mode in ((tree, 0o755), (path.parent, 0o755), (path, 0o644)):
        made.chmod(mode)
    layer = work / "story.squashfs"
    squashfs.make(tree, layer)
    return Blob(path=layer)


def _write(output: Output, made: Path, source: _Source, emit: Emit, *, keep: bool) -> Written:
    if output.format == "sif-flat":
        return _write_sif(output, made, source, emit)
    if output.format == "shifter":
        return _write_shifter(output, made, source.manifest, keep=keep)
    return _written(output, publish(made, output.path, keep=keep))


def _flat_plan(source: _Source, emit: Emit) -> str:
    """Return the plan of the flat image of an image's lock."""
    inner = _said_when_flat(source.manifest).encode()
    try:
        return flattened(load_plan(source.plan), {MANIFEST_PATH: inner}).to_json()
    except ValueError as error:
        emit(
            Warned(
                text=f"the plan of `{source.image.name}` stays that of its layers: {error}",
                hint="`envbuild build --flat SPEC` makes a flat image that can be reproduced",
            )
        )
        return source.plan


def _write_sif(output: Output, made: Path, source: _Source, emit: Emit) -> Written:
    part = Part(
        role="root",
        layers=tuple(sorted(name for part in source.manifest.parts for name in part.layers)),
        digest=f"sha256:{sha256(made)}",
        size_bytes=made.stat().st_size,
    )
    manifest = replace(source.manifest, form="flat", parts=(part,))
    advanced = _advancing(emit, "compose")
    bill = bill_of_image(source.image)
    parts, plan = [(part, made)], _flat_plan(source, emit)
    compose(output.path, manifest, parts, lock=source.lock, plan=plan, bill=bill, advanced=advanced)
    return replace(_written(output, output.path), identity=manifest.digest)


def _write_shifter(output: Output, made: Path, manifest: Manifest, *, keep: bool) -> Written:
    output.path.mkdir(exist_ok=True)
    name = shifter.image_id(made)
    image = publish(made, output.path / f"{name}.squashfs", keep=keep)
    # Last: whoever finds it finds the image.
    metadata = output.path / f"{name}.meta"
    write_atomically(metadata, shifter.metadata_text(manifest.environment).encode())
    return replace(_written(output, image, metadata), identity=name)


def _write_oci(output: Output, source: _Source, emit: Emit) -> Written:
    started = clock.seconds()
    emit(TaskStarted(task="oci", title=f"pack {len(source.blobs)} layers"))
    with (
        file_systems(source.image) as layers,
        private_work(place_for_work([output]), before=".export-") as work,
    ):
        made = work / "archive"
        digest = write_archive(made, source.manifest, layers, work=work, advanced=_advancing(emit, "oci"))
        publish(made, output.path, keep=False)
    emit(TaskDone(task="oci", seconds=clock.seconds() - started))
    return replace(_written(output, output.path), identity=digest)


def _written(output: Output, *files: Path) -> Written:
    return Written(
        format=output.format,
        files=files,
        size_bytes=sum(path.stat().st_size for path in files),
        identity=f"sha256:{sha256(files[0])}",
    )


def _advancing(emit: Emit, task: str) -> Callable[[int], None]:
    return lambda count: emit(TaskAdvanced(task=task, bytes=count))
