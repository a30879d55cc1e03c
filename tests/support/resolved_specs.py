"""A small `ResolvedSpec`, made without files, for tests of locking and resolving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from envbuild.errors import Location
from envbuild.lock.model import BasePin, BuildDebPin, DebPin, Lock, PythonPin, RecipePin, ToolPin
from envbuild.spec.base import BaseImage, BasePython
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice, EnvSpec, Packages, RecipeKind, SourcePackage
from envbuild.spec.recipe import Recipe, Variant
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from envbuild.spec.yamlfile import Document

BASE_DIGEST = "sha256:" + "0" * 64
MPICH_DIGEST = "sha256:" + "1" * 64
TORCH_DIGEST = "sha256:" + "2" * 64


def base_image(**changes: Any) -> BaseImage:
    """Return Debian 12, or something like it."""
    settings: dict[str, Any] = {
        "name": "debian-12",
        "summary": "Debian 12",
        "distribution": "debian",
        "suite": "bookworm",
        "version": "12",
        "glibc": "2.36",
        "origins": ("debian:bookworm",),
        "architectures": ("amd64",),
        "packages": ("python3",),
        "python": BasePython(version="3.11", abi="cp311"),
    }
    return BaseImage(**(settings | changes))


def chosen(
    name: str,
    kind: Literal["mpi", "framework"],
    version: str,
    requirements: Sequence[str],
    *,
    digest: str,
    origins: Sequence[str] = (),
    companions: Sequence[str] = (),
    built_with: Sequence[str] = (),
    system: Sequence[str] = (),
) -> ChosenRecipe:
    """Return a recipe that owns what it asks for."""
    variant = Variant(requirements=tuple(requirements), origins=tuple(origins))
    own = tuple(text.partition("=")[0] for text in requirements)
    recipe = Recipe(
        name=name,
        kind=kind,
        summary=name,
        versions=(version,),
        variants={"cpu": variant},
        owns=own,
        python=tuple(companions),
        companions=tuple(built_with),
        system=tuple(system),
    )
    return ChosenRecipe(
        recipe=recipe,
        version=version,
        variant_name="cpu",
        variant=variant,
        files={},
        digest=digest,
        at=Location(path=Path("spec.yaml")),
    )


def mpich(version: str = "5.0.2", digest: str = MPICH_DIGEST) -> ChosenRecipe:
    """Return an MPI recipe."""
    return chosen("mpich", "mpi", version, ["mpich=={version}"], digest=digest, companions=["mpi4py>=4"])


def pytorch(version: str = "2.13.0", digest: str = TORCH_DIGEST) -> ChosenRecipe:
    """Return a framework recipe whose wheel has an origin of its own."""
    return chosen(
        "pytorch",
        "framework",
        version,
        ["torch=={version}+cpu"],
        digest=digest,
        origins=["pytorch-cpu"],
        built_with=("torchvision",),
    )


def resolved(
    *,
    python: Sequence[str] = (),
    system: Sequence[str] = (),
    recipes: Sequence[ChosenRecipe] = (),
    mpi: Choice | None = None,
    frameworks: Sequence[Choice] = (),
    base: BaseImage | None = None,
    site: Site | None = None,
    path: Path = Path("spec.yaml"),
    base_path: Path = Path("base.yaml"),
    accelerator: str = "cpu",
    requested: Sequence[RequirementEntry] = (),
    from_source: Sequence[str | SourcePackage] = (),
    wheel_directories: Sequence[Path] = (),
    architecture: str = "amd64",
    places: Mapping[tuple[str | int, ...], Location] = MappingProxyType({}),
) -> ResolvedSpec:
    """Return a spec that asks for `python` in its own file, and for further `requested` entries.

    `places` are those of the spec's values.
    """
    image = base or base_image()
    spec = EnvSpec(
        name="demo",
        version="1",
        base=Choice(name=image.name),
        mpi=mpi,
        frameworks=tuple(frameworks),
        accelerator=Choice(name=accelerator),
        packages=Packages(python=tuple(python), system=tuple(system), from_source=tuple(from_source)),
    )
    entries = (RequirementEntry(text=text, at=Location(path=path)) for text in python)
    return ResolvedSpec(
        spec_file=Loaded(value=spec, document=Document(path=path, locations=dict(places))),
        base_file=Loaded(value=image, document=Document(path=base_path)),
        base_digest=BASE_DIGEST,
        site_file=Loaded(value=site, document=Document(path=Path("site.yaml"))) if site else None,
        recipes=tuple(recipes),
        requested=(*entries, *requested),
        wheel_directories=tuple(wheel_directories),
        files={},
        architecture=architecture,
    )


def deb(
    name: str,
    version: str = "1.0-1",
    *,
    origin: str = "debian:bookworm",
    sha256: str = "d" * 64,
    size_bytes: int = 10,
) -> DebPin:
    """Return a Debian pin."""
    return DebPin(
        name=name,
        version=version,
        architecture="amd64",
        origin=origin,
        file=f"pool/main/{name[0]}/{name}/{name}_{version.rpartition(':')[2]}_amd64.deb",
        size_bytes=size_bytes,
        sha256=sha256,
    )


def build_deb(pin: DebPin, layer: str) -> BuildDebPin:
    """Return a Debian pin as one of the toolchain that builds a layer."""
    return BuildDebPin(**asdict(pin), layer=layer)


def wheel(
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    layer: str = "python",
    origin: str = "pypi",
    file: str | None = None,
    sha256: str = "e" * 64,
    size_bytes: int = 10,
) -> PythonPin:
    """Return a Python pin, of a wheel where no file is named."""
    return PythonPin(
        name=name,
        version=version,
        origin=origin,
        file=file or f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        size_bytes=size_bytes,
        sha256=sha256,
        layer=layer,
        requires=tuple(requires),
    )


def recipe_pin(
    name: str,
    version: str,
    *,
    kind: RecipeKind = "framework",
    variant: str = "cpu",
    digest: str = "sha256:" + "3" * 64,
) -> RecipePin:
    """Return a recipe's pin."""
    return RecipePin(name=name, kind=kind, version=version, variant=variant, digest=digest)


