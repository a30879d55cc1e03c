"""Importers: stored facts give the rows that are shipped, and sources that disagree are an error."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envbuild.errors import MachineError
from envbuild.rules.facts import Fact, Value
from envbuild.rules.knowledge import KnowledgeFile, Ranges, shipped
from envbuild.rules.rulebook import judge
from envbuild.system.network import Client
from tests.support.mirrors import mirror

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "setup"))

from knowledge import __main__ as command  # noqa: E402
from knowledge import (  # noqa: E402
    cuda_drivers,
    cuda_gpus,
    index,
    python_packages,
    python_requirements,
    pytorch_releases,
    ranges,
    rocm,
    stored,
    tensorflow_builds,
    write,
)
from knowledge.claims import Claim, Settled, agree, disagreements  # noqa: E402

sys.path.remove(str(TOP / "setup"))

INPUTS = command.read_inputs()


def test_shipped_rows_are_those_that_importers_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--stored"]) == 0, capsys.readouterr().out


def test_a_changed_row_is_shown_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "DIRECTORY", tmp_path)
    assert command.main(["--stored"]) == 1
    assert '+{"rule": "CUDA.driver-floor"' in capsys.readouterr().out


def test_an_index_that_has_not_changed_gives_the_same_files_on_another_day(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(name: str) -> dict[str, object]:
        facts: dict[str, object] = json.loads(json.dumps(INPUTS[f"index-{name}"].facts))
        return facts

    monkeypatch.setattr(command, "read_releases", lambda name, _: read(name))
    monkeypatch.setattr(python_requirements, "read", lambda: read("requirements"))
    assert command.main(["--date", "2027-01-01"]) == 0, capsys.readouterr().out


def imported() -> dict[str, KnowledgeFile]:
    files = sorted(write.DIRECTORY.iterdir())
    return {path.name: KnowledgeFile.model_validate_json(path.read_bytes()) for path in files}


def test_each_imported_file_names_what_it_was_read_from() -> None:
    files = imported()
    assert [*files] == [f"{name}.json" for name in sorted(command.IMPORTERS)]
    for name, importer in command.IMPORTERS.items():
        assert files[f"{name}.json"].read_from == tuple(INPUTS[key].label for key in importer.inputs)


def test_an_imported_file_has_a_line_for_each_row_and_table() -> None:
    for path in write.DIRECTORY.iterdir():
        entries = [line.rstrip(",") for line in path.read_text().splitlines() if line.startswith('{"rule"')]
        document = json.loads(path.read_bytes())
        assert [*map(json.loads, entries)] == [*document.get("rows", ()), *document.get("tables", ())]


def test_all_imported_rows_are_shipped_once() -> None:
    rows = [row for file in imported().values() for entry in file.entries for row in entry.rows]
    assert len(rows) >= 3000
    shipped_rows = [row.model_dump_json() for row, _ in shipped().rows]
    assert {row.model_dump_json() for row in rows} <= {*shipped_rows}
    assert len(shipped_rows) == len({*shipped_rows}), "a row stands twice"


def test_the_page_names_each_importer_and_the_rules_that_it_gives_rows_of() -> None:
    page = (TOP / "docs/howto/add-a-row.md").read_text()
    table = page.partition("## Imported rows")[2]
    for file in imported().values():
        assert all(f"`{entry.rule}`" in table for entry in file.entries)
    modules = {importer.rows.__module__.removeprefix("knowledge.") for importer in command.IMPORTERS.values()}
    assert all(f"`{module}.py`" in table for module in modules)


class TestClaims:
    CLAIMS = (Claim("driver of X 1", "450.51", "a"), Claim("driver of X 1", "450.36", "b"))

    def decision(self, **changes: object) -> Settled:
        decision: dict[str, object] = {
            "subject": "driver of X 1",
            "values": {"a": "450.51", "b": "450.36"},
            "keep": "a",
            "reason": "b is a pre-release",
            "date": "2026-11-27",
        }
        return Settled.model_validate({**decision, **changes})

    def test_two_that_differ_are_named(self) -> None:
        (problem,) = disagreements(self.CLAIMS, [])
        assert problem.startswith("driver of X 1: a says 450.51; b says 450.36; find out who is right")

    def test_a_decision_settles_them(self) -> None:
        assert not [*disagreements(self.CLAIMS, [self.decision()])]

    def test_a_decision_ends_when_a_source_changes_its_mind(self) -> None:
        newer = (self.CLAIMS[0], Claim("driver of X 1", "450.40", "b"))
        (problem,) = disagreements(newer, [self.decision()])
        assert "b says 450.40" in problem

    def test_a_decision_that_is_no_longer_needed_is_named(self) -> None:
        same = (self.CLAIMS[0], Claim("driver of X 1", "450.51", "b"))
        for claims in (same, ()):
            (problem,) = disagreements(claims, [self.decision()])
            assert problem.endswith("remove the decision from settled.yaml")

    def test_a_shorter_version_agrees_with_a_longer_one(self) -> None:
        assert agree(["525", "525.60.13"])
        assert agree(["9.1.0", "9.01"])
        assert not agree(["52", "525.60.13"])
        assert agree([">=3.9,<3.12", ">=3.9,<3.12"])
        assert not agree([">=3.9,<3.12", ">=3.9,<3.13"])

    def test_sources_that_disagree_stop_the_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "read_settled", tuple)
        assert command.main(["--stored"]) == 1
        assert "error: driver of CUDA 11.0: " in capsys.readouterr().err


def test_neighbours_with_equal_values_are_one_range() -> None:
    runs = list(ranges.equal_runs({"2.10": "b", "2.9": "a", "2.8": "a", "2.11": None, "2.12": "b"}))
    assert [(series.specifier, value) for series, value in runs] == [
        (">=2.8,<2.10", "a"),
        (">=2.10,<2.11", "b"),
        (">=2.12,<2.13", "b"),
    ]


CMAKE = """
function(x lang lang_var_)
  if(${lang_var_}TOOLKIT_VERSION VERSION_GREATER_EQUAL 13.0)
    set(CMAKE_CUDA_ARCHITECTURES_ALL 75 80)
    set(CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR 75)
  else()
    set(CMAKE_CUDA_ARCHITECTURES_ALL 20 50)
    if(${lang_var_}TOOLKIT_VERSION VERSION_GREATER_EQUAL 9.0)
      if(CMAKE_${lang}_COMPILER_ID STREQUAL "NVIDIA"
          OR (CMAKE_${lang}_COMPILER_ID STREQUAL "Clang"
          AND CMAKE_${lang}_COMPILER_VERSION VERSION_GREATER_EQUAL 6.0)
          )
        list(APPEND CMAKE_CUDA_ARCHITECTURES_ALL 70)
      endif()
      list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES_ALL 20)
    endif()
    if(${lang_var_}TOOLKIT_VERSION VERSION_GREATER_EQUAL 12.8
        AND ${lang_var_}TOOLKIT_VERSION VERSION_LESS 12.9)
      list(APPEND CMAKE_CUDA_ARCHITECTURES_ALL 101)
    endif()
  endif()
