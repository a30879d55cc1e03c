"""Answers of uv and apt: recorded in runs of them, and given again without them.

The programs' inputs are recorded with their answers, and must be the same when they are asked again.
`pytest --programs update PATH` runs the programs and records their answers for the tests below a path, in one
process; `--programs real` runs them and leaves the recordings as they are.
"""

from __future__ import annotations

import difflib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from envbuild.system import host, process, tools

Mode = Literal["recorded", "real", "update"]
Run = dict[str, Any]

# Files of a run's directory that hold the request; `test_uv_text.py` compares whole ones.
_INPUTS = {
    "uv": ("pyproject.toml", "uv.toml", "constraints.txt", "requirements.txt", "pylock.toml"),
    "apt-get": ("private.sources", "preferences"),
}
_COMMON_LINES = frozenset(
    (
        *("[project]", 'name = "envbuild-request"', 'version = "0"', "dependencies = [", "]"),
        *("[tool.uv.workspace]", "members = []", "[tool.uv.sources]"),
    )
)
_COMMON_WORDS = frozenset(
    (
        *("pip", "compile", "--no-header", "--color", "never", "--no-progress", "--no-python-downloads"),
        *("--annotation-style", "line", "--emit-index-annotation", "--config-file", "uv.toml"),
    )
)
# What differs from run to run: durations, rates, numbers of requests; and the hosts of indexes.
_VOLATILE = (
    (re.compile(r"^(?:Resolved|Prepared|Fetched|Reading|Building|Get:|Hit:|Ign:).*\n", re.MULTILINE), ""),
    (re.compile(r"^Err:[0-9]+", re.MULTILINE), "Err:1"),
    (re.compile(r" in [0-9.]+m?s$", re.MULTILINE), " in 1s"),
    (re.compile(r"https://[a-z.]*pytorch[a-z.]*/"), "https://pytorch.example.org/"),
)
# apt's report for people.
_REPORT = re.compile(r"^(?:The following|  |[0-9]+ upgraded|Need to get|After this).*\n", re.MULTILINE)


