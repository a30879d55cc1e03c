"""Counters of a process, its node and its GPUs, of the kernel and the drivers; standard library only.

Every counter only grows, and every file that is missing leaves its keys out: such a value is unknown.

Sources: proc(5); Linux, Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst, gpu/amdgpu/thermal.rst,
scheduler/sched-stats.rst and ABI/stable/sysfs-class-infiniband; NVIDIA, NVML API Reference.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping

Values = dict[str, object]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST = 1 << 20
_SECTOR = 512
# In InfiniBand's counters of data, a unit is four bytes.
_LANES = 4


def read(path: str, limit: int = _MOST) -> bytes:
    """Return the beginning of a file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = []
        while limit > 0 and (piece := os.read(descriptor, limit)):
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _number(text: bytes) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _table(text: bytes, names: Mapping[bytes, str]) -> Values:
    """Return the numbers of lines of ``name: number`` or ``name number``, by the names that we give them."""
    rows = (line.replace(b":", b" ").split() for line in text.splitlines())
    return {names[row[0]]: int(row[1]) for row in rows if len(row) > 1 and row[0] in names}


class Tree:
    """A process and its descendants; one that was seen counts when its parent has ended, as a daemon's has.

    The kernel adds to a parent's counters those of the children that it waited for, and no others.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid = pid
        self._proc = proc
        self._waits: dict[str, int] = {}
        self._most: dict[str, float] = {}
        self._own: dict[tuple[int, bytes], tuple[float, float]] = {}
        """Number and start of each process that was alive → its own seconds, and those in the kernel."""
        self._ended = (0.0, 0.0)
        """The last known seconds of processes that have ended."""
        self._libraries: list[int] = []

    def sample(self) -> Values | None:
        """Return what they have used so far, and what they hold; None if the process is gone.

        ``cpu`` and ``system`` (of ``cpu``) are in seconds; ``wait`` is the time in which threads could run
        and had no core. ``rchar`` and ``wchar`` count the bytes of reads and writes, ``read`` and
        ``write`` those that reached storage, all with those of children that have ended. ``blocked`` counts
        processes that wait for a device or file system now; ``libraries`` the mapped files with code,
        until none is added.
        """
        processes = self._processes()
        if not processes:
            return None
        cpu, system = self._count_cpu(processes)
        counted = {"cpu": cpu, "system": system, "faults": 0.0}
        totals = {"threads": 0, "rss": 0, "blocked": 0, "processes": len(processes)}
        for _, fields in processes:
            counted["faults"] += int(fields[9]) + int(fields[10])
            totals["threads"] += int(fields[17])
            totals["rss"] += int(fields[21]) * _PAGE
            totals["blocked"] += fields[0] == b"D"
        directories = [f"{self._proc}/{pid}" for pid, _ in processes]
        for name, value in self._files(directories).items():
            counted[name] = value
        if self._waits:
            counted["wait"] = self._most.get("_wait", 0.0)
        # A process that ends takes with it what it used since the last sample: a counter does not go back.
        for name, value in counted.items():
            self._most[name] = max(value, self._most.get(name, 0.0))
        grown = {name: round(self._most[name], 3) for name in counted}
        libraries = self._count_libraries(directories)
        return {**grown, **totals, **({} if libraries is None else {"libraries": libraries})}

    def _processes(self) -> list[tuple[int, list[bytes]]]:
        """Return number and status of each living process, and count how long its threads have waited."""
        found: dict[int, list[bytes]] = {}
        left = [*(pid for pid, _ in self._own), self._pid]
        while left:
            pid = left.pop()
            if pid in found:
                continue
            text = read(f"{self._proc}/{pid}/stat")
            # The name, in brackets, may hold anything.
            fields = text[text.rfind(b")") + 1 :].split()
            if len(fields) < 22:
                continue
            is_descendant = pid == self._pid or int(fields[1]) in found
            if not is_descendant and (pid, fields[_START]) not in self._own:
                continue  # another process has its number now
            found[pid] = fields
            for task in _names(f"{self._proc}/{pid}/task"):
                directory = f"{self._proc}/{pid}/task/{task}"
                self._count_wait(task, read(f"{directory}/schedstat"))
                left += [int(child) for child in read(f"{directory}/children").split()]
        return list(found.items()) if self._pid in found else []

    def _count_cpu(self, processes: Iterable[tuple[int, list[bytes]]]) -> tuple[float, float]:
        """Return the seconds of all processes, ended ones too, and those of them in the kernel."""
        own, waited = {}, (0.0, 0.0)
        for pid, fields in processes:
            user, system, child_user, child_system = (int(fields[at]) / _TICKS for at in (11, 12, 13, 14))
            own[pid, fields[_START]] = (user + system, system)
            waited = (waited[0] + child_user + child_system, waited[1] + child_system)
        ended = [seconds for process, seconds in self._own.items() if process not in own]
        self._ended = _sums([self._ended, *ended])
        self._own = own
        # Those that ended between two samples are only in `waited`, those not waited for only in `ended`.
        living = _sums(own.values())
        return living[0] + max(waited[0], self._ended[0]), living[1] + max(waited[1], self._ended[1])

    def _count_wait(self, task: str, text: bytes) -> None:
        fields = text.split()
        if len(fields) == 3:
            now = int(fields[1])
            grown = max(0, now - self._waits.get(task, 0))
            self._waits[task] = now
            self._most["_wait"] = self._most.get("_wait", 0.0) + grown / 1e9

    @staticmethod
    def _files(directories: Iterable[str]) -> dict[str, float]:
        names = {b"rchar": "rchar", b"wchar": "wchar", b"read_bytes": "read", b"write_bytes": "write"}
        total: dict[str, float] = {}
        for directory in directories:
            for name, value in _table(read(f"{directory}/io"), names).items():
                total[name] = total.get(name, 0.0) + float(str(value))
        return total

    def _count_libraries(self, directories: Iterable[str]) -> int | None:
        """Return the number of mapped files with code; None once it has stayed the same for a while."""
        if len(self._libraries) >= _SETTLED and len(set(self._libraries[-_SETTLED:])) == 1:
            return None
        count = sum(read(f"{directory}/maps", 8 * _MOST).count(b" r-xp ") for directory in directories)
        self._libraries.append(count)
        return count


def _sums(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    total = [0.0, 0.0]
    for first, second in pairs:
        total[0] += first
        total[1] += second
    return total[0], total[1]


_START = 19
"""Position of a process's start time in its status, behind the name."""
_SETTLED = 6
"""After so many equal counts of libraries, no more are counted: maps of large programs are long."""


