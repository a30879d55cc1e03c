"""Judge what an image gains before it is written: what would break, or bring a second copy of a library.

Sources: PyTorch's and NVIDIA's names of builds (local versions such as ``+cu124``, distributions such as
``nvidia-nccl-cu12``); NumPy's migration guide 2.0 (its headers import ``numpy.core`` before, and
``numpy._core`` since).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envbuild.errors import CheckError, EnvbuildError, Location
from envbuild.events import Emit, ignore, task
from envbuild.extend.packages import TORCH_COMPANIONS, Addition, build_of, hidden_files
from envbuild.extend.python import InstalledDistribution, owned_files
from envbuild.image.files import ImageFiles
from envbuild.jobs.envbuild_libraries import major_of
from envbuild.spec.accelerators import CUDA, is_gpu_build

_CUDA_SUFFIX = re.compile(r"(?:nvidia|cupy|jax).*-cu(?:da)?([0-9]{2})[0-9]?x?(?:-.*)?")
# Since CUDA 13 the major is that of the version.
_CUDA_NAMES = frozenset({"nvidia-cuda-runtime", "nvidia-cublas", "cuda-toolkit"})
_MAX_EXTENSION_BYTES = 64 << 20
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionJudgement:
    """The errors and warnings on an addition."""

    errors: tuple[EnvbuildError, ...] = ()
    """Reasons to refuse it."""
    warnings: tuple[str, ...] = ()
    """Sentences on parts that may not work."""


def judge_addition(
    addition: Addition, image: ImageFiles, *, at: Path, emit: Emit = ignore
) -> AdditionJudgement:
    """Judge an addition beside what is installed; `at` is the image's file, for messages."""
    replaced = {package.name for package in addition.replaced}
    staying = {name: package for name, package in addition.python.installed.items() if name not in replaced}
    problems = [
        *_without_record(addition, image),
        *_other_builds(addition, staying),
        *_lost_accelerator(addition),
        *_other_cuda(addition, staying, image),
        *_broken_extensions(addition, image, emit),
    ]
    return AdditionJudgement(
        errors=tuple(CheckError(text, at=Location(path=at), hint=hint) for text, hint in problems),
        warnings=(*_compiled_for_another_torch(addition, staying), *_shadowed(addition)),
    )


def packages_for_cuda(addition: Addition) -> list[str]:
    """Return the added packages that are built for CUDA, or parts of it."""
    return [pin.name for pin in addition.pins if _cuda_major(pin.name, pin.version)]


def _without_record(addition: Addition, image: ImageFiles) -> Iterator[tuple[str, str]]:
    """Yield what cannot be replaced: no list of its files is there to hide them."""
    for package in addition.replaced:
        if package.site == addition.python.site_packages and not owned_files(image, package):
            yield (
                f"{package.name} {package.version} cannot be replaced: nothing in `{package.site}` lists"
                " its files",
                f"ask for a version of the other packages that {package.name} {package.version} suits",
            )


def _other_builds(
    addition: Addition, staying: Mapping[str, InstalledDistribution]
) -> Iterator[tuple[str, str]]:
    """Yield added wheels whose label (``+cu124``) is another than what stays has."""
    labelled = {label: package for package in staying.values() if (label := build_of(package.version))}
    for pin in addition.pins:
        label = build_of(pin.version)
        if label and labelled and label not in labelled:
            other, package = min(labelled.items())
            yield (
                f"{pin.name} {pin.version} is a build for {label}, and the image's"
                f" {package.name} {package.version} one for {other}",
                f"ask for a version of {pin.name} with `+{other}`; an index with these builds is named in a"
                " site file (`find_links`)",
            )
    torch = staying["torch"].version if "torch" in staying else ""
    for pin in addition.pins:
        if build_of(torch) == "cpu" and pin.name in TORCH_COMPANIONS and not _local(pin.version):
            yield (
                f"{pin.name} {pin.version} is a build for GPUs, and does not load with the image's torch"
                f" {torch}",
                f"`--python {pin.name}=={pin.version}+cpu` takes the build for it: from PyTorch's own index,"
                " an address of the origin `pytorch-cpu` in a site file, or a directory with the wheel"
                " (`find_links`)",
            )


