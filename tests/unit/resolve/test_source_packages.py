"""`lock --upgrade NAME` takes all Debian packages of a source package, as archives renew them."""

from __future__ import annotations

import pytest

from envbuild.lock.model import DebPin


@pytest.mark.parametrize(
    ("name", "file", "source"),
    [
        ("libssl3", "pool/main/o/openssl/libssl3_3.0.17-1~deb12u2_amd64.deb", "openssl"),
        ("libssl3", "pool/updates/main/o/openssl/libssl3_3.0.17-1~deb12u2_amd64.deb", "openssl"),
        ("libxml2", "pool/main/libx/libxml2/libxml2_2.9.14_amd64.deb", "libxml2"),
        ("libc6", "pool/main/g/glibc/libc6_2.36_amd64.deb", "glibc"),
        # An archive of its own order.
        ("tool", "pool/tool_1_amd64.deb", "tool"),
        ("tool", "debs/x/other/tool_1_amd64.deb", "tool"),
        ("tool", "pool/main/x/other/tool_1_amd64.deb", "tool"),
    ],
)
def test_the_pool_names_the_source_package(name: str, file: str, source: str) -> None:
    version = file.rpartition("/")[2].split("_")[1]
    pin = DebPin(
        name=name,
        version=version,
        architecture="amd64",
        origin="debian:bookworm",
        file=file,
        size_bytes=1,
        sha256="0" * 64,
    )
    assert pin.source == source
