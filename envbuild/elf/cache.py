"""The loader's cache: under which names it knows libraries.

Source: glibc, sysdeps/generic/dl-cache.h (``cache_file_new``, its form since 2.2).
"""

from __future__ import annotations

import struct

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII20x")
_ENTRY = struct.Struct("<iIIIQ")
_MAX_ENTRIES = 1 << 20


def cached_names(data: bytes) -> tuple[str, ...] | None:
    """Return the names of a cache, sorted; None for what is damaged or of another form.

    An older form may come before it in the same file; places are counted from
    where this one begins.
    """
    start = data.find(_MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        return None
    _, count, _ = _HEADER.unpack_from(data, start)
    if count > _MAX_ENTRIES or len(data) < start + _HEADER.size + count * _ENTRY.size:
        return None
    names = set()
    for number in range(count):
        _, key, _, _, _ = _ENTRY.unpack_from(data, start + _HEADER.size + number * _ENTRY.size)
        end = data.find(b"\0", start + key)
        if end < 0:
            return None
        try:
            names.add(data[start + key : end].decode("ascii"))
        except UnicodeDecodeError:
            return None
    return tuple(sorted(names))
