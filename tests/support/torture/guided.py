"""One kind of input under atheris: `python -m tests.support.torture.guided KIND DIR [options]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["envbuild"]):
    from tests.support.torture.fuzz import TARGETS, attempt


def main() -> None:
    """Try inputs until libFuzzer has enough, or one breaks something."""
    kind, place, *rest = sys.argv[1:]
    if kind not in TARGETS:
        raise SystemExit(f"no kind of input: {kind}")

    def one(content: bytes) -> None:
        problem = attempt(kind, content, Path(place))
        if problem:
            raise AssertionError(problem)

    atheris.Setup([sys.argv[0], *rest], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
