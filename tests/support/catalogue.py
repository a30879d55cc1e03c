"""The catalogue of errors, held to what its tests provoke while they run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from envbuild.errors import EnvbuildError

ROOT = Path(__file__).resolve().parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_errors", ROOT / "setup/errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


errors = _script()


@cache
def _expected() -> dict[str, list[dict[str, Any]]]:
    """What the catalogue says that each test provokes in pytest's own process.

    Of a test with parameters it does not keep with which: their names change when others come before them.
    """
    found = defaultdict(list)
    for told in errors.kept().values():
        if told["here"]:
            found[told["test"]].append(told)
    return found


@contextmanager
def provoking(test: str) -> Iterator[None]:
    """Hold a test to the errors that the catalogue has from it."""
    expected = _expected().get(test, [])
    if not expected or "ENVBUILD_RECORD" in os.environ:  # it is being written
        yield
        return
    seen: set[tuple[str, str, int]] = set()
    made = EnvbuildError.__init__

    def init(self: EnvbuildError, *words: Any, **options: Any) -> None:
        made(self, *words, **options)
        seen.add((errors.plain(self.problem), errors.plain(self.hint), self.exit_code))

    EnvbuildError.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        EnvbuildError.__init__ = made  # type: ignore[method-assign]
    lost = [told for told in expected if (told["problem"], told["hint"], told["exit_code"]) not in seen]
    assert not lost, f"it does not provoke what docs/errors.md has from it; it does provoke {sorted(seen)}"
