"""Write the catalogue of errors, docs/errors.md, from the tests that provoke them.

    make errors                              all tests: an hour
    make errors ARGS="tests/unit/store"      some; of other errors it keeps what earlier runs saw

Where an error is made is read from the source; what it says and which test
provokes it comes from running the tests, in whatever process they do so, and is
kept in docs/figures/errors.json.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "envbuild"
PAGE = ROOT / "docs/errors.md"
KEPT = ROOT / "docs/figures/errors.json"
_RECORDING = ROOT / "tests/support/recording"

_LINE = "<!-- Written by `make errors` from the tests that provoke them. -->"
# Which rooms tell of the same thing, for people.
_CHAPTERS: dict[str, tuple[str, ...]] = {
    "Specs, recipes, base images and sites": ("spec", "site", "compat"),
    "Locks, packages and the network": ("lock", "resolve"),
    "Building": ("build", "plan", "store"),
    "Images and their other forms": ("image",),
    "Checks and tests": ("check", "elf"),
    "Modules": ("activate",),
    "The command, files and this machine": ("cli", "workflows", "system", "doctor"),
}


@dataclass(frozen=True, order=True, kw_only=True)
class Place:
    """A place in the source where an error is made.

    Attributes
    ----------
    id : str
        File, function and what the error is made of: it stays while the lines around it change.
    file : str
        Below the package.
    first, last : int
        Lines.
    """

    id: str
    file: str
    first: int
    last: int


def places() -> dict[str, Place]:
    """Return every place where an error is made, by its id."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    classes = {"EnvbuildError"}
    while True:
        more = {
            node.name
            for tree in trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in classes for base in node.bases)
        }
        if more <= classes:
            break
        classes |= more
    # It carries others, and says nothing of its own.
    classes.discard("ManyErrors")
    found: dict[str, Place] = {}
    for path, tree in trees.items():
        file = path.relative_to(PACKAGE).as_posix()
        counted: Counter[str] = Counter()
        for function, call in _calls(tree, classes, ""):
            name = f"{file} {function} {ast.unparse(call.args[0]) if call.args else ''}".strip()
            counted[name] += 1
            again = f" ({counted[name]})" if counted[name] > 1 else ""
            place = Place(id=name + again, file=file, first=call.lineno, last=call.end_lineno or call.lineno)
            found[place.id] = place
    return found


def _calls(node: ast.AST, classes: set[str], where: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call):
            called = child.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in classes and "super()" not in ast.unparse(called):
                yield inside, child
        yield from _calls(child, classes, inside)


def kept() -> dict[str, dict[str, Any]]:
    """Return what is known of each error: id → problem, hint, exit code and the test that provokes it."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def record(words: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Run tests; return what each place said, with the test that had it say so."""
    by_file: dict[str, list[Place]] = defaultdict(list)
    for place in places().values():
        by_file[place.file].append(place)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="envbuild-errors-") as name:
        # Tests run as several users, and each writes files of its own.
        Path(name).chmod(0o1777)
        env = {**os.environ, "ENVBUILD_RECORD": name, "PYTHONPATH": str(_RECORDING)}
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=ROOT, env=env, check=False)
        if done.returncode != 0:
            print("errors: not all tests passed; what they provoked counts all the same", file=sys.stderr)
        for path in sorted(Path(name).iterdir()):
            for called, file, line, told in json.loads(path.read_text()):
                test, several, _ = called.partition("[")
                inner = [place for place in by_file[file] if place.first <= line <= place.last]
                if inner:
                    place = min(inner, key=lambda place: place.last - place.first)
                    found[place.id].append({**told, "test": test, "here": told["here"] and not several})
    return found


def chosen(known: dict[str, dict[str, Any]], found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return one example of each error that is still in the source, the plainest of what was seen."""
    result = {}
    ran = {told["test"] for seen in found.values() for told in seen}
    for name in sorted(places()):
        seen = [
            {**told, **{key: plain(told[key]) for key in ("problem", "hint")}} for told in found.get(name, ())
        ]
        # A known example stays as long as its test still says it, or did not run.
        old = known.get(name)
        if old is not None and (not seen or old in seen or old["test"] not in ran):
            result[name] = old
        elif seen:
            result[name] = min(seen, key=_plainness)
    return result


def _plainness(told: dict[str, Any]) -> tuple[bool, int, str, str]:
    # First one that its test is held to while it runs.
    return not told["here"], len(told["problem"]), told["problem"], told["test"]


def plain(text: str) -> str:
    """Return a text without what differs from run to run: directories, digests, ports and temporary names."""
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), "…")
    text = re.sub(r"(?<![\w.:/…])/(?:[\w.+@~-]+/)*(?:pytest-of|envbuild-)[^\s`'\"]*/", "/…/", text)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "1234abcd…", text)
    text = re.sub(r"(127\.0\.0\.1|localhost):\d+", r"\1:8000", text)
    lines = [line if len(line) <= 400 else line[:400] + "…" for line in text.split("\n")]
    return "\n".join(lines[:8] + (["…"] if len(lines) > 8 else []))


def page(known: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    chapters = {room: title for title, rooms in _CHAPTERS.items() for room in rooms}
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, told in known.items():
        grouped[chapters.get(name.split("/")[0], [*_CHAPTERS][-1])].append(told)
    lines = ["# What errors say", "", _LINE, ""]
    lines += [
        f"The {len(known)} errors of envbuild, each as a test of the suite provokes it: what is wrong, and",
        "what to do next. Where a file is wrong, file, line and column stand between the two. What is wrong",
        "is told all at once, as far as it can be seen.",
        "",
        "| exit code | what it means |",
        "|---|---|",
        "| 2 | what was asked is wrong |",
        "| 3 | a build failed |",
        "| 4 | a check failed |",
        "| 5 | this machine lacks something |",
        "| 130 | interrupted; the next run goes on with what is finished |",
        "",
        "Directories and digests are shortened here.",
    ]
    for title in _CHAPTERS:
        told_here = sorted(grouped[title], key=lambda told: (told["exit_code"], told["problem"].lower()))
        if told_here:
            lines += ["", f"## {title}"]
        for told in told_here:
            lines += ["", f"Exit code {told['exit_code']}, from `{told['test']}`:", "", "```text"]
            lines += [f"error: {told['problem']}", "", f"hint: {told['hint']}", "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run tests, and write the page and what it is made of."""
    known = chosen(kept(), record(sys.argv[1:] or ["tests"]))
    KEPT.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(known), encoding="utf-8")
    missing = places().keys() - known.keys()
    for name in sorted(missing):
        print(f"errors: no test provokes {name}", file=sys.stderr)
    return 4 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
