"""Versions by their schemes: ranges, and what a version that says less leaves open."""

from __future__ import annotations

import pytest

from envbuild.rules.versions import Scheme, in_range, is_version, range_problem


@pytest.mark.parametrize(
    ("scheme", "version", "text", "truth"),
    [
        ("pep440", "2.13.0+cu130", ">=2.13,<2.14", True),
        ("pep440", "5.0.1.post1", ">=5.0.0,<5.0.2,!=5.0.1.post1", False),
        ("pep440", "2.6.0a0+ecf3bae", "<2.6", False),
        ("pep440", "2.6.0.dev20241231+cu124", ">=2.5,<2.6", True),
        ("pep440", "2.6.0.dev20241231+cu124", ">=2.6", False),
        ("pep440", "newest", ">=1", None),
        # Cray makes its MPI from MPICH 3.4a2, which is not older than the image's 3.4.
        ("vendor", "3.4a2", ">=3.4", True),
        ("vendor", "1.22.0amzn4.0", ">=1.22", True),
        ("vendor", "v2.19.3-1+cuda12", ">=2.19.3,<2.20", True),
        ("vendor", "3.4", ">=3.4.1", False),
        ("vendor", "8.1.28", "==8.1.*", True),
        ("vendor", "1:4.1.4-3", ">=4.1,<4.2", True),
        ("branch", "580", ">=580", True),
        ("branch", "580", ">=580.65.06", None),
        ("branch", "575", ">=580.65.06", False),
        ("branch", "R580", ">=535", True),
        ("branch", "450.80.02", ">=450.80.02", True),
        ("branch", "13", ">=13,<14", True),
        ("branch", "13", "<13.4", None),
        ("branch", "13", "==13.*", True),
        ("branch", "25.11", "!=25.11.1", None),
        ("branch", "25.11.1", "!=25.11.1", False),
        # A longer version could decide otherwise.
        ("branch", "580", ">580", None),
        ("branch", "580", "<=580", None),
        ("branch", "580", "==580", None),
        ("branch", "580", "!=580", None),
        ("branch", "580", "<580", False),
        ("branch", "12.8", "<=12.8.0", None),
        ("branch", "12.8.1", "<=12.8.1", True),
        ("branch", "450.80.02", "<=450.80.02", True),
        ("vendor", "2", ">=2.19", None),
        ("vendor", "9", ">=9.3,<10", None),
        ("vendor", "9", ">=8,<9", False),
        ("vendor", "2", "==2.*", True),
        ("vendor", "2", "==2.19.*", None),
        ("pep440", "2", ">=2.4", None),
        ("pep440", "2", "<2.4", None),
        ("pep440", "2", "==2.4.*", None),
        ("pep440", "2", "==2.*", True),
        ("pep440", "2", ">=2,<3", True),
        ("pep440", "2+cu118", "!=2.1.0", None),
        ("pep440", "2", ">=3", False),
        ("pep440", "2.9.0+cu128", "<=2.9.0", True),
        ("pep440", "2.9.0+cu128", "==2.9.0", True),
        ("pep440", "2.17.0+nv25.2", ">=2.17,<2.18", True),
        ("count", "67108864", ">67108864", False),
        ("count", "67108865", ">67108864", True),
        # What its release has, a pre-release may have.
        ("pep440", "2.4.0a0+07cecf4168.nv24.5", ">=2.4", None),
        ("pep440", "2.4.0a0+07cecf4168.nv24.5", ">=2.3", True),
        ("pep440", "2.4.0a0+07cecf4168.nv24.5", ">=2.5", False),
        ("pep440", "2.16.0rc0", ">=2.16.0rc0", True),
        ("debian", "1:2.0-1", ">2.36-9", True),
        ("debian", "2.36-9+deb12u13", ">=2.36-9+deb12u4", True),
        ("debian", "2.0~rc1-1", "<2.0-1", True),
        ("debian", "2.10-1", ">2.9-3", True),
        ("debian", "5.0.7-1", "==5.0.7-1", True),
        ("debian", "1.0a", "<1.0+b", True),
    ],
)
def test_a_version_is_in_a_range(scheme: Scheme, version: str, text: str, truth: bool | None) -> None:
    assert in_range(version, text, scheme) is truth


@pytest.mark.parametrize(
    "text", ["", "580", ">=", ">=12 <13", "=>12", "12||13", ">=a b", "~=2.1", ">=12,,<13"]
)
@pytest.mark.parametrize("scheme", ["pep440", "vendor", "branch", "debian"])
def test_other_texts_are_not_ranges(scheme: Scheme, text: str) -> None:
    assert "is not a range of versions, such as" in range_problem(text, scheme)


def test_a_range_is_one_of_its_scheme() -> None:
    assert range_problem(">=2.36-9+deb12u4", "debian") == ""
    assert range_problem(">=2.36-9+deb12u4", "pep440")
    assert range_problem("==2.*", "debian")
    assert range_problem("==2.*", "branch") == ""
    assert range_problem(">=new", "branch")


@pytest.mark.parametrize("scheme", ["pep440", "vendor", "branch", "debian"])
def test_a_version_of_thousands_of_digits_decides_nothing(scheme: Scheme) -> None:
    assert in_range("9" * 5000, ">=1", scheme) is None
    assert range_problem(f">={'9' * 5000}", scheme) == "it is longer than 256 characters"
    assert in_range("1" * 200, ">=1", scheme) is True


@pytest.mark.parametrize("scheme", ["pep440", "vendor", "branch"])
@pytest.mark.parametrize(
    "text",
    [
        "<580",
        ">580",
        "~580",
        "^580",
        "-580",
        "535, 580",
        "535/580",
        "535 or 580",
        "535 - 580",
        "580.*",
        "580.x",
        ">=535,<580",
    ],
)
def test_a_range_or_a_list_is_not_a_version(text: str, scheme: Scheme) -> None:
    assert not is_version(text, scheme)
    assert in_range(text, ">=1", scheme) is None


@pytest.mark.parametrize(
    "text",
    [
        "580.65.06-0ubuntu1",
        "1:580.65",
        "R580",
        "v2.19.3",
        "3.4a2",
        "5.14.0-503.el9.x86_64",
        "6.1.0+",
        "2.8~rc1",
    ],
)
def test_forms_of_one_version_are_compared(text: str) -> None:
    assert is_version(text, "vendor")
    assert in_range(text, ">=1", "vendor") is True
