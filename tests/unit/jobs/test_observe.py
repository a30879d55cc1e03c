"""The recorder beside a rank: it disturbs nothing, ends with its rank, and writes nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.options import read_timeout
from envbuild.jobs import counters, observe

RECORDER = [sys.executable, "-I", str(observe.__file__)]


def start(directory: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command as an observed rank; it gets no other rank's variables."""
    return subprocess.Popen(
        [*RECORDER, *command],
        env={"PATH": os.environ["PATH"], observe.DIRECTORY: str(directory), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(path: Path, count: int, *, limit_s: float = 20.0) -> list[dict[str, Any]]:
    """Return the lines of a file as soon as it has so many."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if path.exists() and len(found := path.read_text().splitlines()) >= count:
            return [json.loads(line) for line in found]
        time.sleep(0.05)
    raise AssertionError(f"{path} has fewer than {count} lines")


def end_of(path: Path, *, limit_s: float = 20.0) -> dict[str, Any]:
    """Return the last line of a record as soon as it says why it ended."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if path.exists() and "end" in (text := path.read_text()).rpartition("{")[2]:
            return dict(json.loads(text.splitlines()[-1]))
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def test_a_rank_keeps_its_process_its_streams_and_its_exit_code(tmp_path: Path) -> None:
    script = (
        "import os, sys; print(os.getpid(), sorted(k for k in os.environ if 'OBSERVE' in k)); sys.exit(7)"
    )
    rank = start(tmp_path, sys.executable, "-c", script)
    out, err = rank.communicate(timeout=20)
    assert (rank.returncode, out, err) == (7, f"{rank.pid} []\n", "")


def test_the_streams_of_a_rank_end_with_it(tmp_path: Path) -> None:
    """A launcher reads them to their end: a recorder that had them open would keep it waiting."""
    begin = time.monotonic()
    start(tmp_path, "true").communicate(timeout=20)
    assert time.monotonic() - begin < 5
    assert end_of(tmp_path / "rank-0.jsonl")["end"] == "exit"


def test_a_record_counts_what_a_rank_and_its_children_use(tmp_path: Path) -> None:
    work = "import time; end = time.monotonic() + 2.5\nwhile time.monotonic() < end: pass"
    (tmp_path / "data").write_bytes(bytes(3_000_000))
    script = f"cat {tmp_path}/data > /dev/null; {sys.executable} -c '{work}' & wait"
    start(tmp_path, "sh", "-c", script, PMI_RANK="3", PMI_SIZE="8").communicate(timeout=30)
    header, *samples, end = wait_for(tmp_path / "rank-3.jsonl", 5)
    assert (header["kind"], header["rank"], header["size"]) == ("rank", 3, 8)
    assert header["cpus"] == sorted(os.sched_getaffinity(0))
    assert end["end"] == "exit"
    last = samples[-1]
    assert 0.3 < last["cpu"] < 3.5
    assert last["rchar"] > 3_000_000
    assert last["processes"] >= 2
    for name in ("cpu", "system", "wait", "rchar", "wchar", "t"):
        values = [sample[name] for sample in samples]
        assert values == sorted(values), name
    node = lines(tmp_path / f"node-{os.uname().nodename}.jsonl")
    assert node[1]["memory_total"] > node[1]["memory_available"] > 0
    assert "lo" in node[1]["network"]


@pytest.mark.parametrize(
    "script",
    [
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); start(WORK)",
        "start(['sh', '-c', '\"$@\" & sleep 1.2', 'sh', *WORK]).wait()",
    ],
    ids=["not waited for", "daemon"],
)
def test_processes_count_though_their_parents_do_not_wait_for_them(tmp_path: Path, script: str) -> None:
    done, record = tmp_path / "done", tmp_path / "rank-0.jsonl"
    # It ends when a sample has seen all of its work.
    work = f"""
import time
while time.process_time() < 0.8: pass
count = lambda: open({str(record)!r}).read().count("\\n")
before = count()
while count() < before + 2: time.sleep(0.1)
open({str(done)!r}, 'w')
"""
    before = f"import os, time; from subprocess import Popen as start; WORK = {[sys.executable, '-c', work]}"
    wait = f"while not os.path.exists({str(done)!r}): time.sleep(0.1)\nos.unlink({str(done)!r})"
    start(tmp_path, sys.executable, "-c", "\n".join([before, *[script, wait] * 2])).communicate(timeout=60)
    assert 1.6 < lines(record)[-2]["cpu"] < 3


def test_a_killed_rank_has_a_record_up_to_its_death(tmp_path: Path) -> None:
    rank = start(tmp_path, "sleep", "60")
    wait_for(tmp_path / "rank-0.jsonl", 3)
    rank.send_signal(signal.SIGKILL)
    rank.communicate(timeout=20)
    last = end_of(tmp_path / "rank-0.jsonl")
    assert last["end"] == "exit"
    assert last["t"] < 10


def test_signals_for_the_job_end_the_rank_and_not_its_record(tmp_path: Path) -> None:
    script = "trap 'exit 3' TERM; echo '{}' > \"$1\"; while :; do sleep 0.1; done"
    rank = start(tmp_path, "sh", "-c", script, "sh", str(tmp_path / "ready"))
    wait_for(tmp_path / "ready", 1)
    wait_for(tmp_path / "rank-0.jsonl", 2)
    os.kill(rank.pid, signal.SIGTERM)
    rank.communicate(timeout=20)
    assert rank.returncode == 3
    assert end_of(tmp_path / "rank-0.jsonl")["end"] == "exit"


def test_a_time_limit_ends_the_record_and_not_the_rank(tmp_path: Path) -> None:
    rank = start(tmp_path, "sleep", "60", ENVBUILD_OBSERVE_TIME="1.2")
    last = end_of(tmp_path / "rank-0.jsonl")
    assert last["end"] == "time"
    assert 1.2 <= last["t"] < 6
    assert rank.poll() is None
    rank.kill()
    rank.communicate(timeout=20)


@pytest.mark.parametrize("limit", ["nan", "inf", "-5", "0", "1e999", "2 weeks", "1e3", "soon"])
def test_a_time_limit_that_is_not_a_time_leaves_no_file(tmp_path: Path, limit: str) -> None:
    rank = start(tmp_path, "echo", "ran", ENVBUILD_OBSERVE_TIME=limit)
    out, err = rank.communicate(timeout=20)
    assert (rank.returncode, out) == (0, "ran\n")
    assert err.startswith(f"envbuild: rank 0 is not observed: ENVBUILD_OBSERVE_TIME: `{limit}` is not a time")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "limit_s"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("2min", 120), ("2 m", 120), ("1h", 3600)]
)
def test_a_time_limit_has_the_forms_of_launch(limit: str, limit_s: float) -> None:
    assert observe.read_limit(limit) == read_timeout(limit) == limit_s


