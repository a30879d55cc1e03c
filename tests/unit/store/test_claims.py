"""A layer is built once among many: claims are waited for, let go, and never in anybody's way for good."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.store.claims import claim, sweep_claims
from envbuild.system import process

HOLDER = """
import sys, time
from pathlib import Path
from envbuild.store.claims import claim
with claim(Path(sys.argv[1]), "key"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(place: Path) -> Iterator[None]:
    """Let another process hold the key while the block runs; it is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        try:
            yield
        finally:
            child.kill()


def test_one_after_the_other(tmp_path: Path) -> None:
    inside = 0
    most = 0
    waited: list[bool] = []
    together = threading.Barrier(6)

    def work() -> None:
        nonlocal inside, most
        together.wait()
        with claim(tmp_path, "key") as had_to_wait:
            inside += 1
            most = max(most, inside)
            time.sleep(0.05)
            inside -= 1
            waited.append(had_to_wait)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert any(waited)
    assert list(tmp_path.iterdir()) == []


def test_other_keys_are_not_waited_for(tmp_path: Path) -> None:
    with claim(tmp_path, "one"), claim(tmp_path, "two") as waited:
        assert not waited


def test_who_is_killed_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    assert (tmp_path / "key.claim").exists()
    with claim(tmp_path, "key") as waited:
        assert not waited
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_swept_and_what_is_held_stays(tmp_path: Path) -> None:
    (tmp_path / "left.claim").write_text("")
    with holder(tmp_path):
        sweep_claims(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["key.claim"]
    sweep_claims(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_waiting_ends_when_the_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "closing", lambda: True)
    with holder(tmp_path), pytest.raises(KeyboardInterrupt), claim(tmp_path, "key"):
        raise AssertionError("it is held by another")


def test_where_no_lock_can_be_had_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    with claim(tmp_path / "not there", "key") as waited:
        assert not waited
    (tmp_path / "key.claim").symlink_to("elsewhere")
    with claim(tmp_path, "key") as waited:
        assert not waited
    assert not (tmp_path / "elsewhere").exists()
    assert os.listdir(tmp_path) == ["key.claim"]  # noqa: PTH208
