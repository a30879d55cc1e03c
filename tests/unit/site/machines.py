"""Made-up machines: a root with libraries, files of a kernel, and programs that say what they are told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from envbuild.system.survey import Survey
from tests.support.elves import Elf

LIB = "/usr/lib/x86_64-linux-gnu"
MPICH = ("MPI_Init", "MPI_UNWEIGHTED")
OPENMPI = ("MPI_Init", "ompi_mpi_comm_world")
STANDARD = ("MPI_Init", "MPI_Abi_get_version")


@dataclass
class Machine:
    """A root that grows; `survey` looks at it."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    cached: dict[str, str] = field(default_factory=dict)

    def file(self, path: str, text: str = "") -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def program(self, path: str, said: str, code: int = 0) -> None:
        self.file(path, f"#!/bin/sh\ncat <<'SAID'\n{said}\nSAID\nexit {code}\n")
        (self.root / path.lstrip("/")).chmod(0o755)

    def library(self, path: str, elf: Elf, *, cached: bool = False) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(elf.bytes())
        if cached:
            self.cached[elf.soname] = path

    def libc(self) -> None:
        """Give it what every machine has."""
        libc = ("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.36", "GLIBC_PRIVATE")
        self.library(f"{LIB}/libc.so.6", Elf(soname="libc.so.6", versions_defined=libc), cached=True)
        cxx = ("libstdc++.so.6", "GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3.13")
        self.library(f"{LIB}/libstdc++.so.6", Elf(soname="libstdc++.so.6", versions_defined=cxx), cached=True)

    def mpi(self, prefix: str, soname: str, symbols: tuple[str, ...], *needed: str) -> None:
        elf = Elf(soname=soname, defined=symbols, needed=("libc.so.6", *needed))
        self.library(f"{prefix}/lib/{soname}", elf)

    @property
    def survey(self) -> Survey:
        lines = [f"\t{name} (libc6,x86-64) => {path}" for name, path in self.cached.items()]
        lines.append("\tlibc.so.6 (libc6) => /lib/i386-linux-gnu/libc.so.6")
        self.program("/usr/sbin/ldconfig", "\n".join(lines))
        return Survey(root=self.root, architecture="amd64", variables={"PATH": "/usr/bin", **self.variables})
