"""Module: put an image behind `module load`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envbuild.activate.genuine import check_parts
from envbuild.activate.install import Installed, install
from envbuild.activate.model import VerdictNote
from envbuild.activate.overlay import overlay_warning
from envbuild.activate.thin import provide_parts
from envbuild.check import verdicts
from envbuild.check.run import Subject
from envbuild.events import Note, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.image.sif import read_manifest
from envbuild.system import clock
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows.hosting import for_containers_apart, host_mpi
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

_TASK = "module"


def install_module(
    image: Path, *, root: Path, thin: bool, settings: Settings, on_host_mpi: bool = False
) -> Installed:
    """Install an image, wrappers for its commands, and a modulefile.

    Parameters
    ----------
    root : Path
        Where modules and images are installed; made if absent.
    thin : bool
        Start from the store's parts instead of a copy of the image.
    on_host_mpi : bool
        Whether commands run on the site's MPI in place of the image's.

    Raises
    ------
    RequestError
        It is no image of ours or a damaged one, its names cannot stand in a module, the
        root cannot be written, or the host's MPI does not fit.
    MachineError
        There is no usable Apptainer, or no space.
    """
    started = clock.seconds()
    manifest = read_manifest(image)
    apptainer = settings.find_apptainer()
    site = read_site(settings.site)
    here = fingerprint(apptainer)
    injection = None
    if on_host_mpi:
        subject = Subject(image=image.absolute(), manifest=manifest, apptainer=apptainer)
        hosted = host_mpi(subject, settings)
        injection = for_containers_apart(*hosted)
        here = here.with_fact("mpi", injection.identity)
    verdict = _verdict(manifest.digest, here, settings)
    title = f"module {manifest.name}/{manifest.version}"
    # All of it is read, and then copied.
    total_bytes = sum(part.size_bytes for part in manifest.parts) + image.stat().st_size
    settings.emit(TaskStarted(task=_TASK, title=title, total_bytes=total_bytes))

    def moved(count: int) -> None:
        settings.emit(TaskAdvanced(task=_TASK, bytes=count))

    try:
        check_parts(image, read=moved)
        parts = provide_parts(image, manifest, settings.store.blob_path, copied=moved) if thin else None
        installed = install(
            image,
            manifest,
            root=root,
            verdict=verdict,
            thin_parts=parts,
            site=site.value if site is not None else None,
            injection=injection,
            apptainer=apptainer,
            copied=moved,
        )
    except BaseException:
        settings.emit(TaskFailed(task=_TASK))
        raise
    if (warning := overlay_warning(manifest, apptainer)) is not None:
        installed = replace(installed, warnings=(*installed.warnings, warning))
    detail = str(installed.modulefile) if installed.changed else "everything was in place"
    settings.emit(TaskDone(task=_TASK, detail=detail, seconds=clock.seconds() - started))
    _tell(installed, verdict, settings)
    return installed


def _tell(installed: Installed, verdict: VerdictNote, settings: Settings) -> None:
    for warning in installed.warnings:
        hint = (
            "`envbuild test` proves the image; then install it again" if warning == verdict.warning else None
        )
        settings.emit(Warned(text=warning, hint=hint))
    if installed.replaced is not None:
        kept = f"the image that was there before is kept for jobs that run on it: {installed.replaced}"
        settings.emit(Note(text=kept))


def _verdict(digest: str, here: HostFingerprint, settings: Settings) -> VerdictNote:
    known = verdicts.latest(settings.store.root, digest, here=here)
    if known is None:
        return VerdictNote(state="absent")
    if known.state == "stale":
        outcome = "passed" if known.passed else "failed"
        return VerdictNote(state="stale", text=f"{outcome} there: {known.text}")
    return VerdictNote(state=known.state, text=known.text)
