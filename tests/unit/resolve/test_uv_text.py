from __future__ import annotations

import tomllib

import pytest

from envbuild.errors import MachineError
from envbuild.resolve import uvtext
from envbuild.resolve.distributions import DistFile, best_wheel
from envbuild.spec.python_platform import tags

# As `uv pip compile` 0.13 wrote them, addresses changed.
RESOLUTION = """\
jinja2==3.1.6             # via torch
    # from https://index.example.org/simple
markupsafe==3.0.4         # via jinja2
    # from https://index.example.org/simple
mpi4py==4.1.2             # via envbuild-request (pyproject.toml)
    # from https://index.example.org/simple
numpy==2.4.6              # via scipy, envbuild-request (pyproject.toml)
    # from https://index.example.org/simple
scipy==1.17.1             # via envbuild-request (pyproject.toml)
    # from https://index.example.org/simple
torch==2.13.0+cpu         # via envbuild-request (pyproject.toml)
    # from file:///sw/wheels
typing-extensions==4.16.0  # via jinja2, torch
    # from https://index.example.org/simple
"""

PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"

[[packages]]
name = "mpi4py"
version = "4.1.2"
wheels = [
    {{ url = "https://files.example.org/a3/mpi4py-4.1.2-cp310-abi3-manylinux1_x86_64.manylinux_2_5_x86_64.whl", upload-time = 2026-05-16T10:34:00Z, size = 1400000, hashes = {{ sha256 = "{"2" * 64}" }} }},
    {{ url = "https://files.example.org/4f/mpi4py-4.1.2-cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64.whl", hashes = {{ sha256 = "{"d" * 64}" }} }},
    {{ url = "https://files.example.org/4f/mpi4py-4.1.2-py3-none-any.whl", hashes = {{ md5 = "00" }} }},
]

[[packages]]
name = "torch"
version = "2.13.0+cpu"
wheels = [{{ url = "file:///sw/wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl", hashes = {{ sha256 = "{"6" * 64}" }} }}]
"""  # noqa: E501

CLASH = """\
error: No solution found when resolving dependencies
  cause: Because all of:
             scipy>=1.8.0rc1,<=1.8.0rc4
             scipy>=1.9.0rc1,<=1.9.0rc3
          have no usable wheels and scipy>=1.10.0rc1,<=1.10.1 depends on numpy>=1.19.5,<1.27.0, we can conclude that all of:
             scipy>=1.8.0rc1,<=1.8.0rc4
         depend on numpy>=1.19.5,<1.27.0.
         And because scipy>=1.9.2,<=1.9.3 depends on numpy>=1.18.5,<1.26.0 and scipy==1.11.0 has no usable wheels, we can conclude that scipy<=1.11.4 depends on numpy>=1.18.5,<1.28.0.
         And because envbuild-request depends on scipy<1.12 and numpy>=2.3, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `scipy` because building from source is disabled for all packages (i.e., with `--no-build`)
"""  # noqa: E501


NO_WHEEL = """\
error: No solution found when resolving dependencies
  cause: Because win==1.0 has no wheels with a matching platform tag (e.g., `manylinux_2_36_x86_64`) and only win==1.0 is available, we can conclude that all versions of win cannot be used.
         And because envbuild-request depends on win, we can conclude that your requirements are unsatisfiable.

