"""Try in an image which modules import and which tutorials run; print JSON: word → null, or why it fails.

Usage: ``python3 -I imports.py WORD…``, each the name of a module or the absolute path of a script.
`envbuild test` sends this file in through standard input, so it imports nothing of envbuild. Modules and
scripts run by the image's own `python`, which may be older.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

# Runs on Python 2.7, too. The reason goes to the real stdout; whatever a module prints, to stderr.
IMPORT = """\
import sys
del sys.path[0]  # modules come from the image alone, not from the working directory
import importlib, os
out = os.dup(1)
os.dup2(2, 1)
try:
    importlib.import_module(sys.argv[1])
except BaseException as error:  # SystemExit at import is a failure too
    reason = "%s: %s" % (type(error).__name__, error)
    os.write(out, (reason if isinstance(reason, bytes) else reason.encode("utf-8", "replace"))[:2000])
    os._exit(1)
os._exit(0)
"""


def try_imports(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, limit_s: float | None = None
) -> dict[str, str | None]:
    """Import each module, run each script, in its own process; return None if that works, else the reason.

    `env` is the complete environment, by default this process's. `limit_s` limits each import.
    """
    return {
        word: _try_script(word, env, limit_s) if word.startswith("/") else _try_import(word, env, limit_s)
        for word in words
    }


def _try_script(path: str, env: Mapping[str, str] | None, limit_s: float | None) -> str | None:
    """Run a script as users do: where they may write, with a home."""
    with tempfile.TemporaryDirectory() as directory:
        variables = {**(os.environ if env is None else env), "HOME": directory}
        try:
            done = subprocess.run(
                ["python", path],
                cwd=directory,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:g} s"
        except OSError as error:
            return f"{type(error).__name__}: {error}"
    if done.returncode == 0:
        return None
    last = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    return last[:2000] or f"exit code {done.returncode}"


def _try_import(name: str, env: Mapping[str, str] | None, limit_s: float | None) -> str | None:
    argv = ["python", "-s", "-c", IMPORT, name]
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"ended after {limit_s:g} s"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    return done.stdout.decode(errors="replace") or f"exit code {done.returncode}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_imports(sys.argv[1:]), sort_keys=True) + "\n")
