"""Packages for images of anyone: Debian's Python, conda's and a virtual environment, started for real."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.build.run import BuildContext
from envbuild.build.sandbox import Sandbox
from envbuild.errors import EnvbuildError
from envbuild.events import ignore
from envbuild.extend.layers import request_on
from envbuild.extend.packages import (
    Addition,
    fetch_packages,
    read_request,
    resolve_packages,
)
from envbuild.extend.python import choose_python, probe_python
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.runnable import identity_of
from envbuild.resolve.files import FileCache
from envbuild.squashfs.layers import splice_layers
from envbuild.squashfs.reader import Squashfs
from envbuild.store.store import Store
from envbuild.system import apptainer, squashfs
from envbuild.workflows.make import make_image
from envbuild.workflows.settings import Settings
from tests.support.foreign_images import SITE, Tree, distribution, offline_context
from tests.support.wheels import make_wheel

DEBIAN = "/usr/local/lib/python3.11/dist-packages"
# What a program of the image says of a distribution that it gained.
SAYS = """\
import importlib.metadata, json, demo.a
print(json.dumps([demo.a.__cached__, importlib.metadata.version("demo"), demo.a.SET]))
"""


@pytest.fixture
def image_with(debian_12: Path, tmp_path: Path) -> Callable[[Tree], Path]:
    """Return an image of Debian and further files, on those that lie in `root` already."""

    def make(tree: Tree) -> Path:
        root = tmp_path / "root"
        for name, content in tree.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, tuple):
                path.symlink_to(content[0])
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
                path.chmod(0o755 if "/bin/" in name else 0o644)
        squashfs.make(root, tmp_path / "more.sqfs")
        image = tmp_path / "image.sqfs"
        splice_layers({"debian": debian_12, "more": tmp_path / "more.sqfs"}, image)
        return image

    return make


def demo(tmp_path: Path, *requires: str) -> Path:
    """Write a wheel with a set, whose order in bytecode is that of hashes in older Pythons."""
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        "demo/a.py": 'SET = max({"one", "two", "three"})\ndef main():\n    print("hello", 1 in {1, 2})\n',
        "demo-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n{lines}",
    }
    return make_wheel(tmp_path / "wheels", **files).parent


def extended(
    image: Path, tmp_path: Path, wheels: Path, *, executable: str | None = None, upgrade: tuple[str, ...] = ()
) -> tuple[Path, Addition]:
    """Return the image with `demo`, and what was added."""
    sandbox = Sandbox(apptainer=apptainer.find(), root=image)
    log = tmp_path / "log"
    files = FileCache(tmp_path / "files")
    with image.open("rb") as file:
        squash = Squashfs(file, 0, image.stat().st_size)
        names = ImageFiles(squash)
        chosen = choose_python(names, executable, image, sandbox.search_path)
        python = probe_python(names, chosen, sandbox=sandbox, log=log, at=image)
        (tmp_path / "stage").mkdir()
        request = read_request(["demo"], upgrade=upgrade)
        context = offline_context(tmp_path, wheels)
        stage = tmp_path / "stage"
        addition = resolve_packages(python, request, image=image, site=None, context=context, stage=stage)
        fetch_packages(addition, request, image=image, site=None, context=context)
    pins = {pin.sha256: pin for pin in addition.pins}
    images = []
    for name in ("once", "again"):
        store, out = Store(tmp_path / f"store-{name}"), tmp_path / f"{name}.sqfs"
        with ImageFile.open(image) as opened:
            build = BuildContext(
                store=store,
                apptainer=apptainer.find(),
                locate=lambda file: files.path(pins[file.sha256]),
                emit=ignore,
                image=opened.program_path,
                logs=tmp_path,
            )
            on_it = request_on(opened, addition, [], [], identity_of(opened, store))
            make_image(out, on_it, store, Settings(store=store), context=build)
        images.append(out)
    assert images[0].read_bytes() == images[1].read_bytes()
    return images[0], addition


def run(image: Path, *argv: str) -> str:
    words = apptainer.find().command(image, argv)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_debian_gains_a_package_in_usr_local(image_with: Callable[[Tree], Path], tmp_path: Path) -> None:
    image = image_with(
        {
            **distribution("numpy", "1.26.4", site=DEBIAN),
            **distribution("six", "1.16.0+debian", site="/usr/lib/python3/dist-packages"),
        }
    )
    out, addition = extended(image, tmp_path, demo(tmp_path, "numpy<2", "six"))
    assert [pin.name for pin in addition.pins] == ["demo"]
    says = json.loads(run(out, "/usr/bin/python3", "-c", SAYS))
    assert says == [f"{DEBIAN}/demo/__pycache__/a.cpython-311.pyc", "1.0", "two"]
    assert run(out, "demo") == "hello True\n"


def test_a_virtual_environment_on_the_path_of_the_image_gains_a_package(
    image_with: Callable[[Tree], Path], tmp_path: Path
) -> None:
    site = "/opt/venv/lib/python3.11/site-packages"
    image = image_with(
        {
            "/opt/venv/bin/python3": ("/usr/bin/python3",),
            "/opt/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
            # As Apptainer writes it of an OCI image.
            "/.singularity.d/env/10-docker2singularity.sh": "export PATH=/opt/venv/bin:/usr/bin:/bin\n",
            **distribution("numpy", "1.26.4", site=DEBIAN),
            **distribution("six", "1.0", site=site),
        }
    )
    wheels = demo(tmp_path, "six")
    make_wheel(wheels, "six-2.0-py3-none-any.whl")
    out, addition = extended(image, tmp_path, wheels, upgrade=("six",))
    assert addition.python.executable == "/opt/venv/bin/python3"
    assert set(addition.python.installed) == {"six"}
    assert json.loads(run(out, "/opt/venv/bin/python3", "-c", SAYS))[0].startswith(f"{site}/demo/")
    assert run(out, "/opt/venv/bin/demo") == "hello True\n"
    listing = run(out, "ls", site).split()
    assert "six-2.0.dist-info" in listing
    assert "six-1.0.dist-info" not in listing
    assert run(out, "ls", f"{site}/six").split() == ["__pycache__", "a.py"]


def test_a_python_that_lives_in_a_prefix_gains_a_package_there(
    image_with: Callable[[Tree], Path], debian_12: Path, tmp_path: Path
) -> None:
    """Such as conda's: program, library and packages below one directory, here behind a link."""
    parts, prefix = tmp_path / "parts", tmp_path / "root/opt/conda-24"
    program, library = "usr/bin/python3.11", "usr/lib/python3.11"
    words = ["unsquashfs", "-quiet", "-no-progress", "-d", str(parts), str(debian_12), program, library]
    subprocess.run(words, check=True)
    shutil.copytree(parts / library, prefix / "lib/python3.11", symlinks=True)
    (prefix / "bin").mkdir()
    shutil.copy(parts / program, prefix / "bin/python3.11")
    (prefix / "bin/python3").symlink_to("python3.11")
    image = image_with({"/opt/conda": ("/opt/conda-24",)})
    out, addition = extended(image, tmp_path, demo(tmp_path), executable="/opt/conda/bin/python3")
    assert addition.python.site_packages.startswith("/opt/conda-24/")
    cached, _, _ = json.loads(run(out, "/opt/conda/bin/python3", "-c", SAYS))
    real = cached.replace("/opt/conda/", "/opt/conda-24/")
    assert real.startswith(f"{addition.python.site_packages}/demo/__pycache__/")
    assert run(out, f"{addition.python.scripts}/demo") == "hello True\n"


@pytest.mark.parametrize(
    "program",
    [
        "#!/bin/sh\nexit 3\n",
        '#!/bin/sh\necho "{}"\n',
        '#!/bin/sh\necho {\\"implementation\\": \\"cpython\\"}; cat /etc/shadow\n',
        "no program at all",
    ],
)
def test_a_python_that_lies_is_refused(
    program: str, image_with: Callable[[Tree], Path], tmp_path: Path
) -> None:
    image = image_with({"/opt/evil/bin/python3": program, f"{SITE}/a.py": ""})
    with pytest.raises(EnvbuildError) as caught:
        extended(image, tmp_path, demo(tmp_path), executable="/opt/evil/bin/python3")
    assert "/opt/evil/bin/python3" in caught.value.problem
