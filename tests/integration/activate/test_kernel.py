"""Kernels in images, under a real Jupyter client: they start, compute, are interrupted, and end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from tests.integration.conftest import Desk

SPEC = 'name: notebooks\nversion: "1"\nbase: debian-12\npackages: {python: [ipykernel]}\n'
# A server that starts a kernel, says which, and is killed.
SERVER = """
import os, signal, sys
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
specs = KernelSpecManager(kernel_dirs=[sys.argv[1]])
manager = KernelManager(kernel_name="notebooks-1", kernel_spec_manager=specs)
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
texts = []
hook = lambda message: texts.append(message["content"].get("text"))
client.execute_interactive("import os; print(os.getpid())", timeout=60, output_hook=hook)
print(*filter(None, texts), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def notebooks(desk: Desk, build_once: Callable[[str], Path]) -> Path:
    """Build an image with ipykernel."""
    desk.write("notebooks.yaml", SPEC)
    return build_once("notebooks")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start kernels below a prefix, and end them."""
    running: list[tuple[KernelManager, Any]] = []

    def start(prefix: Path, name: str, **options: Any) -> tuple[KernelManager, Any]:
        specs = KernelSpecManager(kernel_dirs=[str(prefix / "share/jupyter/kernels")])
        manager = KernelManager(kernel_name=name, kernel_spec_manager=specs)
        manager.start_kernel(cwd=str(tmp_path), **options)
        client = manager.client()
        running.append((manager, client))
        client.start_channels()
        client.wait_for_ready(timeout=120)
        return manager, client

    yield start
    for manager, client in running:
        client.stop_channels()
        # Killed, it would leave the process behind that mounts its image.
        if manager.has_kernel:
            manager.shutdown_kernel()


def answer(client: Any, code: str) -> str:
    """Return what a cell prints."""
    texts: list[str] = []
    reply = client.execute_interactive(
        code, timeout=60, output_hook=lambda message: texts.append(message["content"].get("text", ""))
    )
    assert reply["content"]["status"] == "ok", reply
    return "".join(texts)


def ends(pid: int) -> bool:
    """Return whether a process ends within ten seconds."""
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.1)
    return False


def test_a_kernel_computes_is_interrupted_and_shut_down(
    desk: Desk, notebooks: Path, started: Callable[..., Any], tmp_path: Path
) -> None:
    prefix = tmp_path / "a prefix"
    done = desk.envbuild("kernel", "install", notebooks, "--prefix", prefix)
    assert "next: choose `notebooks-1` in Jupyter" in done.stderr
    (tmp_path / "mine.py").write_text("number = 42\n")
    manager, client = started(prefix, "notebooks-1", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere"})
    assert answer(client, "import mine; print(mine.number)") == "42\n"
    kernel = int(answer(client, "import os, sys; print(os.getpid())"))
    assert (
        answer(client, "print(sys.executable, os.environ.get('PYTHONPATH') or None)")
        == "/opt/env/bin/python3 None\n"
    )
    # Otherwise the kernel aborts what it gets just after an error.
    sleeping = client.execute("import time; time.sleep(600)", stop_on_error=False)
    time.sleep(1)
    manager.interrupt_kernel()
    while (message := client.get_shell_msg(timeout=30))["parent_header"].get("msg_id") != sleeping:
        pass
    assert message["content"]["ename"] == "KeyboardInterrupt"
    assert answer(client, "print(6 * 7)") == "42\n"
    manager.shutdown_kernel()
    assert ends(kernel)


def test_pip_in_a_cell_shows_what_works_instead(
    desk: Desk, notebooks: Path, started: Callable[..., Any], tmp_path: Path
) -> None:
    prefix = tmp_path / "a prefix"
    desk.envbuild("kernel", "install", notebooks, "--prefix", prefix)
    _, client = started(prefix, "notebooks-1")
    for cell in ("%pip install tabulate", "!pip install tabulate", "pip install tabulate"):
        printed = answer(client, cell)
        assert f"envbuild extend '{notebooks}' --python NAME -o NEW.sif" in printed
        assert "envbuild kernel install NEW.sif" in printed
    # The image has none.
    assert "No module named pip" in answer(client, "%pip list")


def test_a_kernel_ends_with_its_server(desk: Desk, notebooks: Path, tmp_path: Path) -> None:
    desk.envbuild("kernel", "install", notebooks, "--prefix", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, tmp_path / "share/jupyter/kernels"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
    assert ends(int(done.stdout))


def test_the_kernel_of_a_module_is_that_modules(
    desk: Desk, notebooks: Path, started: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "modules"
    desk.envbuild("module", "install", notebooks, "--root", root)
    words: list[str | Path] = ["kernel", "install", "notebooks/1", "--root", root, "--name", "course"]
    desk.envbuild(*words, env={"JUPYTER_DATA_DIR": str(tmp_path / "share/jupyter")})
    kernel = json.loads((tmp_path / "share/jupyter/kernels/course/kernel.json").read_text())
    assert kernel["argv"][0] == str(root / "envs/notebooks/1/bin/python3")
    assert kernel["display_name"] == "course"
    _, client = started(tmp_path, "course")
    image = answer(client, "import os; print(os.environ['APPTAINER_CONTAINER'])").strip()
    assert Path(image).resolve() == (root / "envs/notebooks/1/image.sif").resolve()


def test_what_cannot_be_a_kernel_is_refused(
    desk: Desk, small_image: Path, notebooks: Path, tmp_path: Path
) -> None:
    def refused(*words: str | Path) -> str:
        return desk.envbuild("kernel", "install", *words, "--prefix", tmp_path, code=2).stderr

    text = refused(small_image)
    assert "error: the image has no ipykernel\n" in text
    assert f"`envbuild extend {small_image} --python ipykernel` writes an image that has it" in text
    assert "`packages: {python: [ipykernel]}`" in text
    assert "a module is named with its root" in refused("notebooks/1")
    kernels = tmp_path / "share/jupyter/kernels"
    kernels.mkdir(parents=True)
    for name in ("..", "a/b", "a\n"):
        assert "cannot name a kernel" in refused(notebooks, f"--name={name}")
        assert [path.name for path in tmp_path.rglob("*")] == ["share", "jupyter", "kernels"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (kernels / "linked").symlink_to(elsewhere)
    assert "a link is there" in refused(notebooks, "--name", "linked")
    assert [*elsewhere.iterdir()] == []
    (kernels / "odd/kernel.json").mkdir(parents=True)
    assert "there is a kernel `odd` already" in refused(notebooks, "--name", "odd")
    foreign = tmp_path / "share/jupyter/kernels/notebooks-1/kernel.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("{}")
    assert "there is a kernel `notebooks-1` already, and envbuild did not make it" in refused(notebooks)
    assert foreign.read_text() == "{}"
