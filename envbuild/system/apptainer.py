"""Chooses an Apptainer or SingularityCE, reads its configuration, and makes its command lines.

SingularityCE was read, not run: sylabs/singularity at ec0433152, and its change log.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError
from envbuild.system import host, process
from envbuild.system.configured import first_of
from envbuild.system.descriptors import with_real_paths
from envbuild.system.emulation import VARIABLES, Emulator, emulator_of
from envbuild.system.files import read_input
from envbuild.system.process import Finished, plain
from envbuild.system.survey import Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """An Apptainer or a SingularityCE, by what differs between them: they were one program once."""

    label: str
    """Its name for people."""
    oldest: tuple[int, int]
    """Oldest release that has `--mount` and with which a user can start an image."""
    prefix: str
    """Begins the names of its own values in its build configuration."""
    directory: str
    """Directory of its programs, below LIBEXECDIR."""


# By the name that `--version` prints. SingularityCE before 4.1 unpacks the image at each start, unless it is
# installed set-user-id. Source: the change logs of Apptainer 1.1.0 and of SingularityCE 3.9.0 and 4.1.0.
_PRODUCTS = {
    "apptainer": _Product(label="Apptainer", oldest=(1, 1), prefix="APPTAINER", directory="apptainer"),
    "singularity-ce": _Product(
        label="SingularityCE", oldest=(3, 9), prefix="SINGULARITY", directory="singularity"
    ),
}
_CONFIGURATION_BYTES = 1 << 20
_HINT = "name another with --apptainer PATH or ENVBUILD_APPTAINER; `make setup` installs one"


class OldApptainerError(MachineError):
    """An Apptainer is too old for our images; `version` is its own output."""

    def __init__(self, program: Path, name: str, version: str) -> None:
        product = _PRODUCTS[name]
        self.oldest = ".".join(map(str, product.oldest))
        super().__init__(
            f"{product.label} {version} at `{program}` is too old: {self.oldest} or newer is needed",
            hint=_HINT,
        )
        self.version = version


class NotStartedError(MachineError):
    """Apptainer did not start the program; `output` are its last lines.

    `early`: it failed before it opened the image, because the machine lacks something.
    """

    def __init__(self, label: str, subject: str, done: Finished, *, early: bool) -> None:
        self.output = done.last_lines(8)
        self.early = early
        super().__init__(
            f"{label} cannot start {subject} here\n{self.output}\nrepeat it: {done.command}",
            hint="`envbuild doctor` shows what this machine lacks",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path that an image sees; the target should exist in the image."""

    source: Path | str
    target: str
    writable: bool = False

    def __str__(self) -> str:
        """Return what ``--mount`` takes: quoted as in CSV, since ``--bind`` splits at colons and commas."""
        fields = ("type=bind", f"src={with_real_paths(str(self.source))}", f"dst={self.target}")
        quoted = ['"' + field.replace('"', '""') + '"' for field in fields]
        return ",".join(quoted if self.writable else [*quoted, "ro"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Apptainer:
    """An Apptainer on this machine."""

    program: Path
    version: str
    """``1.4.5``; of SingularityCE ``singularity-ce 4.3.7``, or ``singularity-ce`` if that is unknown."""
    unprivileged: bool = False
    """Whether it starts images in user namespaces alone, as a site file may say."""
    elsewhere: bool = False
    """Whether it is that of another machine, which a site file describes."""
    emulator: Emulator | None = None
    """Starts the programs of its images, if these are for another processor."""

    @property
    def emulator_label(self) -> str:
        """The emulator of its images and the version; empty without one."""
        return self.emulator.label if self.emulator is not None else ""

    def for_architecture(self, architecture: str) -> Apptainer:
        """Return it for images of an architecture; MachineError if their programs cannot start here."""
        return replace(self, emulator=emulator_of(architecture))

    @property
    def is_singularityce(self) -> bool:
        """Whether it is SingularityCE."""
        return self.version.startswith("singularity-ce")

    @property
    def _product(self) -> _Product:
        return _PRODUCTS["singularity-ce" if self.is_singularityce else "apptainer"]

    def _is_since(self, *release: int) -> bool:
        """Return whether its version is a release or newer; False if the version is unknown."""
        match = re.match(r"(?:singularity-ce )?(\d+)\.(\d+)", self.version)
        return match is not None and (int(match[1]), int(match[2])) >= release

    @property
    def knows_cdi(self) -> bool:
        """Whether ``--device`` takes what a CDI specification names (change log of Apptainer 1.5.0).

        SingularityCE takes it in its OCI mode alone.
        """
        return not self.is_singularityce and self._is_since(1, 5)

    @property
    def has_oci_mode(self) -> bool:
        """Whether its site can have it start images by other rules, which ``--no-oci`` prevents.

        Source: the change log of SingularityCE 4.0.0.
        """
        return self.is_singularityce and self._is_since(4, 0)

    def command(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        action: str = "exec",
        flags: Sequence[str] = (),
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        network: bool = False,
        isolated: bool = True,
        home: bool = True,
    ) -> list[str]:
        """Return the command line that executes `action` (exec, run or test) with `flags` in an image.

        Without `network` it has only a loopback. If `isolated`, it sees neither the host's environment and
        home nor devices beyond a minimal /dev; else `home` decides whether it sees the user's home.
        """
        words = [str(self.program), "--silent", action, *flags]
        if self.has_oci_mode:
            words.append("--no-oci")
        if (
            self.unprivileged
            or self.emulator is not None
            or (not self.elsewhere and host.is_root() and host.may_have_user_namespaces())
        ):
            # Without it, a root that lacks CAP_SYS_RESOURCE cannot start an image; it harms no other root.
            words.append("--userns")
        if isolated:
            words += ["--containall", "--cleanenv"]
        if isolated or not home:
            words.append("--no-home")
        if not network:
            words += ["--net", "--network", "none"]
        for bind in binds:
            words += ["--mount", str(bind)]
        if self.emulator is not None:
            env = {**VARIABLES, **(env or {})}
        for name, value in sorted((env or {}).items()):
            words += ["--env", f"{name}={value}"]
        if cwd is not None:
            words += ["--pwd", cwd]
        if self.emulator is None:
            return [*words, str(image), *argv]
        # From a user namespace of its own it cannot follow a descriptor of this process.
        return self.emulator.command([*words, str(image.resolve()), *argv])

    def buildcfg(self) -> str:
        """Return its build configuration; empty if it prints none."""
        done = process.run([self.program, "buildcfg"], env=host.environment(), timeout_s=30)
        return done.stdout if done.ok else ""

    def not_started(self, done: Finished, subject: str) -> NotStartedError | None:
        """Return an error if it started nothing; None if it did, or this is unknown.

        Its starter, which makes the namespaces, exits with 1; the setup of the container with 255. A program
        in a container can print and return the same, which gains it nothing. `subject` names the program or
        image.
        """
        stderr = plain(done.stderr)
        early = done.code == 1 and not done.stdout and re.match(r"ERROR\s*: ", stderr) is not None
        if not early and not (done.code == 255 and "FATAL" in stderr):
            return None
        return NotStartedError(self._product.label, subject, done, early=early)


def find(path: Path | None = None) -> Apptainer:
    """Return the Apptainer to use: `path`, else the configured one, else the one on PATH.

    SingularityCE is used if PATH has no Apptainer. One that is too old is an OldApptainerError.
    """
    given = first_of("apptainer", "--apptainer", path)
    # Absolute: it is started in another directory.
    program = Path(given.value).absolute() if given is not None else on_path()
    if not program.is_file():
        named = f", which {given.origin} names" if given is not None and path is None else ""
        raise MachineError(f"there is no Apptainer at `{program}`{named}", hint=_HINT)
    finished = process.run([program, "--version"], env=host.environment(), timeout_s=30)
    match = re.search(
        r"^(apptainer|singularity-ce) version ((\d+)\.(\d+)(\.\d+)?\S*)", finished.stdout, re.MULTILINE
    )
    if not finished.ok and finished.output:
        raise MachineError(f"`{program} --version` fails: {finished.last_lines(1)}", hint=_HINT)
    if match is None:
        raise MachineError(f"`{program}` is not an Apptainer or SingularityCE", hint=_HINT)
    name, version = match[1], match[2]
    if (int(match[3]), int(match[4])) < _PRODUCTS[name].oldest:
        raise OldApptainerError(program, name, version)
    return Apptainer(program=program, version=version if name == "apptainer" else f"{name} {version}")


def on_path() -> Path:
    """Return the Apptainer on PATH, else the SingularityCE; MachineError if there is neither."""
    for name in ("apptainer", "singularity"):
        with contextlib.suppress(MachineError):
            return host.find_program(name)
    return host.find_program("apptainer", hint=_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How an Apptainer starts images."""

    setuid: bool | None = None
    """Whether it may start set-user-id; None if unknown."""
    starter: bool = False
    """Whether its set-user-id starter is installed, owned by root."""


def configuration(buildcfg: str, machine: Survey) -> Configuration:
    """Return how an Apptainer is set up, from its ``buildcfg`` (may be empty) and the files it names."""
    built = dict(re.findall(r"^(\w+)=(/.*|[01])$", buildcfg, flags=re.MULTILINE))
    product = _PRODUCTS["singularity-ce" if "SINGULARITY_CONF_FILE" in built else "apptainer"]
    # A build without set-user-id support has the setting nevertheless.
    without = built.get(f"{product.prefix}_SUID_INSTALL") == "0"
    starter = False
    if "LIBEXECDIR" in built:
        with contextlib.suppress(OSError, ValueError):
            path = f"{built['LIBEXECDIR']}/{product.directory}/bin/starter-suid"
            status = machine.path(path).stat()
            starter = bool(status.st_mode & stat.S_ISUID) and status.st_uid == 0
    setuid = False if without else _allows_setuid(built.get(f"{product.prefix}_CONF_FILE"), machine)
    return Configuration(setuid=setuid, starter=starter)


def _allows_setuid(path: str | None, machine: Survey) -> bool | None:
    """Return the last ``allow setuid`` of a configuration file."""
    if path is None:
        return None
    try:
        text = read_input(machine.path(path), limit_bytes=_CONFIGURATION_BYTES).decode(errors="replace")
    except EnvbuildError:
        return None
    values = re.findall(r"^[ \t]*allow setuid[ \t]*=[ \t]*(\w+)", text, re.MULTILINE)
    return values[-1] != "no" if values else None
