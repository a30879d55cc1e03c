"""Reproducible bytecode: a hook of mmdebstrap for suites whose Python 3 is older than 3.11.

Such a Python writes the sets of a module into its .pyc in the order of hashes, which differs between
processes, and Debian's packages compile without PYTHONHASHSEED. It also marks objects for later reference
that other objects in memory point to. So modules with sets are compiled again with one seed, and one process
writes all bytecode again.
"""

from __future__ import annotations

import shlex
from pathlib import Path

# Runs in the new root, with its Python (3.9 on Debian 11), a fixed seed, and packages in no path.
SCRIPT = """\
import marshal, os, py_compile, sys

def has_set(value):
    if isinstance(value, frozenset):
        return len(value) > 1
    if isinstance(value, tuple):
        return any(map(has_set, value))
    return hasattr(value, "co_consts") and has_set(value.co_consts)

def read(path):
    with open(path, "rb") as file:
        written = file.read()[16:]
    return marshal.loads(written), written

ending = f".{sys.implementation.cache_tag}.pyc"
for directory, below, files in os.walk(sys.argv[1]):
    below.sort()
    for name in sorted(files) if os.path.basename(directory) == "__pycache__" else ():
        path = os.path.join(directory, name)
        source = os.path.join(os.path.dirname(directory), name[: -len(ending)] + ".py")
        if name.endswith(ending) and os.path.isfile(source):
            code, written = read(path)
            if has_set(code):
                py_compile.compile(source, path, code.co_filename, doraise=True)
                code, written = read(path)
            again = marshal.dumps(code)
            if again != written:
                with open(path, "r+b") as file:
                    file.seek(16)
                    file.write(again)
                    file.truncate()
"""


def hook(directory: Path) -> str:
    """Return mmdebstrap's argument for a hook that makes bytecode reproducible.

    The script is written to `directory`, which other user ids can pass through.
    """
    script = directory / "stable_bytecode.py"
    script.write_text(SCRIPT)
    script.chmod(0o644)
    # mmdebstrap passes its hooks to a shell.
    path = shlex.quote(str(script))
    return f'--customize-hook=PYTHONHASHSEED=0 chroot "$1" /usr/bin/python3 -B -s -S - /usr < {path}'