def own_cores() -> tuple[list[int], float | None]:
    """Return the CPUs that this process may run on, and how many of them its control groups let it use."""
    return sorted(os.sched_getaffinity(0)), _least(_groups(), "cpu.max", _quota)


def _quota(text: bytes) -> float | None:
    fields = text.split()
    return int(fields[0]) / int(fields[1]) if len(fields) == 2 and fields[0].isdigit() else None


def _groups() -> list[str]:
    """Return the directories of our control groups (version 2), from the innermost to the root."""
    line = next((row for row in read("/proc/self/cgroup").splitlines() if row.startswith(b"0::/")), None)
    tops = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    top = next((path for path in tops if os.path.exists(f"{path}/cgroup.procs")), None)
    if line is None or top is None:
        return []
    names = [name for name in line[4:].decode(errors="replace").split("/") if name not in ("", ".", "..")]
    return ["/".join([top, *names[:count]]) for count in range(len(names), -1, -1)]


def _least(groups: Iterable[str], name: str, parse: Callable[[bytes], float | None]) -> float | None:
    values = [parse(read(f"{group}/{name}")) for group in groups]
    return min((value for value in values if value is not None), default=None)


class Node:
    """The machine that this process runs on."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc = proc
        self._sys = sys
        self._groups = _groups()

    def describe(self) -> Values:
        """Return what does not change: ``cpus``, ``memory_limit`` of the job, speeds of links in bytes/s."""
        speeds: dict[str, float] = {}
        for name in _names(f"{self._sys}/class/net"):
            megabits = _number(read(f"{self._sys}/class/net/{name}/speed"))
            if megabits:
                speeds[name] = megabits * 1e6 / 8
        for name, port in self._ports():
            rate = read(f"{port}/rate").split()
            if rate and rate[0].replace(b".", b"", 1).isdigit():
                speeds[name] = float(rate[0]) * 1e9 / 8
        facts: Values = {"cpus": os.cpu_count(), "speeds": speeds}
        limit = _least(self._groups, "memory.max", _number)
        return facts if limit is None else {**facts, "memory_limit": limit}

    def sample(self) -> Values:
        """Return the counters of the node.

        ``cpu`` (busy) and ``idle`` in seconds of all CPUs; ``pressure`` in seconds in which some or all tasks
        waited; ``network`` by interface, received and sent bytes; ``disk`` read and written bytes.
        """
        values: Values = {}
        ticks = [int(field) for field in read(f"{self._proc}/stat").partition(b"\n")[0].split()[1:9]]
        if len(ticks) == 8:
            # user, nice, system, idle, iowait, irq, softirq, steal
            values["cpu"] = (sum(ticks) - ticks[3] - ticks[4]) / _TICKS
            values["idle"] = (ticks[3] + ticks[4]) / _TICKS
        memory = {b"MemTotal": "memory_total", b"MemAvailable": "memory_available"}
        in_kib = _table(read(f"{self._proc}/meminfo"), memory)
        values |= {name: int(str(value)) * 1024 for name, value in in_kib.items()}
        values["network"] = self._network()
        values["disk"] = self._disk()
        values["pressure"] = self._pressure()
        values |= self._group()
        return values

    def _network(self) -> dict[str, list[int]]:
        found = {}
        for line in read(f"{self._proc}/net/dev").decode(errors="replace").splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if len(fields) >= 9:
                found[name.strip()] = [int(fields[0]), int(fields[8])]
        for name, port in self._ports():
            pair = [_number(read(f"{port}/counters/port_{way}_data")) for way in ("rcv", "xmit")]
            if None not in pair:
                found[name] = [_LANES * (number or 0) for number in pair]
        return found

    def _ports(self) -> list[tuple[str, str]]:
        top = f"{self._sys}/class/infiniband"
        return [
            (f"{device}:{port}", f"{top}/{device}/ports/{port}")
            for device in _names(top)
            for port in _names(f"{top}/{device}/ports")
        ]

    def _disk(self) -> list[int]:
        """Return bytes read and written by all disks; a partition's are those of its disk."""
        total = [0, 0]
        for line in read(f"{self._proc}/diskstats").splitlines():
            fields = line.split()
            if len(fields) > 9 and os.path.exists(f"{self._sys}/block/{fields[2].decode(errors='replace')}"):
                total[0] += int(fields[5]) * _SECTOR
                total[1] += int(fields[9]) * _SECTOR
        return total

    def _pressure(self) -> dict[str, float]:
        found = {}
        for resource in ("cpu", "io", "memory"):
            for line in read(f"{self._proc}/pressure/{resource}").splitlines():
                kind, _, rest = line.partition(b" ")
                total = rest.rpartition(b"total=")[2]
                if total.isdigit():
                    found[f"{resource}_{kind.decode()}"] = int(total) / 1e6
        return found

    def _group(self) -> Values:
        """Return memory of the job's control group, and the processes that the kernel killed in it."""
        for group in self._groups:
            used = _number(read(f"{group}/memory.current"))
            if used is not None:
                events = _table(read(f"{group}/memory.events"), {b"oom_kill": "oom_kills"})
                return {"memory_used": used, **events}
        return {}


