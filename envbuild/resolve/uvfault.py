"""What kept uv from an answer: an index, the network, this machine."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import MachineError
from envbuild.resolve import uvtext
from envbuild.system import host
from envbuild.system.process import Finished
from envbuild.system.redaction import redact_text

TIMEOUT_S = 900.0
# Ten times what a large resolution takes: an index may answer without end.
_MEMORY_BYTES = 2 << 30
# A thread for each core, whose stack counts.
_STACK_BYTES = 8 << 20
_UNREACHABLE = (
    "Failed to fetch",
    "error sending request",
    "dns error",
    "tcp connect error",
    "Could not connect",
)


def memory_bytes() -> int:
    """Return how much memory uv may take on this machine, in bytes."""
    return _MEMORY_BYTES + _STACK_BYTES * host.cores()


def is_unreachable(stderr: str) -> bool:
    """Return whether uv could not ask somebody."""
    return any(word in stderr for word in _UNREACHABLE)


def fault(finished: Finished, log: Path) -> MachineError | None:
    """Return what kept a run of uv from an answer; None where its answer is that there is no solution.

    Parameters
    ----------
    log : Path
        File with what uv wrote.
    """
    stderr = finished.stderr
    ask = "`envbuild doctor lock --online` asks the indexes"
    if finished.timed_out:
        return MachineError(f"uv did not end within {TIMEOUT_S:.0f} s", hint=f"read why in {log}; {ask}")
    if finished.code < 0 and "memory allocation" in stderr:
        return MachineError(
            f"uv needed more than {memory_bytes() / (1 << 30):.1f} GiB of memory, and was ended",
            hint=f"an index that answers without end does that: {ask}",
        )
    if refused := uvtext.refused(stderr):
        return MachineError(
            f"the index at {refused}: nobody knows what it has",
            hint="pip's or uv's configuration, or ~/.netrc, says who you are; see what you may read there",
        )
    if "No solution found" in stderr:
        return None
    if "certificate" in stderr or is_unreachable(stderr):
        return _unreachable(stderr, log)
    said = next((line for line in stderr.splitlines() if line.startswith("error: ")), "error: no reason")
    return MachineError(f"uv failed: {redact_text(said[7:])}", hint=f"read why in {log}; {ask}")


def _unreachable(stderr: str, log: Path) -> MachineError:
    if "certificate" in stderr:
        return MachineError(
            f"the certificate of a Python index is not trusted here; uv's output is in `{log}`",
            hint="SSL_CERT_FILE names the certificates that your network needs",
        )
    return MachineError(
        f"the index of the Python packages cannot be reached; uv's output is in `{log}`",
        hint="a site file names another (`origins: {pypi: [ADDRESS]}`), or says that its addresses serve"
        " the same files (`mirrors: [pypi]`), so that the next is asked; https_proxy names a proxy",
    )
