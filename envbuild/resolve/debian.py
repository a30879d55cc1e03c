"""Resolves Debian package names to pins, with apt's own solver in a private state directory.

apt runs as the calling user, changes nothing on the machine, and verifies signatures as the machine's
configuration says.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from envbuild.errors import (
    MAX_ERRORS,
    EnvbuildError,
    Location,
    MachineError,
    RequestError,
    bounded,
    did_you_mean,
    raise_all,
)
from envbuild.events import Note, Warned
from envbuild.lock.model import BuildDebPin, DebPin
from envbuild.resolve import apttext
from envbuild.resolve.context import ResolveContext, Upgrade, cannot_write
from envbuild.resolve.origins import Archive, archives
from envbuild.spec.base import BaseImage
from envbuild.spec.chosen_recipe import Build
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from envbuild.system import host, locks, network, process
from envbuild.system.redaction import redact
from envbuild.system.space import has_no_room, refuse_full

_TIMEOUT_S = 600.0
_STUCK = 10  # looks at a full disk, half a second apart
_MOST_HINTS = 20  # looking for similar names takes a while
_NEAR = 3  # difference in length of a misspelt name, in characters
# Another command, or another spec of this one.
_WAITING = Note(text="waiting until other Debian packages are resolved over this store", detail=True)
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_SEARCH = "`apt-cache search WORD` on a machine of that distribution finds names"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianRequest:
    """The Debian packages that an image asks for, who asks for them, and the archives to ask."""

    base: BaseImage
    architecture: str
    site: Site | None
    path: Path
    """The file that asks; the place of errors without a better one."""
    system: tuple[str, ...]
    """Packages beyond those of the base."""
    builds: tuple[Build, ...]
    locations: Mapping[str, Location]
    """Package that the spec names → where."""
    required_by: Mapping[str, str]
    """Package that the spec does not name → who asks for it: ``the recipe demo``."""

    @classmethod
    def of(cls, resolved: ResolvedSpec) -> DebianRequest:
        """Return the Debian packages that a spec, its base image, recipes and builds ask for."""
        base, builds = resolved.base, tuple(resolved.builds.values())
        spec, named = resolved.spec_file, resolved.spec.packages.system
        required_by = {
            name: f"the build of {build.name}" for build in reversed(builds) for name in build.system
        }
        required_by |= {
            name: f"the recipe {chosen.recipe.name}"
            for chosen in reversed(resolved.recipes)
            for name in chosen.recipe.system
        }
        required_by |= dict.fromkeys(base.packages, f"the base image {base.name}")
        return cls(
            base=base,
            architecture=resolved.architecture,
            site=resolved.site,
            path=resolved.path,
            system=resolved.system_requests,
            builds=builds,
            locations={name: spec.at("packages", "system", index) for index, name in enumerate(named)},
            required_by={name: text for name, text in required_by.items() if name not in named},
        )

    def location_of(self, name: str) -> Location:
        """Return where the spec asks for a package; its file if it does not."""
        return self.locations.get(name, Location(path=self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Debs:
    """The Debian packages of an image and of its builds."""

    base: tuple[DebPin, ...] = ()
    """As ``mmdebstrap --variant=apt`` with the base's packages installs them."""
    system: tuple[DebPin, ...] = ()
    """Further packages that the requested ones need."""
    build: tuple[BuildDebPin, ...] = ()
    """Further packages that each build from source needs."""


