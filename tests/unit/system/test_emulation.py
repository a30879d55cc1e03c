"""Programs for arm64 on another processor: what is missing is named; real QEMU has `make arm64`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.system import emulation, host
from envbuild.system.emulation import Emulator, emulator_of


@pytest.fixture(autouse=True)
def amd64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose processor is not arm64."""
    monkeypatch.setattr(host, "architecture", lambda: "amd64")
    emulator_of.cache_clear()
    yield
    emulator_of.cache_clear()


def programs(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """Leave on PATH the machine's programs without its QEMU, and a QEMU with a text."""
    directory.mkdir()
    if text is not None:
        (directory / "qemu-aarch64-static").write_text(text)
        (directory / "qemu-aarch64-static").chmod(0o755)
    kept = {name: host.search_path(name) for name in ("sh", "unshare", "mount", "printf")}

    def search(name: str, **_: object) -> str | None:
        path = directory / name
        return str(path) if path.exists() else kept.get(name)

    monkeypatch.setattr(host, "search_path", search)
    # The machine itself may have a handler.
    monkeypatch.setattr(emulation, "_program_that_exits", lambda: b"\x7fELF of another processor")


def test_programs_of_this_processor_need_no_emulator() -> None:
    assert emulator_of("amd64") is None


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "none", monkeypatch, None)
    with pytest.raises(
        MachineError, match="for arm64 cannot start on amd64: there is no `qemu-aarch64"
    ) as caught:
        emulator_of("arm64")
    assert "install `qemu-user-static`" in str(caught.value.hint)


def test_an_emulator_that_starts_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "broken", monkeypatch, "#!/bin/sh\nexit 3\n")
    with pytest.raises(MachineError, match=r"cannot start on amd64: `.*/broken/qemu-aarch64-static` fails"):
        emulator_of("arm64")


def test_only_arm64_is_emulated() -> None:
    with pytest.raises(MachineError, match="programs for ppc64el cannot start on amd64"):
        emulator_of("ppc64el")


def test_a_handler_of_the_machine_needs_no_namespace() -> None:
    emulator = Emulator(program=None, label="handler of the machine")
    assert emulator.command(["true"]) == emulator.in_namespace(["true"]) == ["true"]
