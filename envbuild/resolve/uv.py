"""Run uv: one resolution, or the addresses of exact versions."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import MachineError, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.resolve import state, uvfault, uvtext
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uvcache import without_private_addresses
from envbuild.spec.asked import Asked
from envbuild.system import clock, host, network, process
from envbuild.system.redaction import redact, redact_text

# `pytorch-cpu`, `pytorch-cu130`: where no address is configured, uv knows PyTorch's own index.
_BUILTIN = "pytorch-"
# Each further failure takes a run of uv.
_FURTHER_FAILURES_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """The indexes of one run, all of them reachable when they were chosen.

    Attributes
    ----------
    default : str
        Address of the ``pypi`` origin; empty for uv's own default.
    named : dict of str to str
        Other origins that can be asked.
    owners : dict of str to str
        Distribution → origin in `named` that it is taken from.
    origins : dict of str to str
        Distribution → origin that its recipe names, reachable or not.
    """

    default: str
    named: Mapping[str, str]
    owners: Mapping[str, str]
    origins: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Uv:
    """uv for one image: its Python, platform, sources and cache.

    Attributes
    ----------
    sources : PythonSources
        Where distributions come from.
    cache_dir : Path
        uv's cache and its log are kept in the user's own directory below it.
    offline : bool
        Whether uv may not use the network.
    """

    asked: Asked
    sources: PythonSources
    cache_dir: Path
    client: network.Client
    emit: Emit
    offline: bool = False
    _indexes: Indexes | None = field(default=None, init=False)
    _backend: str = field(default="", init=False)

    @property
    def log(self) -> Path:
        """File with what uv wrote at its last failure."""
        return self.cache_dir / "uv-resolution.log"

    def indexes(self) -> Indexes:
        """Return the indexes to ask; those that cannot be reached are told and left out."""
        if self._indexes is None:
            self._indexes = self._choose()
        return self._indexes

    def telling(self, emit: Emit) -> Uv:
        """Return the same, which tells somebody else."""
        other = replace(self, emit=emit)
        other._indexes, other._backend = self.indexes(), self._backend
        return other

    def may_ask_pytorch(self) -> bool:
        """Return whether uv may ask PyTorch's own index: nobody named its address, or a place with wheels."""
        indexes = self.indexes()
        lacking = (origin for origin in indexes.origins.values() if origin not in indexes.named)
        return not self.sources.find_links and any(origin.startswith(_BUILTIN) for origin in lacking)

    def resolve(self, requirements: Sequence[str], *, keep: Mapping[str, str]) -> tuple[uvtext.Resolved, ...]:
        """Resolve requirements together.

        Parameters
        ----------
        keep : mapping
            Distribution → version that is preferred where it fits.

        Raises
        ------
        RequestError
            They cannot be met together.
        MachineError
            An index cannot be reached.
        """
        pins = "".join(f"{name}=={version}\n" for name, version in sorted(keep.items()))
        options = ("--format", "requirements.txt", "--annotation-style", "line", "--emit-index-annotation")
        finished, text = self._compile(requirements, options, before=pins)
        if not finished.ok:
            raise_all(self._failures(requirements, options, pins, finished))
        for warning in uvtext.warnings(finished.stderr):
            self.emit(Warned(text=f"uv: {warning}"))
        return uvtext.parse_resolution(text)

    def locate(self, versions: Mapping[str, str]) -> dict[str, list[uvtext.Offer]]:
        """Return the files of exact versions, with their addresses: wheels, or the source where it is built.

        Raises
        ------
        RequestError
            One of them is nowhere to be found.
        """
        # `==2.13.0` would also take `2.13.0+cpu`.
        exact = [f"{name}==={version}" for name, version in sorted(versions.items())]
        finished, text = self._compile(exact, ("--format", "pylock.toml", "--no-deps"))
        if not finished.ok:
            self._keep([finished.stderr])
            raise self._failure(finished)
        return uvtext.parse_pylock(text)

    def origin(self, found: uvtext.Resolved, address: str) -> str:
        """Return the logical origin of what uv took from an address; empty where only its index is known."""
        indexes = self.indexes()
        source = redact(found.source) if found.source else ""
        for origin, index in indexes.named.items():
            if source and source.rstrip("/") == redact(index).rstrip("/"):
                return origin
        if self._backend and indexes.origins.get(found.name, "").startswith(_BUILTIN):
            return indexes.origins[found.name]
        place = address or source
        local = bool(place) and network.local_path(place) is not None
        links = {redact(link).rstrip("/") for link in self.sources.find_links}
        if local or source.rstrip("/") in links:
            return indexes.origins.get(found.name, "find-links")
        return "pypi"

    def _choose(self) -> Indexes:
        owners: dict[str, str] = {}
        origins: dict[str, str] = {}
        named: dict[str, str] = {}
        for chosen in self.asked.recipes:
            texts = (text.replace("{version}", chosen.version) for text in chosen.variant.requirements)
            own = {canonicalize_name(Requirement(text).name) for text in texts} | set(chosen.recipe.owns)
            for origin in reversed(chosen.variant.origins if own else ()):
                origins.update(dict.fromkeys(own, origin))
                if origin == "pypi" or self.sources.no_index:
                    continue
                probe = min(own)
                address = named.get(origin) or self._reachable(
                    origin, self.sources.named.get(origin, ()), probe
                )
                if address:
                    named[origin] = address
                    owners.update(dict.fromkeys(own, origin))
        default = ""
        if len(self.sources.indexes) == 1:
            default = self.sources.indexes[0]
        elif self.sources.indexes:
            default = self._reachable("pypi", self.sources.indexes, "") or self.sources.indexes[0]
        return Indexes(default=default, named=named, owners=owners, origins=origins)

    def _reachable(self, origin: str, addresses: Iterable[str], probe: str) -> str:
        for address in addresses:
            path = network.local_path(address)
            if self.offline or (path is not None and path.is_dir()):
                return address
            try:
                code = (
                    0
                    if path is not None
                    else self.client.status(f"{address.rstrip('/')}/{probe}".rstrip("/") + "/")
                )
            except network.NetworkError:
                code = 0
            if 0 < code < 400 or code == 404:
                return address
            said = f"answers with status {code}" if code else "cannot be reached"
            text = f"the origin `{origin}` at {redact(address)} {said}; it is left out"
            self.emit(Warned(text=text, hint="another origin has to serve what it would have"))
        return ""

    def _compile(
        self, requirements: Sequence[str], options: Sequence[str], *, before: str = ""
    ) -> tuple[process.Finished, str]:
        """Run uv; where only PyTorch's own index can have what is lacking, once more with that."""
        finished, text = self._run(requirements, options, before=before)
        backend = "" if finished.ok or self._backend else self._builtin_backend(finished.stderr)
        if not backend:
            return finished, text
        self._backend = backend
        again, text = self._run(requirements, options, before=before)
        if again.ok:
            return again, text
        self._backend = ""
        # Out of reach, it says nothing about what was asked: the first answer does.
        unreachable = uvfault.is_unreachable(again.stderr)
        return (finished if unreachable else again), ""

    def _builtin_backend(self, stderr: str) -> str:
        """Return uv's word for the index that has what is lacking: it knows PyTorch's own by itself."""
        origin = self._lacking_origin(stderr)
        if origin is None or self.offline or self.sources.no_index or not origin[1].startswith(_BUILTIN):
            return ""
        return origin[1].removeprefix(_BUILTIN)

    def _run(
        self, requirements: Sequence[str], options: Sequence[str], *, before: str
    ) -> tuple[process.Finished, str]:
        indexes = self.indexes()
        base = self.asked.base
        try:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".uv-", dir=self.cache_dir) as name:
                work = Path(name)
                text = uvtext.project(
                    requirements, python=base.python.version, sources=indexes.owners, indexes=indexes.named
                )
                (work / "pyproject.toml").write_text(text, encoding="utf-8")
                # The one configuration that counts: no other is read beside a named one.
                (work / "uv.toml").write_text(uvtext.metadata(self._built()), encoding="utf-8")
                # uv takes what already stands in its output file for preferences.
                suffix = "pylock.toml" if "pylock.toml" in options else "requirements.txt"
                output = work / suffix
                if before:
                    output.write_text(before, encoding="utf-8")
                with without_private_addresses(self._cache()):
                    finished = process.run(
                        [
                            *self._argv(options),
                            *("--config-file", work / "uv.toml", "--output-file", output),
                            work / "pyproject.toml",
                        ],
                        env=self._environment(indexes),
                        cwd=work,
                        timeout_s=uvfault.TIMEOUT_S,
                        memory_bytes=uvfault.memory_bytes(),
                    )
                return finished, output.read_text(encoding="utf-8") if finished.ok else ""
        except OSError as error:
            raise state.cannot_write(self.cache_dir, error) from error

    def _built(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return what is built from its source: distribution → version and requirements."""
        found = self.asked.built.items()
        return {name: (chosen.version, chosen.recipe.python) for name, chosen in found}

    def _cache(self) -> Path:
        return self.cache_dir / "uv"

    def _argv(self, options: Sequence[str]) -> list[str | Path]:
        base = self.asked.base
        argv: list[str | Path] = [find_uv(), "pip", "compile", "--no-header"]
        argv += ["--color", "never", "--no-progress", "--cache-dir", self._cache()]
        argv += ["--python", sys.executable, "--no-python-downloads", "--python-version", base.python.version]
        argv += ["--python-platform", uvtext.platform(self.asked.architecture, base.glibc)]
        argv += ["--only-binary", ":all:", *options]
        for name in sorted(self._built()):
            argv += ["--no-binary", name]
        if self.sources.no_index:
            argv.append("--no-index")
        if self.offline:
            argv.append("--offline")
        if self._backend:
            argv += ["--torch-backend", self._backend]
        return argv

    def _environment(self, indexes: Indexes) -> dict[str, str]:
        # Addresses may hold credentials: other users see a process's arguments, not its environment.
        extra = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
        if indexes.default and not self.sources.no_index:
            extra["UV_DEFAULT_INDEX"] = indexes.default
        if self.sources.find_links:
            extra["UV_FIND_LINKS"] = ",".join(self.sources.find_links)
        return host.environment(network=True, extra=extra)

    def _failures(
        self, requirements: Sequence[str], options: Sequence[str], pins: str, finished: process.Finished
    ) -> list[RequestError | MachineError]:
        """Return what is wrong with requirements: of several that nobody has, each that is found in time."""
        found, said = [self._failure(finished)], [finished.stderr]
        left, deadline = list(requirements), clock.seconds() + _FURTHER_FAILURES_S
        # Without what is lacking, uv tells of the next: whatever is wrong then was so before.
        while (lacking := set(uvtext.lacking(finished.stderr))) and clock.seconds() < deadline:
            others = [each for each in left if canonicalize_name(Requirement(each).name) not in lacking]
            if not others or len(others) == len(left):
                break
            left = others
            finished, _ = self._compile(left, options, before=pins)
            if finished.ok:
                break
            found.append(self._failure(finished))
            said.append(finished.stderr)
        self._keep(said)
        return found

    def _keep(self, said: Sequence[str]) -> None:
        self.log.write_text(redact_text("\n".join(said)), encoding="utf-8")

    def _failure(self, finished: process.Finished) -> RequestError | MachineError:
        stderr = finished.stderr
        fault = uvfault.fault(finished, self.log)
        if fault is not None:
            return fault
        base = self.asked.base
        sourced = uvtext.without_wheels(stderr)
        if sourced:
            names = ", ".join(f"`{name}`" for name in sourced)
            where = f"Python {base.python.version} with glibc {base.glibc} on {self.asked.architecture}"
            return RequestError(
                f"{names}: no wheel fits {where}{self._told_askers(names, bounds=False)}",
                at=self.asked.python_place(names),
                hint=f"{uvtext.reason(stderr)}; a source archive is built where a recipe says how (`source`)",
            )
        hint = (
            self._origin_hint(stderr) or f"loosen or drop one of them; uv's whole reasoning is in {self.log}"
        )
        if self.offline:
            hint = f"only what is on this machine was asked; {hint}"
        reason = uvtext.reason(stderr)
        problem = f"no set of Python packages meets what was asked: {reason}"
        at = self.asked.python_place(reason)
        return RequestError(problem + self._told_askers(reason, bounds=True), at=at, hint=hint)

    def _told_askers(self, text: str, *, bounds: bool) -> str:
        """Return lines on which recipes ask for what a text names; empty where the spec alone does."""
        askers = self.asked.askers(text, bounds=bounds)
        return "".join(f"\n  the recipe `{name}` asks for {wanted}" for name, wanted in askers)

    def _lacking_origin(self, stderr: str) -> tuple[str, str] | None:
        """Return a distribution that was not found and the origin without an address that should have it."""
        indexes = self.indexes()
        for name, origin in sorted(indexes.origins.items()):
            lacking = f"no version of {name}" in stderr or f"{name} was not found" in stderr
            if lacking and origin not in indexes.named:
                return name, origin
        return None

    def _origin_hint(self, stderr: str) -> str | None:
        """Return what to configure where what is lacking should come from an origin without an address."""
        found = self._lacking_origin(stderr)
        if found is None:
            return None
        name, origin = found
        return (
            f"`{name}` comes from the origin `{origin}`, which cannot be asked: a site file gives it "
            f"an address (`origins: {{{origin}: [ADDRESS]}}`) or names a place with the wheel "
            "(`find_links`; pip's find-links does too)"
        )


def find_uv() -> Path:
    """Return the uv program that came with the Python package.

    Raises
    ------
    MachineError
        It is not installed.
    """
    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise MachineError(
            "the `uv` program is not installed beside its Python package",
            hint="`python3 -m pip install uv` in envbuild's environment",
        ) from error
