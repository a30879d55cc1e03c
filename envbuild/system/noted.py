"""What a run asked of files, and whether they would still answer so: how one knows that nothing changed.

`envbuild.system.files` notes its questions while `noting` is on; the answers are compared by
content, so that another file of the same size and time is another answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

# A change so soon after a look may leave the times of a file as they were.
_SETTLED_NS = 50_000_000
# Where a file system's times are whole seconds.
_COARSE_NS = 2_000_000_000

Kind = Literal["content", "mode", "names", "below"]

_SKIPPED = frozenset({"__pycache__"})


class Answer(NamedTuple):
    """A question and its answer.

    Attributes
    ----------
    kind : str
        ``content`` of a file, ``mode`` (what there is), ``names`` in a directory, or whether the
        path lies ``below`` another one.
    path : str
        Absolute.
    other : str
        The other path of ``below``; empty else.
    answer : str
        As `ask` gives it.
    """

    kind: Kind
    path: str
    other: str
    answer: str


_listeners: list[list[Answer]] = []


@contextlib.contextmanager
def noting() -> Iterator[list[Answer]]:
    """Yield a list that receives all questions while the block runs."""
    answers: list[Answer] = []
    _listeners.append(answers)
    try:
        yield answers
    finally:
        _listeners.remove(answers)


def note(kind: Kind, path: Path, answer: str, other: Path | None = None) -> None:
    """Note a question, where anybody listens."""
    for answers in _listeners:
        answers.append(
            Answer(kind, str(path.absolute()), "" if other is None else str(other.absolute()), answer)
        )


def digest(content: bytes) -> str:
    """Return the answer to what a file's content is."""
    return hashlib.sha256(content).hexdigest()


def still(answers: Sequence[Answer], limit_bytes: int) -> bool:
    """Return whether all questions would be answered as they were.

    Parameters
    ----------
    limit_bytes : int
        A longer file has changed.
    """
    return all(_ask(answer, limit_bytes) == answer.answer for answer in answers)


def _ask(question: Answer, limit_bytes: int) -> str:
    # Late: `files` notes its questions here.
    from envbuild.errors import EnvbuildError  # noqa: PLC0415
    from envbuild.system import files  # noqa: PLC0415

    path = Path(question.path)
    try:
        if question.kind == "content":
            return digest(files.read_input(path, limit_bytes=limit_bytes))
        if question.kind == "names":
            return "\n".join(files.list_directory(path))
    except EnvbuildError:
        return "cannot be read"
    if question.kind == "below":
        return str(files.is_below(path, Path(question.other)))
    return files.what(path)


def signature(path: Path) -> list[int]:
    """Return what no change of a file leaves as it was; empty where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def settled(was: Sequence[int], at_ns: int | None = None) -> bool:
    """Return whether any later change of a file shows in its signature: it had been left alone for a while.

    Parameters
    ----------
    was : sequence of int
        The signature; of a file that is not there it is not.
    at_ns : int, optional
        When the file was looked at, by the clock of its file system; now if absent.
    """
    if not was:
        return False
    coarse = was[4] % 1_000_000 == 0
    return (time.time_ns() if at_ns is None else at_ns) > was[4] + (_COARSE_NS if coarse else _SETTLED_NS)


def program() -> str:
    """Return a digest of this program as it is installed: its files' sizes and times, and what it imports."""
    found = importlib.util.find_spec("envbuild")
    top = Path(found.origin).parent if found is not None and found.origin else Path()
    lines = [f"{sys.version}\n"]
    todo = [top]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    todo += [] if entry.name in _SKIPPED else [Path(entry.path)]
                else:
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}\n")
    for place in filter(os.path.isdir, sys.path):
        lines += [f"{name}\n" for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    return digest("".join(sorted(lines)).encode())
