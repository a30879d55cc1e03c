"""Stands for uv at `process.run`: answers from a table of releases, without a network and without solving."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.system import process


@dataclass
class FakeUv:
    """An index of one wheel for each release; uv takes the only version, or what `===` and `==` name."""

    releases: Mapping[str, str]
    """Distribution → version."""
    requires: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Distribution → distributions that it requires."""
    runs: list[list[str]] = field(default_factory=list)
    """The requirements of each run."""

    def run(self, argv: Sequence[str | Path], *, cwd: Path = Path(), **_: Any) -> process.Finished:
        """Answer a run of ``uv pip compile``."""
        requirements = tomllib.loads((cwd / "pyproject.toml").read_text())["project"]["dependencies"]
        self.runs.append(requirements)
        names = [re.split(r"[\[=<>!~; ]", text)[0] for text in requirements]
        if unknown := [name for name in names if name not in self.releases]:
            stderr = (
                "error: No solution found when resolving dependencies\n"
                f"  cause: Because {unknown[0]} was not found in the package registry and envbuild-request"
                f" depends on {unknown[0]}, we can conclude that your requirements are unsatisfiable.\n"
            )
            return process.Finished(argv=("uv",), code=1, stdout="", stderr=stderr)
        output = Path(argv[argv.index("--output-file") + 1])
        output.write_text(self._pylock(names) if output.suffix == ".toml" else self._resolution(names))
        return process.Finished(argv=("uv",), code=0, stdout="", stderr="")

    def _resolution(self, names: Sequence[str]) -> str:
        via: dict[str, list[str]] = {name: ["envbuild-request (pyproject.toml)"] for name in names}
        todo = [*names]
        while todo:
            name = todo.pop()
            for required in self.requires.get(name, ()):
                todo += [required] if required not in via else []
                via.setdefault(required, []).append(name)
        lines = (f"{name}=={self.releases[name]}  # via {', '.join(via[name])}" for name in sorted(via))
        return "".join(f"{line}\n" for line in lines)

    def _pylock(self, names: Sequence[str]) -> str:
        lines = ['lock-version = "1.0"', 'created-by = "uv"', "" if names else "packages = []"]
        for name in names:
            version = self.releases[name]
            file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            url = f"https://files.example.org/{file}"
            wheel = f'{{ url = "{url}", size = 10, hashes = {{ sha256 = "{"a" * 64}" }} }}'
            lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"', f"wheels = [{wheel}]"]
        return "\n".join(lines) + "\n"
