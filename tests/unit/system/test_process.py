"""The only place that starts processes: nothing hangs, nothing is lost, nothing outlives us."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.system import process

ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
MEGABYTE = 1_000_000


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-c", code, *arguments]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def lives(pid: int) -> bool:
    """Whether a process does anything: a zombie that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestStreams:
    def test_both_are_drained_whoever_comes_first(self) -> None:
        code = (
            "import sys\n"
            "for stream, mark in ((sys.stderr, 'e'), (sys.stdout, 'o'), (sys.stderr, 'E')):\n"
            f"    stream.write(mark * {2 * MEGABYTE}); stream.flush()\n"
        )
        ended = process.run(python(code), env=ENV, timeout_s=30)
        assert ended.ok
        assert ended.stdout == "o" * 2 * MEGABYTE
        half = process.STDERR_BYTES // 2
        left_out = f"\n[{4 * MEGABYTE - process.STDERR_BYTES} bytes left out]\n"
        assert ended.stderr == "e" * half + left_out + "E" * half, (
            "of much its beginning and its end are kept"
        )

    @pytest.mark.redteam
    def test_of_an_endless_stream_beginning_and_end_are_kept_until_its_time_is_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "LOG_BYTES", MEGABYTE)
        log = tmp_path / "log"
        ended = process.run(["yes"], env=ENV, timeout_s=2, stdout_bytes=MEGABYTE, log=log)
        assert ended.timed_out
        for text in (ended.stdout, log.read_text()):
            head, _, tail = text.partition("\n[")
            left_out, _, tail = tail.partition(" bytes left out]\n")
            assert (len(head), int(left_out) > MEGABYTE) == (MEGABYTE // 2, True)
            assert set(tail) == {"y", "\n"}
            assert len(tail) == MEGABYTE // 2

    def test_the_log_has_all_of_both_and_is_appended_to(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("before\n")
        code = f"import sys; sys.stderr.write('e' * {MEGABYTE}); sys.stdout.write('o' * {MEGABYTE})"
        assert process.run(python(code), env=ENV, log=log, timeout_s=30).ok
        text = log.read_text()
        assert text.startswith("before\n")
        assert (text.count("o"), text.count("e")) == (MEGABYTE + 1, MEGABYTE + 2)

    def test_undecodable_bytes_are_replaced(self) -> None:
        ended = process.run(python(r"import os; os.write(1, b'a\xff\n'); os.write(2, b'\xfe')"), env=ENV)
        assert (ended.stdout, ended.stderr) == ("a\ufffd\n", "\ufffd")

    def test_output_for_people(self) -> None:
        ended = process.run(
            python("import sys; print('out\\n' * 30); print('err', file=sys.stderr)"), env=ENV
        )
        assert ended.output.splitlines()[-1] == "err"
        assert ended.last_lines(2) == "out\nerr"

    def test_what_steers_a_terminal_is_left_out_for_people(self) -> None:
        said = r"\x1b[91mERROR\x1b[0m \x1b]0;title\x07of \x1b]8;;file:x\x1b\\a link\x1b[2K\x1bM\x1b(B[1m"
        ended = process.run(python(f"print('{said}')"), env=ENV)
        assert ended.output == "ERROR of a link[1m"
        assert "\x1b[91m" in ended.stdout


class TestInput:
    def test_more_than_a_pipe_holds(self) -> None:
        text = bytes(range(256)) * 8192
        code = (
            "import sys; data = sys.stdin.buffer.read(); print(len(data), data == bytes(range(256)) * 8192)"
        )
        assert process.run(python(code), env=ENV, stdin=text, timeout_s=30).stdout == f"{len(text)} True\n"

    def test_a_process_that_reads_nothing_is_no_error(self) -> None:
        assert process.run(["true"], env=ENV, stdin=b"x" * MEGABYTE, timeout_s=30).ok

    def test_without_any_it_reads_the_end_at_once(self) -> None:
        assert process.run(["cat"], env=ENV, timeout_s=5).ok


class TestSurroundings:
    def test_the_environment_is_complete_and_ours_is_not_inherited(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
        ended = process.run(["env"], env={"PATH": "/usr/bin", "A": "b"})
        assert sorted(ended.stdout.splitlines()) == ["A=b", "PATH=/usr/bin"]

    def test_working_directory(self, tmp_path: Path) -> None:
        assert process.run(["pwd"], env=ENV, cwd=tmp_path).stdout.strip() == str(tmp_path.resolve())

    def test_the_umask_is_set_and_not_inherited(self, tmp_path: Path) -> None:
        before = os.umask(0o007)
        try:
            process.run(["touch", tmp_path / "file"], env=ENV)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644

    def test_arguments_are_words_and_never_read_by_a_shell(self) -> None:
        word = "$(touch /tmp/x); `id` 'a' \"b\" *"
        ended = process.run(["printf", "%s", word], env=ENV)
        assert ended.stdout == word
        assert ended.command.startswith("printf %s '$(touch")


class TestEnding:
    def test_exit_code_and_signal(self) -> None:
        assert process.run(["sh", "-c", "exit 7"], env=ENV).code == 7
        ended = process.run(["sh", "-c", "kill -9 $$"], env=ENV)
        assert (ended.code, ended.ok) == (-9, False)

    def test_a_missing_program_is_the_machines_fault(self) -> None:
        with pytest.raises(MachineError, match="`no-such-program-here` is not on this machine"):
            process.run(["no-such-program-here"], env=ENV)

    def test_a_file_that_is_no_program(self, tmp_path: Path) -> None:
        text = tmp_path / "text"
        text.write_text("x")
        with pytest.raises(MachineError, match="cannot be started: Permission denied"):
            process.run([text], env=ENV)

    def test_a_missing_working_directory_is_not_told_as_a_missing_program(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="gone"):
            process.run(["true"], env=ENV, cwd=tmp_path / "gone")

    def test_time_out_ends_grandchildren_that_ignore_sigterm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "_GRACE_S", 0.5)
        pids = tmp_path / "pids"
        stubborn = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.fork()\n"
            "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
            "print('said before', flush=True)\n"
            "time.sleep(60)\n"
        )
        ended = process.run(python(stubborn, str(pids)), env=ENV, timeout_s=1.0)
        assert (ended.timed_out, ended.ok, ended.code) == (True, False, -signal.SIGKILL)
        assert ended.stdout == "said before\n" * 2, "what a hanging process said is shown"
        both = [int(line) for line in pids.read_text().split()]
        assert len(both) == 2
        assert wait_for(lambda: not any(lives(pid) for pid in both))

    def test_time_out_ends_a_polite_one_at_once(self) -> None:
        ended = process.run(["sleep", "60"], env=ENV, timeout_s=0.2)
        assert (ended.timed_out, ended.code) == (True, -signal.SIGTERM)

    def test_time_out_counts_when_the_streams_are_closed(self) -> None:
        ended = process.run(["sh", "-c", "exec >&- 2>&-; sleep 60"], env=ENV, timeout_s=0.3)
        assert ended.timed_out

    def test_what_left_the_group_and_holds_the_streams_does_not_keep_us(self, tmp_path: Path) -> None:
        """A daemon's streams are ours for as long as it runs; what it was started by has ended."""
        pid = tmp_path / "pid"
        code = (
            "import os, sys\n"
            "if os.fork() == 0:\n"
            "    os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid()))\n"
            "    os.execvp('sleep', ['sleep', '60'])\n"
            "print('started', flush=True)\n"
        )
        ended = process.run(python(code, str(pid)), env=ENV, timeout_s=30)
        try:
            assert (ended.ok, ended.stdout) == (True, "started\n")
        finally:
            assert wait_for(pid.exists)
            os.kill(int(pid.read_text()), signal.SIGKILL)

    def test_what_stays_in_the_group_belongs_to_the_run(self) -> None:
        ended = process.run(["sh", "-c", "(sleep 0.5; echo late) & echo early"], env=ENV, timeout_s=30)
        assert ended.stdout == "early\nlate\n"

    @pytest.mark.usefixtures("_an_init_that_buries_nobody")
    def test_the_dead_whom_nobody_buries_do_not_keep_us(self) -> None:
        assert process.run(["sh", "-c", "(sleep 0.1; exit 0) & exit 0"], env=ENV, timeout_s=30).ok

    @pytest.fixture
    def _an_init_that_buries_nobody(self) -> Iterator[None]:
        """Orphans become our children (prctl PR_SET_CHILD_SUBREAPER), and nobody waits for them."""
        libc = ctypes.CDLL(None)
        assert libc.prctl(36, 1, 0, 0, 0) == 0
        yield
        libc.prctl(36, 0, 0, 0, 0)
        assert os.waitpid(-1, os.WNOHANG) != (0, 0), "the orphan was ours"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    def test_our_own_end_is_that_of_our_children(self, tmp_path: Path, number: int) -> None:
        code = f'echo $$ > "$0"; sleep 0.5; kill -{int(number)} $PPID; sleep 60'
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), process.terminating_children_on_exit():
            process.run(["sh", "-c", code, tmp_path / "pid"], env=ENV)
        assert signal.getsignal(signal.SIGTERM) is before
        assert wait_for(lambda: not lives(int((tmp_path / "pid").read_text())))


