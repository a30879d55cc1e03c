"""A lock, and plans of it and of variations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuild.errors import Location
from envbuild.lock.model import DebPin, PythonPin, ToolPin
from envbuild.plan.model import BuildPlan, Compression, InlineFile
from envbuild.plan.planner import make_plan
from envbuild.spec.base import BaseImage, BasePython
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import EnvSpec
from envbuild.spec.recipe import Recipe, SourceBuild, Variant
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.yamlfile import Document
from tests.support import resolved_specs
from tests.support.resolved_specs import bare_lock, base_pin, build_deb, recipe_pin

TEXTS = {"/.singularity.d/env/99-base.sh": "#!/bin/sh\n"}
METADATA_DIR = (InlineFile(path="/.envbuild/manifest.json", content="e30="),)


def sha(text: str) -> str:
    return text.encode().hex().ljust(64, "0")[:64]


def deb(name: str, version: str = "1.0") -> DebPin:
    return resolved_specs.deb(name, version, sha256=sha(f"{version}{name}"))


def wheel(name: str, version: str, layer: str) -> PythonPin:
    return resolved_specs.wheel(name, version, layer=layer, sha256=sha(f"{version}{name}"), size_bytes=1)


def recipe(name: str, kind: Any, version: str, **more: Any) -> ChosenRecipe:
    variant = Variant(requirements=(f"{name}=={{version}}",))
    return ChosenRecipe(
        recipe=Recipe(
            name=name,
            kind=kind,
            summary=name,
            versions=(version,),
            variants={"cpu": variant},
            owns=(name,),
            **more,
        ),
        version=version,
        variant_name="cpu",
        variant=variant,
        files={},
        digest="sha256:" + sha(name),
        at=Location(path=Path("spec.yaml")),
    )


MPICH, OPENMPI = recipe("mpich", "mpi", "5.0.1"), recipe("openmpi", "mpi", "5.0.8")
PYTORCH = recipe("torch", "framework", "2.13.0")
BASE = BaseImage(
    name="debian-12",
    summary="Debian 12",
    distribution="debian",
    suite="bookworm",
    version="12",
    glibc="2.36",
    origins=("debian:bookworm",),
    architectures=("amd64",),
    packages=("python3.11", "openssl"),
    python=BasePython(version="3.11", abi="cp311"),
)


def resolved(*recipes: ChosenRecipe, files: Mapping[str, bytes] | None = None) -> ResolvedSpec:
    entries = [{"source": source, "target": f"/srv/{source}"} for source in files or {}]
    spec = EnvSpec.model_validate(
        {"name": "x", "version": "1", "base": "debian-12", "files": tuple(entries)}, strict=False
    )
    return ResolvedSpec(
        spec_file=Loaded(value=spec, document=Document(path=Path("x.yaml"))),
        base_file=Loaded(value=BASE, document=Document(path=Path("base.yaml"))),
        base_digest="sha256:" + sha("base"),
        site_file=None,
        recipes=recipes,
        requested=(),
        wheel_directories=(),
        files=dict(files or {}),
        architecture="amd64",
    )


LOCK = bare_lock(
    name="x",
    base=base_pin(BASE, digest="sha256:" + sha("base")),
    recipes=(recipe_pin("mpich", "5.0.1", kind="mpi"),),
    base_debs=(deb("openssl"), deb("python3.11")),
    system_debs=(deb("git"),),
    python=(
        wheel("mpich", "5.0.1", "mpi"),
        wheel("mpi4py", "4.1.0", "python"),
        wheel("numpy", "2.3.0", "python"),
        wheel("torch", "2.13.0", "framework:torch"),
        wheel("triton", "3.5.0", "framework:torch"),
    ),
    tools=tuple(
        ToolPin(name=name, version="1", digest="sha256:" + sha(name))
        for name in ("installer", "mksquashfs", "mmdebstrap", "zlib-ng", "zstandard")
    ),
)
ASKED = resolved(MPICH, PYTORCH)


def plan(
    what: ResolvedSpec = ASKED,
    *,
    compression: Compression = "zstd",
    texts: Mapping[str, str] = TEXTS,
    story: Sequence[InlineFile] = METADATA_DIR,
    **changes: Any,
) -> BuildPlan:
    lock = dataclasses.replace(LOCK, **changes)
    return make_plan(what, lock, root_texts=texts, metadata=story, compression=compression)


def keys(of: BuildPlan) -> dict[str, str]:
    return {layer.name: layer.key for layer in of.layers}


def changed(after: BuildPlan, before: BuildPlan | None = None) -> set[str]:
    """Names of layers whose key is another, or that are new or gone."""
    old, new = keys(before or plan()), keys(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def replaced(pins: Sequence[Any], name: str, **fields: Any) -> tuple[Any, ...]:
    assert any(pin.name == name for pin in pins)
    return tuple(dataclasses.replace(pin, **fields) if pin.name == name else pin for pin in pins)


SOURCE = SourceBuild(
    distribution="hvd",
    python=("setuptools",),
    system=("g++",),
    against=("mpi", "torch"),
    environment={"WITH_MPI": "1"},
    patches=("fix.patch",),
)


def source_recipe(patch: bytes = b"-a", **changes: Any) -> ChosenRecipe:
    """Return a framework that is built from its source, against the MPI and another framework."""
    plain = recipe("hvd", "framework", "0.28.1")
    source = SOURCE.model_copy(update=changes)
    return dataclasses.replace(
        plain,
        recipe=plain.recipe.model_copy(update={"source": source}),
        files={"patches/fix.patch": patch},
    )


def source_plan(chosen: ChosenRecipe | None = None, **changes: Any) -> BuildPlan:
    archive = dataclasses.replace(wheel("hvd", "0.28.1", "framework:hvd"), file="hvd-0.28.1.tar.gz")
    compiler = build_deb(deb("g++"), "framework:hvd")
    settings: dict[str, Any] = {
        "python": (*LOCK.python, archive),
        "build_debs": (compiler,),
        "build_python": (wheel("setuptools", "81.0", "framework:hvd"),),
    }
    what = resolved(MPICH, chosen or source_recipe(), PYTORCH)
    return plan(what, **(settings | changes))
