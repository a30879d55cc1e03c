"""Change one place of envbuild/ at a time, and see whether the unit tests notice.

    make mutants
    make mutants ARGS="--seed 7 --count 20"

A mutant is one small change, drawn from all places where one is possible. The unit tests of its room run on
a copy of the tree until the first one fails. A mutant survives if no unit test checks that code, or if the
change has no effect. Mutated code runs with your rights: use a machine without valuable files.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
WORKERS = 2
# Of one mutant; three times what the unmutated tests take if that is longer.
TIMEOUT_S = 120.0
UNMUTATED_TIMEOUT_S = 1800.0
MEMORY_BYTES = 8 << 30
VERDICTS = ("killed", "timeout", "survived", "not judged")
_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub)),
)
FLIPPED: dict[type[ast.AST], Any] = dict([*_PAIRS, *((after, before) for before, after in _PAIRS)])

# A node and the source texts that may replace it.
Change = tuple[ast.expr | ast.stmt, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of one place: `before`, which starts at byte `start` of a file, becomes `after`."""

    file: str
    line: int
    start: int
    before: str
    after: str

    @property
    def room(self) -> str:
        """The directory below envbuild/, or the name of a file that lies beside the rooms."""
        return Path(self.file).parts[1].removesuffix(".py")

    @property
    def tests(self) -> str:
        """The directory of the unit tests of its room."""
        tests = f"tests/unit/{self.room}"
        return tests if (ROOT / tests).is_dir() else "tests/unit"

    def apply(self, source: bytes) -> bytes:
        """Return the file's bytes with the change."""
        end = self.start + len(self.before.encode())
        return source[: self.start] + self.after.encode() + source[end:]


def changed_operators(node: ast.AST) -> Iterator[Change]:
    """Yield the changes of a node's operators."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=operands):
            for at, op in enumerate(ops):
                flipped = [*ops[:at], FLIPPED[type(op)](), *ops[at + 1 :]]
                yield node, (f"({ast.unparse(ast.Compare(left, flipped, operands))})",)
        case ast.BoolOp(op=op, values=values):
            yield node, (f"({ast.unparse(ast.BoolOp(FLIPPED[type(op)](), values))})",)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield node, (f"({ast.unparse(ast.BinOp(left, FLIPPED[type(op)](), right))})",)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, (f"({ast.unparse(operand)})",)


def changed_values(node: ast.AST, *, is_text: bool, returns: bool) -> Iterator[Change]:
    """Yield the changes of a node's values and of what it does.

    Parameters
    ----------
    is_text : bool
        It belongs to an error's text, so its strings stay.
    returns : bool
        The function around it is annotated to return something.
    """
    match node:
        case ast.Constant(value=bool() as value):
            yield node, (str(not value),)
        case ast.Constant(value=int() as value):
            yield node, (str(value + 1),)
        case ast.Constant(value=str()) if not is_text:
            yield node, ('"mutant"',)
        case ast.Return(value=ast.expr() as result) if returns:
            yield result, ("None",)
        case ast.Expr(value=ast.Call()):
            yield node, ("pass",)
        case ast.If(test=test):
            yield test, ("True", "False")
        case ast.arguments(defaults=defaults, kw_defaults=more):
            for default in filter(None, [*defaults, *more]):
                if not isinstance(default, ast.Constant):
                    yield default, ("None",)
                elif default.value is None:
                    yield default, ("0",)


def is_declaration(node: ast.AST) -> bool:
    """Whether no test could notice a change: docstrings, types, names to export."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Call(func=ast.Name(id="dataclass")) | ast.Subscript(value=ast.Name(id="Literal")):
            return True
    # The parts of an f-string have no reliable position before Python 3.12.
    return isinstance(node, ast.JoinedStr)


def has_error_text(node: ast.AST) -> bool:
    """Whether the strings below a node are the text of an error."""
    match node:
        case (
            ast.Raise()
            | ast.keyword(arg="hint" | "problem")
            | ast.Assign(targets=[ast.Name(id="hint" | "problem")])
        ):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.endswith("Error")
    return False


def changes(node: ast.AST, *, is_text: bool = False, returns: bool = False) -> Iterator[Change]:
    """Yield the changes of a node and of everything below it, in a fixed order."""
    if is_declaration(node):
        return
    is_text = is_text or has_error_text(node)
    skipped = {"annotation", "returns"}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = node.returns is not None and ast.unparse(node.returns) != "None"
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        skipped |= {"test", "body"}
    else:
        yield from changed_operators(node)
        yield from changed_values(node, is_text=is_text, returns=returns)
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in skipped:
                yield from changes(child, is_text=is_text, returns=returns)


@cache
def sites(root: Path) -> tuple[tuple[Mutant, ...], ...]:
    """Return every place of envbuild/ that can be changed, each with its possible changes."""
    places = []
    for path in sorted((root / "envbuild").rglob("*.py")):
        lines = path.read_bytes().splitlines(keepends=True)
        source, file = b"".join(lines), path.relative_to(root).as_posix()
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        for node, texts in changes(ast.parse(source)):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            before = source[start:end].decode()
            mutants = tuple(
                Mutant(file=file, line=node.lineno, start=start, before=before, after=after)
                for after in texts
                if after != before
            )
            places += [mutants] if mutants else []
    return tuple(places)


def chosen(root: Path, *, seed: int, count: int) -> list[Mutant]:
    """Return random mutants: the same seed and source give the same ones."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    return [dice.choice(mutants) for mutants in dice.sample(sites(root), count)]


def git(*words: str) -> str:
    """Return what git says of the checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout


