"""S2: how frameworks were built: told by stand-ins for them, and judged; a wrong build must fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.check import probe
from envbuild.check.builds import judge_builds
from envbuild.check.judge import judge_probe

TORCH = {"cuda": "13.0", "hip": None, "architectures": ["sm_80", "sm_90"]}
CPU: dict[str, Any] = {"cuda": None, "hip": None, "architectures": []}


def judged(builds: dict[str, Any], accelerator: str) -> list[tuple[str, str]]:
    found = judge_builds({"builds": builds, "accelerator": accelerator}, {})
    return [(finding.id, finding.status) for finding in found]


@pytest.mark.parametrize(
    ("build", "accelerator", "status"),
    [
        (TORCH, "cuda@13.0", "PASS"),
        (TORCH, "cuda", "PASS"),
        (TORCH, "cuda@13.2", "PASS"),
        (TORCH, "cuda@12.9", "FAIL"),
        (TORCH, "rocm@7.2", "FAIL"),
        (TORCH, "cpu", "PASS"),
        (CPU, "cpu", "PASS"),
        (CPU, "cuda@13.0", "FAIL"),
        (CPU, "rocm@7.2", "FAIL"),
        ({"cuda": None, "hip": "7.2.1", "architectures": ["gfx90a"]}, "rocm@7.2", "PASS"),
        ({"cuda": "built"}, "cuda@12.9", "PASS"),
        ({"error": "AttributeError: x"}, "cuda@13.0", "SKIP"),
        (TORCH, "", "SKIP"),
    ],
    ids=str,
)
def test_a_build_for_another_accelerator_fails(build: dict[str, Any], accelerator: str, status: str) -> None:
    assert judged({"torch": build}, accelerator) == [("S2.build/torch", status)]


def test_what_was_seen_is_told() -> None:
    (finding,) = judge_builds({"builds": {"torch": TORCH}, "accelerator": "cuda@12.9"}, {})
    assert (finding.expected, finding.observed) == ("CUDA 12.9", "CUDA 13.0, sm_80,sm_90")
    assert finding.hint


@pytest.mark.parametrize(
    "facts", [{}, {"builds": None}, {"builds": []}, {"builds": {"x": 5}}, {"horovod": 5}]
)
def test_facts_that_are_none(facts: dict[str, object]) -> None:
    assert judge_builds(facts, {}) == []


@pytest.mark.parametrize(
    ("told", "imports", "status"),
    [
        ({"frameworks": ["PyTorch"], "controllers": ["MPI", "Gloo"]}, ["horovod.torch"], "PASS"),
        ({"frameworks": ["PyTorch"], "controllers": ["Gloo"]}, ["horovod.torch"], "FAIL"),
        ({"frameworks": ["TensorFlow"], "controllers": ["MPI"]}, ["horovod.torch"], "FAIL"),
        ({}, ["horovod.torch"], "SKIP"),
    ],
    ids=str,
)
def test_horovod_was_built_with_what_the_image_has(
    told: dict[str, list[str]], imports: list[str], status: str
) -> None:
    (finding,) = judge_builds({"horovod": told}, {"imports": imports, "mpi": "mpich"})
    assert (finding.id, finding.status) == ("S2.horovod", status)


def test_the_judge_of_an_image_tells_it() -> None:
    facts = {"builds": {"torch": CPU}, "accelerator": "cuda@13.0"}
    statuses = {finding.id: finding.status for finding in judge_probe(facts, {})}
    assert statuses["S2.build/torch"] == "FAIL"


STANDINS = {
    "torch/__init__.py": "from . import version, _C\n",
    "torch/version.py": "cuda = '13.0'\n",
    "torch/_C.py": "def _cuda_getArchFlags():\n    return 'sm_80 sm_90'\n",
    "tensorflow/__init__.py": "print('noise')\nfrom . import sysconfig\n",
    "tensorflow/sysconfig.py": "def get_build_info():\n    return {'is_cuda_build': True,"
    " 'cuda_version': '12.5.1', 'cuda_compute_capabilities': ['sm_60', 'compute_90']}\n",
    "mxnet/__init__.py": "from . import runtime\n",
    "mxnet/runtime.py": "class Features:\n    def is_enabled(self, name):\n        return False\n",
    "other.py": "",
}


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that say of their builds what frameworks do, on the path of the `python` that comes first."""
    for name, text in STANDINS.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    return tmp_path


def test_frameworks_are_asked_how_they_were_built(standins: Path) -> None:
    reasons, builds = probe.try_imports(["torch", "tensorflow", "mxnet", "other"])
    assert set(reasons.values()) == {None}
    assert builds == {
        "torch": {"cuda": "13.0", "hip": None, "architectures": ["sm_80", "sm_90"]},
        "tensorflow": {"cuda": "12.5.1", "hip": None, "architectures": ["sm_60", "compute_90"]},
        "mxnet": {"cuda": None},
    }


def test_one_that_does_not_say_imports_all_the_same(standins: Path) -> None:
    (standins / "modules/torch/version.py").write_text("")
    reasons, builds = probe.try_imports(["torch"])
    assert reasons == {"torch": None}
    assert "error" in str(builds["torch"])


CHECK_BUILD = """\
Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [X] MPI
    [X] Gloo
"""


def test_what_horovodrun_marks_is_read(standins: Path) -> None:
    assert probe.check_horovod(["torch"]) is None
    program = standins / "bin/horovodrun"
    program.write_text(f"#!/bin/sh\n[ $1 = --check-build ] || exit 1\ncat <<'END'\n{CHECK_BUILD}END\n")
    program.chmod(0o755)
    assert probe.check_horovod(["horovod.torch"]) == {
        "frameworks": ["PyTorch"],
        "controllers": ["MPI", "Gloo"],
        "operations": ["MPI", "Gloo"],
    }


def test_without_horovodrun_nothing_is_built(standins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(standins / "bin"))
    assert probe.check_horovod(["horovod.torch"]) == {}


def test_the_probe_reports_builds(standins: Path) -> None:
    source = Path(probe.__file__).read_bytes()
    argv = [sys.executable, "-I", "-", str(standins), "torch"]
    done = subprocess.run(argv, input=source, stdout=subprocess.PIPE, check=True)
    facts = json.loads(done.stdout)
    assert facts["builds"]["torch"]["cuda"] == "13.0"
    assert facts["horovod"] is None
    assert facts["accelerator"] == "", "there is no lock of an image on this machine"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('name: "x"\naccelerator: "cuda@13.0"\nbase: {}\n', "cuda@13.0"),
        ("accelerator: cpu\n", "cpu"),
        ('note: "accelerator: cpu"\n', ""),
    ],
)
def test_what_an_image_is_for_stands_in_its_lock(
    text: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: text)
    assert probe.accelerator() == found
