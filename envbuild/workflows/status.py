"""Status: whether images and installed modules passed their test on a host like this one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from envbuild.activate.installed import InstalledModule
from envbuild.activate.layout import Deprecation
from envbuild.errors import EnvbuildError
from envbuild.image.file import ImageFile
from envbuild.image.runnable import identity_of
from envbuild.preflight.scan import changed_parts
from envbuild.store import verdicts
from envbuild.store.verdicts import TestVerdict
from envbuild.system.fingerprint import HostFingerprint
from envbuild.workflows.images import NamedImage
from envbuild.workflows.members import Member, Members
from envbuild.workflows.module import judge_module
from envbuild.workflows.older import left_behind, newer_spec
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The test verdict on an image or module, on this host."""

    name: str
    """``NAME/VERSION``; the file's of an image of another tool."""
    path: Path
    """The image, or the module's directory."""
    verdict: TestVerdict | None
    """None if it was never tested."""
    changed: tuple[str, ...] = ()
    """Which parts of an image that passed are not as they were built, in words."""
    is_module: bool = False
    problems: tuple[str, ...] = ()
    """Why a module cannot be loaded or started."""
    retired_until: date | None = None
    """The day on which a retired module is to be uninstalled."""
    deprecation: Deprecation | None = None
    """From which day users should load another module."""
    outdated: str = ""
    """How the lock or spec beside the image has moved on, in words."""
    is_foreign: bool = False
    """Whether another tool built the image, and nothing was added to it: `test` refuses it."""

    @property
    def state(self) -> str:
        """A key of `verdicts.STATES`."""
        return verdicts.state(self.verdict, self.changed, self.problems)

    @property
    def word(self) -> str:
        """The word for the state."""
        return verdicts.STATES[self.state]

    @property
    def text(self) -> str:
        """When, with how many ranks and where it was tested; what failed, or what has changed since."""
        retired = f"retired until {self.retired_until}" if self.retired_until is not None else ""
        deprecated = str(self.deprecation) if self.deprecation is not None else ""
        return "; ".join(part for part in (self._verdict_text, deprecated, retired, self.outdated) if part)

    @property
    def line(self) -> str:
        """The text for a table, which names files and modules; of a file with the image's name."""
        return self.text if self.is_module else f"{self.name}: {self.text}"

    @property
    def _verdict_text(self) -> str:
        if self.problems:
            return "; ".join(self.problems)
        if self.changed:
            return verdicts.unlike_tested(self.changed)
        if self.is_foreign:
            return "an image of another tool: `envbuild extend` adds packages, `envbuild test` judges them"
        text = verdicts.explanation(self.verdict)
        return text if self.verdict else f"{text}: run `envbuild test`"


def statuses(images: Members[NamedImage], settings: Settings) -> Members[Status]:
    """Return the verdicts on images and modules; one that passed is compared with its manifest.

    It is not read again if it is the file that was compared last, by its inode and times. One that is found
    below a directory and cannot be read is a member with its error.
    """
    here = settings.this_host()

    def status(member: Member[NamedImage], settings: Settings) -> Status:
        image = member.get()
        if image.module is not None:
            return _module_status(image.module, settings, here)
        return _file_status(image.file(settings), settings, here)

    return images.each(status, settings)


def _file_status(path: Path, settings: Settings, here: HostFingerprint) -> Status:
    with ImageFile.open(path) as image:
        is_foreign = not image.built_by_envbuild and image.note is None
        verdict = None
        # One that was never extended was never tested: it is not read.
        if not is_foreign:
            digest = identity_of(image, settings.store)
            verdict = verdicts.latest(settings.store, digest, here=here, emit=settings.emit)
        changed: tuple[str, ...] = ()
        if image.built_by_envbuild and verdict is not None and verdict.counts_for_bytes:
            changed = changed_parts(image, settings.store)
        return Status(
            name=image.label if image.built_by_envbuild else path.name,
            path=path,
            verdict=verdict,
            changed=changed,
            is_foreign=is_foreign,
            outdated=_outdated(image),
        )


def _outdated(image: ImageFile) -> str:
    older = left_behind(image)
    return f"{older.text} ({older.hint})" if older is not None else newer_spec(image)


def _module_status(module: InstalledModule, settings: Settings, here: HostFingerprint) -> Status:
    listed = judge_module(module, settings, here)
    outdated = ""
    if module.record is not None and module.record.image and not module.problems:
        with suppress(EnvbuildError), ImageFile.open(Path(module.record.image)) as image:
            outdated = _outdated(image)
    return Status(
        name=module.layout.label,
        path=module.layout.home,
        verdict=listed.verdict,
        changed=listed.changed,
        is_module=True,
        problems=module.problems,
        retired_until=module.retired_until,
        deprecation=module.deprecation,
        outdated=outdated,
    )
