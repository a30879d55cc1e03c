"""Test verdicts: the last result of testing an image on a kind of host.

One sealed file for each image digest, host fingerprint and launcher, in the store: ``verdicts/<image
digest>/<digest of the other two>.json``. On a host with other facts a verdict is stale. A test that was
submitted as a job counts on hosts like its nodes, and on those like the one that it was submitted from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envbuild.digests import sha256_of
from envbuild.errors import RequestError, some
from envbuild.events import Emit, Warned, ignore
from envbuild.formats import NEWER, check_format, is_newer
from envbuild.jobs.report import counts
from envbuild.store.records import hex_of
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system import files
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.system.sealing import check_seal, sealed

Outcome = Literal["passed", "cpu-only", "failed", "unproven"]
OUTCOMES: dict[Outcome, str] = {
    "passed": "passed",
    "cpu-only": "passed without a GPU",
    "failed": "failed",
    "unproven": "not proven",
}
"""The results of a test, in words."""
STATES = {
    "passed": "PASS",
    "cpu-only": "CPU-ONLY",
    "failed": "FAIL",
    "unproven": "UNPROVEN",
    "stale": "STALE",
    "changed": "CHANGED",
    "broken": "BROKEN",
    "absent": "UNTESTED",
}
"""State of a verdict → the word for it; ``cpu-only``: an image for GPUs that passed without one; ``changed``:
the image, after its test; ``broken``: a module that cannot be started; ``absent``: no verdict."""

RECORD_FORMAT = 5
_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TestVerdict:
    """The result of a test."""

    state: Outcome | Literal["stale"]
    """The outcome, or ``stale``: all verdicts are from hosts that differ from this one."""
    outcome: Outcome
    """The result on the host of the test."""
    ranks: int
    nodes: int
    """Nodes of a test across nodes (count), else 0."""
    launcher: str
    """Launcher of the ranks, if not the image's own mpiexec."""
    when: str
    """ISO 8601, UTC."""
    failed: tuple[str, ...]
    """Ids of the checks that failed."""
    succeeded: tuple[str, ...]
    """Ids of the checks that passed."""
    fingerprint: str
    """``sha256:…`` of the host's facts."""
    unproven: str = ""
    """Why the test proved nothing, with its counts; empty if it passed or failed."""
    gpu_untested: bool = False
    """Whether the image is for GPUs, and the test had none."""
    changed: tuple[str, ...] = ()
    """How the host of a stale verdict differs: ``kernel: 6.1 there, 6.2 here``."""
    record_text: str = field(default="", repr=False)
    """The sealed record that it was read from."""

    @property
    def counts_for_bytes(self) -> bool:
        """Whether it praises an image, and so holds only for the bytes that were tested."""
        return self.state in ("passed", "cpu-only")

    @property
    def text(self) -> str:
        """Time, ranks and host, with what failed, was not proven or changed."""
        gpu = ", GPU untested" if self.gpu_untested else ""
        nodes = f" on {self.nodes} nodes" if self.nodes else ""
        launcher = f" by {self.launcher}" if self.launcher else ""
        host = f"host fingerprint {self.fingerprint[7:19]}"
        words = [f"{self.when}, {self.ranks} ranks{nodes}{launcher}{gpu}, {host}"]
        if self.failed:
            words.append("failed: " + some(list(dict.fromkeys(self.failed)), 5))
        if self.unproven:
            words.append(self.unproven)
        words += self.changed[:5]
        return "; ".join(words)


def record(store: Store, report: Report) -> str:
    """Record the result of a test in place of an earlier one; return its path in the store."""
    name = f"{_directory(report.digest)}/{_name(report.fingerprint, report.launcher)}.json"
    data = {
        "format": RECORD_FORMAT,
        "image": {"name": report.name, "version": report.version, "digest": report.digest},
        "fingerprint": report.fingerprint,
        "facts": report.facts,
        "submitted_from": report.submitted_from,
        "launcher": report.launcher,
        "passed": report.passed,
        "ranks": report.ranks,
        "nodes": report.nodes,
        "when": report.when,
        "counts": counts(report.checks),
        "failed": list(report.failed),
        "succeeded": [check.id for check in report.checks if check.status == "PASS"],
        "unproven": report.unproven,
        "gpu_untested": report.gpu_untested,
    }
    store.write(name, sealed(json.dumps(data, indent=1, sort_keys=True)))
    return name


