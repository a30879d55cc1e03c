"""A changed image is exported in no form; a full disk is an error that names the file."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import get_args

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.events import ignore
from envbuild.image.sif import LOCK, PLAN, SBOM
from envbuild.system import squashfs
from envbuild.workflows.choices import ExportFormat
from envbuild.workflows.export import export_image
from tests.support import trees
from tests.support.images import read_sif
from tests.support.small_images import BASE, small_image

FORMS: tuple[ExportFormat, ...] = get_args(ExportFormat)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [PLAN, LOCK, SBOM, "", "file system"])
def test_what_is_not_as_it_was_written_is_exported_in_no_form(
    tmp_path: Path, form: ExportFormat, name: str
) -> None:
    image = small_image(tmp_path, BASE)
    sif = read_sif(image)
    thing = sif.root if name == "file system" else sif.find(name)
    content = bytearray(image.read_bytes())
    content[thing.offset + 1 if thing else 5] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError, match=r"`small\.sif` was changed or damaged: the (lock|header|tables)"):
        export_image(image, form, tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_disk_that_takes_no_more_is_told_of_the_file(tmp_path: Path, form: ExportFormat) -> None:
    """The kernel's own refusal, of what is made beside the file."""
    blob, image, place = tmp_path / "base.sqfs", tmp_path / "small.sif", tmp_path / "out"
    # For Shifter, gzip is copied; zstd would be packed again by programs that die of this limit.
    squashfs.make(trees.base_tree(tmp_path / "base"), blob, compression="gzip")
    trees.write_image(image, {"base": blob})
    place.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(MachineError, match=r"out/image` cannot be written: File too large") as caught:
            export_image(image, form, place / "image", ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free some space" in str(caught.value.hint)
    assert [path for path in place.iterdir() if path.is_file()] == []
