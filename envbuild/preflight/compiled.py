"""Reads from compiled files what they were compiled against: NumPy's headers, the C++ ABI of PyTorch.

Source: NumPy's `__multiarray_api.h`, whose `import_array` names the module that it imports: releases from 2.0
on ask for `numpy._core` first, older ones for `numpy.core` alone. The Itanium C++ ABI and GCC's manual, "Dual
ABI": `std::string` of the new ABI is in `std::__cxx11`, and that of the old one is written `Ss`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from envbuild.elf.read import ElfObject, TableBudget, open_elf, read_exactly, read_symbols

_MODULE = re.compile(r".*/(?:site|dist)-packages/(?:.+/)?(?!lib)[^/.]+(?:\.[^/.]+)?\.so")
_TORCH = "libc10.so"
_OF_TORCH = re.compile(r".*/torch/lib/.*")
# Functions of PyTorch that take a `std::string`.
_TORCH_SYMBOLS = ("_ZN3c10", "_ZNK3c10", "_ZN5torch")
_NEW_STRING = re.compile(r"St7__cxx11|B5cxx11")
_OLD_STRING = re.compile(r"(?:RK|[EPRjilbd_])Ss")
_NUMPY_2 = b"numpy._core._multiarray_umath\0"
_NUMPY_1 = b"numpy.core._multiarray_umath\0"
_MAX_CONSTANTS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Compiled:
    """The headers that a file was compiled with; empty and None for none, or unknown."""

    numpy: str = ""
    """Major of the NumPy whose C-API it imports: ``1`` or ``2``."""
    cxx11_abi: bool | None = None
    """Whether it passes strings of the new C++ ABI to PyTorch's libraries; of PyTorch's, whether it takes
    them."""


def read_compiled(
    file: BinaryIO, path: str, elf: ElfObject, budget: TableBudget, constants: TableBudget
) -> Compiled:
    """Return what a file of a Python package was compiled against.

    `constants` limits the bytes of constants that are searched; what is beyond them is unknown.
    """
    abi = None
    if elf.soname == _TORCH:
        abi = cxx11_abi(read_symbols(file, _TORCH_SYMBOLS, budget).defined)
    elif _TORCH in elf.needed and not _OF_TORCH.fullmatch(path):
        abi = cxx11_abi(read_symbols(file, _TORCH_SYMBOLS, budget).undefined)
    is_module = _MODULE.fullmatch(path)
    return Compiled(numpy_major(_constants(file, constants)) if is_module else "", abi)


def numpy_major(constants: bytes) -> str:
    """Return the major of the NumPy whose headers a file was compiled with, by its constants."""
    return "2" if _NUMPY_2 in constants else "1" if _NUMPY_1 in constants else ""


def cxx11_abi(symbols: Iterable[str]) -> bool | None:
    """Return whether functions take strings of the new C++ ABI; None if none takes any, or some each."""
    names = list(symbols)
    is_new = any(map(_NEW_STRING.search, names))
    is_old = any(map(_OLD_STRING.search, names))
    return is_new if is_new != is_old else None


def _constants(file: BinaryIO, budget: TableBudget) -> bytes:
    """Return the read-only data of a file; empty if it has none, or far too many."""
    try:
        elf = open_elf(file, budget)
        sections = {section.name: section for section in elf.sections()} if elf else {}
        data = sections.get(b".rodata")
        if data is None or data.size_bytes > _MAX_CONSTANTS_BYTES:
            return b""
        budget.charge(data.size_bytes)
        return read_exactly(file, data.offset, data.size_bytes)
    except ValueError:
        # The loader takes a file without usable section headers.
        return b""
