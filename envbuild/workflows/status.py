"""Status: whether images and installed modules passed their test on a host like this one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.layout import parse_module
from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.image.runnable import identity_of
from envbuild.preflight.scan import changed_parts
from envbuild.quoting import shell_path
from envbuild.store import verdicts
from envbuild.store.verdicts import TestVerdict
from envbuild.system.files import exists, neighbour_hint
from envbuild.workflows.module import list_modules
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
    is_foreign: bool = False
    """Whether another tool built the image, and nothing was added to it: `test` refuses it."""

    @property
    def state(self) -> str:
        """A key of `verdicts.STATES`."""
        return verdicts.state(self.verdict, self.changed)

    @property
    def word(self) -> str:
        """The word for the state."""
        return verdicts.STATES[self.state]

    @property
    def text(self) -> str:
        """When, with how many ranks and where it was tested; what failed, or what has changed since."""
        if self.changed:
            return verdicts.unlike_tested(self.changed)
        if self.is_foreign:
            return "an image of another tool: `envbuild extend` adds packages, `envbuild test` judges them"
        text = verdicts.explanation(self.verdict)
        return text if self.verdict else f"{text}: run `envbuild test`"


def image_statuses(images: Sequence[Path], settings: Settings) -> tuple[Status, ...]:
    """Return the verdicts on images; one that passed is compared with its manifest.

    It is not read again if it is the file that was compared last, by its inode and times.
    """
    here, statuses = settings.this_host(), []
    for path in images:
        _check_not_a_module(path)
        with ImageFile.open(path) as image:
            label = image.label if image.built_by_envbuild else path.name
            verdict = None
            is_foreign = not image.built_by_envbuild and image.note is None
            # One that was never extended was never tested: it is not read.
            if not is_foreign:
                digest = identity_of(image, settings.store)
                verdict = verdicts.latest(settings.store, digest, here=here)
            changed: tuple[str, ...] = ()
            if image.built_by_envbuild and verdict is not None and verdict.counts_for_bytes:
                changed = changed_parts(image, settings.store)
            statuses.append(
                Status(name=label, path=path, verdict=verdict, changed=changed, is_foreign=is_foreign)
            )
    return tuple(statuses)


def _check_not_a_module(image: Path) -> None:
    """Raise a RequestError for what can only be a module, named without its root."""
    if image.suffix == ".sif" or exists(image) or neighbour_hint(image, ".sif"):
        return
    try:
        parse_module(str(image))
    except RequestError:
        return  # reading it as an image reports why
    hint = f"a module is named with its root: `envbuild status {shell_path(image)} --root DIR`"
    raise RequestError(f"there is no image `{image}`", hint=hint)


def module_statuses(root: Path, names: Iterable[str], settings: Settings) -> tuple[Status, ...]:
    """Return the verdicts on the modules below a root: those of `names`, or all of them.

    A name is ``NAME/VERSION``, or ``NAME`` for all its versions. RequestError: one is not installed.
    """
    wanted = set(names)
    modules = [(listed.module.layout, listed) for listed in list_modules(root, settings)]
    for name in sorted(wanted.difference(*((layout.name, layout.label) for layout, _ in modules))):
        hint = f"`envbuild module ls --root {shell_path(root)}` lists the modules"
        raise RequestError(f"no module `{name}` is installed in `{root}`", hint=hint)
    return tuple(
        Status(
            name=layout.label,
            path=layout.home,
            verdict=listed.verdict,
            changed=listed.changed,
        )
        for layout, listed in modules
        if not wanted or wanted & {layout.name, layout.label}
    )
