"""The locale in which an image of another tool starts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuild.image.file import ImageFile
from envbuild.image.locales import locale_of_starts
from envbuild.system import squashfs


@pytest.mark.parametrize(
    ("files", "locale"),
    [
        (["usr/lib/locale/C.utf8/LC_TIME"], "C.UTF-8"),
        (["usr/lib/locale/C.UTF-8/LC_TIME"], "C.UTF-8"),
        (["usr/lib/locale/C.utf8/LC_TIME", "usr/lib/locale/de_DE.utf8/LC_TIME"], ""),
        (["usr/lib/locale/C.utf8/LC_TIME", "usr/lib/locale/locale-archive"], ""),
        (["lib/ld-musl-x86_64.so.1"], ""),
    ],
)
def test_an_image_with_c_utf_8_alone_starts_in_it(files: Sequence[str], locale: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / "root" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / file).touch()
    squashfs.make(tmp_path / "root", tmp_path / "image.sqfs")
    with ImageFile.open(tmp_path / "image.sqfs") as image:
        assert locale_of_starts(image.files) == locale
