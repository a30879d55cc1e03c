"""Apptainer: which one, and the command lines that start something in an image."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.system import host, process
from envbuild.system.descriptors import named
from envbuild.system.process import Finished
from envbuild.system.terminal import plain

# Name → oldest release that has `--mount` and with which a user can start an image.
# SingularityCE before 4.1 unpacks the image at each start, unless it is installed set-user-id.
# Source: the change logs of Apptainer 1.1.0 and of SingularityCE 3.9.0 and 4.1.0.
_OLDEST = {"apptainer": (1, 1), "singularity-ce": (3, 9)}
_LABELS = {"apptainer": "Apptainer", "singularity-ce": "SingularityCE"}
_PROGRAMS = ("apptainer", "singularity")
_HINT = "name another with --apptainer PATH or ENVBUILD_APPTAINER; `make setup` installs one"


class OldApptainerError(MachineError):
    """An Apptainer is older than what images need; `version` is what it says of itself."""

    def __init__(self, program: Path, name: str, version: str) -> None:
        self.oldest = ".".join(map(str, _OLDEST[name]))
        label = _LABELS[name]
        super().__init__(
            f"{label} {version} at `{program}` is too old: {self.oldest} or newer is needed", hint=_HINT
        )
        self.version = version


class NotStartedError(MachineError):
    """Apptainer started nothing of what it was asked to.

    Attributes
    ----------
    said : str
        Its last lines.
    early : bool
        Whether it came not even to the image: what it lacks is the machine's.
    """

    def __init__(self, what: str, done: Finished, *, early: bool) -> None:
        said = done.last_lines(8)
        super().__init__(
            f"Apptainer cannot start {what} here\n{said}\nrepeat it: {done.command}",
            hint="`envbuild doctor` shows what this machine lacks",
        )
        self.said = said
        self.early = early


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path that an image sees; the target should exist in the image."""

    source: Path | str
    target: str
    writable: bool = False

    def __str__(self) -> str:
        """Return what ``--mount`` takes: quoted as in CSV, since ``--bind`` splits at colons and commas."""
        fields = ("type=bind", f"src={named(str(self.source))}", f"dst={self.target}")
        quoted = ['"' + field.replace('"', '""') + '"' for field in fields]
        return ",".join(quoted if self.writable else [*quoted, "ro"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Apptainer:
    """An Apptainer on this machine.

    Attributes
    ----------
    program : Path
        The command.
    version : str
        ``1.4.5``; of SingularityCE ``singularity-ce 4.3.7``.
    unprivileged : bool
        Whether it is told to start in a user namespace, since it has no other way.
    """

    program: Path
    version: str
    unprivileged: bool = False

    def command(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        action: str = "exec",
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        network: bool = False,
        isolated: bool = True,
        home: bool = True,
    ) -> list[str]:
        """Return the command line that runs something in an image.

        Parameters
        ----------
        action : str
            ``exec``, ``run`` or ``test``.
        network : bool
            Whether it may reach the network; if not, it has a loopback alone.
        isolated : bool
            Whether it sees neither the host's environment, home, nor devices
            beyond a minimal /dev (``--containall --cleanenv --no-home``).
        home : bool
            Whether one that is not isolated sees the user's home.
        """
        words = [str(self.program), "--silent", action]
        if self.unprivileged or (host.is_root() and host.may_have_user_namespaces()):
            # A root without CAP_SYS_RESOURCE cannot start an image otherwise, and none is worse for it.
            words.append("--userns")
        if isolated:
            words += ["--containall", "--cleanenv"]
        if isolated or not home:
            words.append("--no-home")
        if not network:
            words += ["--net", "--network", "none"]
        for bind in binds:
            words += ["--mount", str(bind)]
        for name, value in sorted((env or {}).items()):
            words += ["--env", f"{name}={value}"]
        if cwd is not None:
            words += ["--pwd", cwd]
        return [*words, str(image), *argv]

    def buildcfg(self) -> str:
        """Return what it says of how it was built; empty where it does not tell."""
        done = process.run([self.program, "buildcfg"], env=host.environment(), timeout_s=30)
        return done.stdout if done.ok else ""


def not_started(done: Finished, what: str) -> NotStartedError | None:
    """Return what Apptainer says where it has started nothing; None where it has, or nothing is known.

    Its starter, which makes the namespaces, ends with 1; what sets up the container with 255. What runs in
    a container can say and return the same: it gets no better verdict by that.

    Parameters
    ----------
    what : str
        What it was to start, for people.
    """
    said = plain(done.stderr)
    early = done.code == 1 and not done.stdout and re.match(r"ERROR\s*: ", said) is not None
    if not early and not (done.code == 255 and "FATAL" in said):
        return None
    return NotStartedError(what, done, early=early)


def find(path: Path | None = None) -> Apptainer:
    """Return the Apptainer to use: the one named, else ENVBUILD_APPTAINER, else the one on PATH.

    SingularityCE does as well; on PATH it is taken if there is no Apptainer.

    Raises
    ------
    MachineError
        There is none, or (an `OldApptainerError`) it is too old.
    """
    given = path or (Path(os.environ["ENVBUILD_APPTAINER"]) if os.environ.get("ENVBUILD_APPTAINER") else None)
    # Absolute: it is not started where we are.
    program = given.absolute() if given else _on_path()
    if not program.is_file():
        raise MachineError(f"there is no Apptainer at `{program}`", hint=_HINT)
    told = process.run([program, "--version"], env=host.environment(), timeout_s=30)
    match = re.search(
        r"^(apptainer|singularity-ce) version ((\d+)\.(\d+)(\.\d+)?\S*)", told.stdout, re.MULTILINE
    )
    if not told.ok and (said := told.last_lines(1)):
        raise MachineError(f"`{program} --version` fails: {said}", hint=_HINT)
    if match is None:
        raise MachineError(f"`{program}` is not an Apptainer or SingularityCE", hint=_HINT)
    name, version = match[1], match[2]
    if (int(match[3]), int(match[4])) < _OLDEST[name]:
        raise OldApptainerError(program, name, version)
    return Apptainer(program=program, version=version if name == "apptainer" else f"{name} {version}")


def _on_path() -> Path:
    first, *others = _PROGRAMS
    for name in (first, *others):
        with contextlib.suppress(MachineError):
            return host.find_program(name)
    return host.find_program(first, hint=_HINT)
