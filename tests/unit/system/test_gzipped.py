"""A gzip file is what any reader takes, and its bytes do not depend on the number of cores."""

from __future__ import annotations

import gzip
import io
import random

import pytest

from envbuild.system.gzipped import gzip_writer

RANDOM = random.Random(1)  # noqa: S311  # the same data each time
WORDS = [RANDOM.randbytes(40) for _ in range(200)]


def packed(data: bytes, *, threads: int, step: int = 100_000) -> bytes:
    out = io.BytesIO()
    with gzip_writer(out, level=6, threads=threads) as stream:
        for at in range(0, len(data), step):
            stream.write(data[at : at + step])
    return out.getvalue()


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_every_reader_takes_it(size: int) -> None:
    data = b"".join(RANDOM.choices(WORDS, k=size // 40 + 1))[:size]
    assert gzip.decompress(packed(data, threads=2)) == data


def test_its_bytes_depend_on_the_content_alone() -> None:
    data = b"".join(RANDOM.choices(WORDS, k=150_000))
    one = packed(data, threads=1)
    assert packed(data, threads=5, step=7_777) == one
    assert packed(data, threads=2) == one
    # A block knows the one before: words that return cost little.
    assert len(one) < len(data) // 8


def test_a_full_disk_is_an_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            if len(data) > 100:
                raise OSError(28, "No space left on device")
            return len(data)

    with pytest.raises(OSError, match="No space"), gzip_writer(Full(), level=6, threads=2) as stream:
        stream.write(WORDS[0] * 100_000)
