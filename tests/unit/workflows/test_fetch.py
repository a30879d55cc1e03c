"""Which files a lock means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envbuild.lock.model import all_pins
from envbuild.resolve.fetch import pins_to_export
from tests.support.resolved_specs import deb, lock_of, resolved, wheel


def test_a_file_that_is_pinned_twice_is_one() -> None:
    numpy = wheel("numpy", sha256="1" * 64)
    lock = replace(
        lock_of(resolved(), python=[numpy, wheel("scipy", sha256="2" * 64)], base_debs=[deb("libc6")]),
        build_python=(replace(numpy, layer="framework:horovod"),),
    )
    assert [pin.name for pin in all_pins(lock)] == ["libc6", "numpy", "scipy"]


def test_files_that_are_kept_already_need_no_room(tmp_path: Path) -> None:
    numpy, scipy = (wheel(name, sha256=digit * 64) for name, digit in (("numpy", "1"), ("scipy", "2")))
    pins = [numpy, scipy, numpy]
    assert [pin.name for pin in pins_to_export(pins, tmp_path)] == ["numpy", "scipy"]
    kept = tmp_path / scipy.directory / scipy.file_name
    kept.parent.mkdir()
    kept.write_bytes(b"x" * scipy.size_bytes)
    assert [pin.name for pin in pins_to_export(pins, tmp_path)] == ["numpy"]
    kept.write_bytes(b"x" * (scipy.size_bytes + 1))
    assert [pin.name for pin in pins_to_export(pins, tmp_path)] == ["numpy", "scipy"]