class Copy:
    """A copy of the tree with an interpreter that imports envbuild from there, never from the checkout."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tree = place / "tree"
        for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if name and os.path.lexists(ROOT / name):
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name, follow_symlinks=False)
        venv.EnvBuilder(symlinks=True).create(self.tree / ".venv")
        packages = "lib/python{}.{}/site-packages".format(*sys.version_info)
        paths = f"{self.tree}\n{Path(sys.prefix, packages)}\n"
        (self.tree / ".venv" / packages / "mutants.pth").write_text(paths)
        programs = self.tree / ".venv/bin"
        (programs / "uv").symlink_to(Path(sys.prefix, "bin/uv"))
        command = Path(sys.prefix, "bin/envbuild").read_text().partition("\n")[2]
        (programs / "envbuild").write_text(f"#!{programs}/python\n{command}")
        (programs / "envbuild").chmod(0o755)
        (place / "home").mkdir()

    def run(self, tests: str, timeout_s: float) -> tuple[str, str]:
        """Run tests until the first failure; return the verdict and what failed."""
        words = [f"{self.tree}/.venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        words += ["--hypothesis-seed=0", f"--basetemp={self.place / 'basetemp'}", tests]
        env = {**os.environ, "HOME": f"{self.place}/home", "PYTHONHASHSEED": "0"}
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # examples that earlier mutants failed
        log = self.place / "log"
        # Not a pipe: a process that a test left behind would keep it open.
        with log.open("wb") as out:
            child = subprocess.Popen(
                words, cwd=self.tree, env=env, stdout=out, stderr=out, start_new_session=True
            )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGINT)  # so that pytest ends what its tests started
            time.sleep(5)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return "timeout", ""
        failed = re.search(r"^(?:FAILED|ERROR) (.*)", log.read_text(errors="replace"), re.MULTILINE)
        return "survived" if code == 0 else "killed", failed[1][:200] if failed else ""

    def judge(self, mutant: Mutant, timeout_s: float) -> tuple[str, str]:
        """Run the tests of a mutant's room on the mutant."""
        path = self.tree / mutant.file
        source = path.read_bytes()
        try:
            path.write_bytes(mutant.apply(source))
            return self.run(mutant.tests, timeout_s)
        finally:
            path.write_bytes(source)
            # Bytecode is told apart by size and second of change; both may be the same.
            Path(cache_from_source(str(path))).unlink(missing_ok=True)


def judged(mutants: Sequence[Mutant], work: Path) -> Iterator[tuple[str, str]]:
    """Yield the verdict on each mutant and what failed, in order."""
    thread = threading.local()
    unmutated: dict[str, tuple[float, str, str]] = {}

    def make_copy() -> None:
        thread.copy = Copy(work / str(threading.get_ident()))

    def run_unmutated(tests: str) -> None:
        begun = time.monotonic()
        verdict, failed = thread.copy.run(tests, UNMUTATED_TIMEOUT_S)
        unmutated[tests] = (time.monotonic() - begun, verdict, failed)

    def judge(mutant: Mutant) -> tuple[str, str]:
        seconds, verdict, failed = unmutated[mutant.tests]
        if verdict != "survived":
            return "not judged", f"the tests do not pass without it: {verdict} {failed}"
        result: tuple[str, str] = thread.copy.judge(mutant, max(TIMEOUT_S, 3 * seconds))
        return result

    with ThreadPoolExecutor(WORKERS, initializer=make_copy) as pool:
        list(pool.map(run_unmutated, sorted({mutant.tests for mutant in mutants})))
        yield from pool.map(judge, mutants)


def one_line(text: str) -> str:
    """Return a source text in one short line."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many mutants of each room, and of all, got each verdict."""
    verdicts = {
        room: [row["verdict"] for row in rows if row["room"] == room]
        for room in {row["room"] for row in rows}
    }
    verdicts = {**dict(sorted(verdicts.items())), "all": [row["verdict"] for row in rows]}
    return {room: {name: names.count(name) for name in VERDICTS} for room, names in verdicts.items()}


def main() -> int:
    """Judge random mutants; print a table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description="Judge random mutants of envbuild/ by the unit tests.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    # A mutant may take memory without end.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    # A shell starts background jobs with SIGINT ignored, and tests send it to what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    commit = git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty").strip()
    mutants = chosen(ROOT, seed=options.seed, count=options.count)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as work:
        for mutant, (verdict, failed) in zip(mutants, judged(mutants, Path(work)), strict=True):
            row = {"id": len(rows) + 1, "room": mutant.room, "place": f"{mutant.file}:{mutant.line}"}
            row |= {"before": one_line(mutant.before), "after": one_line(mutant.after)}
            rows.append(row | {"verdict": verdict, "failed": failed})
            print("{id:>3} {verdict:<10} {place}: {before} -> {after}".format(**rows[-1]), flush=True)
    counts = counted(rows)
    print(f"\n{'room':<12}", *(f"{name:>10}" for name in VERDICTS))
    for room, numbers in counts.items():
        print(f"{room:<12}", *(f"{number:>10}" for number in numbers.values()))
    date = datetime.now(UTC).date().isoformat()
    result = {"date": date, "commit": commit, "seed": options.seed, "sites": len(sites(ROOT))}
    result |= {"seconds": round(time.monotonic() - begun), "counts": counts, "mutants": rows}
    path = RESULTS / f"{date}-mutants-{options.count}-of-seed-{options.seed}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{path.relative_to(ROOT)}: written")
    return 1 if counts["all"]["not judged"] else 0


if __name__ == "__main__":
    sys.exit(main())
