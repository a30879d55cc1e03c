"""Commands that take several files: one that fails leaves the others done."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from envbuild.cli.members import finish_members
from envbuild.cli.progress import plain_lines
from envbuild.errors import BuildError, CheckError, Location, MachineError, RequestError
from envbuild.events import Event, MemberDone, Note, task
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings

PATHS = (Path("a.yaml"), Path("b.yaml"), Path("c.yaml"))


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settings(tmp_path: Path, events: list[Event]) -> Settings:
    return Settings.of(store=tmp_path / "store", emit=events.append)


def work_of(failures: dict[str, Exception]) -> Callable[[Member[None], Settings], int]:
    def work(member: Member[None], settings: Settings) -> int:
        settings.emit(Note(text="hello"))
        if member.name in failures:
            raise failures[member.name]
        return len(member.name)

    return work


@pytest.mark.parametrize("threads", [1, 3])
def test_one_failure_leaves_the_others_done(settings: Settings, events: list[Event], threads: int) -> None:
    error = BuildError("it broke", hint="see the log")
    members = Members.of(PATHS, many=True)
    done = members.each(work_of({"b.yaml": error}), settings, threads=threads, last=True)
    assert [(member.name, member.result, member.error) for member in done.items] == [
        ("a.yaml", 6, None),
        ("b.yaml", None, error),
        ("c.yaml", 6, None),
    ]
    assert done.exit_code() == 3
    assert {event for event in events if isinstance(event, Note)} == {
        Note(text=f"{path}: hello") for path in PATHS
    }
    assert {event for event in events if isinstance(event, MemberDone)} == {
        MemberDone(member="a.yaml"),
        MemberDone(member="b.yaml", problem="it broke"),
        MemberDone(member="c.yaml"),
    }


def test_later_steps_leave_out_what_failed_before(settings: Settings, events: list[Event]) -> None:
    members = Members.of(PATHS, many=True)
    first = members.each(work_of({"a.yaml": RequestError("wrong", hint="x")}), settings)
    second = first.each(lambda member, _: member.get() + 1, settings, last=True)
    assert [member.result for member in second.items] == [None, 7, 7]
    assert [event.member for event in events if isinstance(event, MemberDone)] == [
        "a.yaml",
        "a.yaml",
        "b.yaml",
        "c.yaml",
    ]


def test_one_file_is_as_it_always_was(settings: Settings, events: list[Event]) -> None:
    alone = Members.of(PATHS[:1], many=False)
    assert alone.each(work_of({}), settings, last=True).only == 6
    assert events == [Note(text="hello")]
    error = RequestError("wrong", hint="x")
    failed = alone.each(work_of({"a.yaml": error}), settings)
    with pytest.raises(RequestError) as caught:
        _ = failed.only
    assert caught.value is error


def test_a_full_disk_is_an_error_of_its_member_and_a_bug_is_not(settings: Settings) -> None:
    members = Members.of(PATHS, many=True)
    full = OSError(errno.ENOSPC, "No space left on device", "/x")
    done = members.each(work_of({"a.yaml": full}), settings)
    assert isinstance(done.items[0].error, MachineError)
    with pytest.raises(ValueError, match="a bug"):
        members.each(work_of({"b.yaml": ValueError("a bug")}), settings)


def test_the_gravest_exit_code_counts(settings: Settings) -> None:
    members = Members.of(PATHS, many=True).each(
        work_of({"a.yaml": CheckError("c", hint="x"), "b.yaml": RequestError("r", hint="x")}), settings
    )
    assert members.exit_code() == 4
    assert members.exit_code(lambda _: 5) == 5
    assert Members.of(PATHS, many=True).exit_code() == 0


def test_tasks_of_members_that_run_at_a_time_have_their_own_keys(
    settings: Settings, events: list[Event]
) -> None:
    def work(_: Member[None], own: Settings) -> None:
        with task(own.emit, "check", "check it") as running:
            running.advance(1)

    Members.of(PATHS[:2], many=True).each(work, settings)
    assert {getattr(event, "task", "") for event in events} - {""} == {"check@a.yaml", "check@b.yaml"}


def finish(
    members: Members[int], capsys: pytest.CaptureFixture[str], *, as_json: bool = False
) -> tuple[int, str, str]:
    code = 0
    try:
        finish_members(
            members, row=lambda size: ["built", f"{size} MB"], data=lambda size: {"size": size}, json=as_json
        )
    except typer.Exit as ended:
        code = ended.exit_code
    out, err = capsys.readouterr()
    return code, out, err


def failing(*names: str) -> Members[int]:
    at = Location(path=Path("a.yaml"), line=2, column=1)
    error = RequestError("it is wrong", hint="change it", at=at)
    items: list[Member[int]] = [
        Member(name=str(path), path=path, error=error)
        if str(path) in names
        else Member(name=str(path), path=path, result=6)
        for path in PATHS
    ]
    return Members(items=tuple(items), many=True)


def test_the_table_and_each_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = finish(failing("a.yaml", "c.yaml"), capsys)
    assert code == 2
    assert out == "failed  a.yaml  it is wrong\nbuilt   b.yaml  6 MB\nfailed  c.yaml  it is wrong\n"
    error = "error: it is wrong\n  --> a.yaml:2:1\n\nhint: change it\n"
    assert err == f"a.yaml, c.yaml:\n{error}\n1 of 3 done, 2 failures\n"


def test_a_member_with_an_exit_code_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    members = failing("a.yaml")
    with pytest.raises(typer.Exit):
        finish_members(
            members,
            row=lambda _: ["differs"],
            data=lambda _: {},
            json=False,
            code=lambda _: 2,
        )
    assert capsys.readouterr().err.endswith("0 of 3 done, 3 failures\n")


def test_a_table_without_failures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = finish(failing(), capsys)
    assert (code, err) == (0, "")
    assert out == "built  a.yaml  6 MB\nbuilt  b.yaml  6 MB\nbuilt  c.yaml  6 MB\n"


def test_json_has_results_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = finish(failing("b.yaml"), capsys, as_json=True)
    assert code == 2
    first, second, _ = json.loads(out)["members"]
    assert first == {"name": "a.yaml", "path": "a.yaml", "exit_code": 0, "errors": [], "result": {"size": 6}}
    assert second == {
        "name": "b.yaml",
        "path": "b.yaml",
        "exit_code": 2,
        "errors": [{"problem": "it is wrong", "hint": "change it", "at": "a.yaml:2:1"}],
        "result": None,
    }


def test_with_q_failures_alone_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    emit = plain_lines(sys.stderr, -1)
    emit(MemberDone(member="a.yaml"))
    emit(MemberDone(member="b.yaml", problem="it broke"))
    assert capsys.readouterr().err == "b.yaml: failed: it broke\n"
