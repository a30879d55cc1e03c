"""The image's own metadata: its manifest, and the files of its top layer."""

from __future__ import annotations

import base64
import functools
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
from envbuild.jobs import envbuild_ranks
from envbuild.jobs.judge import JOBS, Job, tutorial_file
from envbuild.jobs.launchers import on_one_host
from envbuild.lock.model import Lock
from envbuild.lock.text import dump
from envbuild.plan.model import ENV_PREFIX, InlineFile
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.locales import has_locales
from envbuild.spec.recipe_rules import TUTORIAL
from envbuild.spec.resolved import ResolvedSpec


def manifest_of(resolved: ResolvedSpec, lock: Lock) -> Manifest:
    """Return the manifest of an image; the copy inside the image, which names no file system."""
    spec = resolved.spec
    commands = {command for chosen in resolved.recipes for command in chosen.recipe.commands}
    names = [chosen.recipe.name for chosen in resolved.recipes]
    family = (resolved.mpi.recipe.family or resolved.mpi.recipe.name) if resolved.mpi else ""
    imports = dict.fromkeys(module for chosen in resolved.recipes for module in chosen.recipe.modules)
    return Manifest(
        format=MANIFEST_FORMAT,
        name=spec.name,
        version=spec.version,
        summary=spec.summary,
        architecture=lock.architecture,
        file_system=None,
        environment=default_environment(
            on_one_host(family),
            *(chosen.recipe.environment_beside(names) for chosen in resolved.recipes),
            spec.environment,
            has_locales=has_locales((*resolved.base.packages, *resolved.system_requests)),
        ),
        accelerator=spec.accelerator.name,
        base=lock.base.name,
        glibc=lock.base.glibc,
        python=lock.base.python,
        mpi=resolved.mpi.recipe.name if resolved.mpi else "",
        mpi_family=family,
        recipes={pin.name: pin.version for pin in lock.recipes},
        unproven=lock.unproven,
        imports=tuple(imports),
        python_packages=packages_of(lock, _modules_of_packages(resolved)),
        tutorials=tuple(chosen.recipe.name for chosen in resolved.recipes if TUTORIAL in chosen.files),
        lacks=tuple(sorted({name for chosen in resolved.recipes for name in chosen.recipe.lacks})),
        excuses=spec.check.excuse,
        commands=tuple(sorted(commands | set(spec.module.commands))),
        conflicts=spec.module.conflicts,
        jobs=image_jobs(resolved),
        ranks=spec.test.ranks,
        timeout_s=spec.test.timeout_s,
        launch=spec.launch,
        labels=dict(spec.labels),
        lock_digest=sha256_of(dump(lock)),
    )


def _modules_of_packages(resolved: ResolvedSpec) -> dict[str, tuple[str, ...]]:
    """Return package → the only modules of it to import; the spec decides, then its recipes in order."""
    modules = dict(resolved.spec.imports)
    for chosen in resolved.recipes:
        modules = {**chosen.recipe.modules_of_packages, **modules}
    return modules


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
    recipes: Iterable[ChosenRecipe], lock: Lock, manifest: Manifest, *, embedded: Mapping[str, bytes]
) -> list[InlineFile]:
    """Return the files of an image's top layer.

    `embedded` are the files with which the image tests itself: path below `METADATA_DIR` → content.
    """
    entries = [*_made_of(lock, manifest)]
    entries += [_shared(f"{METADATA_DIR}/{path}", content) for path, content in sorted(embedded.items())]
    for chosen in recipes:
        for path, content in sorted(chosen.files.items()):
            if path.startswith("verify/") and path.endswith(".py"):
                name = path.removeprefix("verify/")
                entries.append(_shared(f"{JOBS}/{chosen.recipe.name}/{name}", content))
            elif path == TUTORIAL:
                entries.append(_shared(tutorial_file(chosen.recipe.name), content))
            elif path.startswith("plugins/"):
                entries.append(_shared(_plugin_path(chosen.recipe.name, path, lock.base.python), content))
    return entries


def _plugin_path(recipe: str, path: str, python: str) -> str:
    """Return where a module of a recipe's plug-ins lies, or their ``entry_points.txt``.

    Python finds entry points in a directory `.dist-info`. It has no METADATA: it is not a distribution.
    """
    name = path.removeprefix("plugins/")
    site = f"{ENV_PREFIX}/lib/python{python}/site-packages"
    return f"{site}/{name}" if name.endswith(".py") else f"{site}/envbuild_{recipe}-1.dist-info/{name}"


def renewed_layer(files: Iterable[InlineFile], lock: Lock, manifest: Manifest) -> list[InlineFile]:
    """Return the files of a top layer with another lock and manifest; what recipes brought is kept."""
    renewed = {file.path: file for file in (*files, *_made_of(lock, manifest))}
    return list(renewed.values())


def kept_files(files: Iterable[InlineFile], lock: Lock, manifest: Manifest) -> dict[str, InlineFile]:
    """Return the files of a top layer that `renewed_layer` keeps, by path, without jobs and tutorials."""
    made = {file.path for file in _made_of(lock, manifest)}
    tests = tuple(start for name in manifest.recipes for start in (f"{JOBS}/{name}/", tutorial_file(name)))
    return {file.path: file for file in files if file.path not in made and not file.path.startswith(tests)}


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


# Most of a top layer is the same in all images.
_shared = functools.lru_cache(maxsize=1024)(_entry)


def image_jobs(resolved: ResolvedSpec) -> tuple[Job, ...]:
    """Return the jobs of an image's recipes, for its variants and its accelerator."""
    for_gpus = resolved.spec.accelerator.name != "cpu"
    return tuple(
        job
        for chosen in resolved.recipes
        for job in chosen.jobs
        if (not job.variants or chosen.variant_name in job.variants) and (for_gpus or not job.gpus_per_rank)
    )


def _ranks_script() -> str:
    """Return the script that gives ranks the variables of PyTorch, with its tables."""
    tables = {
        "ranks": [f"{rank}:{size}" for rank, size in envbuild_ranks.RANKS],
        "local_ranks": envbuild_ranks.LOCAL_RANKS,
        "local_sizes": envbuild_ranks.LOCAL_SIZES,
    }
    lines = [f"_eb_{name}='{' '.join(words)}'" for name, words in tables.items()]
    text = Path(jobs.__file__).with_name("ranks.sh").read_text(encoding="utf-8")
    return "\n".join([*lines, text])


@functools.cache
def embedded_files() -> Mapping[str, bytes]:
    """Return the files below ``/.envbuild`` with which an image tests itself: path → content.

    `apptainer test` starts ``judge.py``; jobs import ``jobs/envbuild_job.py``; ``lib/`` is the judge;
    ``ranks.sh`` starts the ranks of an image with PyTorch.
    """
    directory = Path(jobs.__file__).parent
    texts = {path.name: path.read_bytes() for path in sorted(directory.glob("*.py"))}
    return MappingProxyType(
        {
            "judge.py": texts["entry.py"],
            "jobs/envbuild_job.py": texts["envbuild_job.py"],
            "jobs/envbuild_gpus.py": texts["envbuild_gpus.py"],
            "jobs/envbuild_ranks.py": texts["envbuild_ranks.py"],
            "jobs/envbuild_libraries.py": texts["envbuild_libraries.py"],
            "ranks.sh": _ranks_script().encode(),
            "lib/envbuild/__init__.py": b"",
            **{f"lib/envbuild/jobs/{name}": text for name, text in texts.items()},
        }
    )
