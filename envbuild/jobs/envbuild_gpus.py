"""The GPUs that a process sees, and a kernel on each of them; standard library only.

Started alone inside an image (``python3 -I - kernel``), it prints `survey` as JSON, which the parent judges.
Jobs import it to choose a rank's GPU. NVIDIA's GPUs are reached through the driver's own libcuda, which
`--nv` brings, so no CUDA toolkit is needed. AMD's are counted in /sys; no kernel is run on them.

Source of the calls: NVIDIA, CUDA Driver API; of the kernel: NVIDIA, Parallel Thread Execution ISA 6.0.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ELEMENTS = 1 << 20
# Device files of each vendor's driver: whether a machine has such GPUs at all.
DEVICES = {"nvidia": "/dev/nvidiactl", "amd": "/dev/kfd"}
# By these a scheduler, or the user, chooses among the GPUs of a machine.
VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
# out[i] = i * i, by one thread an element. The driver compiles it for the GPU at hand.
_SQUARES = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry squares(.param .u64 out, .param .u32 count)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread, %index, %count;
    .reg .b64 %square, %base, %offset, %address;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    ld.param.u32 %count, [count];
    setp.ge.u32 %past, %index, %count;
    @%past ret;
    ld.param.u64 %base, [out];
    cvta.to.global.u64 %base, %base;
    mul.wide.u32 %offset, %index, 8;
    add.u64 %address, %base, %offset;
    mul.wide.u32 %square, %index, %index;
    st.global.u64 [%address], %square;
    ret;
}
\0"""


class Driver:
    """The CUDA driver, as this process sees it; OSError without libcuda, or if one of its calls fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a CUresult; anything but 0 is an OSError."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def count(self) -> int:
        """Return the number of visible GPUs."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def describe(self, index: int) -> dict[str, Any]:
        """Return a GPU's ``name``, ``id`` (``GPU-<uuid>``) and ``architecture`` (``sm_90``)."""
        device = self._device(index)
        name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceGetUuid_v2", uuid, device)
        text = bytes(uuid).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        capability = "".join(str(self._attribute(which, device)) for which in (_MAJOR, _MINOR))
        return {
            "name": name.value.decode(errors="replace"),
            "id": "GPU-" + "-".join(parts),
            "architecture": f"sm_{capability}",
        }

    def use(self, index: int) -> None:
        """Make a GPU the one of this thread: it allocates and copies there from now on."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes on the GPU in use; they are freed when the process ends."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def write(self, address: int, data: ctypes.Array[Any]) -> None:
        """Copy an array to the GPU."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(ctypes.sizeof(data)))

    def read(self, address: int, data: ctypes.Array[Any]) -> None:
        """Copy an array back from the GPU."""
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(ctypes.sizeof(data)))

    def sum_of_squares(self, index: int) -> int:
        """Run the kernel on a GPU and add up what comes back: (n-1)n(2n-1)/6 for n = `ELEMENTS`."""
        host = (ctypes.c_uint64 * ELEMENTS)()
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.use(index)
        out, count = ctypes.c_uint64(self.allocate(ctypes.sizeof(host))), ctypes.c_uint32(ELEMENTS)
        self.call("cuModuleLoadData", ctypes.byref(module), _SQUARES)
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"squares")
        parameters = (ctypes.c_void_p * 2)(
            *(ctypes.cast(ctypes.byref(parameter), ctypes.c_void_p) for parameter in (out, count))
        )
        grid, block = (ELEMENTS // 256, 1, 1), (256, 1, 1)
        self.call("cuLaunchKernel", kernel, *grid, *block, 0, None, parameters, None)
        self.call("cuCtxSynchronize")
        self.read(out.value, host)
        return sum(host)

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        return device

    def _attribute(self, which: int, device: ctypes.c_int) -> int:
        number = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(number), which, device)
        return number.value


