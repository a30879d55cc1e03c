"""The real uv: origins, unreachable and hostile indexes, credentials, proxies."""

from __future__ import annotations

import contextlib
import shutil
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import MachineError, render
from envbuild.lock.text import dump
from envbuild.resolve.origins import PythonSources
from envbuild.spec.site import Site
from tests.support.mirrors import (
    digest,
    mirror,
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import PLATFORM, Desk, versions
from tests.support.resolved_specs import pytorch


def test_without_an_address_uv_is_asked_for_pytorchs_own_index(
    desk: Desk, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = proxy.accept()
                with connection:
                    said.append(connection.recv(4096))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    # All that is not on this machine goes to us, and we take note and hang up.
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    try:
        error = desk.error(desk.resolved(recipes=[pytorch()]))
    finally:
        proxy.shutdown(socket.SHUT_RDWR)
        proxy.close()
        thread.join(5)
    assert any(line.startswith(b"CONNECT ") and b"torch" in line for line in said)
    assert isinstance(error, MachineError)
    assert error.problem.startswith("there are no wheels of `torch`: ")
    assert "was asked, and cannot be reached: " in error.problem
    assert "asks for torch==2.13.0+cpu" in error.problem
    assert "`pip config set global.find-links DIR`" in str(error.hint)
    assert "pytorch-cpu: [ADDRESS]" in str(error.hint)


def test_a_framework_comes_from_its_own_index_and_nothing_else_does(desk: Desk, torch: Path) -> None:
    elsewhere = desk.server.root / "cpu"
    greedy = write_wheel(desk.directory / "greedy", "gamma", "99.0")
    write_index(elsewhere, [*torch.glob("*.whl"), greedy])
    for page in elsewhere.rglob("index.html"):
        page.write_text(page.read_text().replace('href="/files', 'href="/cpu/files'))
    address = f"{desk.server.address}/cpu/simple"
    desk.site = Site(name="x", origins={"pytorch-cpu": (address,)})
    lock = desk.lock(desk.resolved(recipes=[pytorch()]))
    found = {pin.name: (pin.version, pin.origin) for pin in lock.python}
    assert found == {"torch": ("2.13.0+cpu", "pytorch-cpu"), "gamma": ("1.5", "pypi")}


@pytest.mark.redteam
def test_the_plain_index_does_not_stand_in_for_a_frameworks_own(desk: Desk) -> None:
    write_index(desk.server.root, [write_wheel(desk.wheels, "torch", "2.13.0+cpu", tag=PLATFORM)])
    desk.site = Site(name="x", origins={"pytorch-cpu": ("http://127.0.0.1:1/cpu",)})
    error = desk.error(desk.resolved(recipes=[pytorch()]))
    assert isinstance(error, MachineError)
    assert error.problem.startswith("http://127.0.0.1:1/cpu/torch/ was asked, and cannot be reached: ")
    assert "Connection refused" in error.problem


@pytest.mark.redteam
def test_an_index_that_nobody_answers_for(desk: Desk) -> None:
    # The second address may be another's: the site does not say that it mirrors the first.
    for more in ((), (f"{desk.server.address}/simple",)):
        desk.site = Site(name="x", origins={"pypi": ("http://127.0.0.1:1/simple", *more)})
        error = desk.error(desk.resolved(python=["alpha"]))
        assert isinstance(error, MachineError)
        assert "cannot be reached" in error.problem
        assert "`mirrors: [pypi]`" in str(error.hint)


@pytest.mark.redteam
def test_an_index_that_answers_without_end_takes_no_more_memory_than_allowed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.resolve.uv._MEMORY_BYTES", 1 << 30)
    desk.server.script["/simple/alpha/"] = ["endless"] * 9
    error = desk.error(desk.resolved(python=["alpha"]))
    assert isinstance(error, MachineError)
    assert "uv needed more than 1.0 GiB of memory" in error.problem


@pytest.mark.parametrize("where", ["index", "redirection", "link", "user"])
def test_tokens_in_addresses_are_kept_only_where_no_other_user_may_look(desk: Desk, where: str) -> None:
    machine, page = desk.machine(), desk.server.root / "simple/alpha/index.html"
    if where == "index":
        index = f"{desk.server.address}/simple?token=Secret"
        machine = replace(machine, python=PythonSources(indexes=(index,)))
    elif where == "redirection":
        page.write_text(page.read_text().replace('href="/files', 'href="../../files'))
        desk.server.script["/simple/alpha/"] = ["-> /simple/alpha/?X-Signature=Secret", "ok"] * 9
    elif where == "link":
        page.write_text(page.read_text().replace(".whl#", ".whl?signature=Secret#"))
    else:
        signed = desk.server.address.replace("//", "//me:Secret@")
        page.write_text(page.read_text().replace('href="/files', f'href="{signed}/files'))
    lock = desk.lock(desk.resolved(python=["alpha"]), machine=machine)
    assert versions(lock)["alpha"] == "1.0"
    assert "Secret" not in dump(lock) + repr(desk.events)
    assert_kept_private(desk.directory / "cache", b"Secret")


def assert_kept_private(directory: Path, secret: bytes) -> None:
    """Check that a secret is in uv's own cache at most, and that this is closed to other users."""
    assert stat.S_IMODE((directory / "uv").stat().st_mode) == 0o700
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.relative_to(directory).parts[0] for path in files if secret in path.read_bytes()} <= {"uv"}


@pytest.mark.parametrize("where", ["index", pytest.param("find-links", marks=pytest.mark.slow), "netrc"])
def test_an_index_behind_a_password(
    desk: Desk, torch: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lock and fetch ask it for pages, lengths and files with the password, and keep that to themselves."""
    with mirror(desk.directory / "private") as private:
        write_index(private.root, [*desk.wheels.glob("*.whl"), *torch.glob("*.whl")])
        private.password = "Hunter2"
        machine, spec = desk.machine(), desk.resolved(recipes=[pytorch()], python=["alpha"])
        if where == "index":
            sources = PythonSources(indexes=(f"{private.private_address}/simple",), find_links=(str(torch),))
        elif where == "find-links":
            sources = replace(machine.python, find_links=(f"{private.private_address}/simple/torch/",))
        else:
            sources = machine.python
            netrc = desk.directory / "netrc"
            netrc.write_text("machine 127.0.0.1 login me password Hunter2\n")
            monkeypatch.setenv("NETRC", str(netrc))
            desk.site = Site(name="x", origins={"pytorch-cpu": (f"{private.address}/simple",)})
            spec = desk.resolved(recipes=[pytorch()], python=["alpha"])
        machine = replace(machine, python=sources)
        lock = desk.lock(spec, machine=machine)
        assert {pin.name: pin.size_bytes for pin in lock.python}["torch"] > 0
        files = desk.fetch(spec, lock, machine)
        assert all(digest(files.path(pin)) == pin.sha256 for pin in lock.python)
        assert "Hunter2" not in dump(lock) + repr(desk.events)
        assert_kept_private(desk.directory / "cache", b"Hunter2")
        private.password = "changed"
        shutil.rmtree(desk.directory / "cache")
        error = desk.error(spec, machine=machine)
    assert "Hunter2" not in render(error)
    assert_kept_private(desk.directory / "cache", b"Hunter2")


@pytest.mark.parametrize(
    "variable",
    [
        "http_proxy",
        "all_proxy",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("HTTP_PROXY", "https_proxy")),
    ],
)
def test_a_proxy_that_does_not_answer_is_named_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9")
    desk.site = Site(
        name="x",
        origins={
            "debian:bookworm": ("http://debian.invalid/debian",),
            "pypi": ("https://wheels.invalid/simple" if "https" in variable else "http://wheels.invalid/x",),
        },
    )
    machine = desk.machine()
    if "https" in variable:
        desk.site = desk.site.model_copy(update={"origins": {"pypi": desk.site.origins["pypi"]}})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    error = desk.error(desk.resolved(python=["alpha"], system=["git"]), machine=machine)
    assert (error.problem, error.exit_code) == (
        f"the proxy `http://127.0.0.1:9`, which {variable} names, does not answer", 5
    )  # fmt: skip
    assert error.hint.startswith(f"correct or unset {variable}")