def test_a_time_of_launch_that_is_not_a_number_is_not_recorded(tmp_path: Path) -> None:
    """The `date` of BusyBox does not know nanoseconds."""
    rank = start(tmp_path, "true", ENVBUILD_OBSERVE_LAUNCHED="1700000000.%N")
    assert "not observed" not in rank.communicate(timeout=20)[1]
    end_of(tmp_path / "rank-0.jsonl")
    assert lines(tmp_path / "rank-0.jsonl")[0]["launched"] is None


def test_the_first_line_is_short_whatever_the_words_of_the_command(tmp_path: Path) -> None:
    """`observe` refuses records with longer lines."""
    start(tmp_path, "echo", "x" * 100_000, OMP_NUM_THREADS="1," * 10_000).communicate(timeout=20)
    end_of(tmp_path / "rank-0.jsonl")
    assert len((tmp_path / "rank-0.jsonl").read_text().splitlines()[0]) < 20_000


@pytest.mark.parametrize("kind", ["file", "link", "no directory", "linked directory"])
def test_nothing_is_replaced_and_no_link_is_followed(tmp_path: Path, kind: str) -> None:
    directory, other = tmp_path / "records", tmp_path / "other"
    other.write_text("kept")
    if kind == "linked directory":
        (tmp_path / "real").mkdir()
        directory.symlink_to(tmp_path / "real")
    elif kind != "no directory":
        directory.mkdir()
    if kind == "file":
        (directory / "rank-0.jsonl").write_text("kept")
    if kind == "link":
        (directory / "rank-0.jsonl").symlink_to(other)
    rank = start(directory, "echo", "ran")
    out, err = rank.communicate(timeout=20)
    assert (rank.returncode, out) == (0, "ran\n")
    assert err.startswith("envbuild: rank 0 is not observed: ")
    assert other.read_text() == "kept"
    if kind == "file":
        assert (directory / "rank-0.jsonl").read_text() == "kept"
    if kind == "linked directory":
        assert list((tmp_path / "real").iterdir()) == []