def _lost_accelerator(addition: Addition) -> Iterator[tuple[str, str]]:
    """Yield replaced distributions that were built for GPUs, and whose new build is not."""
    pins = {pin.name: pin for pin in addition.pins}
    for old in addition.replaced:
        new = pins[old.name]
        was_gpu = is_gpu_build(_local(old.version)) or any(map(_is_of_cuda, old.requires))
        is_gpu = is_gpu_build(_local(new.version)) or any(map(_is_of_cuda, new.requires))
        if was_gpu and not is_gpu:
            yield (
                f"{new.name} {new.version} would replace {old.version}: a build without GPUs one for GPUs",
                f"leave {new.name} as it is, or name a wheel for the image's accelerator (`--wheel FILE`)",
            )


def _is_of_cuda(requirement: str) -> bool:
    return requirement.startswith(CUDA.distributions)


def _other_cuda(
    addition: Addition, staying: Mapping[str, InstalledDistribution], image: ImageFiles
) -> Iterator[tuple[str, str]]:
    """Yield added parts of another CUDA than the image has: two in one process share nothing."""
    present = {major for package in staying.values() if (major := _cuda_major(package.name, package.version))}
    hidden = hidden_files(addition, image)
    files = (path.rpartition("/")[2] for path in image.entries if path not in hidden)
    present |= {major for name in files if (major := major_of("cudart", name))}
    added: dict[str, list[str]] = {}
    for pin in addition.pins:
        if major := _cuda_major(pin.name, pin.version):
            added.setdefault(major, []).append(f"{pin.name} {pin.version}")
    for major, names in sorted(added.items()):
        if present and major not in present:
            yield (
                f"the image has CUDA {' and '.join(sorted(present))}, and parts of CUDA {major} would come"
                f" along: {_some(names)}",
                f"ask for a version that is built for CUDA {min(present)}",
            )


def _broken_extensions(addition: Addition, image: ImageFiles, emit: Emit) -> Iterator[tuple[str, str]]:
    """Yield modules that are compiled for NumPy 1 alone, if NumPy 2 replaces it."""
    old = next((package for package in addition.replaced if package.name == "numpy"), None)
    new = next((pin for pin in addition.pins if pin.name == "numpy"), None)
    if old is None or new is None or not (_major(old.version) < 2 <= _major(new.version)):
        return
    hidden = hidden_files(addition, image)
    # Those of Debian stay, and Python does not take them.
    covered = {package.name.replace("-", "_") for package in addition.replaced}
    modules = []
    for site in {package.site for package in addition.python.installed.values()}:
        for path, entry in image.entries.items():
            module = path.removeprefix(f"{site}/").partition("/")[0].partition(".")[0]
            is_module = path.startswith(f"{site}/") and path.endswith(".so") and entry.kind == "file"
            if is_module and path not in hidden and module not in covered:
                modules.append((module, entry))
    broken = set()
    total = sum(min(entry.size, _MAX_EXTENSION_BYTES) for _, entry in modules)
    with task(emit, "extensions", "read what is compiled for NumPy", total_bytes=total) as reading:
        for module, entry in modules:
            content = image.content(entry, _MAX_EXTENSION_BYTES)
            if b"numpy.core." in content and b"numpy._core" not in content:
                broken.add(module if module.isprintable() else ascii(module))
            reading.advance(len(content))
    if broken:
        yield (
            f"numpy {new.version} would replace {old.version}, for which modules of these are compiled:"
            f" {_some(sorted(broken))}",
            "leave numpy as it is, or let what is compiled for it change, too (`--upgrade NAME`)",
        )


def _compiled_for_another_torch(
    addition: Addition, staying: Mapping[str, InstalledDistribution]
) -> Iterator[str]:
    torch = staying.get("torch")
    if torch is None or not _local(torch.version):
        return
    for pin in addition.pins:
        if "torch" in pin.requires and not pin.file.endswith("-any.whl") and not _local(pin.version):
            yield (
                f"{pin.name} {pin.version} has compiled code for the torch of its index, and the image has"
                f" {torch.version}: it may not load"
            )


def _shadowed(addition: Addition) -> Iterator[str]:
    for package in addition.replaced:
        if package.site != addition.python.site_packages:
            yield (
                f"{package.name} {package.version} stays in `{package.site}`, where another installer put it;"
                f" Python takes the one in `{addition.python.site_packages}`"
            )


def _local(version: str) -> str:
    return version.partition("+")[2].lower()


def _cuda_major(name: str, version: str) -> str:
    """Return the major of the CUDA that a distribution is a part of or built for; empty for none."""
    if match := _CUDA_SUFFIX.fullmatch(name):
        return match[1]
    if name in _CUDA_NAMES:
        return str(_major(version))
    label = build_of(version)
    return label[2:-1] if label.startswith("cu") else ""


def _major(version: str) -> int:
    try:
        return Version(version).major
    except InvalidVersion:
        return 0


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
