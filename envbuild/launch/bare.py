"""Start ranks without a container: in a virtual environment on the host that has an image's wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.image.environment import apply
from envbuild.image.model import Variable
from envbuild.jobs.judge import PREFIXES
from envbuild.system import host


@dataclass(frozen=True, slots=True, kw_only=True)
class BareEnvironment:
    """A virtual environment on the host, with the wheels that an image's lock names."""

    directory: Path
    version: str
    """Version of its Python (``3.11.2``)."""

    @property
    def python(self) -> str:
        """Path of its Python."""
        return f"{self.directory}/bin/python"

    def enter(
        self, variables: Sequence[Variable], env: Mapping[str, str], paths: Mapping[str, str]
    ) -> list[str]:
        """Return the words before the launcher or rank, as a container's: they set variables.

        `variables` are the image's, `env` those of the ranks, which win; `paths` as for `on_host`.
        """
        own = apply(tuple(self._own(variables)), {"PATH": host.environment()["PATH"]})
        given = {name: self.on_host(value, paths) for name, value in env.items()}
        return ["env", *(f"{name}={value}" for name, value in sorted({**own, **given}.items()))]

    def on_host(self, word: str, paths: Mapping[str, str]) -> str:
        """Return a path in a container as a path on the host; other words stay.

        `paths`: what a container would see → what it is on the host.
        """
        if not word.startswith(f"{self.directory}/"):
            for inside, outside in paths.items():
                if word == inside or word.startswith(f"{inside}/"):
                    return outside + word.removeprefix(inside)
        return word

    def _own(self, variables: Sequence[Variable]) -> Iterator[Variable]:
        """Yield the variables of an image that have a meaning here; other files of it are not on the host."""
        for variable in variables:
            value = variable.value
            for prefix in PREFIXES:
                value = value.replace(prefix, str(self.directory))
            parts = value.split(":") if variable.operation == "prepend" else [value]
            here = dict.fromkeys(part for part in parts if not part.startswith("/") or self._has(part))
            if variable.operation != "unset" and here:
                yield variable.model_copy(update={"value": ":".join(here)})

    def _has(self, path: str) -> bool:
        return Path(path).is_relative_to(self.directory)
