"""Try in an image which Python modules import. Prints one JSON object: module → null, or why it fails.

Usage: ``python3 -I imports.py MODULE…``. `envbuild test` sends this file in through standard input, so it
imports nothing of envbuild. The modules are imported by the image's own `python`, which may be older.
"""

from __future__ import annotations

import json
import subprocess
import sys
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
    modules: Sequence[str], *, env: Mapping[str, str] | None = None, limit_s: float | None = None
) -> dict[str, str | None]:
    """Import each module in its own process; return None for those that import, else the reason.

    `env` is the complete environment, by default this process's. `limit_s` limits each import.
    """
    return {name: _try_import(name, env, limit_s) for name in modules}


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