def test_a_missing_program_is_an_error_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{closed}:{os.environ['PATH']}")
    rank = start(tmp_path, "no-such-program")
    _, err = rank.communicate(timeout=20)
    assert (rank.returncode, err) == (127, "envbuild: no-such-program: No such file or directory\n")


NVML = r"""
#include <string.h>
typedef struct { unsigned index; } *device;
static struct { unsigned index; } gpu = {0};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &gpu; return index; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    strncpy(text, "GPU-8f3c1f6a-1111-2222-3333-444455556666", size); return handle != &gpu; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    strncpy(text, "NVIDIA H100 80GB HBM3", size); return handle != &gpu; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 85520809984ULL; memory[1] = 85520809984ULL - 42949672960ULL; memory[2] = 42949672960ULL;
    return handle != &gpu; }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    rates[0] = 97; rates[1] = 41; return handle != &gpu; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    *milliwatts = 653210; return handle != &gpu; }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    *milliwatts = 700000; return handle != &gpu; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *clock) {
    *clock = kind == 1 ? 1755 : kind == 2 ? 2619 : 0; return handle != &gpu; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    *reasons = 0x24; return handle != &gpu; }
"""


def test_counters_of_an_nvidia_gpu_are_those_of_its_driver(tmp_path: Path) -> None:
    """The answers are recorded: this machine has no GPU. The library has the functions of nvml.h."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler"
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    (gpu,) = counters.gpus(sys=str(tmp_path), nvml=str(library))
    assert gpu.id == "GPU-8f3c1f6a-1111-2222-3333-444455556666"
    assert gpu.describe() == {
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total": 85_520_809_984,
        "power_limit": 700.0,
    }
    assert gpu.sample() == {
        "busy": 97,
        "memory": 42_949_672_960,
        "power": 653.21,
        "clock": 1755,
        "memory_clock": 2619,
        "throttle": 0x24,
    }


def write_files(top: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def test_counters_of_an_amd_gpu_are_those_of_its_driver(tmp_path: Path) -> None:
    """Files as amdgpu's documentation describes them: this machine has no GPU."""
    device = "class/drm/card1/device"
    write_files(
        tmp_path,
        {
            f"{device}/gpu_busy_percent": "63\n",
            f"{device}/mem_info_vram_total": "206141652992\n",
            f"{device}/mem_info_vram_used": "103070826496\n",
            f"{device}/hwmon/hwmon3/power1_average": "612000000\n",
            f"{device}/hwmon/hwmon3/power1_cap": "750000000\n",
            f"{device}/hwmon/hwmon3/freq1_input": "2100000000\n",
            "class/drm/card1-DP-1/status": "",
            "class/drm/card0/device/vendor": "0x1a03\n",
        },
    )
    (gpu,) = counters.gpus(sys=str(tmp_path), nvml="libno-such.so")
    assert gpu.describe() == {
        "vendor": "amd",
        "name": "",
        "memory_total": 206_141_652_992,
        "power_limit": 750.0,
    }
    assert gpu.sample() == {"busy": 63, "memory": 103_070_826_496, "power": 612.0, "clock": 2100.0}


def test_counters_of_infiniband_are_in_bytes(tmp_path: Path) -> None:
    port = "class/infiniband/mlx5_0/ports/1"
    write_files(
        tmp_path,
        {
            f"{port}/rate": "200 Gb/sec (4X HDR)\n",
            f"{port}/counters/port_rcv_data": "1000\n",
            f"{port}/counters/port_xmit_data": "2000\n",
        },
    )
    node = counters.Node(sys=str(tmp_path))
    assert node.describe()["speeds"] == {"mlx5_0:1": 25e9}
    network = node.sample()["network"]
    assert isinstance(network, dict)
    assert network["mlx5_0:1"] == [4000, 8000]
