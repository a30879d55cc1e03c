"""The files of this version of envbuild as golden inputs: later versions read them, or say what renews them.

    python -m tests.support.formats

writes ``tests/formats/VERSION/`` for the version of this checkout, and changes no directory that is there.
Images and layers are of a few kilobytes, with libraries that are made to order: nothing can be started.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from envbuild import __version__
from envbuild.bench import history
from envbuild.bench.result import BenchResult, MeasuredImage, MeasuredPoint
from envbuild.extend.request import ExtendRequest
from envbuild.image.file import ImageFile
from envbuild.jobs.report import CheckResult
from envbuild.plan.model import BuildPlan, Compression, FilesStep, InlineFile, Layer, layer_key
from envbuild.store import verdicts
from envbuild.store.gc_roots import add_root
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system import squashfs
from envbuild.workflows import build as workflow
from envbuild.workflows.build import BuildRequest, build_images
from envbuild.workflows.extend import extend_image
from envbuild.workflows.gc_roots import root_of_build
from envbuild.workflows.lock import Locked
from envbuild.workflows.members import Members
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import make_key, sign_image
from tests.support.elves import Elf
from tests.support.module_roots import APPTAINER, put_module
from tests.support.resolved_specs import bare_lock, resolved
from tests.support.small_images import BASE

TOP = Path(__file__).resolve().parents[2]
FORMATS = TOP / "tests/formats"
EXAMPLES = TOP / "docs/reference/examples"
TEXTS = ("spec", "recipe", "base", "site", "config", "job", "knowledge", "lock", "lock-image", "lock-root")
"""Files that people write, and locks: examples of the reference, with every key."""
ROOT = Path("/apps")
"""Stands for the directory in which the files were written."""
FACTS = {"cpu": "x86-64", "kernel": "6.1.0"}
WHEN = "2026-11-28T12:00:00Z"


def main() -> int:
    """Write the directory of this version; return 1 if it is there."""
    target = FORMATS / __version__
    if target.exists():
        sys.stderr.write(f"{target} exists: files of a version that is out never change\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="envbuild-formats-") as directory:
        work = Path(directory).resolve()
        write(work)
        _rename_root(work)
        shutil.copytree(work, target, symlinks=True)
    return 0


def write(work: Path) -> None:
    """Write the files of this version into an empty directory."""
    for name in TEXTS:
        shutil.copy(EXAMPLES / f"{name}.yaml", work / f"{name}.yaml")
    settings = Settings.of(store=work / "store")
    image = _built(work, settings)
    _extended(work, settings)
    report = report_of(image)
    (work / "report.json").write_text(report.to_json())
    record = settings.store.root / verdicts.record(settings.store, report)
    put_module(image, work / "modules", "demo/1", default=True, verdict=record.read_text())
    _pin(image, settings.store)
    history.keep(work / "results", _bench(image))
    _observed(work / "records")
    for name in ("lock", "logs", "resolve", "stage"):
        path = work / "store" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _built(work: Path, settings: Settings) -> Path:
    """Build an image, and sign it."""
    spec = work / "demo.yaml"
    spec.write_text('name: demo\nversion: "1"\n')
    image = build(spec, settings)
    key = make_key(work / "demo.key")
    sign_image(image, key.private, settings)
    key.private.unlink()
    return image


def build(spec: Path, settings: Settings) -> Path:
    """Build an image whose lock and plan are given; return its path."""
    lock_path = spec.with_suffix(".lock.yaml")
    locked = Locked(resolved=resolved(path=spec), lock=bare_lock(), path=lock_path, changes=())
    with (
        patch.object(workflow, "lock_spec", lambda *_, **__: locked),
        patch.object(workflow, "plan_image", lambda *_, **options: _plan(**options)),
        patch.object(Settings, "find_apptainer", lambda *_: APPTAINER),
    ):
        (member,) = build_images(Members.of([spec], many=False), BuildRequest(), settings).items
        member.get()
    return spec.with_suffix(".sif")


def _plan(*, compression: Compression = "zstd") -> BuildPlan:
    files = {path: content for path, content in BASE.items() if not isinstance(content, tuple)}
    base = tuple(
        InlineFile(path=path, content=base64.b64encode(_content(content)).decode(), executable=True)
        for path, content in sorted(files.items())
    )
    motd = InlineFile(path="/etc/motd", content=base64.b64encode(b"welcome\n").decode())
    steps = {"base": FilesStep(files=base, tools=(), links={"/lib": "usr/lib"})}
    steps["venv"] = FilesStep(files=(motd,), tools=())
    layers = tuple(
        Layer(name=name, key=layer_key(step, (), compression), step=step, compression=compression)
        for name, step in steps.items()
    )
    return BuildPlan(layers=layers, image=tuple(steps), tools=())


def _content(content: object) -> bytes:
    return content.bytes() if isinstance(content, Elf) else bytes(content)  # type: ignore[call-overload]


def _extended(work: Path, settings: Settings) -> None:
    """Add a variable to an image of another tool."""
    tree, foreign = work / "tree", work / "foreign.squashfs"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/motd").write_text("of another tool\n")
    squashfs.make(tree, foreign)
    shutil.rmtree(tree)
    output = work / "extended.squashfs"
    extend_image(ExtendRequest(image=foreign, output=output, environment=["GREETING=hello"]), settings)
    foreign.unlink()


def report_of(image: Path) -> Report:
    """Return the report of a test of an image that passed."""
    with ImageFile.open(image) as opened:
        manifest = opened.manifest
    return Report(
        checks=(CheckResult("PASS", "mpi.world/ranks", "2 ranks", "2 ranks"),),
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=2,
        fingerprint="sha256:" + "5" * 64,
        facts=FACTS,
        when=WHEN,
        seconds=1.5,
    )


def _pin(image: Path, store: Store) -> None:
    """Have a root for the path that the image has in the files."""
    with ImageFile.open(image) as opened:
        manifest, plan, lock = opened.manifest, opened.plan, opened.lock
    for path in (store.root / "roots").iterdir():
        path.unlink()
    add_root(store, root_of_build(ROOT / image.name, manifest, plan, lock, ROOT / "demo.yaml"))


def _bench(image: Path) -> BenchResult:
    with ImageFile.open(image) as opened:
        manifest = opened.manifest
    point = MeasuredPoint(
        benchmark="mpi.bandwidth",
        files="sha256:" + "6" * 64,
        name="gb_per_s",
        unit="GB/s",
        higher_is_better=True,
        nodes=0,
        ranks=2,
        threads=1,
        values=(10.0, 10.5, 11.0),
        median=10.5,
    )
    return BenchResult(
        image=MeasuredImage(name=manifest.name, version=manifest.version, digest=manifest.digest),
        fingerprint="sha256:" + "5" * 64,
        facts=FACTS,
        when=WHEN,
        repeats=3,
        points=(point,),
    )


def _observed(directory: Path) -> None:
    header = {"format": 1, "kind": "rank", "host": "n1", "epoch": 1000.0, "rank": 0, "size": 1, "cpus": [0]}
    samples = [{"t": float(t), "cpu": 0.5 * t, "threads": 1} for t in range(3)]
    directory.mkdir()
    lines = [json.dumps(line) + "\n" for line in (header, *samples)]
    (directory / "rank-0.jsonl").write_text("".join(lines))


def _rename_root(work: Path) -> None:
    """Write `ROOT` in place of the directory of this run into the texts that name it."""
    for path in sorted((work / "modules").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix != ".sif":
            mode = path.stat().st_mode
            text = path.read_bytes().replace(os.fsencode(work), os.fsencode(ROOT))
            path.chmod(mode | 0o200)
            path.write_bytes(text)
            path.chmod(mode)


if __name__ == "__main__":
    sys.exit(main())
