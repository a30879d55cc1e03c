"""Facts of a finished image: what its files tell, what its lock says, and what tables know of both.

Whoever judges an image, or puts something of a host into it, has them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.compat.carriers import said_by
from envbuild.compat.facts import Facts, make_facts
from envbuild.compat.facts import merge as put_together
from envbuild.compat.from_lock import Locked, facts_of_lock
from envbuild.compat.sections import Texts
from envbuild.spec.site import MpiAbi

IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkCode:
    """What a framework in an image was compiled for.

    Attributes
    ----------
    architectures : tuple of str
        ``sm_90`` (binary), ``compute_90`` (PTX), ``gfx90a``.
    file : str
        The one with the most of it.
    """

    architectures: Texts
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFacts:
    """What the files of an image were seen to hold; None where they do not tell.

    Attributes
    ----------
    mpi_abis : tuple of str or None
        Of the libraries that a program of the image gets by an MPI's names.
    needed_abis, needed_sonames : tuple of str or None
        What programs and extensions ask of an MPI.
    rpath_files : tuple of str
        Files whose DT_RPATH leads to the image's MPI.
    nccl_copies, cudnn_copies : tuple of str
        The most copies that one process would load.
    glibc_needed, libstdcxx_needed : str or None
        The newest symbol versions that binaries ask for.
    libstdcxx_image : str or None
        The newest that the C++ library defines which they get.
    gpu_code : dict of str to FrameworkCode
        By framework; of others nothing could be told.
    """

    mpi_abis: tuple[MpiAbi, ...] | None = None
    needed_abis: tuple[MpiAbi, ...] | None = None
    needed_sonames: Texts | None = None
    rpath_files: Texts = ()
    nccl_copies: Texts = ()
    cudnn_copies: Texts = ()
    glibc_needed: str | None = None
    libstdcxx_needed: str | None = None
    libstdcxx_image: str | None = None
    gpu_code: Mapping[str, FrameworkCode] = field(default_factory=dict)


def facts_of_image(lock: Locked, read: ReadFacts, *, variables: Mapping[str, str] | None = None) -> Facts:
    """Return what is known of an image whose programs run on its own MPI.

    Parameters
    ----------
    lock : Locked
        The one that it carries.
    read : ReadFacts
        What its files tell; it comes before the lock.
    variables : mapping of str to str, optional
        Its environment.
    """
    values: dict[str, Any] = {
        **said_by(variables or {}, whole=False),
        "mpi.abis": read.mpi_abis,
        "mpi.needed_abis": read.needed_abis,
        "mpi.needed_sonames": read.needed_sonames,
        "mpi.rpath_files": read.rpath_files,
        "nccl.copies": read.nccl_copies,
        "cudnn.copies": read.cudnn_copies,
        "glibc.needed": read.glibc_needed,
        "libstdcxx.needed": read.libstdcxx_needed,
        "libstdcxx.image": read.libstdcxx_image,
    }
    locked = facts_of_lock(lock)
    origins = dict.fromkeys(values, IMAGE)
    # A module of a framework that the lock does not name is somebody else's.
    for name in sorted(read.gpu_code.keys() & (locked.frameworks or {}).keys()):
        values[f"frameworks.{name}.architectures"] = read.gpu_code[name].architectures
        origins[f"frameworks.{name}.architectures"] = f"{IMAGE}:{read.gpu_code[name].file}"
    known = {path: value for path, value in values.items() if value is not None}
    return put_together(locked, make_facts(known, {path: origins[path] for path in known}))
