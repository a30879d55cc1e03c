"""Errors out of uv's reasons: whose requirement it is, where it is written, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, Location, MachineError
from envbuild.resolve.uv_errors import ResolutionError, UvErrors
from envbuild.resolve.uvtext import UvFailure, read_failure
from envbuild.spec.requirements import RequirementEntry
from tests.support.resolved_specs import pytorch, resolved

PROOF = "error: No solution found when resolving dependencies\n  cause: Because {}\n"
UNKNOWN = PROOF.format(
    "{0} was not found in the package registry and envbuild-request depends on {0}, we can conclude that your"
    " requirements are unsatisfiable."
)


def at(line: int) -> Location:
    return Location(path=Path("spec.yaml"), line=line, column=3)


def errors(*requirements: str, nearest: Sequence[str] = (), offline: bool = False) -> UvErrors:
    """Return what makes errors for requirements, the first of which is in line 1."""
    entries = tuple(RequirementEntry(text=text, at=at(n)) for n, text in enumerate(requirements, 1))
    spec = replace(resolved(recipes=[pytorch()]), requested=entries)
    return UvErrors(
        request=spec.python,
        log=Path("uv.log"),
        offline=offline,
        addresses={"pypi": ()},
        unreachable={},
        nearest_versions=lambda _: [*nearest],
        failures=(),
    )


def error(stderr: str, *requirements: str, nearest: Sequence[str] = ()) -> EnvbuildError:
    return errors(*requirements, nearest=nearest).failure(read_failure(stderr))


def test_a_name_that_no_index_has() -> None:
    unknown = error(UNKNOWN.format("zzqq-ours"), "other", "zzqq-ours")
    assert isinstance(unknown, ResolutionError)
    assert (unknown.problem, unknown.at) == ("`zzqq-ours` is not in any configured index", at(2))
    assert unknown.hint.startswith("no index has `zzqq-ours`; `find_links`")
    assert unknown.names == ("zzqq-ours",)
    assert {*unknown.unavailable} == {"zzqq-ours"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pandsa", "did you mean `pandas`?"),
        ("cv2", "did you mean `opencv-python-headless`? `cv2` is the name of its module"),
    ],
)
def test_what_was_probably_meant(name: str, hint: str) -> None:
    assert error(UNKNOWN.format(name), name).hint == hint


def test_the_nearest_versions_of_one_that_is_missing() -> None:
    text = PROOF.format(
        "only gamma<=1.5 is available and envbuild-request depends on gamma>=2, we can conclude that your"
        " requirements are unsatisfiable."
    )
    missing = error(text, "alpha", "gamma>=2", nearest=["1.0", "1.5"])
    assert missing.problem == (
        "the Python requirements cannot be satisfied: only gamma<=1.5 is available and the request needs"
        " gamma>=2"
    )
    assert (missing.hint, missing.at) == ("the nearest versions of `gamma` are 1.0 and 1.5", at(2))


def test_a_clash_with_a_recipe_names_it() -> None:
    text = PROOF.format(
        "timm==1.0 depends on torch>=3 and envbuild-request depends on timm and torch==2.13.0+cpu, we can"
        " conclude that your requirements are unsatisfiable."
    )
    clash = error(text, "timm")
    assert clash.problem.endswith("\n  the recipe `pytorch` asks for torch==2.13.0+cpu")
    assert clash.at == at(1)


def test_a_clash_shows_the_packages_between_the_request_and_what_clashes() -> None:
    text = """\
error: No solution found when resolving dependencies
  cause: Because models==4.46.0 has no usable wheels and all of:
             models>=4.34.0,<=4.35.1
             models[fast]>=4.35.2,<=4.39.3
         depend on one of:
             tokens>=0.14,<0.21
             tokens>=0.21,<0.22

         And because sentences==3.0.0 depends on models>=4.34.0,<5.0.0,
         we can conclude that sentences==3.0.0 depends on one of:
             tokens>=0.14,<0.21
             tokens>=0.21,<0.22

         And because envbuild-request depends on sentences==3.0 and tokens==0.10.3,
         we can conclude that your requirements are unsatisfiable.
