"""pip finds the wheels of exact versions for Python 2.7; nothing is resolved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envbuild.errors import MachineError, render
from envbuild.lock.text import dump
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.spec.base import BaseImage, BasePython
from envbuild.spec.site import Site
from tests.support.mirrors import (
    digest,
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import Desk, versions
from tests.support.resolved_specs import base_image


class TestPython27:
    """pip finds the wheels of exact versions; nothing is resolved."""

    @pytest.fixture
    def base(self, desk: Desk) -> BaseImage:
        """Let the index have wheels for Python 2.7, and for others."""
        made = [
            write_wheel(desk.wheels, "numpy", "1.16.6", tag="cp27-cp27mu-manylinux1_x86_64"),
            write_wheel(desk.wheels, "numpy", "1.16.5", tag="cp27-cp27mu-manylinux1_x86_64"),
            write_wheel(desk.wheels, "numpy", "1.16.6", tag="cp37-cp37m-manylinux1_x86_64"),
            write_wheel(desk.wheels, "enum34", "1.1.10", tag="py2-none-any", requires=["missing"]),
        ]
        write_index(desk.server.root, made)
        python = BasePython(version="2.7", abi="cp27mu")
        return base_image(python=python, glibc="2.31")

    def test_exactly_what_is_named_is_locked_and_fetched(self, desk: Desk, base: BaseImage) -> None:
        desk.server.password = "Hunter2"
        sources = PythonSources(indexes=(f"{desk.server.private_address}/simple",))
        archive = replace(desk.machine().apt[0], uris=(f"file://{desk.archive}",))
        machine = Machine(apt=(archive,), python=sources)
        spec = desk.resolved(base=base, python=["numpy==1.16.6", "enum34==1.1.10"])
        lock = desk.lock(spec, machine=machine)
        assert [(pin.file, pin.origin) for pin in lock.python] == [
            ("enum34-1.1.10-py2-none-any.whl", "pypi"),
            ("numpy-1.16.6-cp27-cp27mu-manylinux1_x86_64.whl", "pypi"),
        ]
        assert all(pin.size_bytes == (desk.wheels / pin.file).stat().st_size for pin in lock.python)
        files = desk.fetch(spec, lock, machine)
        assert all(digest(files.path(pin)) == pin.sha256 for pin in lock.python)
        assert "Hunter2" not in dump(lock) + repr(desk.events)
        desk.server.password = "changed"
        error = desk.error(spec, machine=machine)
        assert isinstance(error, MachineError)
        assert "/simple/enum34/` cannot be read: 401" in error.problem
        assert "Hunter2" not in render(error)

    def test_a_directory_serves_without_a_network(self, desk: Desk, base: BaseImage) -> None:
        spec = desk.resolved(base=base, python=["numpy==1.16.6"])
        desk.lock(spec)
        desk.server.requests.clear()
        (pin,) = desk.lock(spec, machine=desk.with_links(desk.wheels), offline=True).python
        assert (pin.origin, pin.sha256) == ("find-links", digest(desk.wheels / pin.file))
        assert desk.server.requests == []

    def test_all_that_no_origin_has_is_named_at_once(self, desk: Desk, base: BaseImage) -> None:
        error = desk.error(desk.resolved(base=base, python=["numpy==9", "nosuch==1", "enum34==1.1.10"]))
        assert [single.problem for single in error.each()] == [
            "nosuch 1 has no wheel for cp27mu with glibc 2.31",
            "numpy 9 has no wheel for cp27mu with glibc 2.31",
        ]

    @pytest.mark.slow
    def test_a_mirror_that_does_not_answer_is_left_out(self, desk: Desk, base: BaseImage) -> None:
        dead, alive = "http://127.0.0.1:1/simple", f"{desk.server.address}/simple"
        desk.site = Site(name="x", origins={"pypi": (dead, alive)}, mirrors=("pypi",))
        lock = desk.lock(desk.resolved(base=base, python=["numpy==1.16.6"]))
        assert versions(lock)["numpy"] == "1.16.6"
        assert desk.warnings() == [f"`{dead}/numpy/` cannot be read; it is left out"]
        desk.site = Site(name="x", origins={"pypi": (dead,)})
        error = desk.error(desk.resolved(base=base, python=["numpy==1.16.6"]))
        assert isinstance(error, MachineError)
        assert f"`{dead}/numpy/` cannot be read: connection error" in error.problem
