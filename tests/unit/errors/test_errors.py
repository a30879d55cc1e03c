"""One error type: what people read, in which order, and with which exit code."""

from pathlib import Path

import pytest

from envbuild.errors import (
    BuildError,
    CheckError,
    EnvbuildError,
    Location,
    MachineError,
    ManyErrors,
    RequestError,
    did_you_mean,
    raise_all,
    render,
)


def at(line: int, column: int = 1, path: str = "spec.yaml") -> Location:
    return Location(path=Path(path), line=line, column=column)


class TestRender:
    def test_problem_place_and_hint(self) -> None:
        error = RequestError("unknown recipe `pytroch`", at=at(5, 14), hint="did you mean `pytorch`?")
        assert render(error) == (
            "error: unknown recipe `pytroch`\n  --> spec.yaml:5:14\n\nhint: did you mean `pytorch`?\n"
        )

    def test_problem_alone(self) -> None:
        assert render(RequestError("no")) == "error: no\n"

    def test_a_file_without_a_line(self) -> None:
        assert render(RequestError("cut", at=at(0, 0, "a.sif"))) == "error: cut\n  --> a.sif\n"

    def test_several_are_separated_by_an_empty_line(self) -> None:
        both = ManyErrors([RequestError("b", at=at(2)), RequestError("a", at=at(1), hint="h")])
        assert render(both) == ("error: a\n  --> spec.yaml:1:1\n\nhint: h\n\nerror: b\n  --> spec.yaml:2:1\n")


class TestManyErrors:
    def test_order_is_that_of_the_places_and_stable_without(self) -> None:
        errors: list[EnvbuildError] = [
            RequestError("nowhere 1"),
            RequestError("line 10", at=at(10)),
            RequestError("line 9", at=at(9)),
            RequestError("column 3", at=at(9, 3)),
            RequestError("other file", at=at(99, path="a.yaml")),
            RequestError("nowhere 2"),
        ]
        told = [error.problem for error in ManyErrors(errors).errors]
        assert told == ["other file", "line 9", "column 3", "line 10", "nowhere 1", "nowhere 2"]

    def test_nested_ones_are_flattened(self) -> None:
        inner = ManyErrors([RequestError("b", at=at(2)), RequestError("c", at=at(3))])
        outer = ManyErrors([inner, RequestError("a", at=at(1))])
        assert [error.problem for error in outer.each()] == ["a", "b", "c"]
        assert str(outer) == "a; b; c"

    def test_exit_code_is_that_of_the_first_after_ordering(self) -> None:
        many = ManyErrors([MachineError("m"), BuildError("b", at=at(4)), RequestError("r", at=at(7))])
        assert many.exit_code == 3
        assert ManyErrors([RequestError("x")]).exit_code == 2, "one instance's code is not another's"

    def test_none_at_all_is_a_bug(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            ManyErrors([])


class TestRaiseAll:
    def test_nothing(self) -> None:
        raise_all([])

    def test_a_single_one_is_raised_as_it_is(self) -> None:
        error = CheckError("x")
        with pytest.raises(CheckError) as caught:
            raise_all([error])
        assert caught.value is error

    def test_several_come_together(self) -> None:
        with pytest.raises(ManyErrors) as caught:
            raise_all([RequestError("x"), RequestError("y")])
        assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    ("kind", "code"),
    [(EnvbuildError, 2), (RequestError, 2), (BuildError, 3), (CheckError, 4), (MachineError, 5)],
)
def test_exit_codes(kind: type[EnvbuildError], code: int) -> None:
    assert kind("x").exit_code == code


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("pytroch", "did you mean `pytorch`?"),
        ("mpch", "did you mean `mpich`?"),
        ("zzz", None),
        ("", None),
    ],
)
def test_did_you_mean(word: str, hint: str | None) -> None:
    assert did_you_mean(word, ["pytorch", "mpich", "openmpi"]) == hint
