"""Images that commands take: files, directories, modules, and references, whose images are pulled once."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild import workflows
from envbuild.activate.install import absolute
from envbuild.activate.installed import InstalledModule, find_installed, not_installed
from envbuild.activate.layout import parse_module
from envbuild.errors import EnvbuildError, RequestError, collected, raise_all
from envbuild.events import Warned
from envbuild.quoting import shell_path
from envbuild.system.files import exists, is_directory, neighbour_hint
from envbuild.system.references import Reference
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings

_MAX_DIRECTORIES = 100_000

_HINT_DIRECTORY = "name one with modules (`module install --root`) or images"
_HINT_NO_IMAGES = "name a directory of modules (`module install --root`), or of SIF files"
# Of a path, which keeps one slash; the other names of images are those of other programs.
_SCHEME = re.compile(r"^(docker|oras):/(?=[^/])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImage:
    """An image that a command line names, or that lies below a directory which it names."""

    path: Path
    """The file, or a reference; the directory of a module that does not say which image it starts."""
    module: InstalledModule | None = None
    """The module that starts it; None for a file."""

    @classmethod
    def of(cls, module: InstalledModule) -> NamedImage:
        """Return the image of a module."""
        return cls(path=module.image or module.layout.home, module=module)

    def file(self, settings: Settings) -> Path:
        """Return the file, as `image_file`; RequestError for a module that has none."""
        if self.module is None:
            return image_file(self.path, settings)
        if self.module.image is None:
            problem = "; ".join(self.module.problems) or "its record cannot be read"
            hint = "install the module again, or uninstall it"
            raise RequestError(f"{self.module.layout.label}: {problem}", hint=hint)
        return self.module.image


def named_images(
    settings: Settings, words: Sequence[Path] = (), *, root: Path | None = None, every: Sequence[Path] = ()
) -> Members[NamedImage]:
    """Return the images that words of a command line name, and those below the directories `every`.

    A word is a file, a reference, or a directory for all that is below it; with `root`, the module
    ``NAME/VERSION`` there, or ``NAME`` for all its versions. Each image is there once, and named once: if
    two would have one name, by their paths. A directory of `every` without any is warned of.

    RequestError: nothing is named, a directory has no image or cannot be read, or a module is not installed;
    all are reported at once.
    """
    if not words and not every:
        hint = "name files, directories, or modules with --root DIR"
        raise RequestError("no image or module is named", hint=hint)
    if root is not None and every:
        raise RequestError("--all takes no --root", hint="`--all DIR` takes all that is below DIR")
    errors: list[EnvbuildError] = []
    named: list[tuple[str, NamedImage]] = []
    many = len(words) > 1 or bool(every)
    if root is not None:
        with collected(errors):
            modules = _modules_named([str(word) for word in words], root)
            named += modules
            many = many or len(modules) > 1
    else:
        for word in words:
            with collected(errors):
                if is_directory(word):
                    many = True
                    below = list(images_below(word))
                    if not below:
                        # What judges nothing must not end as what judged all.
                        raise RequestError(f"there are no images in `{word}`", hint=_HINT_NO_IMAGES)
                    named += ((name if image.module else str(image.path), image) for name, image in below)
                else:
                    _check_not_a_module(word)
                    named.append((str(word), NamedImage(path=word)))
    for directory in every:
        with collected(errors):
            named += _all_below(directory, settings)
    raise_all(errors)
    return Members(items=tuple(_unique(named)), many=many)


def _unique(named: Iterable[tuple[str, NamedImage]]) -> Iterator[Member[NamedImage]]:
    """Yield each image once, under a name that no other has."""
    images = {(image.path, image.module is None): (name, image) for name, image in named}
    counts = Counter(name for name, _ in images.values())
    for name, image in images.values():
        path = image.path if image.module is None else image.module.layout.home
        yield Member(name=name if counts[name] == 1 else str(path), path=image.path, result=image)


def _modules_named(names: Sequence[str], root: Path) -> list[tuple[str, NamedImage]]:
    modules = find_installed(existing_directory(root, hint=_HINT_DIRECTORY))
    known = {name for module in modules for name in (module.layout.name, module.layout.label)}
    raise_all([not_installed(name, root) for name in dict.fromkeys(names) if name not in known])
    return [
        (module.layout.label, NamedImage.of(module))
        for module in modules
        if {module.layout.name, module.layout.label} & {*names}
    ]


def _all_below(directory: Path, settings: Settings) -> list[tuple[str, NamedImage]]:
    images = list(images_below(directory))
    if not images:
        settings.emit(Warned(text=f"there are no images in `{directory}`", hint=_HINT_NO_IMAGES))
    return images


def images_below(directory: Path) -> Iterator[tuple[str, NamedImage]]:
    """Yield the modules below a directory, and the SIF files, each directory in order of name.

    Modules have their labels as names, files their path below the directory. Hidden files and directories are
    skipped, and so are links to directories and the files of modules. RequestError: there is no such
    directory, it cannot be read, or it holds too many.
    """

    def refuse(error: OSError) -> None:
        hint = "name a directory that you can read"
        raise RequestError(f"`{error.filename}` cannot be read: {error.strerror}", hint=hint) from error

    top = existing_directory(directory, hint=_HINT_DIRECTORY)
    for number, (path, directories, files) in enumerate(os.walk(top, onerror=refuse)):
        if number >= _MAX_DIRECTORIES:
            problem = f"`{directory}` holds more than {_MAX_DIRECTORIES:,} directories"
            raise RequestError(problem, hint="name one further down")
        modules = find_installed(Path(path)) if {"modulefiles", "envs"} & {*directories} else ()
        yield from ((module.layout.label, NamedImage.of(module)) for module in modules)
        own = {"modulefiles", "envs"} if modules else set()
        directories[:] = sorted(name for name in directories if name[0] != "." and name not in own)
        for name in sorted(files):
            if name.endswith(".sif") and name[0] != ".":
                below = Path(path, name).relative_to(top)
                yield str(below), NamedImage(path=directory / below)


def existing_directory(path: Path, *, hint: str) -> Path:
    """Return the absolute path of a directory; RequestError if there is none."""
    if not is_directory(path):
        raise RequestError(f"there is no directory `{path}`", hint=hint)
    return absolute(path)


def _check_not_a_module(image: Path) -> None:
    """Raise a RequestError for what can only be a module, named without its root."""
    if image.suffix == ".sif" or exists(image) or neighbour_hint(image, ".sif"):
        return
    try:
        parse_module(str(image))
    except RequestError:
        return  # reading it as an image reports why
    hint = f"a module is named with its root: `{shell_path(image)} --root DIR`"
    raise RequestError(f"there is no image `{image}`", hint=hint)


def image_file(argument: Path, settings: Settings) -> Path:
    """Return the file of the image that a command line names.

    A file that exists is returned as it is, and so is a path that cannot name an image in a registry:
    opening it says why. ``HOST/NAME:TAG`` and ``HOST/NAME@sha256:…`` are pulled into the store, unless it has
    the image. The registry is asked for the manifest of a tag each time, for that of a digest once.
    RequestError, MachineError: as `pull_image`; or others can replace the store's files.
    """
    reference = reference_of(argument)
    if reference is None:
        return argument
    return workflows.references.image_file(reference, settings)


def by_digest(argument: Path) -> Path:
    """Return a reference with the digest that it has now, for jobs that start later; a file as it is."""
    reference = reference_of(argument)
    if reference is None or reference.digest:
        return argument
    digest = workflows.references.current_digest(reference)
    return Path(f"{reference.host}/{reference.repository}@{digest}")


def reference_of(argument: Path) -> Reference | None:
    """Return the reference that a command line names; None for a file, and for any other path.

    Without a tag or digest it is a path, perhaps a misspelled one.
    """
    text = _SCHEME.sub(r"\1://", str(argument))
    if exists(argument) or not re.search(r":[^/]+$", text.partition("://")[2] or text):
        return None
    with contextlib.suppress(RequestError):
        reference = Reference.parse(text)
        # Docker's name for its hub, and not the host of a registry.
        return reference if reference.host != "docker.io" else None
    return None


def check_is_a_file(argument: Path) -> None:
    """Raise a RequestError for a reference, if what a command writes refers to the image's file later."""
    if (reference := reference_of(argument)) is not None:
        problem = f"`{reference}` has no file that stays: `cache prune` removes images of registries"
        hint = f"`envbuild pull {reference} -o FILE.sif`, and name that file"
        raise RequestError(problem, hint=hint)


@contextlib.contextmanager
def description_file(argument: Path, settings: Settings) -> Iterator[tuple[Path, bool]]:
    """Yield a file with all that describes the image that a command line names, and whether it is whole.

    If envbuild built an image of a registry, and the store lacks it, the data of layers are not fetched: the
    file is a temporary one with zeros there. The rest as `image_file`.
    """
    reference = reference_of(argument)
    if reference is None:
        yield argument, True
        return
    with workflows.references.description_file(reference, settings) as described:
        yield described