hint: Wheels are available for `win` (v1.0) on the following platform: `win_amd64`
"""  # noqa: E501


def candidate(file: str) -> DistFile:
    return DistFile(
        name="x", version="1", file_name=file, address=f"https://example.org/{file}", sha256="0" * 64
    )


def reason(stderr: str) -> str:
    return uvtext.read_failure(stderr).reason


def without_wheels(stderr: str) -> set[str]:
    return {*uvtext.read_failure(stderr).without_wheels}


def test_a_resolution_is_read_with_its_edges_and_sources() -> None:
    entries = {name: rest for name, *rest in uvtext.parse_resolution(RESOLUTION)}
    index = "https://index.example.org/simple"
    assert len(entries) == 7
    assert entries["numpy"] == ["2.4.6", ("scipy",), index]
    assert entries["scipy"] == ["1.17.1", (), index]
    assert entries["typing-extensions"] == ["4.16.0", ("jinja2", "torch"), index]
    assert entries["torch"] == ["2.13.0+cpu", (), "file:///sw/wheels"]


def test_a_line_that_is_not_understood_is_no_silent_loss() -> None:
    with pytest.raises(MachineError, match="not understood: torch @ https://host/x"):
        uvtext.parse_resolution("torch @ https://me:secret@host/x?token=1\n")


def test_wheels_are_read_and_those_without_a_sha256_left_out() -> None:
    found = uvtext.parse_pylock(PYLOCK)
    assert [(wheel.file_name, wheel.size_bytes) for wheel in found["mpi4py"]] == [
        ("mpi4py-4.1.2-cp310-abi3-manylinux1_x86_64.manylinux_2_5_x86_64.whl", 1_400_000),
        ("mpi4py-4.1.2-cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64.whl", None),
    ]
    assert found["torch"][0].file_name == "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert found["torch"][0].version == "2.13.0+cpu"


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "packages = 3",
        "[[packages]]\nversion = '1'",
        "[[packages]]\nname='x'\nwheels=[{}]",
        PYLOCK.replace("mpi4py-4.1.2-cp310", "other-4.1.2-cp310"),
    ],
)
def test_what_is_no_pylock_is_refused(text: str) -> None:
    with pytest.raises(MachineError, match="not understood"):
        uvtext.parse_pylock(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["x-1-py3-none-any.whl", "x-1-cp311-cp311-manylinux_2_17_x86_64.whl"], 1),
        (["x-1-cp310-abi3-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-manylinux_2_5_x86_64.whl"], 1),
        (["x-1-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        (["x-1-cp311-cp311-manylinux_2_37_x86_64.whl", "x-1-cp311-cp311-manylinux2014_x86_64.whl"], 1),
        (["x-1-1-py3-none-any.whl", "x-1-2-py3-none-any.whl"], 1),
        (["x-1-cp312-cp312-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-musllinux_1_2_x86_64.whl"], None),
        (["x-1-cp311-cp311-manylinux_2_17_aarch64.whl", "x-1-cp311-cp311-win_amd64.whl"], None),
        ([], None),
    ],
)
def test_the_wheel_that_fits_best_is_chosen(files: list[str], expected: int | None) -> None:
    accepted = tags("amd64", "2.36", "cp311")
    candidates = [candidate(file) for file in files]
    for order in (candidates, candidates[::-1]):
        chosen = best_wheel(order, accepted)
        assert chosen == (None if expected is None else candidates[expected])


def test_tags_are_those_of_the_base_and_not_of_this_machine() -> None:
    accepted = {str(tag) for tag in tags("arm64", "2.41", "cp313")}
    assert "cp313-cp313-manylinux_2_41_aarch64" in accepted
    assert "cp39-abi3-manylinux2014_aarch64" in accepted
    assert "py3-none-any" in accepted
    assert not any("x86_64" in tag or "2_42" in tag or "manylinux1_" in tag for tag in accepted)


def test_tags_of_python_2() -> None:
    accepted = [str(tag) for tag in tags("amd64", "2.31", "cp27mu")]
    assert accepted[0] == "cp27-cp27mu-manylinux_2_31_x86_64"
    assert {"cp27-cp27mu-manylinux1_x86_64", "py27-none-any", "py2-none-any"} <= set(accepted)
    assert not any(tag.startswith(("cp3", "py3")) or "-abi3-" in tag for tag in accepted)


@pytest.mark.parametrize(
    ("architecture", "glibc", "expected"),
    [
        ("amd64", "2.36", "x86_64-manylinux_2_36"),
        ("arm64", "2.41", "aarch64-manylinux_2_40"),
        ("amd64", "2.30", "x86_64-manylinux_2_28"),
    ],
)
def test_platform(architecture: str, glibc: str, expected: str) -> None:
    assert uvtext.platform(architecture, glibc) == expected


def test_a_c_library_that_is_too_old_is_told() -> None:
    with pytest.raises(MachineError, match=r"glibc 2\.12"):
        uvtext.platform("amd64", "2.12")


def test_a_request_becomes_a_project_that_cannot_be_broken_out_of() -> None:
    text = uvtext.project(
        ["scipy; python_version >= '3.11'", 'x; extra == "\\" ]\nevil = true"'],
        python="3.11",
        sources={"torch": "pytorch-cpu"},
        indexes={"pytorch-cpu": 'https://example.org/"x'},
        wheels={"own": "own-1.0-py3-none-any.whl"},
    )
    data = tomllib.loads(text)
    assert data["project"]["dependencies"] == [
        "scipy; python_version >= '3.11'",
        'x; extra == "\\" ]\nevil = true"',
    ]
    assert data["tool"]["uv"]["sources"] == {
        "torch": {"index": "pytorch-cpu"},
        "own": {"path": "own-1.0-py3-none-any.whl"},
    }
    assert data["tool"]["uv"]["index"] == [
        {"name": "pytorch-cpu", "url": 'https://example.org/"x', "explicit": True}
    ]
    assert set(data) == {"project", "tool"}


def test_a_long_proof_becomes_its_last_step() -> None:
    assert reason(CLASH) == (
        "scipy<=1.11.4 depends on numpy>=1.18.5,<1.28.0; the request needs scipy<1.12 and numpy>=2.3"
    )


def test_a_short_proof_keeps_all_its_premises() -> None:
    assert reason(NO_WHEEL) == (
        "win==1.0 has no wheels with a matching platform tag (e.g., `manylinux_2_36_x86_64`) and only "
        "win==1.0 is available; the request needs win"
    )


def test_a_short_reason_stays_whole() -> None:
    text = (
        "error: No solution found when resolving dependencies\n"
        "  cause: Because there is no version of torch==2.99.0+cpu and envbuild-request depends on "
        "torch==2.99.0+cpu, we can conclude that your requirements are unsatisfiable.\n"
    )
    assert reason(text) == (
        "there is no version of torch==2.99.0+cpu and the request needs torch==2.99.0+cpu"
    )


def test_a_list_of_versions_ends_before_the_conclusion() -> None:
    text = (
        "error: No solution found\n"
        "  cause: Because pandas<=0.25.3 has no usable wheels and only the following versions of pandas are"
        " available:\n    pandas<=0.25.3\n    pandas>=1\n  we can conclude that pandas<1 cannot"
        " be used.\n      And because envbuild-request depends on pandas<1, we can conclude that no.\n"
    )
    assert reason(text) == (
        "pandas<=0.25.3 has no usable wheels and only the following versions of pandas are available:"
        " pandas<=0.25.3 pandas>=1; the request needs pandas<1"
    )


def test_a_step_without_a_conclusion_leaves_no_gap() -> None:
    """uv may join a step to the next before it concludes."""
    many = " and ".join(f"there is no version of package-{number}" for number in range(9))
    last = "And because envbuild-request depends on a, we can conclude that no.\n"
    text = f"error: No solution found\n  cause: Because {many}. {last}"
    assert reason(text) == "the request needs a"


def test_what_has_no_wheel_and_what_uv_warns_of() -> None:
    assert without_wheels(CLASH) == set()  # wheels are not what clashes
    assert without_wheels(NO_WHEEL) == {"win"}
    assert without_wheels(NO_WHEEL.replace("envbuild-request depends", "alpha depends")) == {"win"}
    text = "Resolved 11 packages\nwarning: at https://me:secret@host/x?y=1 there is no extra named `foo`\n"
    assert uvtext.warnings(text) == ["at https://host/x there is no extra named `foo`"]


def test_a_source_archive_is_read_beside_wheels() -> None:
    text = f"""\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "horovod"
version = "0.28.1"
sdist = {{ url = "https://files.example.org/e4/horovod-0.28.1.tar.gz", hashes = {{ sha256 = "{"9" * 64}" }} }}
"""
    found = uvtext.parse_pylock(text)
    (archive,) = found["horovod"]
    assert (archive.file_name, archive.version, archive.is_wheel) == (
        "horovod-0.28.1.tar.gz",
        "0.28.1",
        False,
    )


def test_what_a_source_requires_is_told_to_uv() -> None:
    built = {("horovod", "0.28.1"): ("psutil", 'pyyaml; python_version < "3.12"')}
    assert tomllib.loads(uvtext.configuration(built, ["horovod", "annoy"])) == {
        "dependency-metadata": [
            {"name": "annoy", "requires-dist": []},
            {"name": "horovod", "requires-dist": []},  # of other versions
            {
                "name": "horovod",
                "version": "0.28.1",
                "requires-dist": ["psutil", 'pyyaml; python_version < "3.12"'],
            },
        ]
    }
    assert uvtext.configuration({}, ()) == ""
