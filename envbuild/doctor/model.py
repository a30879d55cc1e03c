"""What a machine is like, and what is found wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VERBS = (
    *("init", "lock", "fetch", "plan", "build", "check", "test", "launch", "module", "export", "layer"),
    *("import-def", "inspect", "reproduce", "sbom", "cache", "doctor", "recipes", "site", "schema"),
    "completion",
)
"""All of the command, in the order of its help."""

Weight = Literal["blocks", "hampers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A place that envbuild writes to.

    Attributes
    ----------
    path : str
        Absolute.
    writable : bool
        Whether this user can write there, or make it.
    file_system : str
        Its type, as /proc/mounts has it; empty where that is not known.
    no_exec : bool
        Whether nothing there can be started.
    free_bytes, free_inodes : int
        What is left for this user; -1 where that is not told.
    passable : bool
        Whether other users' processes can pass through.
    hard_links, locks, attributes : bool
        Whether its file system has them, as far as it could be tried.
    """

    path: str
    writable: bool = True
    file_system: str = ""
    no_exec: bool = False
    free_bytes: int = -1
    free_inodes: int = -1
    passable: bool = True
    hard_links: bool = True
    locks: bool = True
    attributes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The Apptainer of a machine.

    Attributes
    ----------
    path : str
        The command; empty where there is none.
    version : str
        What it says of itself; empty where it is no Apptainer.
    oldest : str
        The release that is needed, if it is older.
    setuid : bool
        Whether it has a starter that root's powers stand behind.
    """

    path: str = ""
    version: str = ""
    oldest: str = ""
    setuid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that the rules look at.

    Attributes
    ----------
    user : str
        Login name; the number where there is none.
    root, debian : bool
        Whether this is root; whether the system is Debian, so that `make setup` can mend it.
    architecture : str
        In Debian's words.
    programs : mapping of str to str
        Program → its path; empty where it is not here, or cannot be started.
    broken : mapping of str to str
        Program that is here and cannot be started → its path.
    mksquashfs : tuple of int
        Release of mksquashfs; empty if it is not known.
    user_namespaces : bool
        Whether this user may make one.
    subordinate_ids : int
        Ids that this user may hand out (count, the smaller of users and groups).
    fuse : bool
        Whether this user can use /dev/fuse.
    module_system : str
        ``lmod``, ``tmod`` or empty.
    slurm : bool
        Whether this machine belongs to a Slurm cluster, as far as it shows.
    variables : mapping of str to str
        The environment.
    encoding : str
        Of texts on the terminal and in file names.
    locale_works : bool
        Whether the locale that the environment names exists.
    year : int
        What its clock says.
    wheel_directories : mapping of str to bool
        Directories with wheels that the configuration names → whether they are there.
    index : str
        The Python index that is configured, credentials hidden; empty for uv's own.
    no_index : bool
        Whether the configuration forbids any index.
    debian_sources : int
        Entries that apt has here (count).
    unread : mapping of str to str
        What is wrong with the configuration of pip, uv or apt that cannot be read → what mends it.
    site_unread : mapping of str to str
        The same of the site file.
    site_named : bool
        Whether the site was named; if not, it is the user's or the machine's own.
    unreachable : mapping of str to str
        Address, credentials hidden → why; empty unless it was asked for.
    """

    user: str = "user"
    root: bool = False
    debian: bool = True
    architecture: str = "amd64"
    programs: Mapping[str, str]
    broken: Mapping[str, str] = field(default_factory=dict)
    mksquashfs: tuple[int, ...] = ()
    runtime: Runtime
    store: Directory
    store_refused: Mapping[str, str] = field(default_factory=dict)
    temporary: Directory
    user_namespaces: bool = True
    subordinate_ids: int = 65_536
    fuse: bool = True
    module_system: str = "lmod"
    slurm: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    locale_works: bool = True
    year: int = 2026
    wheel_directories: Mapping[str, bool] = field(default_factory=dict)
    index: str = ""
    no_index: bool = False
    debian_sources: int = 1
    unread: Mapping[str, str] = field(default_factory=dict)
    site_unread: Mapping[str, str] = field(default_factory=dict)
    site_named: bool = False
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a machine.

    Attributes
    ----------
    id : str
        Stable (``apptainer.missing``).
    weight : str
        ``blocks``: the verbs cannot work; ``hampers``: they work, worse or not always.
    verbs : tuple of str
        Which verbs.
    problem : str
        What is wrong, with what was seen.
    why : str
        What needs it.
    mend : str
        The command, or the words for whoever has to do it.
    by : str
        Who can: ``you`` or ``an administrator``.
    """

    id: str
    weight: Weight
    verbs: tuple[str, ...]
    problem: str
    why: str
    mend: str
    by: str

    def line(self) -> str:
        """Return it for people, in three lines."""
        who = "" if self.by == "you" else f" ({self.by})"
        return (
            f"{self.weight.upper():<8}{self.id}: {self.problem}\n"
            f"        {', '.join(self.verbs)}: {self.why}\n"
            f"        mend{who}: {self.mend}"
        )


def yours(
    id: str,  # noqa: A002
    weight: Weight,
    verbs: tuple[str, ...],
    problem: str,
    why: str,
    mend: str,
) -> Finding:
    """Return a finding that whoever runs envbuild can mend."""
    return Finding(id=id, weight=weight, verbs=verbs, problem=problem, why=why, mend=mend, by="you")
