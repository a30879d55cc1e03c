"""`envbuild inspect`: what an image says of its packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.lock.text import dump
from envbuild.system import squashfs
from tests.support import trees
from tests.support.resolved_specs import bare_lock, wheel
from tests.support.small_images import BASE, small_image

VERSIONS = {
    "base": "",
    "wheel:torch": " 2.13.0+cpu",
    "source:docopt": " 0.6.2",
    "framework:horovod": " 0.28.1",
    "wheel:unlocked": "",
}


def test_layers_have_the_versions_of_their_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {}
    for number, name in enumerate(VERSIONS):
        tree = tmp_path / f"tree-{number}"
        tree.mkdir()
        (tree / f"file-{number}").write_text(name)
        layers[name] = tmp_path / f"layer-{number}"
        squashfs.make(tree, layers[name])
    docopt = wheel("docopt", "0.6.2", file="docopt-0.6.2.tar.gz", layer="source:docopt")
    lock = bare_lock(python=(docopt, wheel("torch", "2.13.0+cpu")))
    image = tmp_path / "image.sif"
    trees.write_image(image, layers, lock=dump(lock).encode(), recipes={"horovod": "0.28.1"})

    def inspected(*options: str) -> str:
        with pytest.raises(SystemExit) as done:
            main(["inspect", str(image), "--store", str(tmp_path / "store"), *options])
        assert not done.value.code
        return capsys.readouterr().out

    lines = [line for line in inspected().splitlines() if line.startswith("layer:")]
    rows = [line.removeprefix("layer:").strip().partition(" (")[0] for line in lines]
    assert rows == [f"{name}{version}" for name, version in VERSIONS.items()]
    assert json.loads(inspected("--json"))["packages"] == {"docopt": "0.6.2", "torch": "2.13.0+cpu"}


def test_it_begins_with_what_people_look_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = small_image(
        tmp_path,
        BASE,
        requests=["Tabulate>=0.8", "absent; python_version < '3'"],
        python=[wheel("tabulate", "0.9.0"), wheel("numpy", "2.0.0")],
        recipes={"mpich": "5.0.1"},
        mpi="mpich",
    )
    with pytest.raises(SystemExit):
        main(["inspect", str(image), "--store", str(tmp_path / "store")])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names[:4] == ["image", "name", "summary", "verdict"]
    assert "asked:       tabulate 0.9.0" in lines
    assert "mpi:         mpich 5.0.1" in lines
    assert "accelerator: cpu" in lines
    first_layer = names.index("layer")
    assert {*names[first_layer:]} == {"layer"}


def test_labels_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = small_image(tmp_path, BASE, labels={"org.example.group": "fluid dynamics"})
    with pytest.raises(SystemExit):
        main(["inspect", str(image), "--store", str(tmp_path / "store")])
    assert "label:       org.example.group=fluid dynamics\n" in capsys.readouterr().out


def test_the_libraries_of_linear_algebra_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy = "/opt/env/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-ff651d7f.so"
    image = small_image(tmp_path, BASE, {numpy: b"", "/opt/env/lib/libmkl_rt.so.3": b""})
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["inspect", str(image), "--json", "--store", str(tmp_path / "store")])
    assert json.loads(capsys.readouterr().out)["blas"] == ["/opt/env/lib/libmkl_rt.so.3", numpy]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["inspect", str(image), "--store", str(tmp_path / "store")])
    assert "blas:        libmkl_rt.so.3, libscipy_openblas64_-ff651d7f.so\n" in capsys.readouterr().out
