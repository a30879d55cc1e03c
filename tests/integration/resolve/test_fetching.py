"""Fetching from a server that misbehaves: what is kept is what is locked, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError, render
from envbuild.events import Event, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.lock.model import DebPin, PythonPin
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.fetch import export, fetch, origins_of
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from envbuild.system import network
from envbuild.system.network import Client, NetworkError, RequestLimits
from tests.support.mirrors import Mirror, digest, mirror, write_index, write_wheel
from tests.support.resolved_specs import deb, resolved, wheel

CONTENT = hashlib.sha256(b"seed").digest() * 40_000  # 1.28 MB: several chunks
FILE = "/debian/pool/main/x/xlib/xlib_1.0-1_amd64.deb"
QUICK = RequestLimits(attempts=4, connect_s=2, read_s=0.4, pause_s=0.01, longest_pause_s=0.05)


class Desk:
    """A cache, a server and what was told."""

    def __init__(self, place: Path, server: Mirror) -> None:
        self.server = server
        self.place = place
        self.files = FileCache(place / "files")
        self.events: list[Event] = []
        self.pin = self.offer("xlib", CONTENT)

    def offer(self, name: str, content: bytes) -> DebPin:
        pin = deb(name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        path = self.server.root / "debian" / pin.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return pin

    def resolved(self, *addresses: str) -> ResolvedSpec:
        origins = {
            "debian:bookworm": addresses or (f"{self.server.address}/debian",),
            "pypi": (f"{self.server.address}/simple",),
        }
        return resolved(site=Site(name="here", origins=origins), path=Path("spec.yaml"))

    def fetch(
        self,
        *pins: DebPin | PythonPin,
        addresses: tuple[str, ...] = (),
        offline: bool = False,
        sources: tuple[Path, ...] = (),
    ) -> None:
        context = ResolveContext(
            machine=Machine(),
            cache_dir=self.place / "cache",
            files=self.files,
            emit=self.events.append,
            offline=offline,
            directories=sources,
        )
        fetch(pins or (self.pin,), origins_of(self.resolved(*addresses)), context, QUICK)

    def refused(self, *pins: DebPin | PythonPin, **options: object) -> EnvbuildError:
        with pytest.raises(EnvbuildError) as caught:
            self.fetch(*pins, **options)  # type: ignore[arg-type]
        return caught.value

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]

    def holds(self, pin: DebPin | PythonPin) -> bool:
        """Whether the cache has the file, and nothing that was not checked."""
        assert not list(self.files.root.rglob(".unverified-*"))
        if not self.files.path(pin).exists():
            return False
        assert digest(self.files.path(pin)) == pin.sha256
        return True


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with mirror(tmp_path / "served") as server:
        yield Desk(tmp_path, server)


def test_a_file_comes_under_its_digest_and_name(desk: Desk) -> None:
    desk.fetch()
    path = desk.files.path(desk.pin)
    assert path == desk.files.root / "sha256" / desk.pin.sha256[:2] / desk.pin.sha256 / "xlib_1.0-1_amd64.deb"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert isinstance(desk.events[0], TaskStarted)
    assert isinstance(desk.events[-1], TaskDone)
    assert sum(event.bytes for event in desk.events if isinstance(event, TaskAdvanced)) == len(CONTENT)


def test_what_is_there_is_not_asked_for(desk: Desk) -> None:
    desk.fetch()
    desk.server.requests.clear()
    desk.events.clear()
    desk.fetch()
    assert (desk.server.requests, desk.events) == ([], [])


@pytest.mark.parametrize("at", [0, len(CONTENT) // 2, len(CONTENT) - 1])
def test_a_file_that_was_damaged_since_it_came_is_told_and_fetched_again(desk: Desk, at: int) -> None:
    desk.fetch()
    path = desk.files.path(desk.pin)
    path.chmod(0o644)
    content = bytearray(CONTENT)
    content[at] ^= 1
    path.write_bytes(content)
    desk.fetch()
    assert desk.warnings() == ["`xlib_1.0-1_amd64.deb` in the cache is damaged; it is fetched again"]
    assert desk.holds(desk.pin)


def test_a_server_that_is_busy_three_times_is_asked_a_fourth_time(desk: Desk) -> None:
    desk.server.script[FILE] = ["503", "503", "503"]
    desk.fetch()
    assert desk.holds(desk.pin)
    assert len(desk.server.requests_for(FILE)) == 4


def test_a_server_that_stays_busy_is_given_up(desk: Desk) -> None:
    desk.server.script[FILE] = ["503"] * 20
    error = desk.refused()
    assert isinstance(error, MachineError)
    assert "answered with status 503" in error.problem
    assert len(desk.server.requests_for(FILE)) == QUICK.attempts
    assert not desk.holds(desk.pin)


@pytest.mark.parametrize("step", ["cut", "stall"])
def test_a_transfer_that_breaks_off_goes_on_where_it_ended(desk: Desk, step: str) -> None:
    desk.server.script[FILE] = [step, step]
    desk.fetch()
    assert desk.holds(desk.pin)
    first, second, third = desk.server.requests_for(FILE)
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").rstrip("-")) < int(third.removeprefix("bytes=").rstrip("-"))
    assert sum(event.bytes for event in desk.events if isinstance(event, TaskAdvanced)) == len(CONTENT)


def test_a_server_that_sends_everything_again_is_understood(desk: Desk) -> None:
    desk.server.script[FILE] = ["cut", "whole"]
    desk.fetch()
    assert desk.holds(desk.pin)
    assert sum(event.bytes for event in desk.events if isinstance(event, TaskAdvanced)) == len(CONTENT)


def test_a_server_that_never_goes_on_is_given_up(desk: Desk) -> None:
    desk.server.script[FILE] = ["cut", *["503"] * QUICK.attempts]
    assert "status 503" in desk.refused().problem
    assert not desk.holds(desk.pin)


@pytest.mark.parametrize(
    ("step", "told"), [("wrong", "is not the locked file: its sha256 is"), ("long", "is longer than the")]
)
def test_wrong_bytes_are_not_kept(desk: Desk, step: str, told: str) -> None:
    desk.server.script[FILE] = [step]
    error = desk.refused()
    assert told in error.problem
    assert not desk.holds(desk.pin)
    assert isinstance(desk.events[-1], TaskFailed)


def test_a_second_address_serves_what_the_first_does_not(desk: Desk) -> None:
    address = desk.server.address
    desk.server.script["/first/" + desk.pin.file] = ["503"] * 20
    desk.fetch(addresses=(f"{address}/first", f"{address}/second", f"{address}/debian"))
    assert desk.holds(desk.pin)


def test_wrong_bytes_at_the_first_address_do_not_hinder_the_second(desk: Desk, tmp_path: Path) -> None:
    other = desk.server.root / "bad" / desk.pin.file
    other.parent.mkdir(parents=True)
    other.write_bytes(b"y" * len(CONTENT))
    desk.fetch(addresses=(f"{desk.server.address}/bad", f"{desk.server.address}/debian"))
    assert desk.holds(desk.pin)


def test_everything_that_is_gone_is_told_at_once_with_the_way_out(desk: Desk) -> None:
    here = desk.offer("kept", b"kept")
    missing = [deb("gone", sha256="1" * 64), deb("lost", "2:1-1", sha256="2" * 64)]
    error = desk.refused(*missing, here)
    assert isinstance(error, RequestError)
    assert error.exit_code == 2
    assert error.problem == "no origin has these locked files any more: gone 1.0-1, lost 2:1-1"
    assert "`envbuild lock spec.yaml --upgrade gone lost`" in str(error.hint)
    assert "--from DIR" in str(error.hint)
    assert desk.holds(here)  # what could be had is kept for the next run


def test_nobody_answers(desk: Desk) -> None:
    error = desk.refused(addresses=("http://127.0.0.1:1/debian",))
    assert isinstance(error, MachineError)
    assert error.problem.endswith("cannot be reached")


def test_no_message_tells_a_token(desk: Desk) -> None:
    desk.server.script[FILE] = ["503"] * 20
    with Client(QUICK) as client, pytest.raises(NetworkError) as caught:
        client.length(desk.server.address.replace("//", "//me:secret@") + FILE + "?token=hidden")
    assert "secret" not in render(caught.value)
    assert "hidden" not in render(caught.value)


def test_a_length_that_is_not_told_is_counted(desk: Desk) -> None:
    desk.server.script[FILE] = ["unsized", "unsized"]
    with Client(QUICK) as client:
        assert client.length(desk.server.address + FILE) == len(CONTENT)


def test_a_length_that_is_cut_is_not_counted(desk: Desk) -> None:
    desk.server.script[FILE] = ["absurd", "absurd cut"]
    with Client(QUICK) as client, pytest.raises(NetworkError, match="was cut after"):
        client.length(desk.server.address + FILE)


def test_a_length_that_never_ends_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MAX_FILE_BYTES", 1 << 24)
    desk.server.script[FILE] = ["unsized", "endless"]
    with Client(QUICK) as client, pytest.raises(NetworkError, match="longer than any file should be"):
        client.length(desk.server.address + FILE)


def test_a_file_that_is_shorter_than_what_is_locked(desk: Desk) -> None:
    longer = replace(desk.pin, size_bytes=desk.pin.size_bytes + 1)
    assert "has fewer bytes than requested (HTTP 416)" in desk.refused(longer).problem


def test_offline_names_everything_that_is_missing(desk: Desk) -> None:
    missing: list[DebPin | PythonPin] = [deb("one", sha256="1" * 64), wheel("two", sha256="2" * 64)]
    error = desk.refused(*missing, offline=True)
    assert isinstance(error, RequestError)
    assert error.problem == (
        "offline: 2 locked files (0.0 MB) missing on this machine"
        "\n  one_1.0-1_amd64.deb\n  two-1.0-py3-none-any.whl"
    )
    assert desk.server.requests == []


def test_kept_files_serve_without_a_network(desk: Desk, tmp_path: Path) -> None:
    other = desk.offer("other", b"other")
    desk.fetch(desk.pin, other)
    export([desk.pin, other], desk.files, tmp_path / "kept")
    assert (tmp_path / "kept/SHA256SUMS").read_text() == (
        f"{other.sha256}  debs/other_1.0-1_amd64.deb\n{desk.pin.sha256}  debs/xlib_1.0-1_amd64.deb\n"
    )
    desk.files = FileCache(tmp_path / "elsewhere")
    desk.server.requests.clear()
    desk.fetch(desk.pin, other, offline=True, sources=(tmp_path / "kept",))
    assert desk.holds(desk.pin)
    assert desk.holds(other)
    assert desk.server.requests == []


def test_two_files_of_one_name_are_both_kept(desk: Desk, tmp_path: Path) -> None:
    one, two = desk.pin, desk.offer("xlib", b"of a build")
    desk.fetch(two)
    desk.offer("xlib", CONTENT)
    desk.fetch(one)
    assert one.file == two.file
    export([one, two], desk.files, tmp_path / "kept")
    sums = dict(line.split()[::-1] for line in (tmp_path / "kept/SHA256SUMS").read_text().splitlines())
    assert {digest(tmp_path / "kept" / name): name for name in sums} == {
        digest: name for name, digest in sums.items()
    }
    assert set(sums.values()) == {one.sha256, two.sha256}
    desk.files = FileCache(tmp_path / "elsewhere")
    desk.events.clear()
    desk.fetch(one, two, offline=True, sources=(tmp_path / "kept",))
    assert desk.holds(one)
    assert desk.holds(two)
    assert desk.warnings() == []


def test_a_complete_transfer_whose_end_is_missing_is_enough(desk: Desk) -> None:
    desk.server.script[FILE] = ["chunked without end"]
    desk.fetch()
    assert desk.holds(desk.pin)
    assert len(desk.server.requests_for(FILE)) == 1
    # Half of it is not.
    desk.files = FileCache(desk.place / "other")
    desk.server.requests.clear()
    desk.server.script[FILE] = ["chunked half without end"]
    desk.fetch()
    assert desk.holds(desk.pin)
    assert len(desk.server.requests_for(FILE)) == 2


def test_a_kept_file_that_was_changed_is_not_used(desk: Desk, tmp_path: Path) -> None:
    desk.fetch()
    export([desk.pin], desk.files, tmp_path / "kept")
    kept = tmp_path / "kept/debs/xlib_1.0-1_amd64.deb"
    kept.write_bytes(b"x" * len(CONTENT))
    desk.files = FileCache(tmp_path / "elsewhere")
    error = desk.refused(offline=True, sources=(tmp_path / "kept",))
    assert "offline: 1 locked file (1.3 MB) missing on this machine" in error.problem
    assert "is not the locked file" in desk.warnings()[0]
    assert not desk.holds(desk.pin)
    desk.fetch(sources=(tmp_path / "kept",))
    assert desk.holds(desk.pin)
    export([desk.pin], desk.files, tmp_path / "kept")  # mended
    assert digest(kept) == desk.pin.sha256


def test_a_cached_file_that_was_changed_is_not_exported(desk: Desk, tmp_path: Path) -> None:
    desk.fetch()
    path = desk.files.path(desk.pin)
    path.chmod(0o644)
    path.write_bytes(b"x" * len(CONTENT))
    with pytest.raises(RequestError, match="in the cache is not the locked file"):
        export([desk.pin], desk.files, tmp_path / "kept")
    assert list((tmp_path / "kept/debs").iterdir()) == [], "no half of it is left either"


def test_wheels_are_found_by_name_version_and_digest(desk: Desk, tmp_path: Path) -> None:
    made = write_wheel(tmp_path / "made", "alpha", "1.0", filler=b"z" * 1000)
    newer = write_wheel(tmp_path / "made", "alpha", "2.0")
    write_index(desk.server.root, [made, newer])
    pin = wheel("alpha", sha256=digest(made), size_bytes=made.stat().st_size)
    desk.fetch(pin)
    assert desk.holds(pin)


def test_wheels_that_are_gone_or_others_are_told_at_once(desk: Desk, tmp_path: Path) -> None:
    made = write_wheel(tmp_path / "made", "alpha", "1.0")
    write_index(desk.server.root, [made])
    swapped = wheel("alpha", sha256="3" * 64, size_bytes=made.stat().st_size)
    gone = wheel("beta", sha256="4" * 64)
    older = replace(
        wheel("alpha", "0.9", sha256="5" * 64), name="alpha-old", file="alpha_old-0.9-py3-none-any.whl"
    )
    error = desk.refused(swapped, gone, older)
    assert isinstance(error, RequestError)
    assert error.problem == "no origin has these locked files any more: alpha 1.0, alpha-old 0.9, beta 1.0"


def test_a_full_or_read_only_place_is_told(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file, not a directory")
    desk.files = FileCache(tmp_path / "blocked")
    error = desk.refused()
    assert isinstance(error, MachineError)
    assert "cannot be written" in error.problem
    assert isinstance(desk.events[-1], TaskFailed)
