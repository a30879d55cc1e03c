"""The log of a centre: which images were built, extended, tested and installed, by whom, and where."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError
from envbuild.events import Emit, Warned
from envbuild.system import host
from envbuild.system.configured import values_of
from envbuild.system.files import append_line
from envbuild.system.redaction import redact_text

Action = Literal["build", "extend", "test", "install"]
_MOST_TEXT = 500
"""Characters of a value, of which JSON may make six bytes each: a line stays below 16 KiB."""


def log_activity(
    emit: Emit, action: Action, *, name: str, digest: str, result: str, path: Path | None = None
) -> None:
    """Append a line to each configured log; one that cannot be written is a warning.

    `name` is ``NAME/VERSION``, `digest` the image's (empty if unknown), `result` a few words, and `path` the
    image or modulefile that was written.
    """
    try:
        logs = values_of("log")
    except EnvbuildError as error:
        emit(Warned(text=f"nothing was logged: {error.problem}", hint=error.hint))
        return
    if not logs:
        return
    entry: dict[str, object] = {
        "format": 1,
        "time": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "action": action,
        "name": _short(name),
        "digest": digest or None,
        "result": _short(result),
        "path": None if path is None else _short(redact_text(str(path.absolute()))),
        "user": host.user(),
        "uid": os.getuid(),
        "host": _short(host.name()),
        "job": _short(os.environ.get("SLURM_JOB_ID", "")) or None,
    }
    line = json.dumps(entry).encode()
    for log in logs:
        try:
            append_line(Path(log.value), line)
        except OSError as error:
            text = f"the log `{log.value}` was not written: {error.strerror}"
            emit(Warned(text=text, hint=f"{log.origin} names it; your administrator can open it for you"))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"…{text[-_MOST_TEXT:]}"