def survey(*, kernel: bool) -> dict[str, Any]:
    """Return the GPUs that this process sees.

    Keys: ``vendor`` (of the driver whose device file is there, else empty), ``gpus`` (of each ``name``,
    ``id`` and ``architecture``, with `kernel` also ``sum`` or ``error``), ``error`` (why none can be used,
    else empty), and ``hidden`` (the variable that hides GPUs, with its value, else empty).
    """
    vendor = next((name for name, path in DEVICES.items() if Path(path).exists()), "")
    answer: dict[str, Any] = {"vendor": vendor, "gpus": [], "error": "", "hidden": hidden_by()}
    if vendor == "amd":
        answer["gpus"] = _amd_gpus()
    elif vendor == "nvidia":
        try:
            driver = Driver()
            for index in range(driver.count()):
                answer["gpus"].append(_try_gpu(driver, index, kernel=kernel))
        except (OSError, AttributeError) as error:
            # A variable may hide all GPUs: the driver works.
            if not (answer["hidden"] and "CUDA_ERROR_NO_DEVICE" in str(error)):
                answer["error"] = str(error)
    return answer


def hidden_by() -> str:
    """Return the set variable that decides which GPUs a process sees, as ``NAME=value``; empty without."""
    return next((f"{name}={os.environ[name]}" for name in VISIBLE_GPUS if name in os.environ), "")


def own_gpu(visible: int) -> int:
    """Return the index of this rank's GPU among those that its process sees.

    A scheduler that binds GPUs to ranks shows each rank only its own. Otherwise the ranks of a host take one
    each, in order. The judge checks that no two ranks have the same. RuntimeError: the host has more ranks
    than GPUs.
    """
    numbers = (os.environ.get(name, "") for name in _local_ranks())
    local_rank = next((int(number) for number in numbers if number.isdigit()), 0)
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise RuntimeError(f"local rank {local_rank} sees {visible} GPUs: the host has more ranks than GPUs")
    return local_rank


def _local_ranks() -> tuple[str, ...]:
    """Return the variables with a rank's number on its host, of the module beside this one."""
    try:
        ranks = importlib.import_module("envbuild_ranks")
    except ImportError:  # part of a package, as the parent has it
        ranks = importlib.import_module("envbuild.jobs.envbuild_ranks")
    return tuple(ranks.LOCAL_RANKS)


def is_gpu_job() -> bool:
    """Return whether the ranks of this job have GPUs: `devices` of its header, or its twin."""
    return os.environ.get("ENVBUILD_GPUS_PER_RANK", "0") != "0"


def own_ids() -> list[str]:
    """Return the id of this rank's GPU, for its report; nothing in a job on CPUs."""
    if not is_gpu_job():
        return []
    driver = Driver()
    return [driver.describe(own_gpu(driver.count()))["id"]]


def nccl_log(text: str) -> dict[str, Any]:
    """Return what NCCL's own log (``NCCL_DEBUG=INFO``) says of the way that messages take.

    Keys: ``network`` (``Socket``, ``IB``, ``AWS Libfabric``, …) and ``transports`` between ranks (``P2P``,
    ``SHM``, ``NET/Socket``, ``NET/IB``, …), sorted. RCCL writes the same lines.
    """
    network = re.search(r"Using network (\S+(?: \S+)?)\s*$", text, re.MULTILINE)
    vias = re.findall(r" via ((?:NET/[A-Za-z]+(?: [A-Za-z]+)?)|[A-Z0-9]+)", text)
    return {"network": network[1] if network else "", "transports": sorted(set(vias))}


def _try_gpu(driver: Driver, index: int, *, kernel: bool) -> dict[str, Any]:
    gpu = driver.describe(index)
    if kernel:
        try:
            gpu["sum"] = driver.sum_of_squares(index)
        except OSError as error:
            gpu["error"] = str(error)
    return gpu


def _amd_gpus() -> list[dict[str, Any]]:
    gpus = []
    for node in sorted(_TOPOLOGY.glob("*"), key=lambda path: int(path.name)):
        facts = dict(line.split() for line in (node / "properties").read_text().splitlines())
        version = int(facts.get("gfx_target_version", "0"))
        if version:
            # 90402 is gfx942: the last two digits in hexadecimal.
            name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            gpus.append(
                {"name": name, "id": f"GPU-{facts.get('unique_id', node.name)}", "architecture": name}
            )
    return gpus


if __name__ == "__main__":
    json.dump(survey(kernel="kernel" in sys.argv[1:]), sys.stdout)
