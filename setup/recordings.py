"""Record what `plan`, `build` and `test` show on a terminal: docs/recordings/NAME-COLUMNS.svg.

A real run, in a store of its own. A recording whose words are the same stays: times differ in each run.
"""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "docs/recordings"
SPEC = ROOT / "examples/pytorch-mpi.yaml"
COLUMNS = (100, 60)

_CONTROL = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)")
_SPINNER = re.compile("[\u2801-\u28ff]")


class Screen:
    """Lines as a terminal shows them, of programs that write whole lines."""

    def __init__(self) -> None:
        self.lines, self._row, self._at_start = [""], 0, True
        self.fullest: list[str] = []
        """The lines when most of them were live."""

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        for part in _CONTROL.split(text):
            if part == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
                self._at_start = True
            elif part == "\r":
                self._at_start = True
            elif part.endswith("A") and part.startswith("\x1b["):
                self._row -= int(part[2:-1] or 1)
            elif part == "\x1b[2K":
                self.lines[self._row] = ""
            elif part and (not part.startswith("\x1b[") or part.endswith("m")):
                self.lines[self._row] = part if self._at_start else self.lines[self._row] + part
                self._at_start = False
        shown = list(filter(None, self.lines))
        if _SPINNER.search(text) and len(shown) >= len(self.fullest):
            self.fullest = shown


def run(words: list[str], columns: int, directory: Path, store: Path) -> Screen:
    """Run a command on a terminal; a failure ends this program."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "ENVBUILD_STORE": str(store)}
    argv = [str(ROOT / ".venv/bin/envbuild"), *words]
    with subprocess.Popen(argv, cwd=directory, env=env, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        screen = Screen()
        for text in _read(main):
            screen.feed(text)
    if process.returncode:
        sys.exit("\n".join(screen.lines))
    return screen


def _read(terminal: int) -> Iterator[str]:
    rest = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            return
        # Up to the end of the last line or control sequence: the rest may be half of one.
        whole, rest = re.fullmatch(rb"(.*[\nmKAhl])?(.*)", rest + chunk, re.DOTALL).groups()  # type: ignore[union-attr]
        yield (whole or b"").decode().replace("\r\n", "\n")


def write(name: str, command: str, lines: list[str], columns: int) -> None:
    """Write a recording, unless the one that is there has the same words."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True, emoji=False)
    console.print(Text(f"$ {command}", style="bold"))
    for line in map(Text.from_ansi, lines):
        # As a terminal breaks lines: between any two characters.
        for part in line.divide(range(columns, len(line), columns)):
            console.print(part, soft_wrap=True)
    svg = console.export_svg(title=command, unique_id=f"{name}-{columns}")
    # Without the address of a font: a page must ask nothing elsewhere.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    path = RECORDINGS / f"{name}-{columns}.svg"
    if not path.exists() or _words(path.read_text()) != _words(svg):
        path.write_text(svg)


def _words(svg: str) -> list[str]:
    text = " ".join(re.findall(r">([^<]*)<", svg)).replace("&#160;", " ")
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f.]*|━|╸|╺", "", text).split()


def main() -> None:
    """Record everything."""
    RECORDINGS.mkdir(exist_ok=True)
    for columns in COLUMNS:
        with tempfile.TemporaryDirectory(prefix="envbuild-recordings-", dir="/var/tmp") as name:
            directory, store = Path(name, "work"), Path(name, "store")
            directory.mkdir()
            shutil.copy(SPEC, directory / "spec.yaml")
            for verb, place in (("plan", "spec.yaml"), ("build", "spec.yaml"), ("test", "spec.sif")):
                screen = run([verb, place], columns, directory, store)
                write(verb, f"envbuild {verb} {place}", list(filter(None, screen.lines)), columns)
                if verb == "build":
                    write("building", f"envbuild {verb} {place}", screen.fullest, columns)


if __name__ == "__main__":
    main()
