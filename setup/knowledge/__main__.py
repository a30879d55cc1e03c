"""`make knowledge`: compares the stored facts and rows with what sources and importers give.

Exit codes: 0 for no difference, 1 for a difference or for sources that disagree, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, RequestError
from envbuild.rules.knowledge import Entry
from knowledge import (
    cray_mpich,
    cuda_drivers,
    cuda_gpus,
    gpu_drivers,
    ofi_plugin,
    python_packages,
    python_requirements,
    pytorch_releases,
    rocm,
    tensorflow_builds,
)
from knowledge.claims import Claim, disagreements, read_settled
from knowledge.index import read_releases
from knowledge.ranges import newest
from knowledge.stored import INPUTS, Input, digest_of_facts, read_input
from knowledge.write import DIRECTORY, text_of

_MAX_SOURCE_BYTES = 4 << 20
Inputs = Mapping[str, Input]


@dataclass(frozen=True, slots=True)
class Importer:
    """Makes one file of rows from stored inputs."""

    inputs: Sequence[str]
    rows: Callable[[Inputs], Iterable[Entry]]
    claims: Callable[[Inputs], Iterable[Claim]] = lambda _: ()


# File of rows → its importer.
IMPORTERS: Mapping[str, Importer] = {
    "cray-mpich": Importer(cray_mpich.INPUTS, cray_mpich.rows),
    "cuda-drivers": Importer(cuda_drivers.INPUTS, cuda_drivers.rows, cuda_drivers.claims),
    "cuda-gpus": Importer(cuda_gpus.INPUTS, cuda_gpus.rows, cuda_gpus.claims),
    "gpu-drivers": Importer(gpu_drivers.INPUTS, gpu_drivers.rows),
    "ofi-plugin": Importer(ofi_plugin.INPUTS, ofi_plugin.rows),
    "python-packages": Importer(
        (*python_packages.INPUTS, pytorch_releases.INPUTS[0]), python_packages.rows, pytorch_releases.claims
    ),
    "python-requirements": Importer(python_requirements.INPUTS, python_requirements.rows),
    "rocm": Importer(rocm.INPUTS, rocm.rows, rocm.claims),
    "tensorflow-cuda": Importer(tensorflow_builds.INPUTS, tensorflow_builds.rows, tensorflow_builds.claims),
}
# Stored input → how its facts are read from a copy of its source, and its licence.
EXTRACTS: Mapping[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "cmake-cuda-gpus": (cuda_gpus.extract_cmake, "BSD-3-Clause"),
    "cray-mpich-rocm": (cray_mpich.extract, "facts"),
    "nvcc-gpus": (cuda_gpus.extract_nvcc, "NVIDIA's; facts"),
    "ofi-plugin": (ofi_plugin.extract, "Apache-2.0"),
    "pytorch-releases": (pytorch_releases.extract, "BSD-3-Clause"),
    "rocm-matrix": (rocm.extract, "MIT"),
    "tensorflow-builds": (tensorflow_builds.extract, "Apache-2.0"),
    "uv-backends": (cuda_drivers.extract_uv, "MIT or Apache-2.0"),
}


def read_inputs() -> dict[str, Input]:
    """Return the stored inputs that importers need."""
    names = {name for importer in IMPORTERS.values() for name in importer.inputs}
    return {name: read_input(name) for name in sorted(names) if (INPUTS / f"{name}.yaml").exists()}


def texts_of(inputs: Inputs) -> dict[Path, str]:
    """Return the files of rows that importers make."""
    return {
        DIRECTORY / f"{name}.json": text_of(importer.rows(inputs), [inputs[key] for key in importer.inputs])
        for name, importer in IMPORTERS.items()
    }


def problems_of(inputs: Inputs) -> list[str]:
    """Return where sources disagree."""
    claims = [claim for importer in IMPORTERS.values() for claim in importer.claims(inputs)]
    return list(disagreements(claims, read_settled()))


def ask_index(stored: Inputs, date: str, *, renew: bool) -> Iterator[tuple[str, Input]]:
    """Yield what the configured index has; a stored input with the same facts stays, unless it is renewed."""
    for name, reading in python_packages.READ.items():
        print(f"reading {name}", file=sys.stderr)
        facts = read_releases(name, reading)
        key, origin = f"{python_packages.PREFIX}{name}", f"wheels of {name} in the index: tags and METADATA"
        yield key, _from_index(stored.get(key), facts, origin, newest(facts), date, renew=renew)
    print(f"reading {len(python_requirements.PACKAGES.all)} packages", file=sys.stderr)
    facts = python_requirements.read()
    key, origin = python_requirements.INPUTS[0], f"metadata of {len(facts)} packages in the index"
    yield key, _from_index(stored.get(key), facts, origin, date, date, renew=renew)


def _from_index(
    old: Input | None, facts: dict[str, Any], origin: str, until: str, date: str, *, renew: bool
) -> Input:
    digest = digest_of_facts(facts)
    if old is not None and old.digest == digest and not renew:
        return old
    return Input(origin=origin, licence="facts", date=date, digest=digest, until=until, facts=facts)


def extract(name: str, copy: Path, origin: str, date: str, until: str) -> Input:
    """Return the input that a copy of its source gives."""
    content = copy.read_bytes()
    if len(content) > _MAX_SOURCE_BYTES:
        raise RequestError(
            f"`{copy}` has more than {_MAX_SOURCE_BYTES} bytes: it is not this source", hint="name its file"
        )
    function, licence = EXTRACTS[name]
    facts = function(content.decode("utf-8"))
    return Input(
        origin=origin, licence=licence, date=date, digest=sha256_of(content), until=until, facts=facts
    )


def differences(new: Mapping[Path, str]) -> Iterator[str]:
    """Yield the lines of unified differences between files and new texts."""
    for path, text in sorted(new.items()):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        yield from difflib.unified_diff(
            old.splitlines(),
            text.splitlines(),
            f"{path.name} (stored)",
            f"{path.name} (now)",
            lineterm="",
            n=1,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    if options.read:
        found = extract(options.read, options.copy, options.origin, options.date, options.until)
        _write({INPUTS / f"{options.read}.yaml": found.text})
        return 0
    inputs = read_inputs()
    if not options.stored:
        inputs |= ask_index(inputs, options.date, renew=options.update)
    if problems := problems_of(inputs):
        print(*(f"error: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 1
    new = {INPUTS / f"{name}.yaml": entry.text for name, entry in inputs.items()} | texts_of(inputs)
    if options.update:
        _write(new)
        return 0
    lines = list(differences(new))
    print(*lines, sep="\n", end="\n" if lines else "")
    if lines:
        print('hint: `make knowledge ARGS="--update"` writes these files', file=sys.stderr)
    return 1 if lines else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make knowledge ARGS=...", description=__doc__)
    parser.add_argument("--stored", action="store_true", help="do not ask the index")
    parser.add_argument("--update", action="store_true", help="write the inputs and rows")
    parser.add_argument("--read", choices=[*EXTRACTS], help="read a copy of a source into its stored input")
    parser.add_argument("--copy", type=Path, help="file with that copy")
    parser.add_argument("--origin", help="repository, path and commit of the copy")
    parser.add_argument("--until", help="newest release that it covers")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    parser.add_argument("--date", default=today, help="date of the copy; default: today")
    options = parser.parse_args(arguments)
    if options.read and not (options.copy and options.origin and options.until):
        parser.error("--read needs --copy, --origin and --until")
    return options


def _write(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EnvbuildError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
