"""Locales that `extend --env` names, and those that an image has."""

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.extend.files import check_locales
from envbuild.extend.packages import PackageRequest
from envbuild.extend.request import CheckedRequest
from envbuild.image.extension import Requests
from envbuild.image.file import ImageFile
from envbuild.system import squashfs


@pytest.mark.parametrize(
    ("file", "locale", "known"),
    [
        ("usr/lib/locale/de_DE.utf8/LC_TIME", "de_DE.UTF-8", True),
        ("usr/lib/locale/de_DE.utf8/LC_TIME", "fr_FR.UTF-8", False),
        ("usr/lib/locale/de_DE.utf8/LC_TIME", "C.UTF-8", True),
        ("usr/lib/locale/de_DE@euro/LC_TIME", "de_DE@euro", True),
        ("usr/lib/locale/locale-archive", "fr_FR.UTF-8", True),
        ("lib/ld-musl-x86_64.so.1", "fr_FR.UTF-8", True),
    ],
)
def test_a_locale_that_an_image_lacks_is_refused(file: str, locale: str, known: bool, tmp_path: Path) -> None:
    (tmp_path / "root" / file).parent.mkdir(parents=True)
    (tmp_path / "root" / file).touch()
    squashfs.make(tmp_path / "root", tmp_path / "image.sqfs")
    requests = Requests(environment={"LC_TIME": locale})
    checked = CheckedRequest(requests=requests, packages=PackageRequest(), contents={})
    with ImageFile.open(tmp_path / "image.sqfs") as image:
        if known:
            check_locales(checked, image)
            return
        with pytest.raises(EnvbuildError, match=rf"`image.sqfs` has no locale `{locale}`"):
            check_locales(checked, image)
