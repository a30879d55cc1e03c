"""Module: put an image behind `module load`, list what is there, take it away."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.activate.install import Installed, checked_root, install
from envbuild.activate.installed import InstalledModule, find_installed, parse_module
from envbuild.activate.model import VerdictNote, visible
from envbuild.activate.uninstall import Uninstalled, choose, strangers, uninstall
from envbuild.activate.wrapper import stamp_of
from envbuild.check import verdicts
from envbuild.check.launchers.hostmpiexec import apart
from envbuild.check.launchers.srun import apart_under_slurm
from envbuild.check.run import Subject
from envbuild.errors import RequestError, raise_all
from envbuild.events import Emit, Note, Warned, task
from envbuild.image.model import Manifest
from envbuild.image.sif import read_manifest
from envbuild.image.verify import check_image_is_whole
from envbuild.system import host
from envbuild.system.files import is_directory
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.system.privacy import open_parents
from envbuild.workflows.hosting import NOTHING, Lend, for_containers_apart, lent, tell_absent_binds
from envbuild.workflows.inputs import read_site
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.settings import Settings
from envbuild.workflows.words import typed

_TASK = "module"


def install_module(
    image: Path, *, root: Path, link: bool, settings: Settings, lend: Lend = NOTHING, default: bool = False
) -> Installed:
    """Install an image, wrappers for its commands, and a modulefile.

    Parameters
    ----------
    root : Path
        Where modules and images are installed; made if absent.
    link : bool
        Refer to the image where it lies instead of copying it.
    lend : Lend
        What of the site's host commands use in place of the image's own.
    default : bool
        Make it the version that ``module load NAME`` takes.

    Raises
    ------
    RequestError
        It is no image of ours or a damaged one, its names cannot stand in a module, the
        root cannot be written, or everybody can write to it, or the host's MPI does not fit.
    MachineError
        There is no usable Apptainer, or no space.
    """
    refuse_in_store(root, settings.store.path, hint="name another directory with --root DIR")
    manifest = read_manifest(image)
    _check_writers(root, manifest, settings.emit)
    site = read_site(settings.site)
    apptainer = settings.find_apptainer(site.value if site is not None else None)
    here = fingerprint(apptainer)
    injection = None
    if site is not None:
        tell_absent_binds(site.value, settings.emit)
    if lend:
        subject = Subject(image=image.absolute(), manifest=manifest, apptainer=apptainer)
        hosted = lent(subject, settings, lend)
        injection = for_containers_apart(*hosted)
        for fact, identity in injection.identities.items():
            here = here.with_fact(fact, identity)
    verdict = _verdict(manifest.digest, here, settings)
    title = f"module {manifest.name}/{manifest.version}"
    # All of it is read, and then copied.
    total_bytes = image.stat().st_size * (1 if link else 2)
    with task(settings.emit, _TASK, title, total_bytes=total_bytes) as running:
        stamp = stamp_of(image) if link else ""
        check_image_is_whole(image, advanced=running.advance)
        installed = install(
            image,
            manifest,
            root=root,
            verdict=verdict,
            stamp=stamp,
            default=default,
            site=site.value if site is not None else None,
            injection=injection,
            apart=apart(manifest.mpi_family) if lend.mpi else apart_under_slurm(manifest.mpi_family),
            apptainer=apptainer,
            copied=running.advance,
        )
        running.detail = str(installed.modulefile) if installed.changed else "everything was in place"
    _tell(installed, verdict, settings)
    return installed


def _check_writers(root: Path, manifest: Manifest, emit: Emit) -> None:
    """Refuse a root that everybody can write to, and warn of one that a group can."""
    homes = (root, *(root / part / name for part in ("envs", "modulefiles") for name in ("", manifest.name)))
    for directory in homes:
        try:
            status = directory.stat()
        except OSError:
            continue  # it is made, or the installation says what is wrong with it
        runs = "and so decides what `module load` runs"
        if status.st_mode & stat.S_IWOTH:
            raise RequestError(
                f"everybody can write to `{directory}`, {runs}",
                hint=f"`chmod o-w {typed(directory)}`, or name another directory with --root DIR",
            )
        if status.st_mode & stat.S_IWGRP:
            group = host.group(status.st_gid)
            emit(
                Warned(
                    text=f"the group `{group}` can write to `{directory}`, {runs}",
                    hint=f"`chmod g-w {typed(directory)}`, unless you trust all of its members",
                )
            )
    for parent in open_parents(root):
        emit(
            Warned(
                text=f"others can write to `{parent}`, and can replace the module root in it",
                hint="name a directory with --root DIR that lies where only you and root can write",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModule:
    """A module that is installed, and what is known of its image on this host."""

    module: InstalledModule
    verdict: VerdictNote

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        record = self.module.record
        return {
            "module": self.module.layout.label,
            "default": self.module.default,
            "digest": record.digest if record else None,
            "linked": self.module.linked,
            "image": str(self.module.image) if self.module.image else None,
            "lent": dict(record.lent) if record else {},
            "verdict": {"state": self.verdict.state, "text": self.verdict.text},
            "home": str(self.module.layout.home),
            "modulefiles": [str(path) for path in self.module.layout.modulefiles],
            "replaced": [str(path) for path in self.module.kept],
            "problems": list(self.module.problems),
        }

    def to_row(self) -> tuple[str, ...]:
        """Return module, kind, verdict, image, and what is wrong with it, for people."""
        record = self.module.record
        name = self.module.layout.label + (" (default)" if self.module.default else "")
        broken = f"broken: {visible('; '.join(self.module.problems))}" if self.module.problems else ""
        return (
            name,
            "link" if self.module.linked else "copy",
            self.verdict.state,
            record.digest.removeprefix("sha256:")[:16] if record else "unknown",
            broken or str(self.module.layout.home),
        )


def list_modules(root: Path, settings: Settings) -> tuple[ListedModule, ...]:
    """Return what is installed below a root, with the verdict that counts on this host now.

    Raises
    ------
    RequestError
        There is no such directory, or it cannot be read.
    """
    here = fingerprint(settings.find_apptainer() if settings.apptainer else None)
    listed = []
    for module in find_installed(_existing(root)):
        verdict = VerdictNote(state="absent")
        if module.record is not None:
            host = here
            for fact, identity in module.record.lent.items():
                host = host.with_fact(fact, identity)
            verdict = _verdict(module.record.digest, host, settings)
        listed.append(ListedModule(module=module, verdict=verdict))
    return tuple(listed)


def uninstall_modules(name: str, *, root: Path, every: bool) -> tuple[Uninstalled, ...]:
    """Remove a module, or all versions of one; see `envbuild.activate.uninstall`.

    Parameters
    ----------
    name : str
        ``NAME/VERSION``, or ``NAME`` where there is one version.
    every : bool
        All versions of ``NAME``.

    Raises
    ------
    RequestError
        It is not there, or not ours, or it is not clear which one is meant.
    """
    base, version = parse_module(name)
    if every and version is not None:
        raise RequestError(f"`{name}` is one version, and --all asks for all", hint=f"write `{base} --all`")
    layouts = choose(_existing(root), base, version, every=every)
    # Of none, unless of all: what is in the way of one is told before another is gone.
    raise_all([error for layout in layouts for error in strangers(layout)])
    return tuple(uninstall(layout) for layout in layouts)


def _existing(root: Path) -> Path:
    if not is_directory(root):
        hint = "name the one that modules were installed in with --root DIR"
        raise RequestError(f"there is no directory `{root}`", hint=hint)
    return checked_root(root)


def _tell(installed: Installed, verdict: VerdictNote, settings: Settings) -> None:
    for warning in installed.warnings:
        hint = None
        if warning == verdict.warning:
            hint = "`envbuild test` proves the image; then install it again"
            if verdict.state == "unproven":
                hint = "`envbuild test` says what was not examined; an `mpi` or a framework brings jobs"
        settings.emit(Warned(text=warning, hint=hint))
    if installed.replaced is not None:
        kept = f"the image that was there before is kept for jobs that run on it: {installed.replaced}"
        settings.emit(Note(text=kept))


def _verdict(digest: str, here: HostFingerprint, settings: Settings) -> VerdictNote:
    known = verdicts.latest(settings.store, digest, here=here)
    if known is None:
        return VerdictNote(state="absent")
    if known.state == "stale":
        outcome = verdicts.OUTCOMES[known.outcome]
        return VerdictNote(state="stale", text=f"{outcome} there: {known.text}")
    return VerdictNote(state=known.state, text=known.text)
