from pathlib import Path

import pytest

from envbuild.activate import genuine
from envbuild.errors import RequestError
from envbuild.image import sif
from envbuild.image.sif import PartVerdict
from tests.support.small_images import UNREAD, small_image


def part(expected: str, observed: str) -> PartVerdict:
    return PartVerdict(role="overlay", layers=("mpi", "python"), expected=expected, observed=observed)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((), "names no file systems"),
        (
            (part("sha256:a", "sha256:b"),),
            r"`mpi\+python` of the image is damaged: .*sha256:a, and is sha256:b",
        ),
        ((part("sha256:a", "absent"),), r"`mpi\+python` of the image is missing: sha256:a"),
        ((part("absent", "sha256:b"),), "its manifest does not name: sha256:b"),
    ],
)
def test_what_is_not_as_built_is_refused(monkeypatch, parts, problem):
    monkeypatch.setattr(genuine, "verify_parts", lambda _, advanced: parts)
    monkeypatch.setattr(genuine, "changed_around", lambda _: ())
    with pytest.raises(RequestError, match=problem):
        genuine.check_parts(Path("a.sif"))


def test_what_is_as_built_is_not(monkeypatch):
    monkeypatch.setattr(genuine, "verify_parts", lambda _, advanced: (part("sha256:a", "sha256:a"),))
    monkeypatch.setattr(genuine, "changed_around", lambda _: ())
    genuine.check_parts(Path("a.sif"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the header"),
        ("inspect-metadata.json", "the header, or the data"),
        (sif.PLAN, "the header, or the data"),
        (sif.LOCK, "changed or damaged: the lock$"),
    ],
)
def test_what_lies_around_good_file_systems_is_looked_at(tmp_path, name, problem):
    image = small_image(tmp_path, UNREAD, UNREAD)
    genuine.check_parts(image)
    thing = sif.read_sif(image).find(name)
    at = thing.offset if thing else 5
    content = bytearray(image.read_bytes())
    content[at] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError, match=problem):
        genuine.check_parts(image)
