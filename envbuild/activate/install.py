"""Install an image behind a modulefile, in a directory that others read.

`envbuild.activate.layout` has the places. A release is staged beside its place
and renamed; the link is swapped in one step; the modulefiles come last. A
release that another image replaces stays for the jobs that run on it: an image
that vanishes under a running job ends the job, on network file systems at once.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.default import check_free, read_default, write_default
from envbuild.activate.layout import IMAGE, STAGE, Layout, made_by_us
from envbuild.activate.model import Module, VerdictNote, check_names, command_names, describe
from envbuild.activate.modulefile import DIALECTS, render
from envbuild.activate.placing import copy_file, link, told, write_file
from envbuild.activate.record import RECORD, Record
from envbuild.activate.wrapper import (
    LAUNCHER,
    VENV_MAKER,
    Launch,
    launcher_text,
    venv_maker_text,
)
from envbuild.errors import Location, RequestError, raise_all
from envbuild.image.model import Manifest
from envbuild.site.inject import Injection
from envbuild.spec.site import Site
from envbuild.system.apptainer import Apptainer
from envbuild.system.files import sync
from envbuild.system.leftovers import own_name, sweep

# Of the image; ranks on the host's MPI are started by the host's.
_LAUNCHERS = frozenset({"mpiexec", "mpirun"})
_READ_ALL = 0o644
_EXECUTE_ALL = 0o755
_BEGUN = ".stage-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What an installation left.

    Attributes
    ----------
    module : str
        ``name/version``: what ``module load`` takes.
    modulefile : Path
        The modulefile that Lmod reads.
    tcl_modulefile : Path
        The same in Tcl, which Environment Modules reads.
    home : Path
        The installation as users reach it.
    commands : tuple of str
        Commands with a wrapper.
    changed : bool
        False when everything was in place already.
    replaced : Path or None
        The release of another image that was in use before and was kept.
    default : bool
        Whether it was chosen as the version that ``module load NAME`` takes.
    warnings : tuple of str
        What the installer should know; empty after a passed test.
    """

    module: str
    modulefile: Path
    tcl_modulefile: Path
    home: Path
    commands: tuple[str, ...]
    changed: bool
    replaced: Path | None
    default: bool
    warnings: tuple[str, ...]

    @property
    def modulefiles(self) -> Path:
        """What ``module use`` takes."""
        return self.modulefile.parents[1]

    def to_data(self) -> dict[str, object]:
        """Return the same as plain data, for JSON."""
        return {
            "module": self.module,
            "modulefile": str(self.modulefile),
            "tcl_modulefile": str(self.tcl_modulefile),
            "modulefiles": str(self.modulefiles),
            "home": str(self.home),
            "commands": list(self.commands),
            "changed": self.changed,
            "replaced": str(self.replaced) if self.replaced else None,
            "default": self.default,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What a release holds: an image unless it is linked, texts with their modes, links to the launcher.

    And the staging directory of what the host lends.
    """

    image: Path | None
    texts: Mapping[str, tuple[str, int]]
    commands: tuple[str, ...]
    injection: Injection | None = None


def install(
    image: Path,
    manifest: Manifest,
    *,
    root: Path,
    verdict: VerdictNote,
    stamp: str = "",
    default: bool = False,
    site: Site | None = None,
    injection: Injection | None = None,
    apart: Mapping[str, str] | None = None,
    apptainer: Apptainer,
    copied: Callable[[int], None] = lambda _: None,
) -> Installed:
    """Install an image so that ``module load NAME/VERSION`` puts its commands on PATH.

    Doing it again changes nothing; another image of the same name and version takes the place.

    Parameters
    ----------
    image : Path
        The SIF; copied, unless the installation refers to it.
    manifest : Manifest
        What it says of itself.
    root : Path
        Where modules live; made if absent.
    verdict : VerdictNote
        What is known of the image on this host.
    stamp : str
        What `stamp_of` returned before the image was checked: refer to the image where it lies, as long as
        it is that one. Empty to copy it.
    default : bool
        Make it the version that ``module load NAME`` takes; otherwise that stays as it is.
    site : Site, optional
        Host paths that every start binds.
    injection : Injection, optional
        What the host lends; with an MPI, the host's own mpiexec starts ranks, and the image's has no wrapper.
    apart : mapping of str to str, optional
        Variables for ranks that srun starts, in containers of their own.
    apptainer : Apptainer
        Its path is written into the launcher.
    copied : callable, optional
        Called with the bytes (count) copied since the last call.

    Raises
    ------
    RequestError
        The root cannot be written or stand in PATH; names are unfit for a module;
        a modulefile of that name is there, or a default chosen, and not by us.
    MachineError
        The disk is full.
    """
    check_names(manifest)
    linked = bool(stamp)
    layout = Layout(root=checked_root(root), name=manifest.name, version=manifest.version)
    launch = _launch(
        manifest,
        layout,
        linked=Path(os.path.abspath(image)) if linked else None,  # noqa: PTH100  # as `checked_root`
        stamp=stamp,
        site=site,
        injection=injection,
        apart=apart or {},
        apptainer=apptainer,
    )
    module = describe(
        manifest,
        commands_directory=launch.home / "bin",
        image=launch.image,
        stamp=launch.stamp,
        verdict=verdict,
    )
    release = layout.release(manifest.digest, linked=linked, hosted=injection is not None)
    content = _content(launch, layout, image=None if linked else image, injection=injection)
    directory = layout.modulefiles[0].parent
    with told(layout.root, "install"):
        _check_free(layout)
        if default:
            check_free(directory)
        changed, replaced = _publish(layout, module, release, content, copied)
        if default:
            changed |= write_default(directory, layout.version)
        chosen = read_default(directory) == layout.version
    lua, tcl = layout.modulefiles
    return Installed(
        module=layout.label,
        modulefile=lua,
        tcl_modulefile=tcl,
        home=layout.home,
        commands=launch.commands,
        changed=changed,
        replaced=replaced,
        default=chosen,
        warnings=_warnings(verdict, launch.image if linked else None),
    )


def _check_free(layout: Layout) -> None:
    """Refuse to write over a modulefile that somebody else made."""
    raise_all(
        [
            RequestError(
                f"there is a module {layout.label} already, and envbuild did not make it",
                at=Location(path=path),
                hint="install under another root with --root DIR, or move that file away",
            )
            for path in layout.modulefiles
            if path.is_symlink() or (path.exists() and not made_by_us(path))
        ]
    )


def _publish(
    layout: Layout, module: Module, release: Path, content: _Content, copied: Callable[[int], None]
) -> tuple[bool, Path | None]:
    """Put everything in place: whether anything had to be done, and the release that was left."""
    _make_directory(layout.shelf, below=layout.root)
    _make_directory(layout.modulefiles[0].parent, below=layout.root)
    filled = _place_release(release, content, copied)
    pointed, replaced = _point(layout.home, release)
    # Last: whoever sees a modulefile finds all that it names.
    written = [
        write_file(path, render(module, dialect), mode=_READ_ALL)
        for path, dialect in zip(layout.modulefiles, DIALECTS, strict=True)
    ]
    return filled or pointed or any(written), replaced


def _content(launch: Launch, layout: Layout, *, image: Path | None, injection: Injection | None) -> _Content:
    record = Record(
        name=layout.name,
        version=layout.version,
        digest=launch.digest,
        image="" if image is not None else str(launch.image),
        lent=injection.identities if injection is not None else {},
    )
    texts = {
        f"bin/{LAUNCHER}": (launcher_text(launch), _EXECUTE_ALL),
        VENV_MAKER: (venv_maker_text(), _READ_ALL),
        RECORD: (record.to_json(), _READ_ALL),
    }
    return _Content(image=image, texts=texts, commands=launch.commands, injection=injection)


def _launch(
    manifest: Manifest,
    layout: Layout,
    *,
    linked: Path | None,
    stamp: str,
    site: Site | None,
    injection: Injection | None,
    apart: Mapping[str, str],
    apptainer: Apptainer,
) -> Launch:
    home = layout.home
    on_host_mpi = injection is not None and bool(injection.mpi)
    return Launch(
        label=layout.label,
        home=home,
        image=linked or home / IMAGE,
        stamp=stamp,
        digest=manifest.digest,
        commands=tuple(name for name in command_names(manifest) if not (on_host_mpi and name in _LAUNCHERS)),
        mpi=manifest.mpi_family,
        apptainer=Path(os.path.abspath(apptainer.program)),  # noqa: PTH100
        binds=site.binds if site is not None else (),
        lent=injection.binds(home / STAGE) if injection else (),
        variables=tuple(sorted(injection.environment.items())) if injection else (),
        apart=tuple(sorted(apart.items())),
    )


def checked_root(root: Path) -> Path:
    """Return an absolute root.

    Raises
    ------
    RequestError
        It cannot stand in PATH.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100  # keeps symbolic links: automounters need them
    bad = sorted({char for char in str(root) if char == ":" or not char.isprintable()})
    if bad:
        raise RequestError(
            f"modules cannot be installed under {str(root)!r}: {bad[0]!r} cannot stand in PATH",
            hint="name another directory with --root DIR",
        )
    return root


def _warnings(verdict: VerdictNote, linked: Path | None) -> tuple[str, ...]:
    warnings = [verdict.warning] if verdict.warning else []
    if linked is not None:
        # Other users could load the module, but not read the image behind it.
        closed = [place for place in reversed(linked.parents) if not place.stat().st_mode & 0o001]
        if closed:
            warnings.append(
                f"only you can start this: others may not enter `{closed[0]}`, where its image lies"
            )
        elif not linked.stat().st_mode & 0o004:
            warnings.append(f"only you can start this: others may not read `{linked}`")
    return tuple(warnings)


def _make_directory(path: Path, *, below: Path) -> None:
    """Make a directory that all may read; the mode of one that exists is its owner's business."""
    if path.is_dir():
        return
    if path != below.parent:
        _make_directory(path.parent, below=below)
    path.mkdir(_EXECUTE_ALL, exist_ok=True)
    path.chmod(_EXECUTE_ALL)


def _place_release(release: Path, content: _Content, copied: Callable[[int], None]) -> bool:
    """Make the release exist as asked; whether anything had to be done."""
    if not release.is_dir():
        sweep(release.parent, before=_BEGUN)
        stage = release.with_name(_BEGUN + own_name())
        try:
            stage.mkdir(_EXECUTE_ALL)
            stage.chmod(_EXECUTE_ALL)
            _fill(stage, content, copied)
            sync(stage)
            stage.rename(release)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Somebody installed the same in the meantime: theirs is as good.
        else:
            sync(release.parent)
            return True
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return _fill(release, content, copied)


def _fill(directory: Path, content: _Content, copied: Callable[[int], None]) -> bool:
    changed = False
    commands = directory / "bin"
    _make_directory(commands, below=directory)
    if content.image is not None and not _same(content.image, directory / IMAGE):
        copy_file(content.image, directory / IMAGE, mode=_READ_ALL, copied=copied)
        changed = True
    for name, (text, mode) in content.texts.items():
        changed |= write_file(directory / name, text, mode=mode)
    if content.injection is not None:
        content.injection.fill_stage(directory / STAGE)
    for command in content.commands:
        changed |= link(commands / command, LAUNCHER)
    return changed


def _point(home: Path, release: Path) -> tuple[bool, Path | None]:
    """Point the link at the release: whether it was other before, and the release that it left."""
    before = home.parent / home.readlink() if home.is_symlink() else None
    changed = link(home, release.name)
    return changed, before if changed and before is not None and before.is_dir() else None


def _same(image: Path, installed: Path) -> bool:
    # The release's name holds the digest of what the image says of itself: what differs
    # nevertheless was added around it, such as a signature, or is damage.
    try:
        return filecmp.cmp(image, installed, shallow=False)
    except FileNotFoundError:
        return False