def resolve_debian(
    request: DebianRequest,
    *,
    previous: Sequence[DebPin],
    preferred: Sequence[DebPin] = (),
    upgrade: Upgrade,
    context: ResolveContext,
) -> Debs:
    """Choose the packages of the base, of the system layer and of builds from source.

    Versions of `previous` pins are kept if the archives still have them, with a warning if not; else those
    of `preferred` pins. Of several pins for one package, the last counts. RequestError: a package is unknown,
    or they cannot be installed together. MachineError: an archive cannot be reached or trusted, or package
    lists are missing offline.
    """
    base_image = request.base
    fixed = _versions(previous, upgrade)
    with _apt(request, context) as apt:
        apt.update()
        apt.prefer({**_versions(preferred, upgrade), **fixed})
        base = apt.solve([_essential(base_image.suite), "apt", *base_image.packages])
        if len(base) <= len(base_image.packages):
            raise RequestError(
                f"the archives of {base_image.name} name no essential packages for {base_image.suite}",
                at=Location(path=request.path),
                hint="see `suite` and `origins` of the base image, and the site file's archives for them",
            )
        apt.check_names(base_image.packages, base)
        system = apt.add(request.system, base)
        build = [
            BuildDebPin(**asdict(pin), layer=build.layer)
            for build in request.builds
            for pin in apt.add(build.system, base)
        ]
    debs = Debs(base=base, system=system, build=tuple(sorted(build)))
    pins = (*base, *system, *build)
    renewed = [pin.name for pin in pins if fixed.get(pin.name, pin.version) != pin.version]
    if renewed:
        text = f"the archives no longer have the locked versions of {', '.join(renewed)}: renewed"
        context.emit(Warned(text=text, hint="`envbuild fetch SPEC --to DIR` keeps locked files for later"))
    return debs


def debian_packages(request: DebianRequest, names: Iterable[str], context: ResolveContext) -> list[str]:
    """Return those names that are packages of a base's archives; none for a finished root.

    MachineError as `resolve_debian`.
    """
    names = [name for name in names if _NAME.fullmatch(name)]
    if not names or request.base.root is not None:
        return []
    with _apt(request, context) as apt:
        apt.update()
        return apt.known(names)


def _essential(suite: str) -> str:
    """Return the apt pattern of the essential packages of a suite, by the suite's own flags."""
    name = re.escape(suite)
    return f"?narrow(?or(?archive(^{name}$),?codename(^{name}$)),?essential)"


def _versions(pins: Iterable[DebPin], upgrade: Upgrade) -> dict[str, str]:
    """Return the versions of pins that may not be upgraded: name → version."""
    return {pin.name: pin.version for pin in pins if not upgrade.covers(pin.name)}


def proxies(addresses: Iterable[str]) -> dict[str, str]:
    """Return the proxies that apt uses for addresses: ``scheme://host`` → proxy, for `network.Client`."""
    finished = process.run(
        [host.find_program("apt-config"), "dump", "Acquire::http", "Acquire::https"],
        env=host.environment(),
        timeout_s=60,
    )
    return apttext.proxies(finished.stdout, addresses)


@contextmanager
def _apt(request: DebianRequest, context: ResolveContext) -> Iterator[_Apt]:
    """Yield an apt whose package lists are kept for the next run of the same base."""
    base = request.base
    identity = f"{base.distribution} {base.suite} {request.architecture} {base.origins}"
    directory = context.cache_dir / "apt" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            context.cache_dir.mkdir(parents=True, exist_ok=True)
            for name in ("lists/partial", "cache/archives/partial", "state"):
                (directory / name).mkdir(parents=True, exist_ok=True)
            (directory / "status").touch()
            # apt itself fails if another process has its lists, instead of waiting.
            lock = locks.exclusive(directory / "envbuild.lock", lambda: context.emit(_WAITING))
            stack.enter_context(lock)
            run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix=".run-", dir=directory))
            apt = _Apt(request, context, directory, Path(run_dir))
        except OSError as error:
            raise cannot_write(context.cache_dir, error) from error
        yield apt