endfunction()
"""


class TestExtracts:
    def test_gpus_of_cuda(self) -> None:
        facts = cuda_gpus.extract_cmake(CMAKE)
        assert facts == {
            "7.0": ["sm_20", "sm_50"],
            "9.0": ["sm_50", "sm_70"],
            "12.8": ["sm_50", "sm_70", "sm_101"],
            "12.9": ["sm_50", "sm_70"],
            "13.0": ["sm_75", "sm_80"],
        }
        assert cuda_gpus.extract_nvcc("13.5: sm_75\tsm_80 compute_80\n") == {"13.5": ["sm_75", "sm_80"]}

    def test_backends_of_uv(self) -> None:
        text = """
            Self::Cu118 => Some(Version::new([11, 8])),
            Self::Rocm624 => Some(Version::new([6, 2, 4])),
static LINUX_CUDA_DRIVERS: LazyLock<[(TorchBackend, Version); 1]> = LazyLock::new(|| {
        (TorchBackend::Cu118, Version::new([450, 80, 2])),
});
static WINDOWS_CUDA_VERSIONS: LazyLock<[(TorchBackend, Version); 1]> = LazyLock::new(|| {
        (TorchBackend::Cu118, Version::new([452, 39])),
});
static LINUX_AMD_GPU_DRIVERS: LazyLock<[(TorchBackend, AmdGpuArchitecture); 1]> = LazyLock::new(|| {
        (TorchBackend::Rocm624, AmdGpuArchitecture::Gfx90a),
});
"""
        assert cuda_drivers.extract_uv(text) == {
            "cuda_drivers": {"11.8": "450.80.02"},
            "rocm_gpus": {"6.2.4": ["gfx90a"]},
        }

    def test_matrix_of_rocm(self) -> None:
        text = (
            "ROCm Version,6.3.1,6.3.0, 6.1.2\n,gfx90a,gfx90a,gfx90a\n"
            ' Tested user space versions,"6.3.x, 6.2.x","6.3.x","6.2.x, 5.7.x"\n'
        )
        assert rocm.extract(text) == {"user_space": {"6.3": ["6.2", "6.3"], "6.1": ["5.7", "6.2"]}}

    def test_tested_builds_of_tensorflow(self) -> None:
        text = (
            "### Linux\n<tr><td>tensorflow-2.15.0</td><td>3.9-3.11</td><td>Clang</td><td>Bazel</td></tr>\n"
            "<tr><td>tensorflow-2.15.0</td><td>3.9-3.11</td><td>Clang</td><td>Bazel</td><td>8.9</td><td>12.2</td></tr>\n"
            "### macOS\n<tr><td>tensorflow-2.15.0</td><td>3.9-3.11</td><td>C</td><td>B</td><td>8</td>"
            "<td>1</td></tr>\n"
        )
        assert tensorflow_builds.extract(text) == {
            "2.15": {"python": ">=3.9,<3.12", "cudnn": "8.9", "cuda": "12.2"}
        }

    def test_releases_of_pytorch(self) -> None:
        text = (
            "## Release Compatibility Matrix\n| PyTorch version | Python | Stable | Experimental |\n"
            "| 2.3 | >=3.8, <=3.11, (3.12 experimental) | CUDA 11.8, CUDNN 8.7.0.84"
            " | CUDA 12.1, CUDNN 8.9.2.26 |\n"
            "## Release Cadence\n| 2.1 | Aug 2023 | Oct 2023 | Nov 2023 | Dec 2023 |\n"
        )
        assert pytorch_releases.extract(text) == {
            "2.3": {"python": ">=3.8,<3.13", "cudnn": {"11.8": "8.7.0.84", "12.1": "8.9.2.26"}}
        }

    def test_a_copy_becomes_an_input_with_its_digest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(command, "INPUTS", tmp_path)
        copy = tmp_path / "copy.cmake"
        copy.write_text(CMAKE)
        options = ["--origin", "here@1", "--until", "13.3", "--date", "2026-08-22"]
        assert command.main(["--read", "cmake-cuda-gpus", "--copy", str(copy), *options]) == 0
        entry = stored.read_input("cmake-cuda-gpus", tmp_path)
        assert (entry.origin, entry.date, entry.until) == ("here@1", "2026-08-22", "13.3")
        assert entry.digest.startswith("sha256:")
        assert list(entry.facts["13.0"]) == ["sm_75", "sm_80"]


class TestPackages:
    FACTS = {
        "python": {"amd64": ["3.11", "3.12", "3.13"]},
        "requires": {
            "amd64": [
                "numpy<2.1.0,>=1.26.0; python_version < '3.13'",
                "numpy>=2.1; python_version >= '3.13'",
                "triton~=3.9.0; platform_system == 'Linux'",
                "torch==2.5.1",
                "nvidia-cudnn-cu12==9.1.0.70; extra == 'and-cuda'",
                "nvidia-nccl-cu12==2.21; sys_platform == 'win32'",
            ]
        },
    }

    @pytest.mark.parametrize(
        ("required", "python", "extra", "range_"),
        [
            ("numpy", "3.11", "", ">=1.26.0,<2.1.0"),
            ("numpy", "3.13", "", ">=2.1"),
            ("triton", "3.11", "", ">=3.9.0,<3.10"),
            ("torch", "3.11", "", "==2.5.*"),
            ("nvidia-cudnn-cu12", "3.11", "", ""),
            ("nvidia-cudnn-cu12", "3.11", "and-cuda", "==9.1.*"),
            ("nvidia-nccl-cu12", "3.11", "", ""),
        ],
    )
    def test_what_a_release_requires(self, required: str, python: str, extra: str, range_: str) -> None:
        assert python_packages.range_of(required, self.FACTS, python, extra) == range_

    def test_a_vendors_preview_of_a_release_is_not_judged_by_it(self) -> None:
        facts: dict[str, Value] = {
            "frameworks": ("pytorch",),
            "frameworks.pytorch.accelerator": "cuda",
            "frameworks.pytorch.toolkit": "13.2",
            "cudnn.loaded": "8.9.7",
        }
        for version, is_judged in (("2.15.0", True), ("2.15.0a0+ecf3bae40a.nv25.01", False)):
            stack = {**facts, "frameworks.pytorch.version": version}
            results = judge({path: Fact(value) for path, value in stack.items()})
            assert ("CUDNN.of-framework" in {result.rule for result in results if result.warn}) is is_judged


def wheel_at(address: str) -> index.Wheel:
    return index.Wheel(Version("1"), address, frozenset(), "", "")


class TestRequirements:
    """Releases that state ranges of other distributions and of Python."""

    @pytest.mark.parametrize(
        ("texts", "is_series", "range_"),
        [
            ([">=1.20,<2.1", ">=1.26,<2"], True, ">=1.20,<2.1"),
            ([">=1.20", "<2"], True, ""),
            (["==2.5.1"], True, "==2.5.*"),
            (["==2.5.1"], False, "==2.5.1"),
            (["==0.60.0", "==0.61.2"], False, ">=0.60.0,<=0.61.2"),
            (["~=3.9.0"], True, ">=3.9.0,<3.10"),
            ([">=0.4.31,<=0.4.31"], True, "==0.4.31"),
            ([">=4.21,!=4.21.1,!=4.21.0"], True, ">=4.21,!=4.21.0,!=4.21.1"),
            ([">=1.0,!=1.5", ">=1.2,!=1.6"], True, ">=1.0"),
            ([">=0.33.post2"], True, ">=0.33.post2"),
            ([">=2.0.dev0,<3.0rc1"], True, ">=2.0,<3.0"),
            ([">=2.12.0a0"], True, ">=2.12.0a0"),
        ],
    )
    def test_one_range_that_holds_what_is_required_on_any_python(
        self, texts: list[str], is_series: bool, range_: str
    ) -> None:
        assert python_requirements.loosest(texts, is_series=is_series) == range_

    def rows(self, name: str, releases: Mapping[str, Mapping[str, object]]) -> list[Ranges]:
        facts = {name: python_requirements.changes(name, releases)}
        entry = stored.Input(
            origin="here",
            licence="facts",
            date="2026-11-28",
            digest=stored.digest_of_facts(facts),
            until="2026-11-28",
            facts=facts,
        )
        return list(python_requirements.rows({"index-requirements": entry}))

    def tables(self, name: str, releases: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, str]]:
        return {f"{table.if_} {table.needs}": dict(table.ranges) for table in self.rows(name, releases)}

    def test_releases_that_state_the_same_are_one_range(self) -> None:
        tables = self.tables(
            "optax",
            {
                "0.1.0": {"python": ">=3.7", "jax": ["jax>=0.1.55"]},
                "0.1.1": {"python": ">=3.7", "jax": ["jax >=0.1.55"]},
                "0.1.3": {"python": ">=3.9,<3.13", "jax": ["jax>=0.4.27"]},
                "0.2": {"python": ">=3.9,<3.13"},
            },
        )
        assert tables == {
            "packages.optax frameworks.jax.version": {
                ">=0.1.0,<0.1.3": ">=0.1.55",
                ">=0.1.3,<0.2.0": ">=0.4.27",
            },
            "packages.optax python.version": {">=0.1.3,<0.2.1": ">=3.9,<3.13"},
        }

    def test_of_a_series_nothing_is_said_of_releases_before_the_one_that_was_read(self) -> None:
        tables = self.tables(
            "kornia", {"0.5.4": {"torch": ["torch>=1.6"]}, "0.6.2": {"torch": ["torch==2.0.1"]}}
        )
        assert tables == {
            "packages.kornia frameworks.pytorch.version": {">=0.5.4,<0.6": ">=1.6", ">=0.6.2,<0.7": "==2.0.*"}
        }

    @pytest.mark.parametrize(
        ("first", "ranges"),
        [
            ({"0.6.4": {"torch": ["torch==2.4.0"]}}, [">=0.6.3,<0.6.4.post1", ">=0.6.4.post1,<0.6.5"]),
            # 0.6.4 was withdrawn: nothing is said of it.
            ({}, [">=0.6.3,<0.6.4", ">=0.6.4.post1,<0.6.5"]),
        ],
    )
    def test_a_release_that_was_made_again(
        self, first: dict[str, dict[str, list[str]]], ranges: list[str]
    ) -> None:
        old, new = {"torch": ["torch==2.4.0"]}, {"torch": ["torch==2.5.1"]}
        tables = self.tables("vllm", {"0.6.3": old, **first, "0.6.4.post1": new})
        assert [*tables["packages.vllm frameworks.pytorch.version"]] == ranges

    def test_what_is_required_on_some_pythons_is_said_of_these(self) -> None:
        lines = ['setuptools>=77,<81; python_version > "3.11"']
        both = [*lines, 'setuptools>=60,<70; python_version <= "3.11"']
        facts = {
            "0.9.0": {"python": ">=3.10", "setuptools": lines},
            "0.9.1": {"python": ">=3.10", "setuptools": both},
            # All that it supports.
            "0.9.2": {"python": ">=3.12", "setuptools": lines},
            "0.9.3": {"python": ">=3.10", "setuptools": ['setuptools<70; python_version < "3.12"']},
        }
        found = {
            table.where.get("python.version", ""): dict(table.ranges)
            for table in self.rows("vllm", facts)
            if table.needs == "packages.setuptools"
        }
        assert found == {
            "": {">=0.9.1,<0.9.2": ">=60,<81", ">=0.9.2,<0.9.3": ">=77,<81"},
            ">=3.12": {">=0.9.0,<0.9.1": ">=77,<81"},
            "<3.12": {">=0.9.3,<0.9.4": "<70"},
        }

    def test_of_an_extra_the_lower_bound_counts(self) -> None:
        lines = ["torch<2.9,>=2.1; extra == 'torch'", "torch>=9; extra == 'other'", "torch (>=1.*)"]
        tables = self.tables("transformers", {"4.50.0": {"torch": lines}})
        assert tables == {"packages.transformers frameworks.pytorch.version": {">=4.50.0,<4.50.1": ">=2.1"}}

    def test_each_package_that_is_named_gives_rows(self) -> None:
        facts = INPUTS["index-requirements"].facts
        assert {*facts} == python_requirements.PACKAGES.all
        named = {table.if_ for table in python_requirements.rows(INPUTS)}
        rowless = {name for name in facts if python_packages.fact_of(name) not in named}
        assert not rowless


class TestIndex:
    METADATA = "Metadata-Version: 2.1\nName: big\nVersion: 1\nRequires-Dist: numpy>=2\n\nText\n"

    def test_metadata_of_a_wheel_is_read_without_the_rest_of_it(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "big-1-py3-none-any.whl", "w", zipfile.ZIP_STORED) as wheel:
            wheel.writestr("big/weights", bytes(8 << 20))
            wheel.writestr("big-1.dist-info/METADATA", self.METADATA)
        with mirror(tmp_path) as server, Client() as client:
            text = index.read_metadata(client, wheel_at(f"{server.address}/big-1-py3-none-any.whl"))
            asked = [
                part.removeprefix("bytes=").split("-")
                for part in server.requests_for("/big-1-py3-none-any.whl")
            ]
        assert text == self.METADATA
        assert sum(int(last) + 1 - int(first) for first, last in asked) < 1 << 20
        assert index.requires(text) == ["numpy>=2"]

    @pytest.mark.parametrize(
        ("file", "pythons", "architectures", "glibc"),
        [
            ("x-1-cp311-cp311-manylinux_2_28_x86_64.whl", {"3.11"}, {"amd64"}, "2.28"),
            ("x-1-cp37-cp37m-manylinux2014_aarch64.whl", {"3.7"}, {"arm64"}, "2.17"),
            ("x-1-cp314-cp314t-manylinux_2_28_x86_64.whl", set(), {"amd64"}, "2.28"),
            ("x-1-cp313-abi3-manylinux_2_17_x86_64.whl", {"3.13", "3.14", "3.15", "3.16"}, {"amd64"}, "2.17"),
            ("x-1-py3-none-any.whl", {f"3.{minor}" for minor in range(5, 17)}, {"amd64", "arm64"}, ""),
            ("x-1-cp311-cp311-musllinux_1_2_x86_64.whl", {"3.11"}, set(), ""),
            ("x-1-cp311-cp311-win_amd64.whl", {"3.11"}, set(), ""),
        ],
    )
    def test_what_a_wheel_is_for(
        self, file: str, pythons: set[str], architectures: set[str], glibc: str
    ) -> None:
        _, version, _, tags = parse_wheel_filename(file)
        wheel = index.Wheel(version, "", tags, "", "")
        assert (set(wheel.pythons), set(wheel.architectures), wheel.glibc) == (pythons, architectures, glibc)

    def test_facts_of_the_newest_release_of_each_series(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files: list[dict[str, object]] = []
        for version, python in (
            ("2.0.0", "cp310"),
            ("2.0.1", "cp311"),
            ("2.1.0rc1", "cp312"),
            ("1.9.0", "cp39"),
        ):
            name = f"big-{version}-{python}-{python}-manylinux_2_28_x86_64.whl"
            with zipfile.ZipFile(tmp_path / name, "w") as wheel:
                text = self.METADATA.replace(
                    "Dist: numpy>=2", f"Dist: numpy>={version}\nRequires-Dist: other"
                )
                wheel.writestr(f"big-{version}.dist-info/METADATA", text)
            files.append({"filename": name, "url": f"../{name}", "upload-time": "2026-11-01T00:00:00Z"})
        withdrawn = str(files[0]["filename"]).replace("2.0.0", "2.2.0")
        files.append({**files[0], "filename": withdrawn, "yanked": True})
        (tmp_path / "big").mkdir()
        (tmp_path / "big/index.json").write_text(json.dumps({"files": files}))
        with mirror(tmp_path) as server:
            monkeypatch.setattr(index, "index_of", lambda name: server.address)
            facts = index.read_releases("big", index.Reading("2.0", ("numpy",)))
        assert list(facts) == ["2.0"]
        digest = facts["2.0"].pop("metadata")
        assert digest["amd64"].startswith("sha256:")
        assert facts["2.0"] == {
            "version": "2.0.1",
            "uploaded": "2026-11-01",
            "python": {"amd64": ["3.10", "3.11"]},
            "glibc": {"amd64": "2.28"},
            "requires": {"amd64": ["numpy>=2.0.1"]},
        }

    def test_requirements_of_releases_are_read_from_the_metadata_beside_a_wheel(self, tmp_path: Path) -> None:
        def file(name: str, more: Mapping[str, object] | None = None) -> dict[str, object]:
            common = {"filename": name, "url": f"../{name}", "upload-time": "2024-01-01T00:00:00Z"}
            return {**common, **(more or {})}

        wheel = "big-2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
        files = [
            file("big-1.0-py3-none-any.whl", {"upload-time": "2018-12-31T00:00:00Z"}),
            file("big-1.5.tar.gz", {"requires-python": ">=3.8"}),
            file(wheel, {"core-metadata": {"sha256": "0"}, "requires-python": ">=3.9"}),
            file(wheel.replace("cp311", "cp310"), {"requires-python": ">=3.9"}),
            file("big-2.1-py3-none-any.whl", {"yanked": True}),
            file("big-3.0rc1-py3-none-any.whl"),
            file("big-old.exe"),
        ]
        (tmp_path / "big").mkdir()
        (tmp_path / "big/index.json").write_text(json.dumps({"files": files}))
        (tmp_path / f"{wheel}.metadata").write_text(
            self.METADATA.replace("numpy>=2", "NumPy>=2\nRequires-Dist: torch (>=1.9.*)")
        )
        with mirror(tmp_path) as server, Client() as client:
            for tags, key, of_archive, of_wheels in (
                (False, "python", ">=3.8", ">=3.9"),
                (True, "tags", "", ">=3.10,<3.12"),
            ):
                kept = index.Kept(("numpy", "torch"), tags=tags)
                facts = index.read_requirements(client, server.address, "big", kept)
                assert facts == {
                    "1.5": {key: of_archive},
                    "2.0": {key: of_wheels, "numpy": ["NumPy>=2"], "torch": ["torch (>=1.9.*)"]},
                }

    def test_a_server_without_parts_of_files_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "small.whl").write_bytes(b"x" * 100)
        with mirror(tmp_path) as server, Client() as client:
            server.script["/small.whl"] = ["whole"]
            with pytest.raises(MachineError, match="does not serve parts of files"):
                index.read_metadata(client, wheel_at(f"{server.address}/small.whl"))
