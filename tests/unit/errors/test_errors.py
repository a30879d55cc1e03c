"""One error type: what people read, in which order, and with which exit code."""

from pathlib import Path

import pytest

from envbuild.errors import (
    MAX_ERRORS,
    BuildError,
    CheckError,
    EnvbuildError,
    Location,
    MachineError,
    ManyErrors,
    RequestError,
    did_you_mean,
    pluralize,
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

    def test_without_a_place(self) -> None:
        assert render(RequestError("no", hint="mend it")) == "error: no\n\nhint: mend it\n"

    def test_a_file_without_a_line(self) -> None:
        told = render(RequestError("cut", at=at(0, 0, "a.sif"), hint="mend it"))
        assert told == "error: cut\n  --> a.sif\n\nhint: mend it\n"

    def test_several_are_separated_by_an_empty_line(self) -> None:
        both = ManyErrors([RequestError("b", at=at(2), hint="k"), RequestError("a", at=at(1), hint="h")])
        first = "error: a\n  --> spec.yaml:1:1\n\nhint: h\n"
        assert render(both) == first + "\nerror: b\n  --> spec.yaml:2:1\n\nhint: k\n"


class TestManyErrors:
    def test_order_is_that_of_the_places_and_stable_without(self) -> None:
        errors: list[EnvbuildError] = [
            RequestError("nowhere 1", hint="mend it"),
            RequestError("line 10", at=at(10), hint="mend it"),
            RequestError("line 9", at=at(9), hint="mend it"),
            RequestError("column 3", at=at(9, 3), hint="mend it"),
            RequestError("other file", at=at(99, path="a.yaml"), hint="mend it"),
            RequestError("nowhere 2", hint="mend it"),
        ]
        told = [error.problem for error in ManyErrors(errors).errors]
        assert told == ["other file", "line 9", "column 3", "line 10", "nowhere 1", "nowhere 2"]

    def test_nested_ones_are_flattened(self) -> None:
        inner = ManyErrors(
            [RequestError("b", at=at(2), hint="mend it"), RequestError("c", at=at(3), hint="mend it")]
        )
        outer = ManyErrors([inner, RequestError("a", at=at(1), hint="mend it")])
        assert [error.problem for error in outer.each()] == ["a", "b", "c"]
        assert str(outer) == "a; b; c"

    def test_exit_code_is_that_of_the_first_after_ordering(self) -> None:
        many = ManyErrors(
            [
                MachineError("m", hint="mend it"),
                BuildError("b", at=at(4), hint="mend it"),
                RequestError("r", at=at(7), hint="mend it"),
            ]
        )
        assert many.exit_code == 3
        assert ManyErrors([RequestError("x", hint="mend it")]).exit_code == 2, (
            "one instance's code is not another's"
        )

    def test_none_at_all_is_a_bug(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            ManyErrors([])


class TestRaiseAll:
    def test_nothing(self) -> None:
        raise_all([])

    def test_a_single_one_is_raised_as_it_is(self) -> None:
        error = CheckError("x", hint="mend it")
        with pytest.raises(CheckError) as caught:
            raise_all([error])
        assert caught.value is error

    def test_several_come_together(self) -> None:
        with pytest.raises(ManyErrors) as caught:
            raise_all([RequestError("x", hint="mend it"), RequestError("y", hint="mend it")])
        assert len(caught.value.errors) == 2

    def test_of_very_many_the_first_are_raised_and_the_others_counted(self) -> None:
        def errors(path: str) -> list[EnvbuildError]:
            return [RequestError("x", at=at(number, path=path), hint="mend it") for number in range(1, 201)]

        inner = []
        for path in ("b.yaml", "a.yaml"):
            with pytest.raises(ManyErrors) as caught:
                raise_all(errors(path))
            inner.append(caught.value)
        with pytest.raises(ManyErrors) as caught:
            raise_all([*inner, MachineError("no place", hint="mend it")])
        shown = caught.value.each()
        assert [str(error.at) for error in shown[:MAX_ERRORS]] == [f"a.yaml:{n}:1" for n in range(1, 51)]
        assert [error.problem for error in shown[MAX_ERRORS:]] == ["and 351 more errors"]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(EnvbuildError, 2), (RequestError, 2), (BuildError, 3), (CheckError, 4), (MachineError, 5)],
)
def test_exit_codes(kind: type[EnvbuildError], code: int) -> None:
    assert kind("x", hint="mend it").exit_code == code


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


@pytest.mark.parametrize(("number", "told"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_one_is_told_as_one(number: int, told: str) -> None:
    assert pluralize(number, "file") == told
