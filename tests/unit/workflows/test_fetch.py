"""Which files a lock means."""

from __future__ import annotations

from dataclasses import replace

from envbuild.lock.model import all_pins
from tests.support.resolved_specs import deb, lock_of, resolved, wheel


def test_a_file_that_is_pinned_twice_is_one() -> None:
    numpy = wheel("numpy", sha256="1" * 64)
    lock = replace(
        lock_of(resolved(), python=[numpy, wheel("scipy", sha256="2" * 64)], base_debs=[deb("libc6")]),
        build_python=(replace(numpy, layer="framework:horovod"),),
    )
    assert [pin.name for pin in all_pins(lock)] == ["libc6", "numpy", "scipy"]
