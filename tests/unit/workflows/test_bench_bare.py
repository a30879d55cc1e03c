"""`bench --bare`: which images and which Pythons can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.lock.model import PythonPin
from envbuild.store.store import Store
from envbuild.system import process
from envbuild.system.process import Finished
from envbuild.workflows.bench_bare import bare_environment
from envbuild.workflows.settings import Settings
from tests.support.small_images import UNREAD, small_image


def pin(name: str, *, file: str = "", layer: str = "python") -> PythonPin:
    return PythonPin(
        name=name,
        version="1",
        origin="index",
        file=file or f"{name}-1-py3-none-any.whl",
        size_bytes=1,
        sha256="ab" * 32,
        layer=layer,
        requires=(),
    )


def refused(image: Path, tmp_path: Path) -> RequestError:
    settings = Settings(store=Store(tmp_path / "store"))
    with (
        ImageFile.open(image) as opened,
        pytest.raises(RequestError) as caught,
        bare_environment(opened, Path("/p/python"), settings, spans_nodes=False),
    ):
        pass
    return caught.value


@pytest.mark.parametrize(
    ("pins", "why"),
    [
        ((pin("demo", file="demo-1.tar.gz", layer="framework:demo"),), "demo is built from source"),
        ((pin("other"),), "demo comes from Debian packages"),
    ],
)
def test_an_image_that_is_not_of_wheels_alone_is_refused(
    pins: Sequence[PythonPin], why: str, tmp_path: Path
) -> None:
    image = small_image(tmp_path, UNREAD, python=pins, recipes={"demo": "1"}, mpi="", mpi_family="")
    assert why in refused(image, tmp_path).problem


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('["3.12.1", "cp312"]', "is Python 3.12.1 (cp312), and the wheels of the image are for cp311"),
        ('["3.11.1", "cp311t"]', "is Python 3.11.1 (cp311t), and the wheels"),
        ("not JSON", "is not a Python that starts here"),
        ("[1]", "is not a Python that starts here"),
    ],
)
def test_another_python_is_refused(
    answer: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: Sequence[str | Path], *, env: Mapping[str, str], **_: object) -> Finished:
        assert argv[0] == Path("/p/python")
        return Finished(argv=tuple(map(str, argv)), code=0, stdout=answer, stderr="")

    monkeypatch.setattr(process, "run", run)
    pins = (pin("demo", layer="framework:demo"),)
    image = small_image(tmp_path, UNREAD, python=pins, recipes={"demo": "1"}, mpi="", mpi_family="")
    assert problem in refused(image, tmp_path).problem


def test_a_python_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    pins = (pin("demo", layer="framework:demo"),)
    image = small_image(tmp_path, UNREAD, python=pins, recipes={"demo": "1"}, mpi="", mpi_family="")
    error = refused(image, tmp_path)
    assert "is not a Python that starts here" in error.problem
    assert "/usr/bin/python3" in str(error.hint)
