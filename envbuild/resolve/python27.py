"""Locates wheels of exact versions with pip, for Python 2.7, which uv does not support.

Nothing is resolved: a spec or recipe for such a base names the complete list, each as ``name==version``.

Sources: pip's user guide (configuration, environment), pip's reference (installation report, version 1).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, raise_all, some
from envbuild.events import Warned
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution
from envbuild.resolve.origins import PythonSources
from envbuild.spec.python_platform import platforms
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.system import host, network, process
from envbuild.system.redaction import redact, redact_text
from envbuild.system.space import refuse_full

_TIMEOUT_S = 900.0
_MAX_FAILURES = 20  # of pip: it names one requirement, and stops
_HINT = "an index or a directory with wheels (find-links) must have it for this Python"


@dataclass(frozen=True, slots=True)
class Python27:
    """pip for one image whose Python is 2.7; the indexes of named origins are not asked."""

    request: PythonRequest
    sources: PythonSources
    context: ResolveContext

    def resolve(
        self,
        requirements: Sequence[RequirementEntry],
        *,
        constraints: Sequence[RequirementEntry] = (),
        preferred_versions: Mapping[str, str],
    ) -> Resolution:
        """Return the distributions that the requirements name; each must be exact, so none is preferred."""
        del preferred_versions
        target = self.request.target
        versions: dict[str, str] = {}
        errors: list[EnvbuildError] = []
        for entry in requirements:
            if not entry.applies(target.environment):
                continue
            name, version = entry.name, _exact(entry.requirement)
            if version is None or entry.requirement.extras:
                problem = f"`{entry.text}` is not of the form `name==version`"
                hint = f"nothing resolves for Python {target.version}: name all, exactly"
                errors.append(RequestError(problem, at=self._at, hint=hint))
            elif versions.setdefault(name, version) != version:
                problem = f"`{name}` is to be {versions[name]} and {version}"
                errors.append(RequestError(problem, at=self._at, hint="name it once"))
        for entry in constraints:
            bound, chosen = entry.requirement, versions.get(entry.name)
            if chosen is not None and not bound.specifier.contains(chosen, prereleases=True):
                problem = f"the constraint `{bound}` excludes {bound.name} {chosen}"
                at = self.request.location_of(entry.name)
                errors.append(RequestError(problem, at=at, hint="change one of them"))
        raise_all(errors)
        return Resolution(
            requirements=requirements,
            constraints=constraints,
            distributions=tuple(
                ResolvedDistribution(name=name, version=version) for name, version in versions.items()
            ),
        )

    def skipped_releases(
        self, resolution: Resolution, new: Sequence[str], files: Mapping[str, Sequence[DistFile]]
    ) -> tuple[Warned, ...]:
        """Return nothing: each release is asked for."""
        del resolution, new, files
        return ()

    def origin_of(self, file: DistFile) -> str:
        """Return the logical origin of a file."""
        return self.sources.origin_of(file.address)

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the wheel of each exact version, with its address; none if no origin has it."""
        remaining = dict(sorted(versions.items()))
        failures = 0
        while remaining:
            finished, report = self._run([f"{name}=={version}" for name, version in remaining.items()])
            unreadable = re.findall(r"Could not fetch URL (\S+): (?!404)(.*)", finished.output)
            if finished.ok:
                for address, _ in unreadable:
                    text = f"`{redact(address)}` cannot be read; it is left out"
                    self.context.emit(Warned(text=text, hint="another origin has to serve its packages"))
                return {file.name: [file] for file in self._files(report)}
            if unreadable:
                address, reason = unreadable[0]
                if error := network.dead_proxy(address):
                    raise error
                raise MachineError(f"`{redact(address)}` cannot be read: {redact_text(reason)}", hint=_HINT)
            # pip stops at one unavailable package; a run without that one reports the next.
            missing = re.search(r"No matching distribution found for ([A-Za-z0-9._-]+)==", finished.stderr)
            if missing is None or remaining.pop(canonicalize_name(missing[1]), None) is None:
                reasons = re.findall(r"^ERROR: (.*)", finished.output, re.MULTILINE)
                problem = f"pip failed: {redact_text(reasons[-1]) if reasons else 'no reason'}"
                raise MachineError(problem, hint="see the `pip` in envbuild's environment")
            failures += 1
            if remaining and failures == _MAX_FAILURES:
                unavailable = sorted(versions.keys() - remaining.keys())
                problem = f"{some(unavailable)} have no wheel, and {len(remaining)} others are not examined"
                raise RequestError(
                    problem, at=self._at, hint="correct these first: pip reports one at a time"
                )
        return {}

    def _run(self, requirements: Sequence[str]) -> tuple[process.Finished, str]:
        target = self.request.target
        # `-vv`: otherwise pip does not mention indexes that it could not read.
        argv = [sys.executable, "-I", "-m", "pip", "install", "-vv", "--dry-run"]
        argv += ["--no-input", "--no-deps", "--no-cache-dir", "--ignore-installed", "--only-binary", ":all:"]
        argv += ["--python-version", target.version, "--implementation", "cp", "--abi", target.abi]
        for platform in platforms(target.architecture, target.glibc):
            argv += ["--platform", platform]
        with tempfile.TemporaryDirectory() as name:
            report = Path(name, "report.json")
            argv += ["--report", str(report), *requirements]
            finished = process.run(argv, env=self._environment(), timeout_s=_TIMEOUT_S)
            if not finished.ok:
                refuse_full("pip failed", finished.output)
            return finished, report.read_text(encoding="utf-8") if finished.ok else ""

    def _environment(self) -> dict[str, str]:
        # Addresses may hold credentials: other users see a process's arguments, not its environment.
        extra = {"PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        paths = [(link, network.local_path(link)) for link in self.sources.find_links]
        links = [path.as_uri() if path else link for link, path in paths if path or not self.context.offline]
        extra["PIP_FIND_LINKS"] = " ".join(links)
        if self.sources.no_index or self.context.offline:
            extra["PIP_NO_INDEX"] = "1"
        elif self.sources.indexes:
            # All further ones are declared mirrors of the first.
            extra["PIP_INDEX_URL"], *mirrors = self.sources.indexes
            extra["PIP_EXTRA_INDEX_URL"] = " ".join(mirrors)
        return host.environment(network=True, extra=extra)

    def _files(self, report: str) -> Iterator[DistFile]:
        for entry in json.loads(report)["install"]:
            download = entry["download_info"]
            if digest := download["archive_info"].get("hashes", {}).get("sha256"):
                yield DistFile(
                    name=canonicalize_name(entry["metadata"]["name"]),
                    version=entry["metadata"]["version"],
                    file_name=unquote(urlsplit(download["url"]).path.rpartition("/")[2]),
                    address=self.sources.with_credentials(download["url"]),
                    sha256=digest,
                )

    @property
    def _at(self) -> Location:
        return Location(path=self.request.path)


def _exact(requirement: Requirement) -> str | None:
    """Return the version if a requirement names exactly one."""
    parts = list(requirement.specifier)
    if len(parts) == 1 and parts[0].operator in ("==", "===") and not parts[0].version.endswith(".*"):
        return str(Version(parts[0].version))
    return None