class NvidiaGpu:
    """A GPU of NVIDIA, by the driver's own library, which ``--nv`` brings into an image."""

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)) != 0:
            raise OSError(f"NVML: no GPU {index}")
        self.id = self._text("nvmlDeviceGetUUID", 96)

    def describe(self) -> Values:
        """Return its name, memory in bytes and limit of its power in watts."""
        facts: Values = {"vendor": "nvidia", "name": self._text("nvmlDeviceGetName", 96)}
        memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        if self._ask("nvmlDeviceGetMemoryInfo", memory):
            facts["memory_total"] = memory[0]
        limit = self._count("nvmlDeviceGetEnforcedPowerLimit")
        return facts if limit is None else {**facts, "power_limit": limit / 1000}

    def sample(self) -> Values:
        """Return ``busy`` in percent, ``memory`` in bytes, ``power`` in watts, clocks in MHz, ``throttle``.

        ``throttle`` is NVML's mask of the reasons why clocks are lower (nvmlClocksEventReasons).
        """
        values: Values = {}
        rates = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory
        if self._ask("nvmlDeviceGetUtilizationRates", rates):
            values["busy"] = rates[0]
        memory = (ctypes.c_ulonglong * 3)()
        if self._ask("nvmlDeviceGetMemoryInfo", memory):
            values["memory"] = memory[2]
        power = self._count("nvmlDeviceGetPowerUsage")
        if power is not None:
            values["power"] = power / 1000
        for name, kind in (("clock", 1), ("memory_clock", 2)):  # NVML_CLOCK_SM, NVML_CLOCK_MEM
            clock = ctypes.c_uint()
            if self._library.nvmlDeviceGetClockInfo(self._handle, kind, ctypes.byref(clock)) == 0:
                values[name] = clock.value
        reasons = ctypes.c_ulonglong()
        if self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", reasons):
            values["throttle"] = reasons.value
        return values

    def _ask(self, name: str, answer: object) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and function(self._handle, ctypes.byref(answer)) == 0  # type: ignore[arg-type]

    def _count(self, name: str) -> int | None:
        number = ctypes.c_uint()
        return number.value if self._ask(name, number) else None

    def _text(self, name: str, size: int) -> str:
        text = ctypes.create_string_buffer(size)
        answered = getattr(self._library, name)(self._handle, text, size) == 0
        return text.value.decode(errors="replace") if answered else ""


