"""Record what envbuild shows on a terminal, as docs/recordings/*.svg.

`NAME-COLUMNS.svg` is one command, `session-THEME.svg` the way from a spec to a loaded module. Each is a real
run, in a store of its own. A recording whose words are the same stays: times differ in each run.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "docs/recordings"
SPEC = ROOT / "examples/pytorch-mpi.yaml"
COLUMNS = (100, 60)
THEMES = {"dark": SVG_EXPORT_THEME, "light": DEFAULT_TERMINAL_THEME}
LMOD = Path("/usr/share/lmod/lmod/init/bash")
USE = ["module load pytorch-mpi/2026.11", "python -c 'import torch; print(torch.__version__)'"]
"""What a user types behind `module use`."""

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


def run(argv: list[str], columns: int, directory: Path, store: Path) -> Screen:
    """Run a command on a terminal; a failure ends this program."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    env = {**os.environ, "TERM": "xterm-256color", "ENVBUILD_STORE": str(store), "PATH": path}
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


def write(
    name: str, title: str, lines: list[str], columns: int, theme: TerminalTheme = SVG_EXPORT_THEME
) -> None:
    """Write a recording, unless the one that is there has the same words."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True, emoji=False)
    for line in map(Text.from_ansi, lines):
        # As a terminal breaks lines: between any two characters.
        for part in line.divide(range(columns, len(line), columns)):
            console.print(part, soft_wrap=True)
    svg = console.export_svg(title=title, unique_id=name, theme=theme)
    # Without the address of a font: a page must ask nothing elsewhere.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    path = RECORDINGS / f"{name}.svg"
    if not path.exists() or _words(path.read_text()) != _words(svg):
        path.write_text(svg)


def typed(command: str) -> str:
    """Return the line of a command behind its prompt."""
    return f"\x1b[1m$ {command}\x1b[0m"


def _words(svg: str) -> list[str]:
    text = " ".join(re.findall(r">([^<]*)<", svg)).replace("&#160;", " ")
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f.]*|━|╸|╺", "", text).split()


def record(columns: int, directory: Path, store: Path) -> list[str]:
    """Record plan, build and test; return the lines of the whole session."""
    spec = [line for line in SPEC.read_text().splitlines() if not line.startswith("#")]
    (directory / "spec.yaml").write_text("\n".join(spec))
    session = [typed("cat spec.yaml"), *spec]
    for verb, place in (("plan", "spec.yaml"), ("build", "spec.yaml"), ("test", "spec.sif")):
        command = f"envbuild {verb} {place}"
        screen = run(["envbuild", verb, place], columns, directory, store)
        lines = [typed(command), *filter(None, screen.lines)]
        write(f"{verb}-{columns}", command, lines, columns)
        if verb == "build":
            write(f"building-{columns}", command, [typed(command), *screen.fullest], columns)
        if verb != "plan":
            session += ["", *lines]
    install = ["envbuild", "module", "install", "spec.sif", "--root", "modules"]
    session += ["", typed(" ".join(install)), *filter(None, run(install, columns, directory, store).lines)]
    for count, command in enumerate(USE, start=1):
        script = "\n".join([f"source {LMOD}", "module use $PWD/modules/modulefiles", *USE[:count]])
        shown = run(["bash", "-ec", script], columns, directory, store).lines
        session += [typed(command), *filter(None, shown)]
    return [line.replace(str(directory), "~") for line in session]


def main() -> None:
    """Record everything."""
    RECORDINGS.mkdir(exist_ok=True)
    for columns in COLUMNS:
        with tempfile.TemporaryDirectory(prefix="envbuild-recordings-", dir="/var/tmp") as name:
            directory, store = Path(name, "work"), Path(name, "store")
            directory.mkdir()
            session = record(columns, directory, store)
        if columns == COLUMNS[0]:
            for theme, colours in THEMES.items():
                write(f"session-{theme}", "envbuild", session, columns, colours)


if __name__ == "__main__":
    main()
