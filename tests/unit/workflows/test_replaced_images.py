"""An image that is replaced while it is read: the command works on the file that it opened.

One that is written in place is an error, and nothing is made of the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.events import Event, TaskStarted
from envbuild.extend.request import ExtendRequest
from envbuild.system import squashfs
from envbuild.workflows.choices import ExportFormat
from envbuild.workflows.export import export_image
from envbuild.workflows.extend import extend_image
from envbuild.workflows.module import InstallRequest, install_module
from envbuild.workflows.settings import Settings
from tests.support.images import file_system, read_note
from tests.support.small_images import BASE, small_image

pytestmark = pytest.mark.redteam

PROBLEM = "`image.sif` was replaced or changed while it was read"


def replace_file(path: Path, other: Path) -> None:
    """Put another file at a path, as a publication of a new image does."""
    other.replace(path)


def write_over(path: Path, other: Path) -> None:
    """Write another file's bytes into a file, and give it the old time, as `rsync --inplace` does."""
    status, content = path.stat(), other.read_bytes()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path, other: Path) -> None:
    """Leave the beginning alone, as a copy that has just begun."""
    path.write_bytes(path.read_bytes()[:100])


WRITES = [write_over, cut]
Change = Callable[[Path, Path], None]


def bare(directory: Path, name: str) -> Path:
    """Write a squashfs without a Python."""
    tree = directory / f"{name}-tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/version").write_text(name)
    squashfs.make(tree, directory / name)
    return directory / name


def on(task: str, act: Callable[[], None]) -> Callable[[Event], None]:
    """Return a sink that acts when a task starts."""
    return lambda event: act() if isinstance(event, TaskStarted) and event.task == task else None


def extend(image: Path, output: Path, act: Callable[[], None], **words: object) -> None:
    settings = Settings.of(store=output.parent / "store", emit=on("write", act))
    words = {"environment": ["A=b"], **words}
    extend_image(ExtendRequest(image=image, output=output, **words), settings)  # type: ignore[arg-type]


def version_in(image: Path) -> bytes:
    with file_system(image) as squashfs:
        (entry,) = (entry for entry in squashfs.walk() if entry.path == "/etc/version")
        return squashfs.open(entry).read()


@pytest.mark.parametrize("role", ["image", "like"])
def test_an_image_that_is_replaced_while_it_is_extended(role: str, tmp_path: Path) -> None:
    plain, other = bare(tmp_path, "plain.sif"), bare(tmp_path, "other.sif")
    image, new = tmp_path / "image.sif", tmp_path / "new.sif"
    extend(plain, image, lambda: None)
    words: dict[str, object] = {"like": image, "environment": ["C=d"]} if role == "like" else {}
    extend(plain if role == "like" else image, new, lambda: replace_file(image, other), **words)
    assert version_in(image) == b"other.sif"
    assert version_in(new) == b"plain.sif"
    note = read_note(new)
    assert note is not None
    assert note.requests.environment["A"] == "b"


@pytest.mark.parametrize("change", WRITES)
@pytest.mark.parametrize("role", ["image", "like"])
def test_an_image_that_is_extended(role: str, change: Change, tmp_path: Path) -> None:
    plain, other = bare(tmp_path, "plain.sif"), bare(tmp_path, "other.sif")
    image = tmp_path / "image.sif"
    extend(plain, image, lambda: None)
    words: dict[str, object] = {"like": image, "environment": []} if role == "like" else {}
    with pytest.raises(RequestError, match=PROBLEM):
        extend(
            plain if role == "like" else image,
            tmp_path / "new.sif",
            lambda: change(image, other),
            **words,
        )
    assert not (tmp_path / "new.sif").exists()


def test_a_new_image_does_not_replace_that_of_another_command(tmp_path: Path) -> None:
    image, new = bare(tmp_path, "image.sif"), tmp_path / "new.sif"
    with pytest.raises(RequestError, match="already exists"):
        extend(image, new, lambda: extend(image, new, lambda: None, environment=["C=d"]))
    note = read_note(new)
    assert note is not None
    assert note.requests.environment == {"C": "d"}
    # What the same request has made is the same image.
    same = tmp_path / "same.sif"
    extend(image, same, lambda: extend(image, same, lambda: None))
    assert same.is_file()


@pytest.mark.parametrize("form", ["squashfs", "oci", "shifter"])
def test_an_image_that_is_replaced_while_it_is_exported(form: ExportFormat, tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    other = small_image(tmp_path, {**BASE, "/etc/other": b"other"}, name="other.sif")
    before = export_image(image, form, tmp_path / "before", lambda _: None)
    written = export_image(image, form, tmp_path / "after", on(form, lambda: replace_file(image, other)))
    assert written.identity == before.identity


@pytest.mark.parametrize("change", WRITES)
@pytest.mark.parametrize("form", ["squashfs", "oci", "shifter"])
def test_an_image_that_is_exported(form: ExportFormat, change: Change, tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    other = small_image(tmp_path, {**BASE, "/etc/other": b"other"}, name="other.sif")
    target = tmp_path / "exported"
    with pytest.raises(RequestError, match=PROBLEM):
        export_image(image, form, target, on(form, lambda: change(image, other)))
    assert [path for path in tmp_path.glob("exported*") if path.is_file()] == []
    assert list(target.glob("*")) == []


def test_an_image_that_is_replaced_while_it_becomes_a_module(tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    content = image.read_bytes()
    other = small_image(tmp_path, {**BASE, "/etc/other": b"other"}, name="other.sif")
    settings = Settings.of(store=tmp_path / "store", emit=on("module", lambda: replace_file(image, other)))
    install_module(InstallRequest(image=image, root=tmp_path / "modules"), settings)
    (copy,) = (path for path in (tmp_path / "modules").rglob("*.sif") if not path.is_symlink())
    assert copy.read_bytes() == content


@pytest.mark.parametrize(
    ("link", "change"),
    [(True, replace_file), (True, write_over), (True, cut), (False, write_over), (False, cut)],
)
def test_an_image_that_becomes_a_module(*, link: bool, change: Change, tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    other = small_image(tmp_path, {**BASE, "/etc/other": b"other"}, name="other.sif")
    settings = Settings.of(store=tmp_path / "store", emit=on("module", lambda: change(image, other)))
    root = tmp_path / "modules"
    with pytest.raises(RequestError, match=PROBLEM):
        install_module(InstallRequest(image=image, root=root, link=link), settings)
    assert list(root.glob("modulefiles/*/*")) == []
    assert list(root.rglob("*.sif")) == []
