"""Starts programs for arm64 on another processor through QEMU's user-mode emulation, without root.

Since Linux 6.7 each user namespace has its own table of binary formats: a handler that is registered there
changes nothing of the machine. On older kernels the machine needs a handler that root registered.

Sources: binfmt_misc of the kernel's administration guide; unshare(1); elf(5); QEMU's user-mode emulation.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.system import host, process

_ARM64 = "arm64"
_QEMU = ("qemu-aarch64-static", "qemu-aarch64")
VARIABLES: Mapping[str, str] = {
    # The vector unit that QEMU emulates by default makes programs four times slower.
    "QEMU_CPU": "cortex-a72",
    # QEMU does not have process_vm_readv, by which ranks read each other's memory: MPICH, Open MPI, UCX.
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "OMPI_MCA_smsc": "^cma",
    "UCX_TLS": "^cma",
}
"""Variables of emulated programs, for QEMU and for what it lacks."""

# e_ident, e_type and e_machine of an ELF file: 64 bits, little-endian, an executable or a shared object.
_START = b"\x7fELF\x02\x01\x01" + bytes(9)
_MAGIC = _START + struct.pack("<HH", 2, 183)
_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
# Arguments: magic, mask and interpreter, then the command. Flag F opens the interpreter now: it need not be
# in the root of the program.
_REGISTER = """\
set -e
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf ':qemu-aarch64:M::%s:%s:%s:F' "$1" "$2" "$3" > /proc/sys/fs/binfmt_misc/register
shift 3
exec "$@"
"""
_HINT = (
    "install `qemu-user-static` (Debian), or put a static `qemu-aarch64` on PATH; before Linux 6.7 root has"
    " to register it, as that package does"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """Starts the programs of another processor on this machine."""

    program: Path | None
    """QEMU, for namespaces of ours; None where the machine itself has a handler."""
    label: str
    """The emulator and its version, where that is known."""

    def in_namespace(self, argv: Sequence[str]) -> list[str]:
        """Return the command that starts a command with emulation, for the root of a user namespace."""
        if self.program is None:
            return list(argv)
        words = (_escaped(_MAGIC), _escaped(_MASK), str(self.program))
        return ["unshare", "--mount", "--", "sh", "-c", _REGISTER, "sh", *words, *argv]

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that starts a command as the user, with emulation for it and what it starts."""
        if self.program is None:
            return list(argv)
        user = (f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}")
        inner = self.in_namespace(["unshare", "--user", *user, "--", *argv])
        return ["unshare", "--user", "--map-root-user", "--", *inner]


@cache
def emulator_of(architecture: str) -> Emulator | None:
    """Return what starts programs for an architecture here; None if this machine's processor does.

    MachineError: they cannot start here; it says what is missing.
    """
    if architecture == host.architecture():
        return None
    problem = f"programs for {architecture} cannot start on {host.architecture()}"
    if architecture != _ARM64:
        raise MachineError(problem, hint="use a machine of that architecture: only arm64 can be emulated")
    with tempfile.TemporaryDirectory(prefix="envbuild-") as directory:
        trial = Path(directory, "exits")
        trial.write_bytes(_program_that_exits())
        trial.chmod(0o755)
        # By a shell, whose exit code says that the kernel refuses it.
        command = ["sh", "-c", 'exec "$0"', str(trial)]
        if process.run(command, env=host.environment(), timeout_s=30).ok:
            return Emulator(program=None, label="handler of the machine")
        programs = [path for name in _QEMU if (path := host.search_path(name)) is not None]
        if not programs:
            raise MachineError(f"{problem}: there is no `{_QEMU[0]}`", hint=_HINT)
        shown = process.run([programs[0], "--version"], env=host.environment(), timeout_s=30).stdout
        version = re.search(r"version (\S+)", shown)
        label = f"{Path(programs[0]).name} {version[1] if version else ''}".strip()
        emulator = Emulator(program=Path(programs[0]), label=label)
        tried = process.run(emulator.command(command), env=host.environment(), timeout_s=30)
    if not tried.ok:
        raise MachineError(f"{problem}: `{programs[0]}` fails: {tried.last_lines(1)}", hint=_HINT)
    return emulator


def _escaped(content: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in content)


def _program_that_exits() -> bytes:
    """Return a program for arm64 that ends with 0 at once."""
    code = struct.pack("<III", 0xD2800000, 0xD2800BA8, 0xD4000001)  # mov x0, #0; mov x8, #93; svc #0
    address, headers = 0x400000, 64 + 56
    start = _MAGIC + struct.pack("<IQQQ", 1, address + headers, 64, 0)
    start += struct.pack("<IHHHHHH", 0, 64, 56, 1, 0, 0, 0)
    size = headers + len(code)
    return start + struct.pack("<IIQQQQQQ", 1, 5, 0, address, address, size, size, 0x10000) + code