def base_pin(image: BaseImage | None = None, *, digest: str = BASE_DIGEST) -> BasePin:
    """Return the pin of a base image: Debian 12, where none is named."""
    base = image or base_image()
    return BasePin(
        name=base.name,
        digest=digest,
        python=base.python.version,
        abi=base.python.abi,
        glibc=base.glibc,
    )


def bare_lock(**changes: Any) -> Lock:
    """Return a lock of a base and nothing else, but for some of its fields."""
    tables = ("recipes", "requests", "system_requests", "base_debs", "system_debs", "python", "tools")
    fields: dict[str, Any] = {
        "name": "demo",
        "version": "1",
        "architecture": "amd64",
        "accelerator": "cpu",
        "base": base_pin(),
    }
    return Lock(**(fields | dict.fromkeys(tables, ()) | changes))


def lock_of(
    what: ResolvedSpec,
    *,
    python: Sequence[PythonPin] = (),
    base_debs: Sequence[DebPin] | None = None,
    system_debs: Sequence[DebPin] = (),
) -> Lock:
    """Return a lock that says of itself that it was made for what is asked."""
    base = what.base
    return bare_lock(
        name=what.spec.name,
        version=what.spec.version,
        accelerator=str(what.spec.accelerator),
        architecture=what.architecture,
        base=base_pin(base, digest=what.base_digest),
        recipes=tuple(
            recipe_pin(
                entry.recipe.name,
                entry.version,
                kind=entry.recipe.kind,
                variant=entry.variant_name,
                digest=entry.digest,
            )
            for entry in what.recipes
        ),
        requests=what.python.texts,
        system_requests=what.system_requests,
        base_debs=tuple(base_debs) if base_debs is not None else tuple(deb(name) for name in base.packages),
        system_debs=tuple(system_debs),
        python=tuple(python),
    )


def whole_lock() -> Lock:
    """Return a lock with pins of every kind."""
    what = resolved(python=["scipy>=1.11", "numpy"], system=["git"], recipes=[mpich(), pytorch()])
    pins = [
        wheel("scipy", "1.17.1", requires=["numpy"]),
        wheel("numpy", "2.4.6", sha256="a" * 64),
        wheel("mpich", "5.0.2", layer="mpi"),
        wheel("mpi4py", "4.1.2"),
        wheel("torch", "2.13.0+cpu", layer="framework:pytorch", origin="pytorch-cpu"),
    ]
    lock = lock_of(
        what,
        python=pins,
        base_debs=[deb("python3"), deb("libc6", "2.36-9")],
        system_debs=[deb("git", "1:2.39.5-0+deb12u3")],
    )
    return replace(
        lock, tools=(ToolPin(name="uv", version="uv 0.13.8 (x86_64)", digest="sha256:" + "f" * 64),)
    )