class _Apt:
    """apt with its own state, lists and sources; the machine's proxies and settings stay in force."""

    def __init__(
        self, request: DebianRequest, context: ResolveContext, directory: Path, run_dir: Path
    ) -> None:
        self._request = request
        self._run_dir = run_dir
        self._context = context
        self._archives: dict[str, Archive] = {}
        paths = {
            "Dir::State": directory / "state",
            "Dir::State::status": directory / "status",
            "Dir::State::Lists": directory / "lists",
            "Dir::Cache": directory / "cache",
            "Dir::Cache::pkgcache": directory / "cache/pkgcache.bin",
            "Dir::Etc::SourceList": run_dir / "private.sources",
            "Dir::Etc::Preferences": run_dir / "preferences",
        }
        self._write("apt.conf", apttext.configuration(paths, request.architecture))
        self.prefer({})

    def prefer(self, versions: dict[str, str]) -> None:
        self._write("preferences", apttext.preferences(versions))

    def update(self) -> None:
        """Bring the package lists up to date, and choose the archive that serves each origin."""
        base, site, machine = self._request.base, self._request.site, self._context.machine
        sources = {origin: archives(origin, base.components, site, machine) for origin in base.origins}
        self._use({origin: entries[0] for origin, entries in sources.items()})
        offline = self._context.offline
        if not offline and self._run("apt-get", "update").ok:
            return
        for archive in self._archives.values() if not offline else ():
            if dead := network.dead_proxy(archive.root):
                raise dead
        chosen: dict[str, Archive] = {}
        errors: list[EnvbuildError] = []
        # One by one, so that a second address can replace the first.
        for origin, entries in sources.items():
            for archive in entries:
                self._use({origin: archive})
                error = self._without_lists(origin) if offline else self._not_updated(origin, archive)
                if error is None:
                    chosen[origin] = archive
                    break
                if archive == entries[-1]:
                    errors.append(error)
                elif not offline:
                    self._context.emit(Warned(text=error.problem, hint="the next address is asked"))
        raise_all(errors)
        self._use(chosen)

    def _not_updated(self, origin: str, archive: Archive) -> EnvbuildError | None:
        finished = self._run("apt-get", "-o", "APT::Get::List-Cleanup=0", "update")
        if finished.ok:
            return None
        address, reason = redact(archive.root), apttext.complaint(finished.output)
        problem = f"`{origin}` at {address} cannot be used: {reason}"
        return MachineError(problem, hint="a site file can name another address for it")

    def _without_lists(self, origin: str) -> EnvbuildError | None:
        # apt leaves out lists that were not downloaded.
        words = ("indextargets", "--format", "$(FILENAME)", "Created-By: Packages")
        if self._run("apt-get", *words).stdout.strip():
            return None
        return MachineError(
            f"offline: no package lists for `{origin}` on this machine",
            hint="keep the lock beside the spec, or run `envbuild lock` once with a network",
        )

    def _use(self, archives: dict[str, Archive]) -> None:
        self._archives = archives
        components = self._request.base.components
        stanzas = (
            apttext.stanza(archive, origin.partition(":")[2], components)
            for origin, archive in archives.items()
        )
        self._write("private.sources", "\n".join(stanzas))

    def add(self, requests: Sequence[str], base: Sequence[DebPin]) -> tuple[DebPin, ...]:
        """Return the packages that others need in addition to the base, whose versions stay."""
        if not requests:
            return ()
        names = {pin.name for pin in base}
        solution = self.solve([*(f"{pin.name}={pin.version}" for pin in base), *requests])
        self.check_names(requests, (*base, *solution))
        return tuple(pin for pin in solution if pin.name not in names)

    def solve(self, requests: Sequence[str]) -> tuple[DebPin, ...]:
        """Return what apt would install on an empty system for these names and patterns."""
        finished = self._run("apt-get", "install", "--yes", "--print-uris", *requests)
        if not finished.ok:
            self._raise_solve_error(finished.output)
        files = apttext.parse_uris(finished.stdout)
        if not files:
            return ()
        listed = self._run("apt-cache", "madison", *(file.name for file in files))
        suites = apttext.parse_madison(listed.stdout)
        return tuple(sorted(self._pin(file, suites.get((file.name, file.version), [])) for file in files))

    def known(self, names: Sequence[str]) -> list[str]:
        """Return those names of which the archives have a package."""
        listed = apttext.parse_madison(self._run("apt-cache", "madison", *names).stdout)
        known = {name for name, _ in listed}
        return [name for name in names if name in known]

    def check_names(self, requests: Sequence[str], pins: Sequence[DebPin]) -> None:
        """Reject requested names for which apt took a package of another name."""
        names = {pin.name for pin in pins}
        missing = [name for name in requests if name not in names]
        errors: list[EnvbuildError] = []
        for name in missing[:MAX_ERRORS]:
            problem, hint = apttext.no_package(name, self._run("apt-cache", "showpkg", name).stdout)
            errors.append(self._wrong_name(name, problem, hint))
        raise_all(bounded(errors, more=len(missing) - len(errors)))

    def _pin(self, file: apttext.Uri, suites: Sequence[str]) -> DebPin:
        address = _comparable(file.address)
        roots = {origin: _comparable(archive.root) + "/" for origin, archive in self._archives.items()}
        serving = [origin for origin, root in roots.items() if address.startswith(root)]
        if not serving:
            raise MachineError(
                f"apt takes `{file.name}` from an archive that is not among its sources",
                hint="name that archive under `origins` of the site file, if it is to be used",
            )
        # Suites of one archive share its files: choose the one that lists this version.
        origin = next((origin for origin in serving if origin.partition(":")[2] in suites), serving[0])
        return DebPin(
            name=file.name,
            version=file.version,
            architecture=file.architecture,
            origin=origin,
            file=address.removeprefix(roots[origin]),
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )

    def _raise_solve_error(self, output: str) -> NoReturn:
        errors: list[EnvbuildError] = []
        for number, name in enumerate(apttext.unknown(output)):
            problem = f"`{name}` is not a package of {self._request.base.name}'s archives"
            hint = None
            if number < _MOST_HINTS:
                # Only names of nearly that length are compared, there are many.
                names = self._run("apt-cache", "pkgnames", name[:1]).stdout.split()
                hint = did_you_mean(name, [other for other in names if abs(len(other) - len(name)) <= _NEAR])
            errors.append(self._wrong_name(name, problem, hint))
        for name, providers in apttext.virtual(output).items():
            problem = f"`{name}` is not a package but a name that several packages provide"
            hint = f"name one of them: {', '.join(providers)}" if providers else None
            errors.append(self._wrong_name(name, problem, hint))
        raise_all(errors)
        reason = apttext.conflict(output) or apttext.complaint(output)
        raise RequestError(
            f"the Debian packages cannot be installed together: {reason}",
            at=Location(path=self._request.path),
            hint="leave one out under `packages.system`, or `envbuild lock SPEC --upgrade`",
        )

    def _wrong_name(self, name: str, problem: str, hint: str | None) -> RequestError:
        if required_by := self._request.required_by.get(name):
            problem += f", and {required_by} asks for it"
        return RequestError(problem, at=self._request.location_of(name), hint=hint or _SEARCH)

    def _write(self, name: str, text: str) -> None:
        (self._run_dir / name).write_text(text, encoding="utf-8")

    def _run(self, program: str, *words: str) -> process.Finished:
        full = 0

        def is_stuck() -> bool:
            # apt 2.6 waits without end if a list does not fit on the disk.
            nonlocal full
            full = full + 1 if has_no_room(self._run_dir) else 0
            return full >= _STUCK

        finished = process.run(
            [host.find_program(program), "-c", self._run_dir / "apt.conf", *words],
            env=host.environment(network=True, extra={"DEBIAN_FRONTEND": "noninteractive"}),
            cwd=self._run_dir,
            timeout_s=_TIMEOUT_S,
            give_up=is_stuck,
        )
        if not finished.ok:
            refuse_full("apt failed", finished.output)
        if finished.timed_out and has_no_room(self._run_dir):
            problem = f"apt failed: no space left in `{self._context.cache_dir}`"
            raise MachineError(problem, hint="free some space there")
        if finished.timed_out:
            raise MachineError(
                f"apt did not end within {_TIMEOUT_S:.0f} s",
                hint="`envbuild doctor lock --online` asks its archives",
            )
        return finished


def _comparable(address: str) -> str:
    """Return an address in one form: without credentials and percent signs, file paths in one spelling."""
    path = network.local_path(address)
    if path is not None:
        return str(path)
    parts = urlsplit(redact(address))
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}".rstrip("/")