def latest(
    store: Store,
    digest: str,
    *,
    here: HostFingerprint | None = None,
    beside: Path | None = None,
    emit: Emit = ignore,
) -> TestVerdict | None:
    """Return the newest verdict on an image's digest from a host like this one, else the newest stale one.

    None: the image was never tested. The fingerprint `here` is determined if absent. `beside` is a file with
    a further record, which a module keeps from its installation. `emit` gets a warning of each record that a
    newer version of envbuild wrote, and that does not count here.
    """
    try:
        directory = _directory(digest)
    except RequestError:
        return None
    here = here or fingerprint()
    verdicts = _read_all(store.root / directory, digest, here, emit)
    if beside is not None and (kept := _read(beside, digest, here, emit, is_named=False)) is not None:
        # Of two from one second, that of the store counts.
        verdicts.insert(0, kept)
    current = [verdict for verdict in verdicts if verdict.state != "stale"]
    newest = sorted(current or verdicts, key=lambda verdict: (verdict.when, verdict.fingerprint))
    return newest[-1] if newest else None


def state(verdict: TestVerdict | None, changed: Sequence[str] = (), problems: Sequence[str] = ()) -> str:
    """Return the key of `STATES`.

    `changed` says how the image differs from the one that was tested, `problems` why a module cannot start.
    """
    if problems:
        return "broken"
    if changed:
        return "changed"
    return verdict.state if verdict else "absent"


def unlike_tested(changed: Sequence[str]) -> str:
    """Return the sentence on an image that differs from the one that was tested."""
    return f"the image was changed or damaged, and its test does not count: {', '.join(changed)}"


def explanation(verdict: TestVerdict | None) -> str:
    """Return the circumstances of a verdict in words, or why there is none."""
    if verdict is None:
        return "never tested here"
    if verdict.state != "stale":
        return verdict.text
    return f"{OUTCOMES[verdict.outcome]} on another host, or before this one changed: {verdict.text}"


def sentence(verdict: TestVerdict | None, *, changed: Sequence[str] = ()) -> str:
    """Return the word for a verdict, and its `explanation`."""
    text = unlike_tested(changed) if changed else explanation(verdict)
    return f"{STATES[state(verdict, changed)]} ({text})"


def _read_all(directory: Path, digest: str, here: HostFingerprint, emit: Emit) -> list[TestVerdict]:
    names = [name for name in files.list_directory(directory) if re.fullmatch(r"[0-9a-f]{64}\.json", name)]
    verdicts = [_read(directory / name, digest, here, emit) for name in names]
    return [verdict for verdict in verdicts if verdict is not None]


def _read(
    path: Path, digest: str, here: HostFingerprint, emit: Emit, *, is_named: bool = True
) -> TestVerdict | None:
    """Read a record; None for a damaged one, which proves nothing.

    In a store its host and launcher name it.
    """
    try:
        record_text = files.read_input(path, limit_bytes=_LIMIT_BYTES).decode()
        data = json.loads(check_seal(record_text))
        check_format(data["format"], RECORD_FORMAT)
        if data["image"]["digest"] != digest:
            return None
        launcher = str(data["launcher"])
        if is_named and _name(data["fingerprint"], launcher) != path.stem:
            return None
        facts = {str(name): str(fact) for name, fact in data["facts"].items()}
        submitted_from = {str(name): str(fact) for name, fact in data["submitted_from"].items()}
        passed, ranks, nodes, when = data["passed"], data["ranks"], data["nodes"], data["when"]
        if type(passed) is not bool or not re.fullmatch(r"[0-9TZ:-]{1,40}", when):
            return None
        if type(ranks) is not int or type(nodes) is not int:
            return None
        failed, succeeded = (tuple(str(name) for name in data[key]) for key in ("failed", "succeeded"))
        unproven, gpu_untested = str(data["unproven"]), data["gpu_untested"] is True
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RequestError) as error:
        if is_newer(error):
            emit(Warned(text=f"the verdict `{path}` does not count: {error}", hint=NEWER))
        return None
    outcome: Outcome = "failed" if failed else "unproven"
    if passed:
        outcome = "cpu-only" if gpu_untested else "passed"
    same = here.facts in (facts, submitted_from)
    return TestVerdict(
        state=outcome if same else "stale",
        outcome=outcome,
        ranks=ranks,
        nodes=nodes,
        launcher=launcher,
        when=when,
        failed=failed,
        succeeded=succeeded,
        unproven=unproven,
        gpu_untested=gpu_untested,
        fingerprint=data["fingerprint"],
        record_text=record_text,
        changed=()
        if same
        else min((_changes(there, here.facts) for there in (submitted_from, facts) if there), key=len),
    )


def _changes(tested: dict[str, str], here: dict[str, str]) -> tuple[str, ...]:
    names = sorted(tested.keys() | here.keys())
    return tuple(
        f"{name}: {tested.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in names
        if tested.get(name) != here.get(name)
    )


def _name(fingerprint: str, launcher: str) -> str:
    """Return the name of a record, without suffix."""
    return hex_of(sha256_of(f"{fingerprint} {launcher}") if launcher else fingerprint)


def _directory(digest: str) -> str:
    return f"verdicts/{hex_of(digest)}"
