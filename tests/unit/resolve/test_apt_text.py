from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.resolve import apttext
from envbuild.resolve.origins import Archive

# As apt 2.6 wrote them, addresses changed.
URIS = f"""\
Reading package lists...
Building dependency tree...
'http://mirror.example.org/debian/pool/main/g/glibc/libc6_2.36-9%2bdeb12u14_amd64.deb' libc6_2.36-9+deb12u14_amd64.deb 2759320 SHA256:{"b" * 64}
'http://mirror.example.org/debian/pool/main/g/gawk/gawk_5.2.1-2_amd64.deb' gawk_1%3a5.2.1-2_amd64.deb 673288 SHA256:{"c" * 64}
"""  # noqa: E501

MADISON = """\
     libc6 | 2.36-9+deb12u14 | http://mirror.example.org/debian bookworm/main amd64 Packages
     libc6 | 2.36-9+deb12u7 | http://mirror.example.org/debian-security bookworm-security/main amd64 Packages
     glibc | 2.36-9+deb12u14 | http://mirror.example.org/debian bookworm/main Sources
"""

UNKNOWN = """\
Package awk is a virtual package provided by:
  original-awk 2022-09-12-1
  mawk 1.3.4.20200120-3.1
  gawk 1:5.2.1-2

Package ghost is not available, but is referred to by another package.

E: Unable to locate package nosuch
E: Package 'awk' has no installation candidate
E: Package 'ghost' has no installation candidate
E: Unable to locate package gti
"""

UNMET = """\
The following packages have unmet dependencies:
 libc6-dev : Depends: libc6 (= 2.36-9+deb12u7) but 2.36-9+deb12u14 is to be installed
             Depends: libc-dev-bin (= 2.36-9+deb12u7) but 2.36-9+deb12u14 is to be installed
E: Unable to correct problems, you have held broken packages.
"""


def test_files_are_read_with_epoch_and_digest() -> None:
    libc, gawk = apttext.parse_uris(URIS)
    assert (libc.name, libc.version, libc.architecture, libc.size_bytes) == (
        "libc6",
        "2.36-9+deb12u14",
        "amd64",
        2_759_320,
    )
    assert gawk.version == "1:5.2.1-2"
    assert gawk.sha256 == "c" * 64


@pytest.mark.parametrize("digest", ["MD5Sum:00", "", "SHA256:00"])
def test_a_file_without_sha256_is_refused_and_its_password_not_shown(digest: str) -> None:
    with pytest.raises(MachineError) as caught:
        apttext.parse_uris(f"'http://me:secret@host/x.deb' x_1_amd64.deb 3 {digest}\n")
    assert "SHA-256" in caught.value.problem
    assert "secret" not in caught.value.problem


def test_suites_of_versions() -> None:
    assert apttext.parse_madison(MADISON) == {
        ("libc6", "2.36-9+deb12u14"): ["bookworm"],
        ("libc6", "2.36-9+deb12u7"): ["bookworm-security"],
    }


def test_what_apt_does_not_know() -> None:
    assert apttext.unknown(UNKNOWN) == ["gti", "nosuch"]
    assert apttext.virtual(UNKNOWN) == {"awk": ["gawk", "mawk", "original-awk"], "ghost": []}


def test_unmet_dependencies_become_one_line() -> None:
    assert apttext.conflict(UNMET).startswith("libc6-dev : Depends: libc6 (= 2.36-9+deb12u7) but")
    assert "\n" not in apttext.conflict(UNMET)
    assert apttext.conflict(UNKNOWN) == ""


def test_a_name_that_is_no_package() -> None:
    said = "Package: editor\nDependencies: \nProvides: \nReverse Provides: \nvim 2:9 (= )\nnano 7.2 (= )\n"
    problem, hint = apttext.no_package("editor", said)
    assert problem == "`editor` is not a package but a name that another provides"
    assert hint == "name it: nano, vim"
    problem, hint = apttext.no_package("nano+", "Package: nano+\nReverse Provides: \n")
    assert problem == "there is no package `nano+`"
    assert hint.startswith("apt read the name as a regular expression")


def test_a_complaint_tells_no_credentials() -> None:
    output = "Err:1 x\nE: Failed to fetch http://me:secret@host/dists/x?token=1  404  Not Found\n"
    assert apttext.complaint(output) == "Failed to fetch http://host/dists/x 404 Not Found"
    assert apttext.complaint("W: only this.\n") == "only this"
    assert apttext.complaint("") == "apt does not say why"


def test_configuration_keeps_the_machines_hooks_and_files_away() -> None:
    text = apttext.configuration({"Dir::State": Path("/a b/state")}, "arm64")
    assert 'Dir::State "/a b/state";' in text
    assert "#clear APT::Update::Post-Invoke-Success;" in text
    assert 'APT::Architectures { "arm64"; };' in text
    assert "Valid-Until" not in text  # the machine decides


@pytest.mark.parametrize("path", ['/a"; evil "x', "/a\nb", "/a\\b"])
def test_a_path_cannot_break_out_of_the_configuration(path: str) -> None:
    with pytest.raises(MachineError):
        apttext.configuration({"Dir::State": Path(path)}, "amd64")


def test_a_stanza_carries_keys_and_says_trusted_only_where_it_is() -> None:
    archive = Archive(root="https://mirror.example.org/debian", signed_by="/keys.gpg")
    assert apttext.stanza(archive, "bookworm", ["main", "contrib"]) == (
        "Types: deb\nURIs: https://mirror.example.org/debian\nSuites: bookworm\n"
        "Components: main contrib\nSigned-By: /keys.gpg\n"
    )
    assert "Trusted: yes" in apttext.stanza(Archive(root="file:///x", trusted=True), "s", ["main"])


def test_versions_are_kept_even_against_newer_ones() -> None:
    assert apttext.preferences({"b": "2", "a": "1:1"}) == (
        "Package: a\nPin: version 1:1\nPin-Priority: 1001\n\nPackage: b\nPin: version 2\nPin-Priority: 1001\n"
    )


def test_proxies_of_apt() -> None:
    dump = (
        'Acquire::http "";\nAcquire::http::Proxy "http://proxy.example.org:3128";\n'
        'Acquire::http::Proxy::local.example.org "DIRECT";\n'
    )
    addresses = [
        "http://mirror.example.org/x",
        "https://sec.example.org/y",
        "http://local.example.org/z",
        "file:///a",
    ]
    assert apttext.proxies(dump, addresses) == {
        "http://mirror.example.org": "http://proxy.example.org:3128",
        "https://sec.example.org": "http://proxy.example.org:3128",
    }
    assert apttext.proxies("", addresses) == {}
