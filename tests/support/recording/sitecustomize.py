"""Note which of envbuild's errors a test provokes, in whatever process it does so.

Found on PYTHONPATH by every Python that a test starts; ENVBUILD_RECORD names the directory to write to, and
pytest itself says which test is running (PYTEST_CURRENT_TEST). See `setup/errors.py`.
"""

import atexit
import json
import os
import secrets
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_NAME = "envbuild.errors"
_TEST = "PYTEST_CURRENT_TEST"
_found: dict[tuple[str, str, int], dict[str, Any]] = {}


def _note(error: Any, frame: FrameType | None, root: Path) -> None:
    test = os.environ.get(_TEST, "").rpartition(" ")[0]
    # Its own classes only pass on what they are given.
    while frame is not None and frame.f_code.co_name == "__init__":
        frame = frame.f_back
    if frame is None or not test:
        return
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(root):
        file = path.relative_to(root).as_posix()
        told = {"kind": type(error).__name__, "exit_code": error.exit_code}
        told |= {"problem": error.problem, "hint": error.hint, "here": "pytest" in sys.modules}
        _found.setdefault((test, file, frame.f_lineno), told)


def _write() -> None:
    # Those of the processes that a test starts: of another user, perhaps, and perhaps after it has forked.
    if _found:
        path = Path(os.environ["ENVBUILD_RECORD"]) / f"{os.getpid()}-{secrets.token_hex(8)}.json"
        path.write_text(json.dumps([[*where, told] for where, told in _found.items()]))


def _hook(module: ModuleType) -> None:
    error = module.EnvbuildError
    made = error.__init__
    root = Path(str(module.__file__)).parent

    def init(self: Any, *words: Any, **options: Any) -> None:
        made(self, *words, **options)
        _note(self, sys._getframe(1), root)

    error.__init__ = init


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if spec is None or loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _hook(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("ENVBUILD_RECORD"):
    atexit.register(_write)
    sys.meta_path.insert(0, _Finder())
