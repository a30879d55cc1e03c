"""Frameworks come from their own origins, in the build for the accelerator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envbuild.spec.site import Site
from tests.support.mirrors import (
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import PLATFORM, Desk, versions
from tests.support.resolved_specs import pytorch


def test_a_framework_comes_from_a_directory_and_never_from_the_plain_index(desk: Desk, torch: Path) -> None:
    spec = desk.resolved(recipes=[pytorch()])
    lock = desk.lock(spec, machine=desk.with_links(torch))
    pin = next(pin for pin in lock.python if pin.name == "torch")
    assert (pin.version, pin.origin, pin.layer) == ("2.13.0+cpu", "pytorch-cpu", "framework:pytorch")
    assert {pin.name for pin in lock.python} == {"torch", "gamma"}
    assert desk.warnings() == []


def test_a_companion_in_another_build_than_its_framework_is_refused_with_the_line_to_write(
    desk: Desk, torch: Path
) -> None:
    plain = write_wheel(desk.wheels, "torchvision", "0.28.0", requires=["torch==2.13.0"], tag=PLATFORM)
    write_index(desk.server.root, [plain, write_wheel(desk.wheels, "timm", "1.0", requires=["torchvision"])])
    machine = desk.with_links(torch)
    error = desk.error(desk.resolved(recipes=[pytorch()], python=["timm"]), machine=machine)
    assert error.problem.startswith("`torchvision` 0.28.0 is not a build for `torch` 2.13.0+cpu")
    assert "write `torchvision==0.28.0+cpu` under `packages.python`" in str(error.hint)
    assert "`pytorch-cpu`" in str(error.hint)
    # A request for that very build is met; `envbuild check` finds what it lacks.
    accepted = desk.resolved(recipes=[pytorch()], python=["timm", "torchvision===0.28.0"])
    assert versions(desk.lock(accepted, machine=machine))["torchvision"] == "0.28.0"
    # The line to write leads to the build of the framework's own place.
    write_wheel(torch, "torchvision", "0.28.0+cpu", requires=["torch==2.13.0"], tag=PLATFORM)
    line = desk.resolved(recipes=[pytorch()], python=["timm", "torchvision==0.28.0+cpu"])
    pins = {pin.name: pin for pin in desk.lock(line, machine=machine).python}
    assert (pins["torchvision"].version, pins["torchvision"].layer) == ("0.28.0+cpu", "python")


def test_an_index_that_cannot_be_reached_is_a_warning_while_another_origin_serves(
    desk: Desk, torch: Path
) -> None:
    desk.site = Site(name="x", origins={"pytorch-cpu": ("http://127.0.0.1:1/cpu",)})
    lock = desk.lock(desk.resolved(recipes=[pytorch()]), machine=desk.with_links(torch))
    assert versions(lock)["torch"] == "2.13.0+cpu"
    assert desk.warnings() == [
        "the origin `pytorch-cpu` at http://127.0.0.1:1/cpu cannot be reached:"
        " Connection refused (os error 111); it is left out"
    ]


def test_an_accelerator_that_nobody_asked_for_is_told(desk: Desk, torch: Path) -> None:
    desk.lock(desk.resolved(python=["torch"]))
    (warning,) = desk.warnings()
    assert (
        warning
        == "this image is for cpu, and CUDA packages are installed too: nvidia-cublas (required by torch)"
    )
    assert desk.hints() == ["write `frameworks: [pytorch]` instead: a recipe takes the build for cpu"]
    desk.lock(desk.resolved(recipes=[pytorch()], python=["nvidia-cublas"]), machine=desk.with_links(torch))
    assert desk.hints() == ["remove them at spec.yaml, or write `accelerator: cuda`"]


def test_an_unproven_framework_for_cpu_is_not_replaced_by_its_build_for_cuda(desk: Desk, torch: Path) -> None:
    unproven = replace(pytorch("2.13"), is_proven=False)
    assert versions(desk.lock(desk.resolved(recipes=[unproven]), machine=desk.with_links(torch)))[
        "torch"
    ] == ("2.13.0+cpu")
    error = desk.error(desk.resolved(recipes=[unproven]))
    assert error.problem.startswith("the image is for cpu, and `torch` 2.13.0 is a build for CUDA")
    assert error.problem.endswith("it requires nvidia-cublas")
    assert error.at == unproven.at
    assert "an address of the origin `pytorch-cpu`" in str(error.hint)
