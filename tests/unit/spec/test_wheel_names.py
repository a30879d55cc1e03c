"""Odd file names of wheels, and wheels for another Python or system, in words of a person."""

import pytest

from envbuild.spec.foreign_wheels import foreign_wheel
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.wheel_names import wheel_name_problem

TARGET = PythonTarget(version="3.11", abi="cp311", glibc="2.36", architecture="amd64")


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("a-1.0-py3.whl", "has five parts, or six with a build number, and this one has 3"),
        ("a-b-1.0-cp311-cp311-linux-x86_64.whl", "and this one has 7"),
        ("a-1x0-py3-none-any.whl", "`1x0` is not a version (PEP 440)"),
        ("a-v2-py3-none-any.whl", ""),
        ("a-1.0-x-py3-none-any.whl", "the build number `x` is not valid"),
        ("a_-1.0-py3-none-any.whl", "the name `a_` is not valid"),
        ("a 1-1.0-py3-none-any.whl", "it begins with a sign, or has others"),
        ("a-1.0-py3-none-any.zip", "it does not end in `.whl`"),
        (f"a-{'9' * 20}-py3-none-any.whl", "it has a number that is too large"),
        ("a-1.0-2x-py3-none-any.whl", ""),
    ],
)
def test_an_odd_name_says_what_is_wrong_with_it(file: str, problem: str) -> None:
    assert problem in wheel_name_problem(file)
    assert bool(problem) == bool(wheel_name_problem(file))


@pytest.mark.parametrize(
    ("tags", "described"),
    [
        ("cp39-cp39-win_amd64", "Python 3.9 on Windows (amd64)"),
        ("cp311-cp311-win32", "Python 3.11 on Windows (32-bit)"),
        ("cp311-cp311-macosx_11_0_arm64", "Python 3.11 on macOS 11.0 (arm64)"),
        ("cp311-cp311-manylinux_2_17_aarch64", "Python 3.11 on Linux with glibc 2.17 (aarch64)"),
        ("cp311-cp311-manylinux_2_39_x86_64", "Python 3.11 on Linux with glibc 2.39 (x86_64)"),
        ("cp27-cp27mu-manylinux1_x86_64", "Python 2.7 (`cp27mu`) on Linux with glibc 2.5 (x86_64)"),
        ("cp311-cp311-musllinux_1_1_x86_64", "Python 3.11 on Linux with musl (x86_64)"),
        ("cp37-abi3-win_arm64", "Python 3.7 or newer on Windows (arm64)"),
        ("cp313-cp313t-linux_x86_64", "free-threaded Python 3.13 on Linux (x86_64)"),
        ("pp39-pypy39_pp73-linux_x86_64", "PyPy 3.9 on Linux (x86_64)"),
        ("py2-none-any", "Python 2"),
        ("cp312-none-any", "Python 3.12"),
        ("cp311-cp311-freebsd_13_amd64", "Python 3.11 on `freebsd_13_amd64`"),
    ],
)
def test_a_wheel_for_another_system_says_for_which(tags: str, described: str) -> None:
    problem, hint = foreign_wheel(f"a-1.0-{tags}.whl", TARGET)
    image = "the image has Python 3.11 on Linux with glibc 2.36 (x86_64)"
    assert problem == f"`a-1.0-{tags}.whl` is for {described}, and {image}"
    assert "`-cp311-cp311-manylinux_2_36_x86_64.whl`" in hint
    assert "`a==1.0`" in hint


def test_many_tags_stay_short() -> None:
    pythons = ".".join(f"cp{number}" for number in range(313, 340))
    problem, _ = foreign_wheel(f"a-1-{pythons}-none-any.whl", TARGET)
    assert "Python 3.13, Python 3.14, Python 3.15, Python 3.16 and 23 more, and the image has" in problem


@pytest.mark.parametrize(
    "tags", ["py3-none-any", "cp311-cp311-linux_x86_64", "cp37-abi3-manylinux2014_x86_64", "py2.py3-none-any"]
)
def test_a_wheel_for_the_image_is_not_foreign(tags: str) -> None:
    assert foreign_wheel(f"a-1.0-{tags}.whl", TARGET) == ("", "")
