"""Rules on Python packages with compiled modules: each is judged for every package whose build is known."""

from __future__ import annotations

from envbuild.rules import versions
from envbuild.rules.facts import is_absent, shown
from envbuild.rules.judge import Rule, Stack, UnknownFact, require

# NumPy's releases that changed its C-API: what is compiled with one needs it, or a newer one. From 1.25 on
# headers stand for the API of 1.19 (NumPy's release notes of 1.25; `NPY_FEATURE_VERSION`).
_NUMPY_APIS = ("1.7", "1.8", "1.9", "1.10", "1.12", "1.13", "1.14", "1.16", "1.20", "1.22", "1.23")


def _has(stack: Stack, path: str) -> bool:
    """Return whether the image has a package or framework, or may have it."""
    return not is_absent(stack.facts, path)


def _release(version: str) -> str:
    """Return major and minor of a version."""
    return ".".join(version.split(".")[:2])


@Rule(
    id="PACKAGE.built-for-framework",
    source=[
        "https://github.com/Dao-AILab/flash-attention/issues/1327",
        "https://github.com/horovod/horovod/issues/4039",
    ],
    seen="2026-11-28",
    per_package="framework",
    hint="take a build of it for this release: the C++ interfaces of frameworks differ between releases",
)
def extension_for_framework(stack: Stack) -> None:
    """Extensions are compiled for a release of a framework that the image has."""
    built = stack.of_package("framework")
    names = [name for name in stack.texts("frameworks") if name != stack.package]
    releases = {name: stack.text(f"frameworks.{name}.version") for name in names}
    if not releases:
        raise UnknownFact("frameworks.NAME.version")
    fits = [versions.in_range(text, f"=={_release(built)}.*", "branch") for text in releases.values()]
    present = " and ".join(f"{name} {text}" for name, text in releases.items())
    reason = f"{stack.package} is compiled for release {built}, and the image has {present}"
    require(True if True in fits else None if None in fits else False, reason)


@Rule(
    id="PYTORCH.extension-for-gpus",
    source=["https://github.com/facebookresearch/xformers/issues/982"],
    seen="2026-11-28",
    per_package="toolkit",
    # Other packages bring CUDA for themselves.
    when=lambda stack: (
        f"packages.{stack.package}.framework" in stack.facts and _has(stack, "frameworks.pytorch.version")
    ),
    hint="take the build of PyTorch for the same CUDA or ROCm, or the package's build for the CPU",
)
def extension_for_gpus(stack: Stack) -> None:
    """Extensions of PyTorch for GPUs are beside a build of PyTorch for GPUs."""
    built, accelerator = stack.of_package("toolkit"), stack.text("frameworks.pytorch.accelerator")
    reason = f"{stack.package} is compiled for GPUs (release {built}), and PyTorch is a build for the CPU"
    require(accelerator != "cpu", reason)


@Rule(
    id="PYTORCH.cxx11-abi",
    source=[
        "https://github.com/Dao-AILab/flash-attention/issues/680",
        "https://github.com/Dao-AILab/flash-attention/issues/1644",
    ],
    seen="2026-11-28",
    per_package="cxx11_abi",
    when=lambda stack: _has(stack, "frameworks.pytorch.cxx11_abi"),
    hint="take its build with the other C++ ABI (`cxx11abiTRUE` or `cxx11abiFALSE` in the wheel's name)",
)
def extension_of_cxx11_abi(stack: Stack) -> None:
    """Extensions and PyTorch are compiled with one C++ ABI."""
    path = f"packages.{stack.package}.cxx11_abi"
    own, of_torch = (
        "new" if stack[name] is True else "old" for name in (path, "frameworks.pytorch.cxx11_abi")
    )
    reason = f"{stack.package} is compiled with the {own} C++ ABI, and PyTorch with the {of_torch} one"
    require(own == of_torch, reason)