class TestInterrupts:
    """An interrupt between the start of a child and its registration ends the child, too."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    def test_while_a_child_is_started(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        pids: list[int] = []

        class Interrupted(subprocess.Popen[bytes]):
            def __init__(self, *arguments: object, **options: object) -> None:
                super().__init__(*arguments, **options)  # type: ignore[call-overload]
                pids.append(self.pid)
                signal.raise_signal(signal.Signals(number))

        monkeypatch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt), process.terminating_children_on_exit():
            process.run(["sleep", "60"], env=ENV)
        assert wait_for(lambda: not any(lives(pid) for pid in pids))

    def test_of_a_pool_begins_nothing_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begun: list[int] = []

        def work(number: int) -> None:
            begun.append(number)
            if number == 1:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            process.run(["sleep", "60"], env=ENV)

        with (
            pytest.raises(KeyboardInterrupt),
            process.terminating_children_on_exit(),
            process.thread_pool(2) as pool,
        ):
            list(pool.map(work, range(6)))
        assert sorted(begun) == [0, 1]

    def test_that_are_ignored_stay_ignored(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with process.terminating_children_on_exit():
                signal.raise_signal(signal.SIGHUP)
                assert process.run(["true"], env=ENV).ok
        finally:
            signal.signal(signal.SIGHUP, before)


@pytest.mark.redteam
def test_a_guarded_group_ends_though_we_are_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        "import sys; from envbuild.system import process\n"
        f"process.run([sys.executable, '-c', {child!r}], env={ENV!r}, guarded=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) as parent:
        assert wait_for(lambda: started.exists() and bool(started.read_text()))
        parent.kill()
    assert wait_for(lambda: not lives(int(started.read_text())))


def test_a_process_that_writes_nothing_can_be_given_up() -> None:
    looks: list[int] = []

    def give_up() -> bool:
        looks.append(1)
        return len(looks) == 2

    done = process.run(["sleep", "60"], env={"PATH": "/usr/bin:/bin"}, timeout_s=60, give_up=give_up)
    assert (done.timed_out, done.ok, len(looks)) == (True, False, 2)
