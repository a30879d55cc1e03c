"""Facts that were read from a source, stored with origin, date and digest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from envbuild.digests import canonical_json, sha256_of
from envbuild.rules.knowledge import Date, Line
from envbuild.spec.load import load
from envbuild.spec.model import Model, full_match

INPUTS = Path(__file__).parent / "inputs"
_HEADER = "# Facts that were read from a source. Written by `make knowledge`: see docs/howto/add-a-row.md.\n"


class Input(Model):
    """The statements of one source."""

    origin: Line
    """Where it was read: repository, path and commit, an address, or a document with its version."""
    licence: Line
    """Its licence; facts alone are stored of it."""
    date: Date
    """Date of the copy that was read."""
    digest: Annotated[str, full_match("sha256:[0-9a-f]{64}", "a digest, such as `sha256:…`")]
    """Digest of the copy; of many files, of the facts."""
    until: Line
    """Newest release that it covers: what is said of later ones is unknown."""
    facts: Annotated[dict[str, Any], Field(min_length=1)]

    @property
    def text(self) -> str:
        """The file's contents."""
        document = self.model_dump(exclude={"facts"})
        lines = yaml.safe_dump(document, sort_keys=False, width=1_000_000, allow_unicode=True)
        facts = yaml.safe_dump(
            {"facts": self.facts},
            sort_keys=False,
            width=1_000_000,
            default_flow_style=None,
            allow_unicode=True,
        )
        return f"{_HEADER}{lines}{facts}"

    @property
    def label(self) -> str:
        """Origin, date and digest in one line, for headers."""
        return f"{self.origin} ({self.date}, {self.digest[:23]})"


def digest_of_facts(facts: object) -> str:
    """Return the digest of facts that come from many files."""
    return sha256_of(canonical_json(facts))


def read_input(name: str, directory: Path = INPUTS) -> Input:
    """Return a stored input; EnvbuildError if the file is wrong, OSError if there is none."""
    path = directory / f"{name}.yaml"
    return load(Input, path.read_bytes(), path).value
