"""What the images that others start from stand for: names of Docker images that many know. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

_SUITES = {"bookworm": "debian-12", "12": "debian-12", "bullseye": "debian-11", "11": "debian-11"}
_RELEASE = r"(?P<version>\d+(?:\.\d+)+)"
# Image of a framework → the recipe that stands for it.
_FRAMEWORKS = (
    (rf"pytorch/pytorch(?::{_RELEASE}.*|:.*)?", "pytorch"),
    (rf"tensorflow/tensorflow(?::{_RELEASE}.*|:.*)?", "tensorflow"),
    (rf"horovod/horovod(?::{_RELEASE}.*|:.*)?", "horovod"),
    (r"(?:quay\.io/)?jupyter/.*", "jupyterlab"),
    (rf"(?:apache/)?spark(?::{_RELEASE}.*|:.*)?", "spark"),
)
# Distribution → the one whose recipe stands for it, and for what it was built.
BUILDS = {"tensorflow-gpu": ("tensorflow", "cuda"), "onnxruntime-gpu": ("onnxruntime", "cuda")}
_VENDOR = r"nvcr\.io/nvidia/(pytorch|tensorflow):.*"
_NO_DEBIAN = "bases are Debian: without `base`, the first is taken that the recipes admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an image stands for.

    Attributes
    ----------
    frameworks : tuple of (str, str)
        Recipe, and version or nothing.
    why : str
        What could not be taken over.
    """

    base: str = ""
    python: str = ""
    accelerator: str = ""
    frameworks: tuple[tuple[str, str], ...] = ()
    why: str = ""


def read(reference: str, bases: Mapping[str, str]) -> Meaning:
    """Return what the name of an image means.

    Parameters
    ----------
    reference : str
        ``debian:bookworm-slim``; a digest counts for nothing.
    bases : mapping of str to str
        Base image → version of its Python.
    """
    plain = re.sub(r"\s+as\s.*", "", reference, flags=re.IGNORECASE).split("@")[0].strip()
    plain = re.sub(r"^(docker://)?(docker\.io/)?(library/)?", "", plain)
    name, _, tag = plain.partition(":")
    if name in ("debian", "bookworm", "bullseye"):
        base = next((_SUITES[part] for part in (*re.split("[-.]", tag), name) if part in _SUITES), "")
        return Meaning(base=base) if base in bases else Meaning(why=f"there is no base for `{plain}`")
    if name == "python":
        return _python(plain, tag, bases)
    if name.startswith("nvidia/cuda"):
        found = re.match(r"(\d+\.\d+)", tag)
        why = _NO_DEBIAN if "debian" not in tag else ""
        return Meaning(accelerator=f"cuda@{found[1]}" if found else "cuda", why=why)
    vendor = re.fullmatch(_VENDOR, plain)
    if vendor:
        why = "the vendor's own build is not in it: the recipe takes the project's wheels"
        return Meaning(accelerator="cuda", frameworks=((vendor[1], ""),), why=why)
    for pattern, recipe in _FRAMEWORKS:
        known = re.fullmatch(pattern, plain)
        if known:
            version = known.groupdict().get("version") or ""
            cuda = re.search(r"cuda(\d+\.\d+)|(-gpu)", tag)
            accelerator = (f"cuda@{cuda[1]}" if cuda[1] else "cuda") if cuda else ""
            return Meaning(frameworks=((recipe, version),), accelerator=accelerator)
    return Meaning(why=_NO_DEBIAN)


def _python(plain: str, tag: str, bases: Mapping[str, str]) -> Meaning:
    found = re.match(r"(3\.\d+)", tag)
    suite = next((_SUITES[part] for part in re.split("[-.]", tag) if part in _SUITES), "")
    version = found[1] if found else ""
    fitting = [base for base, held in sorted(bases.items(), reverse=True) if held == version]
    if suite in fitting or (suite in bases and not version):
        return Meaning(base=suite, python=version)
    if fitting:
        return Meaning(base=fitting[0], python=version)
    held = ", ".join(f"{base} has {bases[base]}" for base in sorted(bases))
    return Meaning(base=suite if suite in bases else "", why=f"no base has the Python of `{plain}`: {held}")


def accelerator(mark: str) -> str:
    """Return the accelerator that a mark of a build means (``cu126``, ``cuda12``); empty for any other."""
    short = re.fullmatch(r"cu(\d+)(\d)", mark)
    if short:
        return f"cuda@{short[1]}.{short[2]}"
    if re.fullmatch(r"(?:and-)?cuda|gpu", mark):
        return "cuda"
    long = re.fullmatch(r"(cuda|rocm)(\d+(?:\.\d+)*)(?:[-_](?:local|pip))?", mark)
    return f"{long[1]}@{long[2]}" if long else ""


def accelerator_of_index(address: str) -> str:
    """Return the accelerator whose builds alone an index has; empty where its address does not say."""
    return accelerator(re.split(r"[?#]", address)[0].rstrip("/").rpartition("/")[2])


def choice(recipe: str, constraint: str, versions: Sequence[str]) -> tuple[str, str]:
    """Return a recipe with the constraint that its versions can meet, and a remark where they cannot."""
    exact = re.fullmatch(r"==(\d+(?:\.\d+)*)", constraint)
    try:
        admitted = [one for one in versions if SpecifierSet(constraint).contains(one)]
    except InvalidSpecifier:
        admitted = []
    if not constraint:
        return recipe, ""
    if not admitted:
        return recipe, f"the recipe has {', '.join(versions)}: any of these is proposed"
    return f"{recipe}@{exact[1] if exact else constraint}", ""


def other_command(words: Sequence[str]) -> str:
    """Return why a command cannot be taken over."""
    name = words[0].rpartition("/")[2]
    if name in ("conda", "mamba", "micromamba"):
        return (
            "packages come from Debian and Python's index: name those of the latter under `packages.python`"
        )
    if name in ("yum", "dnf", "apk", "zypper", "microdnf"):
        return "bases are Debian: name its packages under `packages.system`"
    if name in ("wget", "curl", "git", "tar", "unzip", "make", "cmake", "gcc", "configure", "ninja"):
        return "what is built or downloaded becomes a recipe with `source`, or a package of the site's index"
    return "a spec has packages, variables and files, and no commands"
