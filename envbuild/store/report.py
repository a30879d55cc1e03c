"""The report of a test: its results, with the image, the ranks and the host that they are of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.jobs.report import Results


@dataclass(frozen=True, kw_only=True)
class Report(Results):
    """The result of testing an image."""

    name: str
    version: str
    digest: str
    """``sha256:…`` of the image."""
    ranks: int
    """Requested processes (count)."""
    fingerprint: str = ""
    """``sha256:…`` of the host's facts."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The host's facts."""
    when: str = ""
    """ISO 8601, UTC."""
    seconds: float = 0.0
    """Wall-clock duration of the test."""
    left_out: Sequence[str] = ()
    """Ids of jobs that a quick test did not run."""
    nodes: int = 0
    """Nodes that a test across nodes was for (count); 0 for a test on one machine."""
    launcher: str = ""
    """The launcher of the ranks, if it was not the image's own mpiexec: ``slurm 25.11.1 --mpi=pmix``."""
    submitted_from: Mapping[str, str] = field(default_factory=dict)
    """Facts of the host that the test's job was submitted from; empty if it was not submitted."""

    @property
    def summary(self) -> str:
        """One line for people: the result and the counts."""
        if self.unproven or not self.left_out:
            return super().summary
        return f"{super().summary}; {len(self.left_out)} jobs did not run, and no verdict is kept"

    @property
    def _nodes(self) -> str:
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}"

    @property
    def last_line(self) -> str:
        """The image, the circumstances and the result."""
        where = f"{self.ranks} ranks" + (f" of {self._nodes}" if self.nodes else "")
        if emulator := self.facts.get("emulator"):
            where += f", emulated by {emulator},"
        subject = f"{self.name}/{self.version} ({self.digest[7:19]}) on {where} in {self.seconds:.0f} s"
        return f"{subject}: {self.summary}"

    @property
    def certificate(self) -> str:
        """The result of a test across nodes in one line, with what it is bound to."""
        outcome = "passed" if self.passed else "failed" if self.failed else "not proven"
        outcome += ", GPU untested" if self.passed and self.gpu_untested else ""
        where = f"{self._nodes}, host fingerprint {self.fingerprint[7:19]}, {self.launcher}"
        return f"certificate: {outcome}: image {self.digest} on {where}, {self.when}"

    def to_json(self) -> str:
        """Return the report as JSON that ends in a newline; its keys: docs/reference/json.md."""
        data = {
            **self.to_data(),
            "image": {"name": self.name, "version": self.version, "digest": self.digest},
            "ranks": self.ranks,
            "host": {"fingerprint": self.fingerprint, "facts": self.facts},
            "launcher": self.launcher,
            "nodes": self.nodes,
            "submitted_from": self.submitted_from,
            "when": self.when,
            "seconds": round(self.seconds, 3),
            "left_out": list(self.left_out),
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
