"""Fetch Debian packages for ourselves alone: checked as apt checks them, and installed nowhere.

With an apt configuration of its own, so that the machine's sources and installed packages stay as they are.
"""

import fcntl
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import common
from common import SetupError

# envbuild is not installed yet; this module of it needs the standard library only.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from envbuild.resolve.aptsources import AptSource, read_sources

DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE_ALIASES = frozenset({"oldstable", "stable", "testing", "unstable", "sid"})
URI_SCHEMES = frozenset(
    {"http", "https", "file", "copy", "mirror", "mirror+file", "mirror+http", "mirror+https"}
)
"""Ways to an archive that also lead to its other suites; a CD-ROM does not."""


def release() -> dict[str, str]:
    """Read which Linux this is."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def debian_mirrors(sources: Sequence[AptSource], codename: str) -> list[tuple[str, str]]:
    """Choose the addresses that are likely to be a whole Debian archive, the likeliest first.

    Third parties name their suites after Debian's, so several candidates may remain: whether one
    has a package shows only when it is asked.

    Parameters
    ----------
    sources : sequence of AptSource
        The sources of this machine's apt.
    codename : str
        Release that this machine runs, such as ``bookworm``.

    Returns
    -------
    list of (str, str)
        Address, and the keys that its signature is checked with, as ``Signed-By`` takes them.
    """
    suites = SUITE_ALIASES | {codename}
    mirrors: dict[str, str] = {}
    for source in sources:
        if "main" not in source.components or not suites.intersection(source.suites):
            continue
        for uri in source.uris:
            if urlsplit(uri).scheme in URI_SCHEMES:
                mirrors.setdefault(uri.rstrip("/"), source.signed_by or DEBIAN_KEYRING)
    return sorted(mirrors.items(), key=lambda item: not item[0].endswith("/debian"))


class PrivateApt:
    """An apt that knows one suite of one mirror, and nothing of this machine.

    Parameters
    ----------
    directory : Path
        Where its configuration, lists and downloads live.
    uri, suite, signed_by : str
        The archive, and the keys that it must be signed with.
    """

    def __init__(self, directory: Path, *, uri: str, suite: str, signed_by: str) -> None:
        self.downloads = directory / "downloads"
        for part in (directory / "lists" / "partial", directory / "archives" / "partial", self.downloads):
            part.mkdir(parents=True)
        (directory / "status").touch()
        (directory / "archive.sources").write_text(
            f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\nSigned-By: {signed_by}\n"
        )
        settings = {
            "Dir::Etc::SourceList": directory / "archive.sources",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": directory / "lists",
            "Dir::State::Status": directory / "status",
            "Dir::Cache::Archives": directory / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        # Options and no APT_CONFIG: a proxy that the machine's own files set stays in force.
        self.options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        if common.is_root():
            # As root, apt downloads as this user, who must be able to write there.
            shutil.chown(self.downloads, "_apt")

    def update(self) -> None:
        """Fetch the list of packages; apt checks who signed it."""
        common.run(["apt-get", *self.options, "-qq", "-o", "APT::Update::Error-Mode=any", "update"])

    def fields(self, package: str) -> dict[str, str]:
        """Look one package up; empty if the suite has none of that name."""
        shown = common.capture(["apt-cache", *self.options, "show", "--no-all-versions", package]).stdout
        return dict(line.split(": ", 1) for line in shown.splitlines() if re.match(r"[A-Z][\w-]*: ", line))

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Fetch packages; apt checks them against the signed list."""
        common.run(["apt-get", *self.options, "-qq", "download", *packages], cwd=str(self.downloads))
        return sorted(self.downloads.glob("*.deb"))


def unpack(debs: Sequence[Path], tree: Path) -> None:
    """Unpack the files of packages over each other; their scripts are not run."""
    tree.mkdir()
    for deb in debs:
        common.run(["dpkg-deb", "--extract", str(deb), str(tree)])


@contextmanager
def workplace(store: Path) -> Iterator[Path]:
    """Lend a fresh directory below `store` to one installer at a time, and leave nothing there."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in store.glob(".incoming-*"):
            # Nobody else is here, so it is from a run that was interrupted.
            shutil.rmtree(leftover)
        directory = Path(tempfile.mkdtemp(prefix=".incoming-", dir=store))
        # Searchable by others: as root, apt downloads as a user of its own.
        directory.chmod(0o755)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def open_archive(work: Path, *, suite: str, package: str, otherwise: str) -> PrivateApt:
    """Find the mirror that has a package, and fetch its list.

    Parameters
    ----------
    work : Path
        Where apt keeps its own files.
    suite, package : str
        What is wanted, and where.
    otherwise : str
        What a person can do where no mirror has it.

    Raises
    ------
    SetupError
        No source of this machine's apt leads to one.
    """
    codename = release().get("VERSION_CODENAME", "")
    mirrors = debian_mirrors(read_sources(Path("/etc/apt")), codename)
    for number, (uri, signed_by) in enumerate(mirrors):
        apt = PrivateApt(work / f"apt{number}", uri=uri, suite=suite, signed_by=signed_by)
        try:
            apt.update()
        except SetupError:
            # apt has said why. Another source of this machine may still do.
            print(f"{package}: mirror {number + 1} of {len(mirrors)} gives no {suite} suite", flush=True)
            continue
        if apt.fields(package):
            return apt
    raise SetupError(
        f"none of this machine's {len(mirrors)} Debian mirrors offers {package} in its {suite} suite",
        otherwise,
    )
