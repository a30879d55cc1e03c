"""The pods of a job: mpiexec's line for its proxy, the secret, and the variables of ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envbuild.jobs.pod import Pod, PodError, plain_variables
from envbuild.jobs.pod_link import MAX_LINE_BYTES, LinkError, greet, join
from envbuild.jobs.proxy import proxy_words, read_line

HOSTS = ["a.job", "b.job"]
MPICH = (
    '-x b.job "/opt/bin/hydra_pmi_proxy" --control-port vm:36859 --rmk user'
    " --launcher ssh --launcher-exec /tmp/agent"
    " --demux poll --pgid 0 --retries 10 --usize -1 --pmi-port 0 --gpus-per-proc -2 --gpu-subdevs-per-proc -2"
    " --proxy-id 1"
)
INTEL = (
    "-q -x b.job /opt/bin//hydra_bstrap_proxy --upstream-host vm --upstream-port 40551 --pgid 0"
    " --launcher ssh"
    " --launcher-number 0 --launcher-exec /tmp/agent --base-path /opt/bin/ --tree-width 16 --tree-level 1"
    " --time-left -1 --launch-type 2 --proxy-id 1 --node-id 1 --subtree-size 1 /opt/bin//hydra_pmi_proxy"
    " --usize -1 --auto-cleanup 1 --abort-signal 9"
)
SECRET, OTHER = b"s" * 32, b"t" * 32


@pytest.mark.parametrize(("line", "program"), [(MPICH, "hydra_pmi_proxy"), (INTEL, "hydra_bstrap_proxy")])
def test_a_pod_runs_the_proxy_of_its_own_image_against_pod_0(line: str, program: str) -> None:
    index, values = read_line(line.split(), HOSTS)
    words = proxy_words(values, index, Path("/image/bin"), HOSTS[0])
    assert (index, words[0]) == (1, f"/image/bin/{program}")
    text = " ".join(words)
    assert "a.job" in text
    for left_out in ("vm", "/opt", "/tmp/agent"):
        assert left_out not in text


@pytest.mark.parametrize("line", [MPICH, INTEL])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--pgid 0", "--pgid 0;id"),
        ("--pgid 0", "--exec /bin/sh"),
        ("--usize -1", "--usize 99999999999"),
        ("--proxy-id 1", "--proxy-id 0"),
        ("b.job", "c.job"),
    ],
)
def test_another_line_is_refused(line: str, old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_line(line.replace(old, new).split(), HOSTS)


@pytest.mark.parametrize(
    "change", [{"port": 22}, {"family": "sh"}, {"launcher-exec": "/bin/sh"}, {"usize": True}]
)
def test_a_pod_checks_the_values_itself(change: dict[str, object]) -> None:
    _, values = read_line(MPICH.split(), HOSTS)
    with pytest.raises(ValueError, match=r"."):
        proxy_words({**values, **change}, 1, Path("/image/bin"), HOSTS[0])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def _greeting(connection: socket.socket, results: list[object]) -> threading.Thread:
    def run() -> None:
        try:
            results.extend(greet(connection, SECRET, 2))
        except LinkError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_pods_with_one_secret_exchange_messages(ends: tuple[socket.socket, socket.socket]) -> None:
    results: list[object] = []
    thread = _greeting(ends[0], results)
    pod = join(ends[1], SECRET, 1)
    thread.join()
    index, pod_0 = results
    pod_0.send({"end": 3})  # type: ignore[attr-defined]
    assert (index, pod.receive()) == (1, {"end": 3})


def test_another_secret_is_refused_by_both(ends: tuple[socket.socket, socket.socket]) -> None:
    results: list[object] = []
    thread = _greeting(ends[0], results)
    with pytest.raises(PermissionError):
        join(ends[1], OTHER, 1)
    thread.join()
    assert [str(error) for error in results] == ["its secret is another"]


def test_a_replayed_message_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    results: list[object] = []
    thread = _greeting(ends[0], results)
    pod = join(ends[1], SECRET, 1)
    thread.join()
    results[1].send({"end": 0})  # type: ignore[attr-defined]
    message = ends[1].recv(MAX_LINE_BYTES)
    ends[0].sendall(message * 2)
    assert pod.receive() == {"end": 0}
    with pytest.raises(LinkError, match="not of this job"):
        pod.receive()


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"1 2 3\n", b"x" * (MAX_LINE_BYTES + 2), b"\n" * 9]
)
def test_garbage_is_refused(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    results: list[object] = []
    thread = _greeting(ends[0], results)
    ends[1].sendall(sent)
    thread.join()
    assert isinstance(results[0], LinkError)


def _variables(**others: str) -> dict[str, str]:
    return {
        "ENVBUILD_POD_NAMES": ",".join(HOSTS),
        "JOB_COMPLETION_INDEX": "1",
        "ENVBUILD_RANKS_PER_POD": "2",
        **others,
    }


def test_ranks_are_counted_over_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    pod = Pod.of(_variables())
    variables: Sequence[dict[str, str]] = [plain_variables(pod, local) for local in range(2)]
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["WORLD_SIZE"]) for rank in variables] == [
        ("2", "0", "4"),
        ("3", "1", "4"),
    ]
    assert variables[0]["JAX_COORDINATOR_ADDRESS"] == "a.job:29500"


@pytest.mark.parametrize(
    "wrong",
    [
        {"JOB_COMPLETION_INDEX": "2"},
        {"JOB_COMPLETION_INDEX": ""},
        {"ENVBUILD_RANKS_PER_POD": "0"},
        {"ENVBUILD_POD_NAMES": "a.job,a.job"},
        {"ENVBUILD_POD_NAMES": ""},
    ],
)
def test_a_wrong_variable_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(PodError, match=r"JOB_COMPLETION_INDEX|ENVBUILD_POD_NAMES|ENVBUILD_RANKS_PER_POD"):
        Pod.of(_variables(**wrong))