@dataclass
class Recordings:
    """The runs of programs in the tests of a module: a file that keeps equal runs once."""

    path: Path
    mode: Mode
    runs: list[Run] = field(default_factory=list)
    tests: dict[str, list[int]] = field(default_factory=dict)
    """Test → numbers of its runs, in their order."""

    @classmethod
    def read(cls, path: Path, mode: Mode) -> Recordings:
        """Read a file of recordings, if it is there."""
        content = json.loads(path.read_text()) if path.is_file() else {}
        return cls(path, mode, content.get("runs", []), content.get("tests", {}))

    def write(self) -> None:
        """Write the runs that a test has."""
        tests = dict(sorted(self.tests.items()))
        used = [*dict.fromkeys(number for numbers in tests.values() for number in numbers)]
        content = {
            "tests": {test: [used.index(number) for number in numbers] for test, numbers in tests.items()},
            "runs": [self.runs[number] for number in used],
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        # A list of numbers is one line.
        text = re.sub(r"\[\s+((?:\d+,?\s+)+)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(text + "\n")

    @contextmanager
    def programs(
        self, test: str, names: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        """Answer the runs of uv and apt in a test; `names` maps words of this run to lasting ones."""
        if self.mode == "real":
            yield
            return
        if self.mode == "update":
            recorder = _Recorder(names, process.run)
            monkeypatch.setattr(process, "run", recorder.run)
            yield
            for run in recorder.runs:
                if run not in self.runs:
                    self.runs.append(run)
            self.tests[test] = [self.runs.index(run) for run in recorder.runs]
            return
        player = _Player(names, [self.runs[number] for number in self.tests.get(test, [])])
        monkeypatch.setattr(process, "run", player.run)
        monkeypatch.setattr(host, "find_program", lambda name, **_: Path("/usr/bin", name))
        monkeypatch.setattr(tools, "locate", lambda name: Path("/usr/bin", name))
        yield
        if player.runs:
            pytest.fail(f"{len(player.runs)} recorded runs were not asked for; {_RENEW}")


_RENEW = "if that is right, `pytest --programs update` of this test records it anew"


@dataclass
class _Recorder:
    """Runs programs, and keeps their inputs and outputs."""

    names: Mapping[str, str]
    real_run: Any
    runs: list[Run] = field(default_factory=list)

    def run(self, argv: Sequence[str | Path], **options: Any) -> process.Finished:
        request = _request(argv, self.names, **options)
        finished: process.Finished = self.real_run(argv, **options)
        output = _output(argv)
        # uv repeats its output file, and apt's own settings are the machine's.
        is_answer = output is None and not request["argv"].startswith("apt-config")
        stdout = finished.stdout if is_answer else ""
        is_report = finished.ok and request["argv"].startswith("apt-get install")
        texts = {
            "stdout": _REPORT.sub("", stdout) if is_report else stdout,
            "stderr": finished.stderr,
            "output": output.read_text() if finished.ok and output is not None else "",
        }
        names = _with_directory(self.names, options.get("cwd"))
        lines = {key: _steady(_replaced(text, names)).splitlines() for key, text in texts.items()}
        self.runs.append(_without_empty({**request, "code": finished.code, **lines}))
        return finished


@dataclass
class _Player:
    """Gives recorded answers, in their order."""

    names: Mapping[str, str]
    runs: list[Run]

    def run(self, argv: Sequence[str | Path], **options: Any) -> process.Finished:
        request = _request(argv, self.names, **options)
        if not self.runs:
            pytest.fail(f"a run that is not recorded: {request['argv']}; {_RENEW}")
        run = self.runs.pop(0)
        asked = _without_empty(request)
        recorded = {key: run[key] for key in request if key in run}
        if asked != recorded:
            before, now = (json.dumps(value, indent=1).splitlines() for value in (recorded, asked))
            self.runs.clear()
            difference = "\n".join(difflib.unified_diff(before, now, "recorded", "asked", lineterm=""))
            pytest.fail(f"another request than the recorded one; {_RENEW}\n{difference}")
        here = {lasting: word for word, lasting in _with_directory(self.names, options.get("cwd")).items()}
        stdout, stderr, output = (
            _replaced("".join(f"{line}\n" for line in run.get(key, ())), here)
            for key in ("stdout", "stderr", "output")
        )
        path = _output(argv)
        if path is not None and run["code"] == 0:
            path.write_text(output)
        return process.Finished(argv=tuple(map(str, argv)), code=run["code"], stdout=stdout, stderr=stderr)


def _request(
    argv: Sequence[str | Path],
    names: Mapping[str, str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    **_: Any,
) -> Run:
    """Return what a run is given, without what is the same in each run or differs between machines."""
    directory = cwd or Path()
    names = _with_directory(names, cwd)
    words = [*map(str, argv)]
    if "prlimit" in words[0]:  # its limit depends on the machine
        words = words[3:]
    words[0] = Path(words[0]).name
    for option in ("--cache-dir", "--python", "-c"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    texts = {
        name: _replaced((directory / name).read_text(), names)
        for name in _INPUTS.get(words[0], ())
        if (directory / name).is_file()
    }
    files = {
        name: [line for line in text.splitlines() if line not in _COMMON_LINES]
        for name, text in texts.items()
    }
    return {
        "argv": _replaced(" ".join(word for word in words if word not in _COMMON_WORDS), names),
        "files": {name: lines for name, lines in files.items() if lines},
        "environment": {
            name: _replaced(value, names)
            for name, value in env.items()
            if name.startswith(("UV_DEFAULT", "UV_HTTP"))
        },
    }


def _without_empty(run: Run) -> Run:
    return {key: value for key, value in run.items() if value or key == "code"}


def _with_directory(names: Mapping[str, str], directory: Path | None) -> dict[str, str]:
    return {**({str(directory): "{run}"} if directory else {}), **names}


def _output(argv: Sequence[str | Path]) -> Path | None:
    words = [*argv]
    return Path(words[words.index("--output-file") + 1]) if "--output-file" in words else None


def _steady(text: str) -> str:
    for pattern, steady in _VOLATILE:
        text = pattern.sub(steady, text)
    return text


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for word, lasting in names.items():
        text = text.replace(word, lasting)
    return text


def temporary_names(directory: Path, port: int) -> dict[str, str]:
    """Return lasting names for a test's directory, its server's port, and directories of temporary files."""
    return {
        str(directory): "{test}",
        f"127.0.0.1:{port}": "127.0.0.1:{port}",
        f"127.0.0.1 {port}": "127.0.0.1 {port}",
        tempfile.gettempdir(): "{tmp}",
    }
