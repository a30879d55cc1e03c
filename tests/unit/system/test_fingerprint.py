from __future__ import annotations

import platform
from pathlib import Path

import pytest

from envbuild.system.apptainer import Apptainer
from envbuild.system.fingerprint import fingerprint

APPTAINER = Apptainer(program=Path("/usr/bin/apptainer"), version="1.4.5")
FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 7763\nmodel name\t: AMD EPYC 7763\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\nGCC: 12\n",
    "sys/module/amdgpu/version": "6.8.5\n",
    "sys/class/infiniband/mlx5_0/hca_type": "MT4129\n",
    "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
    "sys/class/infiniband/mlx5_0/node_guid": "b83f:d203:00d4:1c2e\n",
    "sys/class/cxi/cxi0/device/fw_version": "1.5.49\n",
    "opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.27.0": "",
    "usr/lib64/libfabric.so.1.22.1": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_facts_that_matter(root: Path) -> None:
    facts = fingerprint(APPTAINER, root=root).facts
    assert facts["kernel"] == platform.release()
    assert {name: facts[name] for name in facts if name not in ("architecture", "kernel", "libc")} == {
        "amdgpu": "6.8.5",
        "apptainer": "1.4.5",
        "cpu": "AMD EPYC 7763",
        "cxi.cxi0": "1.5.49",
        "infiniband.mlx5_0": "MT4129 28.39.1002",
        "libfabric": "1.22.1, 1.27.0",
        "nvidia": "580.65.06",
    }


def test_the_open_kernel_module_names_its_version_elsewhere(root: Path) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.1.2  Release Build\n"
    (root / "proc/driver/nvidia/version").write_text(text)
    assert fingerprint(APPTAINER, root=root).facts["nvidia"] == "590.1.2"


def test_nothing_that_differs_between_equal_nodes(root: Path) -> None:
    before = fingerprint(APPTAINER, root=root).digest
    (root / "sys/class/infiniband/mlx5_0/node_guid").write_text("other\n")
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/hostname").write_text("other\n")
    assert fingerprint(APPTAINER, root=root).digest == before
    assert platform.node() not in str(fingerprint(APPTAINER, root=root).facts.values())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.1.2  x\n",
        ),
        ("sys/class/infiniband/mlx5_0/fw_ver", "28.40.1000\n"),
        ("sys/class/cxi/cxi1/device/fw_version", "1.5.49\n"),
        ("proc/cpuinfo", "model name : other\n"),
    ],
)
def test_a_change_of_driver_firmware_or_hardware_is_another_host(root: Path, name: str, text: str) -> None:
    before = fingerprint(APPTAINER, root=root)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    assert fingerprint(APPTAINER, root=root).digest != before.digest


def test_a_host_without_all_that_has_a_fingerprint_too(tmp_path: Path) -> None:
    found = fingerprint(APPTAINER, root=tmp_path)
    assert set(found.facts) == {"architecture", "apptainer", "kernel", "libc"}
    assert found.digest == fingerprint(APPTAINER, root=tmp_path).digest
    assert found.digest.startswith("sha256:")


def test_this_very_host() -> None:
    assert fingerprint(APPTAINER).facts["cpu"]