@Rule(
    id="PYTHON.of-extension",
    source=["PEP 3149: the tags of extension modules"],
    seen="2026-11-28",
    per_package="python",
    hint="take a build of it for this Python",
)
def extension_for_python(stack: Stack) -> None:
    """Extension modules are compiled for the image's Python."""
    built, python = stack.of_package("python"), stack.text("python.version")
    same = versions.in_range(python, f"=={_release(built)}.*", "branch")
    require(same, f"{stack.package} is compiled for Python {built}, and the image has {python}")


@Rule(
    id="NUMPY.of-extension",
    source=["https://numpy.org/doc/stable/dev/depending_on_numpy.html"],
    seen="2026-11-28",
    per_package="numpy",
    when=lambda stack: _has(stack, "packages.numpy"),
    hint="take a newer build of it, or `numpy<2`",
)
def extension_for_numpy(stack: Stack) -> None:
    """Extension modules for NumPy 1 are not beside NumPy 2."""
    built, numpy = stack.of_package("numpy"), stack.text("packages.numpy")
    reason = f"{stack.package} is compiled with NumPy {built}, and the image has {numpy}"
    if versions.in_range(built, "<2", "branch") is not False:
        require(versions.in_range(numpy, "<2", "pep440"), f"{reason}: it does not load")


@Rule(
    id="NUMPY.not-older-than-built",
    source=["https://github.com/tensorflow/tensorflow/issues/25934"],
    seen="2026-11-20",
    per_package="numpy",
    # Of its files the major alone is known.
    when=lambda stack: _has(stack, "packages.numpy") and "." in stack.of_package("numpy"),
    severity="warning",
    hint="take a newer NumPy, or an older build of the package",
)
def numpy_not_older_than_built(stack: Stack) -> None:
    """NumPy has the C-API that extension modules were compiled with."""
    built, numpy = stack.of_package("numpy"), stack.text("packages.numpy")
    if versions.in_range(built, ">=1.25", "branch"):
        return
    needed = [release for release in _NUMPY_APIS if versions.in_range(built, f">={release}", "vendor")]
    if not needed:
        raise UnknownFact(reason=f"which C-API NumPy {built} has is not known")
    reason = f"{stack.package} is compiled with NumPy {built}, whose C-API the image's {numpy} lacks"
    require(versions.in_range(numpy, f">={needed[-1]}", "pep440"), reason)


def _cuda_majors(stack: Stack) -> tuple[str, ...]:
    """Return the majors of the image's CUDA; UnknownFact if nothing says which it has."""
    majors = stack.texts_or_none("cuda.majors")
    return (stack.text("cuda.toolkit").partition(".")[0],) if majors is None else majors


@Rule(
    id="CUDA.of-extension",
    source=[
        "https://github.com/Dao-AILab/flash-attention/issues/631",
        "https://github.com/Dao-AILab/flash-attention/issues/2118",
    ],
    seen="2026-11-28",
    per_package="toolkit",
    when=lambda stack: any(_cuda_majors(stack)),
    hint="take a build of it for the CUDA of the image",
)
def extension_for_cuda(stack: Stack) -> None:
    """Extensions are compiled for a major of CUDA that the image has."""
    built, majors = stack.of_package("toolkit"), _cuda_majors(stack)
    reason = f"{stack.package} is compiled for CUDA {built}, and the image has {shown(majors)}"
    require(built.partition(".")[0] in majors, reason)


@Rule(
    id="MPI.of-extension",
    source=["https://docs.open-mpi.org/en/main/building-apps/abi-compatibility.html"],
    seen="2026-11-28",
    per_package="mpi_abi",
    when=lambda stack: stack["mpi.source"] == "image",
    hint="build it with the image's MPI: `packages.from_source` of the spec",
)
def extension_for_mpi(stack: Stack) -> None:
    """Extensions are linked for an ABI that the image's MPI offers."""
    built, offered = stack.of_package("mpi_abi"), stack.texts("mpi.abis")
    reason = f"{stack.package} is linked for the ABI {built}, and the image's MPI offers {shown(offered)}"
    require(built in offered, reason)
