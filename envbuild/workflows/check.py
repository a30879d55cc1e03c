"""Check: what an image would load, known without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import preflight
from envbuild.events import TaskDone, TaskFailed, TaskStarted
from envbuild.image.model import Manifest
from envbuild.spec.load import load_site
from envbuild.spec.nodes import MAX_BYTES
from envbuild.system import clock
from envbuild.system.files import read_input
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An image that was looked at.

    Attributes
    ----------
    preflight : Preflight
        What was found.
    seconds : float
        How long it took, wall clock.
    """

    manifest: Manifest
    preflight: Preflight
    seconds: float

    def to_json(self) -> str:
        """Return it as JSON that ends in a newline; see `Preflight.document`."""
        manifest = self.manifest
        image = {"name": manifest.name, "version": manifest.version, "digest": manifest.digest}
        return json.dumps(self.preflight.document(image), indent=2, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """Return it for people: a table of what is wrong, and a summary."""
        found, manifest = self.preflight, self.manifest
        digest = manifest.digest.removeprefix("sha256:")[:12]
        outcome = "passed" if found.passed else f"failed: {len(found.problems)} problems"
        summary = (
            f"{manifest.name}/{manifest.version} ({digest}): {outcome};"
            f" {found.objects} ELF files, {found.processes} processes in {self.seconds:.1f} s"
        )
        return "\n".join([*(finding.line() for finding in found.findings()), summary])


def check_image(image: Path, settings: Settings, *, injected: Mapping[str, Path] | None = None) -> Checked:
    """Look at an image without running it.

    Parameters
    ----------
    injected : mapping of str to Path, optional
        Soname → file of the host that the loader finds first; what the site file lends if absent.

    Raises
    ------
    RequestError
        It is no image of ours, or damaged; or the site file cannot be used.
    """
    started, task = clock.seconds(), "check"
    settings.emit(TaskStarted(task=task, title=f"what {image.name} would load"))
    lent = _lent(settings) if injected is None else injected
    manifest, found = preflight(image, settings.store, injected=lent)
    seconds = clock.seconds() - started
    settings.emit(TaskDone(task=task, seconds=seconds) if found.passed else TaskFailed(task=task))
    return Checked(manifest=manifest, preflight=found, seconds=seconds)


def _lent(settings: Settings) -> dict[str, Path]:
    """Return what the site that was named lends: its MPI's and its fabric's libraries, by name."""
    if settings.site is None:
        return {}
    site = load_site(read_input(settings.site, limit_bytes=MAX_BYTES), settings.site)
    libraries = (*(site.mpi.libraries if site.mpi else ()), *(site.fabric.libraries if site.fabric else ()))
    return {Path(path).name: Path(path) for path in libraries}
