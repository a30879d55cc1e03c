"""The image's own metadata: its manifest, and the files of its top layer."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild import jobs
from envbuild.digests import sha256_of
from envbuild.image import startup
from envbuild.image.environment import default_environment, render_script
from envbuild.image.model import (
    MANIFEST_FORMAT,
    MANIFEST_PATH,
    METADATA_DIR,
    ImagePackage,
    Manifest,
)
from envbuild.jobs.judge import JOBS, Job, tutorial_file
from envbuild.lock.model import Lock
from envbuild.lock.text import dump
from envbuild.plan.model import InlineFile
from envbuild.spec.recipe_rules import TUTORIAL
from envbuild.spec.resolved import ResolvedSpec


def manifest_of(resolved: ResolvedSpec, lock: Lock) -> Manifest:
    """Return the manifest of an image; the copy inside the image, which names no file system."""
    spec = resolved.spec
    commands = {command for chosen in resolved.recipes for command in chosen.recipe.commands}
    imports = dict.fromkeys(module for chosen in resolved.recipes for module in chosen.recipe.modules)
    return Manifest(
        format=MANIFEST_FORMAT,
        name=spec.name,
        version=spec.version,
        summary=spec.summary,
        architecture=lock.architecture,
        file_system=None,
        environment=default_environment(
            *(chosen.recipe.environment_beside(resolved.recipe_names) for chosen in resolved.recipes),
            spec.environment,
        ),
        accelerator=spec.accelerator.name,
        base=lock.base.name,
        glibc=lock.base.glibc,
        python=lock.base.python,
        mpi=resolved.mpi.recipe.name if resolved.mpi else "",
        mpi_family=(resolved.mpi.recipe.family or resolved.mpi.recipe.name) if resolved.mpi else "",
        recipes={pin.name: pin.version for pin in lock.recipes},
        unproven=lock.unproven,
        imports=tuple(imports),
        python_packages=packages_of(lock, resolved.modules_of_packages()),
        tutorials=tuple(chosen.recipe.name for chosen in resolved.recipes if TUTORIAL in chosen.files),
        lacks=tuple(sorted({name for chosen in resolved.recipes for name in chosen.recipe.lacks})),
        excuses=spec.check.excuse,
        commands=tuple(sorted(commands | set(spec.module.commands))),
        conflicts=spec.module.conflicts,
        jobs=image_jobs(resolved),
        ranks=spec.test.ranks,
        timeout_s=spec.test.timeout_s,
        labels=dict(spec.labels),
        lock_digest=sha256_of(dump(lock)),
    )


def packages_of(
    lock: Lock, modules: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> tuple[ImagePackage, ...]:
    """Return the Python distributions of a lock; `modules`: name → the only modules of it to import."""
    requested = {canonicalize_name(Requirement(text).name) for text in lock.requests}
    return tuple(
        ImagePackage(
            name=pin.name,
            version=pin.version,
            requested=pin.name in requested,
            modules=modules.get(pin.name),
        )
        for pin in lock.python
    )


def top_layer(
    resolved: ResolvedSpec, lock: Lock, manifest: Manifest, *, embedded: Mapping[str, bytes]
) -> list[InlineFile]:
    """Return the files of an image's top layer.

    `embedded` are the files with which the image tests itself: path below `METADATA_DIR` → content.
    """
    entries = [*_made_of(lock, manifest)]
    entries += [_entry(f"{METADATA_DIR}/{path}", content) for path, content in sorted(embedded.items())]
    for chosen in resolved.recipes:
        for path, content in sorted(chosen.files.items()):
            if path.startswith("verify/") and path.endswith(".py"):
                name = path.removeprefix("verify/")
                entries.append(_entry(f"{JOBS}/{chosen.recipe.name}/{name}", content))
            elif path == TUTORIAL:
                entries.append(_entry(tutorial_file(chosen.recipe.name), content))
    return entries


def renewed_layer(files: Iterable[InlineFile], lock: Lock, manifest: Manifest) -> list[InlineFile]:
    """Return the files of a top layer with another lock and manifest; what recipes brought is kept."""
    renewed = {file.path: file for file in (*files, *_made_of(lock, manifest))}
    return list(renewed.values())


def _made_of(lock: Lock, manifest: Manifest) -> Iterator[InlineFile]:
    """Yield the files that lock and manifest make."""
    yield _entry(startup.ENVIRONMENT, render_script(manifest.environment).encode(), 0o755)
    yield _entry(MANIFEST_PATH, manifest.to_json().encode())
    yield _entry(f"{METADATA_DIR}/lock.yaml", dump(lock).encode())
    for path, (text, mode) in startup.top_files(manifest).items():
        yield _entry(path, text.encode(), mode)


def root_texts() -> dict[str, str]:
    """Return the files that every root carries: path → text; a path with ``/`` at its end is a directory."""
    files = {path: text for path, (text, _) in startup.base_files().items()}
    return {**files, **{f"{path}/": "" for path in startup.EMPTY_DIRECTORIES}}


def _entry(path: str, content: bytes, mode: int = 0o644) -> InlineFile:
    return InlineFile(path=path, content=base64.b64encode(content).decode(), executable=bool(mode & 0o100))


def image_jobs(resolved: ResolvedSpec) -> tuple[Job, ...]:
    """Return the jobs of an image's recipes, for its variants and its accelerator."""
    for_gpus = resolved.spec.accelerator.name != "cpu"
    return tuple(
        job
        for chosen in resolved.recipes
        for job in chosen.jobs
        if (not job.variants or chosen.variant_name in job.variants) and (for_gpus or not job.gpus_per_rank)
    )


def embedded_files() -> dict[str, bytes]:
    """Return the files below ``/.envbuild`` with which an image tests itself: path → content.

    `apptainer test` starts ``judge.py``; jobs import ``jobs/envbuild_job.py``; ``lib/`` is the judge.
    """
    directory = Path(jobs.__file__).parent
    texts = {path.name: path.read_bytes() for path in sorted(directory.glob("*.py"))}
    return {
        "judge.py": texts["entry.py"],
        "jobs/envbuild_job.py": texts["envbuild_job.py"],
        "jobs/envbuild_gpus.py": texts["envbuild_gpus.py"],
        "lib/envbuild/__init__.py": b"",
        **{f"lib/envbuild/jobs/{name}": text for name, text in texts.items()},
    }