"""
    clash = error(text, "other", "sentences==3.0", "tokens==0.10.3")
    chain = "\n  `tokens`, which `models` needs, which `sentences` at spec.yaml:2:3 needs"
    assert clash.problem.endswith(chain)
    assert clash.problem.count("\n") == 1
    # The conclusion is of its own step, though no full stop is before it.
    assert "; the request needs sentences==3.0 and tokens==0.10.3\n" in clash.problem
    # No line for what the reason says itself.
    direct = PROOF.format(
        "sentences==3.0 depends on tokens>=1 and envbuild-request depends on sentences and tokens<1, we can"
        " conclude that your requirements are unsatisfiable."
    )
    assert "\n" not in error(direct, "sentences", "tokens<1").problem


def test_words_of_uv_are_not_names() -> None:
    """A package with such a name may be asked for, too, and is not what clashes."""
    text = PROOF.format(
        "there is no version of numpy==9 and envbuild-request depends on numpy==9, we can conclude that your"
        " requirements are unsatisfiable."
    )
    assert read_failure(text).names == ("numpy",)
    assert error(text, "requirements", "version", "numpy==9").at == at(3)


def test_a_distribution_without_a_wheel() -> None:
    failure = UvFailure(kind="no-solution", reason="it has no wheels", names=("win",))
    (without,) = errors("alpha", "win").without_wheels({"win": failure}, {})
    assert without.problem == "`win`: no wheel fits Python 3.11 with glibc 2.36 on amd64"
    assert without.hint == (
        "it has no wheels; `from_source: [win]` under `packages` builds what has a source archive"
    )
    assert without.at == at(2)
    assert {*without.unavailable} == {"win"}
    (bounded,) = errors("win>=2", nearest=["1.0"]).without_wheels({"win": failure}, {})
    assert bounded.hint.startswith("versions of `win` with a wheel: 1.0; `from_source: [win]`")


def test_all_distributions_without_a_wheel_are_one_error_with_one_line_to_write() -> None:
    failures = {
        "docopt": UvFailure(kind="no-solution", reason="it has no wheels", names=("docopt",)),
        "deep": UvFailure(
            kind="no-solution", reason="all of middle need deep", names=("middle", "deep", "top")
        ),
        "apex": UvFailure(kind="no-solution", reason="it has no wheels", names=("apex",)),
    }
    (error,) = errors("top", "docopt>=0.6", "apex").without_wheels(failures, {})
    assert error.problem == (
        "`docopt`, `deep`, `apex`: no wheel fits Python 3.11 with glibc 2.36 on amd64"
        "\n  `docopt>=0.6` at spec.yaml:2:3"
        "\n  `deep`, which `top` at spec.yaml:1:3 needs"
        "\n  `apex` at spec.yaml:3:3"
    )
    # The index's package of that name is not what is meant, so it is not to be built.
    assert "`from_source: [deep, docopt]` under `packages`" in str(error.hint)
    assert "`apex` of the index is another project" in str(error.hint)
    assert {*error.unavailable} == {*failures}


def test_a_build_that_no_index_has_is_not_corrected_to_itself() -> None:
    text = PROOF.format(
        "there is no version of idna==3.4+cu113 and envbuild-request depends on idna==3.4+cu113, we can"
        " conclude that your requirements are unsatisfiable."
    )
    missing = error(text, "idna==3.4+cu113")
    assert str(missing.hint).startswith("`+cu113` is a build that the configured indexes do not have")
    nearest = error(text, "idna==3.4+cu113", nearest=["3.4"])
    assert nearest.hint == "the nearest version of `idna` is 3.4"


def test_without_a_network_all_that_is_missing_is_one_error() -> None:
    failures = [
        UvFailure(kind="no-solution", not_cached={"alpha": ""}),
        UvFailure(kind="no-solution", not_cached={"inner": "1.5"}, names=("inner", "beta")),
    ]
    (missing,) = errors("zeta", "beta", offline=True).not_here(failures)
    assert missing.problem == "offline: `alpha`, `inner 1.5` are not on this machine"
    assert missing.at == at(2), "of the package that needs it"


@pytest.mark.parametrize(
    ("stderr", "limit", "problem"),
    [
        ("", "900 s", "uv needed more than 900 s, and was ended"),
        (
            "hint: An index URL (https://me:pw@host/simple) returned a 401",
            "",
            "the index https://host/simple requires authentication (HTTP 401)",
        ),
        ("error: invalid peer certificate", "", "the certificate of a Python index is not trusted here"),
        (
            "error: Failed to fetch: `https://me:pw@host/x`\n  cause: refused\n",
            "",
            "https://host/x was asked, and cannot be reached: refused",
        ),
        ("error: no such option", "", "uv failed: no such option"),
    ],
)
def test_what_is_wrong_with_the_machine(stderr: str, limit: str, problem: str) -> None:
    failed = errors("alpha").failure(read_failure(stderr, over_limit=limit))
    assert isinstance(failed, MachineError)
    assert failed.problem.startswith(problem)
    assert "pw" not in failed.problem


def test_requirements_are_compared_as_they_are_parsed() -> None:
    asked: list[Requirement] = []

    def nearest(requirement: Requirement) -> list[str]:
        asked.append(requirement)
        return ["1"]

    writer = replace(errors("Gamma[x]>=2"), nearest_versions=nearest)
    failure = UvFailure(kind="no-solution", missing=frozenset({"gamma"}), names=("gamma",))
    assert writer.failure(failure).hint == "the nearest version of `gamma` is 1"
    assert [str(requirement) for requirement in asked] == ["Gamma[x]>=2"]
