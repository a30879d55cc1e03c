"""Is a manifest fit to be used? It may come from a file that a stranger made.

Pure. Its names become file names, words of command lines and lines of
modulefiles; here they are held to the patterns that a spec is held to.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from envbuild.image.model import FileSystem, Job, Manifest
from envbuild.spec.model import NAME, VARIABLE, VERSION
from envbuild.spec.recipe import LauncherName

_DIGEST = r"sha256:[0-9a-f]{64}"
_MODULE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_LIBRARY = r"[A-Za-z0-9/][A-Za-z0-9._+/-]*"
_COMMAND = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_CONFLICT = r"[A-Za-z0-9][A-Za-z0-9._+/-]*"
_LAYER = r"[a-z0-9][a-z0-9._:+-]*"
_JOB_ID = r"[A-Z][0-9]+(?:\.[a-z0-9-]+)?"
_JOB_FILE = r"[a-z0-9_]+\.py"
_LAUNCHER = "|".join(get_args(LauncherName))
_WORD = r"[A-Za-z0-9][A-Za-z0-9._@:+-]*"


@functools.cache
def _types() -> TypeAdapter[Manifest]:
    """Return what checks types; building it takes time that few commands need."""
    return TypeAdapter(Manifest)


def parse_manifest(text: str) -> Manifest:
    """Read a manifest and check everything in it.

    Raises
    ------
    ValueError
        It is no manifest that this version knows, or holds a value that no spec could have put there.
    """
    try:
        manifest = Manifest.from_json(text)
        _types().validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except (RecursionError, AttributeError) as error:
        raise ValueError("its structure is not that of a manifest") from error
    for problem in _problems(manifest):
        raise ValueError(problem)
    return manifest


def _problems(manifest: Manifest) -> Iterator[str]:
    yield from _unmatched("name", NAME, manifest.name)
    yield from _unmatched("version", VERSION, manifest.version)
    yield from _unmatched("architecture", NAME, manifest.architecture)
    yield from _unmatched("base", _WORD, manifest.base)
    yield from _unmatched("glibc", r"\d+\.\d+", manifest.glibc)
    yield from _unmatched("python", r"[23]\.\d+", manifest.python)
    yield from _unmatched("lock_digest", _DIGEST, manifest.lock_digest)
    for where, name in (("mpi", manifest.mpi), ("mpi_family", manifest.mpi_family)):
        if name:
            yield from _unmatched(where, NAME, name)
    yield from _unmatched("imports", _MODULE, *manifest.imports)
    yield from _unmatched("lacks", _LIBRARY, *manifest.lacks)
    yield from _unmatched("commands", _COMMAND, *manifest.commands)
    yield from _unmatched("conflicts", _CONFLICT, *manifest.conflicts)
    yield from _unmatched("environment", VARIABLE, *(variable.name for variable in manifest.environment))
    yield from _unmatched("recipes", NAME, *manifest.recipes)
    yield from _unmatched("recipes", VERSION, *manifest.recipes.values())
    yield from _control_characters(manifest)
    if manifest.file_system is not None:
        yield from _file_system_problems(manifest.file_system)
    for job in manifest.jobs:
        yield from _job_problems(job)
    if not 2 <= manifest.ranks <= 4096:
        yield f"ranks: {manifest.ranks} is not between 2 and 4096"
    yield from _time_problems("timeout_s", manifest.timeout_s)


def _file_system_problems(system: FileSystem) -> Iterator[str]:
    yield from _unmatched("file_system.tables", _DIGEST, system.tables)
    end = 0
    for layer in system.layers:
        yield from _unmatched("file_system.layers.name", _LAYER, layer.name)
        yield from _unmatched("file_system.layers.digest", _DIGEST, layer.digest, layer.data)
        if layer.offset <= end or layer.size_bytes < 0:
            yield f"file_system.layers: {layer.name[:80]!r} overlaps what lies before it"
        end = layer.offset + layer.size_bytes
    if not end <= system.tables_offset < system.size_bytes:
        yield "file_system: its tables do not lie behind its layers"


def _job_problems(job: Job) -> Iterator[str]:
    yield from _unmatched("jobs.id", _JOB_ID, job.id)
    yield from _unmatched("jobs.recipe", NAME, job.recipe)
    yield from _unmatched("jobs.file", _JOB_FILE, job.file)
    yield from _unmatched("jobs.launcher", _LAUNCHER, job.launcher)
    yield from _unmatched("jobs.environment", VARIABLE, *job.environment)
    if job.timeout_s is not None:
        yield from _time_problems("jobs.timeout_s", job.timeout_s)
    tolerances = [("single", tolerance) for tolerance in job.compare_with_single.values()]
    for others in job.compare_with_reported.values():
        tolerances += [("reported", tolerance) for tolerance in others.values()]
    for other, tolerance in tolerances:
        if not (math.isfinite(tolerance) and tolerance > 0):
            yield f"jobs.compare_with_{other}: {tolerance} is not a tolerance"


def _time_problems(field: str, seconds: float) -> Iterator[str]:
    if not (math.isfinite(seconds) and 0 < seconds <= 86_400):
        yield f"{field}: {seconds} is not a time of up to a day, in seconds"


def _control_characters(manifest: Manifest) -> Iterator[str]:
    """Texts are shown on terminals and written into modulefiles, one line each."""
    texts = [manifest.summary, *manifest.labels, *manifest.labels.values()]
    texts += [variable.value for variable in manifest.environment]
    for job in manifest.jobs:
        texts += [job.title, job.hint, *job.expect, *job.expect.values(), *job.same_on_all_ranks]
        texts += [*job.compare_with_single, *job.compare_with_reported]
        texts += [other for others in job.compare_with_reported.values() for other in others]
        texts += [
            *job.environment.values(),
            *job.says,
            *(text for said in job.says.values() for text in said),
        ]
    for text in texts:
        if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
            yield f"a text holds a control character: {text[:80]!r}"


def _unmatched(field: str, pattern: str, *values: str) -> Iterator[str]:
    for value in values:
        if not re.fullmatch(pattern, value, flags=re.ASCII):
            yield f"{field}: {value[:80]!r} is not allowed"