class AmdGpu:
    """A GPU of AMD, by the files of its driver in /sys."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.id = "amd-" + os.path.basename(os.path.realpath(device))
        monitors = _names(f"{device}/hwmon")
        self._monitor = f"{device}/hwmon/{monitors[0]}" if monitors else ""

    def describe(self) -> Values:
        """Return its memory in bytes and the limit of its power in watts."""
        facts: Values = {
            "vendor": "amd",
            "name": read(f"{self._device}/product_name").decode(errors="replace").strip(),
        }
        for name, path, unit in (
            ("memory_total", f"{self._device}/mem_info_vram_total", 1),
            ("power_limit", f"{self._monitor}/power1_cap", 1e6),
        ):
            number = _number(read(path))
            if number is not None:
                facts[name] = number / unit if unit != 1 else number
        return facts

    def sample(self) -> Values:
        """Return what `NvidiaGpu.sample` does, without reasons of lower clocks."""
        power = _number(read(f"{self._monitor}/power1_average"))
        numbers = {
            "busy": (_number(read(f"{self._device}/gpu_busy_percent")), 1),
            "memory": (_number(read(f"{self._device}/mem_info_vram_used")), 1),
            "power": (_number(read(f"{self._monitor}/power1_input")) if power is None else power, 1e6),
            "clock": (_number(read(f"{self._monitor}/freq1_input")), 1e6),
            "memory_clock": (_number(read(f"{self._monitor}/freq2_input")), 1e6),
        }
        return {
            name: number if unit == 1 else number / unit
            for name, (number, unit) in numbers.items()
            if number is not None
        }


def gpus(sys: str = "/sys", nvml: str = "libnvidia-ml.so.1") -> list[NvidiaGpu | AmdGpu]:
    """Return the GPUs that this process sees."""
    found: list[NvidiaGpu | AmdGpu] = []
    try:
        library = ctypes.CDLL(nvml)
        count = ctypes.c_uint()
        if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            found += [NvidiaGpu(library, index) for index in range(count.value)]
    except (OSError, AttributeError):
        pass
    for card in _names(f"{sys}/class/drm"):
        device = f"{sys}/class/drm/{card}/device"
        if card.startswith("card") and os.path.exists(f"{device}/gpu_busy_percent"):
            found.append(AmdGpu(device))
    return found
