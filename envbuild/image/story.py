"""An image's own story: its manifest, and the files of its top layer."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from envbuild.digests import sha256_of
from envbuild.image import startup
from envbuild.image.environment import default_environment, render_script
from envbuild.image.model import JOBS, MANIFEST_FORMAT, MANIFEST_PATH, STORY, FileSystem, Job, Manifest
from envbuild.lock.model import Lock
from envbuild.lock.text import dump
from envbuild.plan.model import TextEntry
from envbuild.spec.asked import Asked


def manifest_of(asked: Asked, lock: Lock, file_system: FileSystem | None = None) -> Manifest:
    """Return the manifest of an image.

    Parameters
    ----------
    file_system : FileSystem, optional
        None for the copy inside the image, which cannot know its own digest.
    """
    spec = asked.spec
    commands = {command for chosen in asked.recipes for command in chosen.recipe.commands}
    imports = dict.fromkeys(module for chosen in asked.recipes for module in chosen.recipe.imports)
    return Manifest(
        format=MANIFEST_FORMAT,
        name=spec.name,
        version=spec.version,
        summary=spec.summary,
        architecture=lock.base.architecture,
        file_system=file_system,
        environment=default_environment(
            *(chosen.recipe.environment for chosen in asked.recipes), spec.environment
        ),
        base=lock.base.name,
        glibc=lock.base.glibc,
        python=lock.base.python,
        mpi=asked.mpi.recipe.name if asked.mpi else "",
        mpi_family=(asked.mpi.recipe.family or asked.mpi.recipe.name) if asked.mpi else "",
        recipes={pin.name: pin.version for pin in lock.recipes},
        imports=tuple(imports),
        lacks=tuple(sorted({name for chosen in asked.recipes for name in chosen.recipe.lacks})),
        commands=tuple(sorted(commands | set(spec.module.commands))),
        conflicts=spec.module.conflicts,
        jobs=_jobs(asked),
        ranks=spec.test.ranks,
        timeout_s=spec.test.timeout_s,
        labels=dict(spec.labels),
        lock_digest=sha256_of(dump(lock)),
    )


def top_layer(asked: Asked, lock: Lock, manifest: Manifest, *, proof: Mapping[str, bytes]) -> list[TextEntry]:
    """Return the files of an image's top layer.

    Parameters
    ----------
    proof : mapping of str to bytes
        Path below `STORY` → content: what judges mini jobs, and what they
        import to report (standard library only).
    """
    entries = [
        _entry(startup.ENVIRONMENT, render_script(manifest.environment).encode(), 0o755),
        _entry(MANIFEST_PATH, manifest.to_json().encode()),
        _entry(f"{STORY}/lock.yaml", dump(lock).encode()),
        *(_entry(f"{STORY}/{path}", content) for path, content in sorted(proof.items())),
    ]
    for chosen in asked.recipes:
        for path, content in sorted(chosen.files.items()):
            if path.startswith("verify/") and path.endswith(".py"):
                name = path.removeprefix("verify/")
                entries.append(_entry(f"{JOBS}/{chosen.recipe.name}/{name}", content))
    for path, (text, mode) in startup.top_files(manifest).items():
        entries.append(_entry(path, text.encode(), mode))
    return entries


def root_texts() -> dict[str, str]:
    """Return the files that every root carries: path → text; a path that ends in ``/`` is a directory."""
    files = {path: text for path, (text, _) in startup.base_files().items()}
    return {**files, **{f"{path}/": "" for path in startup.EMPTY_DIRECTORIES}}


def _entry(path: str, content: bytes, mode: int = 0o644) -> TextEntry:
    return TextEntry(path=path, content=base64.b64encode(content).decode(), executable=bool(mode & 0o100))


def _jobs(asked: Asked) -> tuple[Job, ...]:
    return tuple(
        Job(
            id=job.id,
            recipe=chosen.recipe.name,
            file=job.job,
            title=job.title,
            expect=dict(job.expect),
            same_on_all_ranks=job.same_on_all_ranks,
            compare_with_single=dict(job.compare_with_single),
            compare_with_reported={name: dict(others) for name, others in job.compare_with_reported.items()},
            hint=job.hint,
            timeout_s=job.timeout_s,
            launcher=job.launcher,
            environment=dict(job.environment),
            says=dict(job.says),
            own_mpi=job.own_mpi,
        )
        for chosen in asked.recipes
        for job in chosen.recipe.verify
        if not job.variants or chosen.variant_name in job.variants
    )
