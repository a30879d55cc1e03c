"""From Debian package names to pins, with apt's own solver in a private state directory.

apt runs as whoever calls, changes nothing on the machine, and verifies the
archives' signatures as the machine's own configuration tells it to.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, did_you_mean, raise_all
from envbuild.events import Emit, Warned
from envbuild.lock.model import BuildDebPin, DebPin, Lock
from envbuild.resolve import apttext, state
from envbuild.resolve.context import Upgrade
from envbuild.resolve.origins import Archive, Machine, archives
from envbuild.spec.asked import Asked
from envbuild.system import host, network, process
from envbuild.system.redaction import redact

_TIMEOUT_S = 600.0
_MOST_HINTS = 20  # finding what was meant takes a while
_NEAR = 3  # characters by which a misspelt name may be too long or too short


@dataclass(frozen=True, slots=True, kw_only=True)
class Debs:
    """The Debian packages of an image and of its builds.

    Attributes
    ----------
    base : tuple of DebPin
        As ``mmdebstrap --variant=apt`` with the base's packages would have it.
    system : tuple of DebPin
        What the asked packages need beyond it.
    build : tuple of BuildDebPin
        What each build from source needs beyond the base.
    """

    base: tuple[DebPin, ...] = ()
    system: tuple[DebPin, ...] = ()
    build: tuple[BuildDebPin, ...] = ()

    def all(self) -> tuple[DebPin, ...]:
        """Return them one after the other."""
        return (*self.base, *self.system, *self.build)


def resolve_debian(
    asked: Asked,
    *,
    previous: Lock | None,
    upgrade: Upgrade,
    machine: Machine,
    cache_dir: Path,
    emit: Emit,
    offline: bool = False,
) -> Debs:
    """Choose the packages of the base, and what the system layer and builds from source add to them.

    Parameters
    ----------
    previous : Lock or None
        Its versions are kept where the archive still has them.
    cache_dir : Path
        Package lists are kept below it.
    offline : bool
        Use the lists as they were last seen.

    Raises
    ------
    RequestError
        A package is unknown, or they cannot be installed together.
    MachineError
        An archive cannot be reached, or its signature is not trusted; or
        `offline` is set and its package lists were never here.
    """
    sources = {
        origin: archives(origin, asked.base.components, asked.site, machine) for origin in asked.base.origins
    }
    kept = _kept(previous, asked, upgrade)
    with _Apt.open(asked, cache_dir, emit) as apt:
        chosen = apt.update(sources, emit=emit, offline=offline)
        apt.prefer(kept)
        base = apt.solve([*_minimal(asked), "apt", *asked.base.packages], chosen)
        if len(base) <= len(asked.base.packages):
            raise RequestError(
                f"the archives of {asked.base.name} name no essential packages for {asked.base.suite}",
                at=Location(path=asked.path),
                hint="see `suite` and `origins` of the base image, and the site file's archives for them",
            )
        system = _beyond(base, asked.system_requests(), apt, chosen)
        apt.check_names((*asked.base.packages, *asked.system_requests()), (*base, *system))
        build: list[BuildDebPin] = []
        for recipe in asked.built.values():
            added = _beyond(base, recipe.toolchain(), apt, chosen)
            apt.check_names(recipe.toolchain(), (*base, *added))
            build += [BuildDebPin(**asdict(pin), layer=recipe.layer) for pin in added]
    found = Debs(base=base, system=system, build=tuple(sorted(build)))
    _tell_renewed(kept, found.all(), emit)
    return found


def _beyond(
    base: Sequence[DebPin], wanted: Sequence[str], apt: _Apt, chosen: dict[str, Archive]
) -> tuple[DebPin, ...]:
    """Return what some packages need beyond the base, which stays as it is."""
    if not wanted:
        return ()
    names = {pin.name for pin in base}
    whole = apt.solve([*(f"{pin.name}={pin.version}" for pin in base), *wanted], chosen)
    return tuple(pin for pin in whole if pin.name not in names)


def _minimal(asked: Asked) -> tuple[str, ...]:
    """Return apt patterns for what every Debian system has; flags count as the suite itself states them."""
    suite = re.escape(asked.base.suite)
    release = f"?or(?archive(^{suite}$),?codename(^{suite}$))"
    return (f"?narrow({release},?essential)",)


def _kept(previous: Lock | None, asked: Asked, upgrade: Upgrade) -> dict[str, str]:
    if previous is None or previous.base.architecture != asked.architecture:
        return {}
    # A toolchain's pins come first: where they differ from the image's, the image's win.
    pins = (*previous.build_debs, *previous.base_debs, *previous.system_debs)
    return {pin.name: pin.version for pin in pins if not upgrade.covers(pin.name)}


def _tell_renewed(kept: dict[str, str], pins: Sequence[DebPin], emit: Emit) -> None:
    renewed = [pin.name for pin in pins if kept.get(pin.name, pin.version) != pin.version]
    if renewed:
        emit(
            Warned(
                text=f"the archives no longer have what is locked of {', '.join(renewed)}: renewed",
                hint="`envbuild fetch SPEC --to DIR` keeps locked files for later",
            )
        )


def proxies(addresses: Iterable[str]) -> dict[str, str]:
    """Return the proxies that apt is configured to use for some addresses.

    Returns
    -------
    dict
        ``scheme://host`` → address of the proxy, for `network.Client`.
    """
    finished = process.run(
        [host.find_program("apt-config"), "dump", "Acquire::http", "Acquire::https"],
        env=host.environment(),
        timeout_s=60,
    )
    return apttext.proxies(finished.stdout, addresses)


_SEARCH = "`apt-cache search WORD` on a machine of that distribution finds names"


class _Apt:
    """apt with its own state, lists and sources; the machine's proxies and settings stay in force."""

    def __init__(self, asked: Asked, state: Path, run_dir: Path) -> None:
        self._asked = asked
        self._state = state
        self._run_dir = run_dir
        self._conf = run_dir / "apt.conf"
        self._write_configuration()

    @staticmethod
    @contextmanager
    def open(asked: Asked, cache_dir: Path, emit: Emit) -> Iterator[_Apt]:
        identity = f"{asked.base.distribution} {asked.base.suite} {asked.architecture} {asked.base.origins}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        place = cache_dir / "apt" / key
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            for name in ("lists/partial", "cache/archives/partial", "state"):
                (place / name).mkdir(parents=True, exist_ok=True)
            (place / "status").touch()
            # apt itself fails where another has its lists, instead of waiting.
            with (
                state.alone(place, emit),
                tempfile.TemporaryDirectory(prefix=".run-", dir=place) as name,
            ):
                yield _Apt(asked, place, Path(name))
        except OSError as error:
            raise state.cannot_write(cache_dir, error) from error

    def _write_configuration(self) -> None:
        paths = {
            "Dir::State": self._state / "state",
            "Dir::State::status": self._state / "status",
            "Dir::State::Lists": self._state / "lists",
            "Dir::Cache": self._state / "cache",
            "Dir::Cache::pkgcache": self._state / "cache/pkgcache.bin",
            "Dir::Etc::SourceList": self._run_dir / "private.sources",
            "Dir::Etc::Preferences": self._run_dir / "preferences",
        }
        self._conf.write_text(apttext.configuration(paths, self._asked.architecture), encoding="utf-8")
        self.prefer({})

    def prefer(self, versions: dict[str, str]) -> None:
        """Let these versions win wherever an archive has them."""
        text = apttext.preferences(versions)
        (self._run_dir / "preferences").write_text(text, encoding="utf-8")

    def update(
        self, sources: dict[str, tuple[Archive, ...]], *, emit: Emit, offline: bool
    ) -> dict[str, Archive]:
        """Bring the package lists up to date and return the archive that serves each origin."""
        if offline:
            return self._last_seen(sources)
        chosen = {origin: entries[0] for origin, entries in sources.items()}
        self._write_sources(chosen)
        if self._get("update").ok:
            return chosen
        # One of them failed: ask each alone, so that a second address can stand in for the first.
        errors: list[EnvbuildError] = []
        for origin, entries in sources.items():
            for archive in entries:
                self._write_sources({origin: archive})
                finished = self._get("-o", "APT::Get::List-Cleanup=0", "update")
                if finished.ok:
                    chosen[origin] = archive
                    break
                shown = f"`{origin}` at {redact(archive.root)}"
                problem = f"{shown} cannot be used: {apttext.complaint(finished.output)}"
                if archive == entries[-1]:
                    errors.append(MachineError(problem, hint="a site file can name another address for it"))
                else:
                    emit(Warned(text=problem, hint="the next address is asked"))
        raise_all(errors)
        self._write_sources(chosen)
        return chosen

    def _last_seen(self, sources: dict[str, tuple[Archive, ...]]) -> dict[str, Archive]:
        """Return, for each origin, the archive whose lists are on this machine."""
        chosen: dict[str, Archive] = {}
        for origin, entries in sources.items():
            for archive in entries:
                self._write_sources({origin: archive})
                # Lists that were not downloaded are left out by apt.
                if self._get(
                    "indextargets", "--format", "$(FILENAME)", "Created-By: Packages"
                ).stdout.strip():
                    chosen[origin] = archive
                    break
        lacking = [origin for origin in sources if origin not in chosen]
        if lacking:
            names = ", ".join(f"`{origin}`" for origin in lacking)
            raise MachineError(
                f"the package lists of {names} are not on this machine, which is to do without network",
                hint="keep the lock beside the spec, or run `envbuild lock` once where there is a network",
            )
        self._write_sources(chosen)
        return chosen

    def _write_sources(self, chosen: dict[str, Archive]) -> None:
        stanzas = [
            apttext.stanza(archive, origin.partition(":")[2], self._asked.base.components)
            for origin, archive in chosen.items()
        ]
        (self._run_dir / "private.sources").write_text("\n".join(stanzas), encoding="utf-8")

    def solve(self, wanted: Sequence[str], chosen: dict[str, Archive]) -> tuple[DebPin, ...]:
        """Return what apt would install on an empty system for these names and patterns."""
        finished = self._get("install", "--yes", "--print-uris", *wanted)
        if not finished.ok:
            self._refuse(finished.output)
        found = apttext.parse_uris(finished.stdout)
        if not found:
            return ()
        suites = self._suites([entry.name for entry in found])
        return tuple(sorted(self._pin(entry, suites, chosen) for entry in found))

    def check_names(self, wanted: Sequence[str], pins: Sequence[DebPin]) -> None:
        """Refuse asked names that apt met with a package of another name: the asker is to name it."""
        found = {pin.name for pin in pins}
        errors: list[EnvbuildError] = []
        for name in wanted:
            if name not in found:
                problem, hint = apttext.no_package(name, self._cache("showpkg", name).stdout)
                errors.append(self._wrong_name(name, problem, hint))
        raise_all(errors)

    def _suites(self, names: Sequence[str]) -> dict[tuple[str, str], list[str]]:
        finished = self._cache("madison", *names)
        return apttext.parse_madison(finished.stdout)

    def _pin(
        self, entry: apttext.Uri, suites: dict[tuple[str, str], list[str]], chosen: dict[str, Archive]
    ) -> DebPin:
        address = _comparable(entry.address)
        serving = {
            origin: _comparable(archive.root)
            for origin, archive in chosen.items()
            if address.startswith(_comparable(archive.root) + "/")
        }
        if not serving:
            raise MachineError(
                f"apt takes `{entry.name}` from an archive that it was not given",
                hint="name that archive under `origins` of the site file, if it is to be used",
            )
        listed = suites.get((entry.name, entry.version), [])
        # Suites of one archive share its files; the one that lists this version is told.
        origin = next((name for name in serving if name.partition(":")[2] in listed), next(iter(serving)))
        return DebPin(
            name=entry.name,
            version=entry.version,
            architecture=entry.architecture,
            origin=origin,
            file=address[len(serving[origin]) + 1 :],
            size_bytes=entry.size_bytes,
            sha256=entry.sha256,
        )

    def _refuse(self, output: str) -> None:
        at = Location(path=self._asked.path)
        errors: list[EnvbuildError] = []
        for number, name in enumerate(apttext.unknown(output)):
            problem = f"`{name}` is not a package of {self._asked.base.name}'s archives"
            hint = self._near(name) if number < _MOST_HINTS else None
            errors.append(self._wrong_name(name, problem, hint))
        for name, providers in apttext.virtual(output).items():
            problem = f"`{name}` is not a package but a name that several packages provide"
            hint = f"name one of them: {', '.join(providers)}" if providers else _SEARCH
            errors.append(self._wrong_name(name, problem, hint))
        if not errors:
            reason = apttext.conflict(output) or apttext.complaint(output)
            problem = f"the Debian packages cannot be installed together: {reason}"
            errors.append(
                RequestError(
                    problem,
                    at=at,
                    hint="leave one out under `packages.system`, or `envbuild lock SPEC --upgrade`",
                )
            )
        raise_all(errors)

    def _wrong_name(self, name: str, problem: str, hint: str | None) -> RequestError:
        asked = self._asked
        return RequestError(
            problem + asked.system_asker(name), at=asked.system_place(name), hint=hint or _SEARCH
        )

    def _near(self, name: str) -> str | None:
        """Return what may have been meant; only names of nearly that length are looked at, there are many."""
        known = self._cache("pkgnames", name[:1]).stdout.split()
        return did_you_mean(name, [word for word in known if abs(len(word) - len(name)) <= _NEAR])

    def _get(self, *words: str) -> process.Finished:
        return self._run("apt-get", *words)

    def _cache(self, *words: str) -> process.Finished:
        return self._run("apt-cache", *words)

    def _run(self, program: str, *words: str) -> process.Finished:
        finished = process.run(
            [host.find_program(program), "-c", self._conf, *words],
            env=host.environment(network=True, extra={"DEBIAN_FRONTEND": "noninteractive"}),
            cwd=self._run_dir,
            timeout_s=_TIMEOUT_S,
        )
        if finished.timed_out:
            raise MachineError(
                f"apt did not end within {_TIMEOUT_S:.0f} s",
                hint="`envbuild doctor lock --online` tells whether its archives answer",
            )
        return finished


def _comparable(address: str) -> str:
    """Return an address in one form: without credentials and percent signs, file paths in one spelling."""
    path = network.local_path(address)
    if path is not None:
        return str(path)
    parts = urlsplit(redact(address))
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}".rstrip("/")
