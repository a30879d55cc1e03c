from pathlib import Path

import pytest

from envbuild.activate import genuine
from envbuild.errors import RequestError
from envbuild.image.sif import PartVerdict


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
    with pytest.raises(RequestError, match=problem):
        genuine.check_parts(Path("a.sif"))


def test_what_is_as_built_is_not(monkeypatch):
    monkeypatch.setattr(genuine, "verify_parts", lambda _, advanced: (part("sha256:a", "sha256:a"),))
    genuine.check_parts(Path("a.sif"))
