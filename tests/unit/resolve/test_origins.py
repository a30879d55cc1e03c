from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.resolve import origins
from envbuild.resolve.aptsources import AptSource, parse_deb822, parse_one_line, read_sources
from envbuild.resolve.origins import (
    Archive,
    Machine,
    PythonSources,
    archives,
    python_sources,
    read_machine,
)
from envbuild.spec.site import Site

DEB822 = """\
Types: deb deb-src
# a comment in between
URIs: http://mirror.example.org/debian
  http://second.example.org/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://off.example.org/debian
Suites: bookworm
Components: main
Enabled: no


Types: deb-src
URIs: http://source.example.org/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://commented.example.org/debian bookworm main
deb [arch=amd64 signed-by=/keys.gpg] http://one.example.org/debian bookworm main contrib # why
deb-src http://one.example.org/debian bookworm main
deb [trusted=yes] file:/srv/local ./
deb http://old.example.org/debian oldstable main
"""

APT = (
    AptSource(
        uris=("http://a.example.org/debian/",), suites=("bookworm",), components=("main",), signed_by="/k"
    ),
    AptSource(uris=("http://a.example.org/debian",), suites=("bookworm",), components=("contrib",)),
    AptSource(
        uris=("mirror+file:/etc/mirrors", "http://b.example.org/d"),
        suites=("bookworm",),
        components=("main",),
    ),
)


def test_deb822_with_inline_keys() -> None:
    (source,) = parse_deb822(DEB822)
    assert source.uris == ("http://mirror.example.org/debian", "http://second.example.org/debian/")
    assert source.suites == ("bookworm", "bookworm-updates")
    assert source.signed_by.splitlines()[1:3] == [" -----BEGIN PGP PUBLIC KEY BLOCK-----", " ."]


def test_one_line_format() -> None:
    first, local, old = parse_one_line(ONE_LINE)
    assert (first.signed_by, first.components, first.trusted) == ("/keys.gpg", ("main", "contrib"), False)
    assert local.trusted
    assert local.suites == ("./",)
    assert old.suites == ("oldstable",)


def test_the_files_that_apt_reads_and_no_others(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://first.example.org/d bookworm main\n")
    (parts / "b.list").write_text("deb http://third.example.org/d bookworm main\n")
    (parts / "a.sources").write_text(
        "Types: deb\nURIs: http://second.example.org/d\nSuites: bookworm\nComponents: main\n"
    )
    (parts / "c.list.save").write_text("deb http://no.example.org/d bookworm main\n")
    assert [source.uris[0] for source in read_sources(tmp_path)] == [
        "http://first.example.org/d",
        "http://second.example.org/d",
        "http://third.example.org/d",
    ]


def test_the_site_comes_before_the_machine_and_keeps_its_keys() -> None:
    site = Site(name="x", origins={"debian:bookworm": ("https://site.example.org/debian/", "file:///mirror")})
    assert archives("debian:bookworm", ["main"], site, Machine(apt=APT)) == (
        Archive(root="https://site.example.org/debian", signed_by="/k"),
        Archive(root="file:///mirror", signed_by="/k"),
    )


def test_the_machines_archives_must_match_suite_and_components() -> None:
    machine = Machine(apt=APT)
    assert [entry.root for entry in archives("debian:bookworm", ["main"], None, machine)] == [
        "http://a.example.org/debian",
        "http://b.example.org/d",
    ]
    for origin, components in (
        ("debian:bookworm-security", ["main"]),
        ("debian:bookworm", ["main", "contrib"]),
        ("debian:noble", ["main"]),
    ):
        with pytest.raises(MachineError) as caught:
            archives(origin, components, None, machine)
        assert f"`{origin}`" in caught.value.problem
        assert "site file" in str(caught.value.hint)
        assert "example.org" not in str(caught.value)


def test_an_archive_serves_the_suites_of_other_releases_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(origins, "DEBIAN_KEYS", str(tmp_path / "absent"))
    sources = (
        *APT,
        AptSource(
            uris=("http://s.example.org",), suites=("bookworm-security",), components=("main",), trusted=True
        ),
        AptSource(uris=("http://other.example.org",), suites=("noble", "nodistro"), components=("main",)),
    )
    machine = Machine(apt=sources)
    assert archives("debian:bullseye", ["main"], None, machine) == (
        Archive(root="http://a.example.org/debian", signed_by="/k"),
        Archive(root="http://b.example.org/d"),
    )
    assert archives("debian:bullseye-security", ["main"], None, machine) == (
        Archive(root="http://s.example.org", trusted=True),
    )
    for kind in ("bullseye-updates", "jammy"):
        with pytest.raises(MachineError):
            archives(f"debian:{kind}", ["main"], None, machine)
    monkeypatch.setattr(origins, "DEBIAN_KEYS", os.devnull)
    signed = archives("debian:bullseye", ["main"], None, Machine(apt=APT[:1]))
    assert [archive.signed_by for archive in signed] == ["/k", os.devnull]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "etc/xdg/pip").mkdir(parents=True)
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    (tmp_path / "home/.pip").mkdir(parents=True)
    return tmp_path


def sources(home: Path, **environ: str) -> PythonSources:
    return read_machine({"HOME": str(home / "home"), **environ}, etc=home / "etc").python


def test_nothing_configured(home: Path) -> None:
    assert sources(home) == PythonSources()


def test_pips_files_in_pips_order(home: Path) -> None:
    (home / "etc/pip.conf").write_text(
        "[global]\nindex-url = https://machine.example.org\nfind-links = /machine\n"
    )
    (home / "home/.pip/pip.conf").write_text("[global]\nfind_links =\n  /legacy\n  /two\n")
    assert sources(home) == PythonSources(
        indexes=("https://machine.example.org",), find_links=("/legacy", "/two")
    )
    (home / "home/.config/pip/pip.conf").write_text("[install]\nindex-url = https://user.example.org/%(x)s\n")
    assert sources(home).indexes == ("https://user.example.org/%(x)s",)
    (home / "own.conf").write_text("[global]\nindex-url = https://own.example.org\nno-index = true\n")
    chosen = sources(home, PIP_CONFIG_FILE=str(home / "own.conf"))
    assert (chosen.indexes, chosen.no_index) == (("https://own.example.org",), True)
    assert sources(home, PIP_CONFIG_FILE=os.devnull) == PythonSources()


def test_the_environment_wins_and_uv_before_pip(home: Path) -> None:
    (home / "etc/pip.conf").write_text(
        "[global]\nindex-url = https://machine.example.org\nfind-links = /machine\n"
    )
    assert sources(home, PIP_INDEX_URL="https://pip.example.org", PIP_FIND_LINKS="/a /b") == PythonSources(
        indexes=("https://pip.example.org",), find_links=("/a", "/b")
    )
    assert sources(home, UV_INDEX_URL="https://uv.example.org").indexes == ("https://uv.example.org",)
    assert sources(home, UV_DEFAULT_INDEX="mine=https://uv.example.org").indexes == (
        "https://uv.example.org",
    )
    assert sources(home, UV_FIND_LINKS="/u,/v").find_links == ("/u", "/v", "/machine")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_uvs_files_count_before_pips(home: Path) -> None:
    write(home / "etc/pip.conf", "[global]\nindex-url = https://pip.example.org\nfind-links = /pip\n")
    write(home / "etc/uv/uv.toml", 'index-url = "https://all.example.org"\nfind-links = ["/all"]\n')
    assert sources(home) == PythonSources(indexes=("https://all.example.org",), find_links=("/all", "/pip"))
    write(home / "etc/xdg/uv/uv.toml", 'index-url = "https://first.example.org"\n')
    assert sources(home).indexes == ("https://first.example.org",)
    own = home / "home/.config/uv/uv.toml"
    write(own, '[[index]]\nname = "own"\nurl = "https://own.example.org"\ndefault = true\n')
    assert sources(home).indexes == ("https://own.example.org",)
    write(home / "etc/xdg/uv/uv.toml", '[pip]\nindex-url = "https://pips.example.org"\nno-index = true\n')
    assert (sources(home).indexes, sources(home).no_index) == (("https://pips.example.org",), True)
    chosen = write(home / "chosen/uv.toml", 'find-links = ["wheels", "https://l.example.org", "/x"]\n')
    assert sources(home, UV_CONFIG_FILE=str(chosen)) == PythonSources(
        indexes=("https://pip.example.org",),
        find_links=(f"{chosen.parent}/wheels", "https://l.example.org", "/x", "/pip"),
    )
    assert sources(home, UV_NO_CONFIG="1").indexes == ("https://pip.example.org",)
    elsewhere = str(home / "elsewhere")
    assert sources(home, XDG_CONFIG_HOME=elsewhere, XDG_CONFIG_DIRS=elsewhere).indexes == (
        "https://all.example.org",
    )
    assert sources(home, UV_DEFAULT_INDEX="https://uv.example.org").indexes == ("https://uv.example.org",)


def test_an_index_of_uv_that_is_no_default_is_never_used(home: Path) -> None:
    write(home / "home/.config/uv/uv.toml", '[[index]]\nname = "x"\nurl = "https://extra.example.org"\n')
    assert sources(home) == PythonSources()


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("etc/pip.conf", "[global]\nindex-url = http://[bad/simple\n", "not a valid URL"),
        ("etc/pip.conf", "[global]\nindex-url = https://x.example.org/\0\n", "not a valid URL"),
        ("etc/pip.conf", "[global]\nfind-links = http://x.example.org:port/\n", "not a valid URL"),
        ("etc/uv/uv.toml", 'index-url = "http://[bad/simple"\n', "not a valid URL"),
        ("etc/uv/uv.toml", "index-url = [\n", "it is not a TOML file"),
        ("etc/uv/uv.toml", "x = " + "[" * 100_000, "it is not a TOML file"),
        ("etc/uv/uv.toml", "index-url = 3\n", "its settings have wrong types"),
        ("etc/uv/uv.toml", "index = 3\n", "its settings have wrong types"),
        ("etc/uv/uv.toml", "find-links = [3]\n", "its settings have wrong types"),
        ("etc/uv/uv.toml", "pip = 3\n", "its settings have wrong types"),
        ("etc/uv/uv.toml", "[[index]]\ndefault = true\n", "its settings have wrong types"),
    ],
)
def test_a_setting_that_is_none_is_told_with_its_place(home: Path, file: str, text: str, told: str) -> None:
    path = write(home / file, text)
    with pytest.raises(MachineError, match=told) as caught:
        sources(home)
    assert str(path) in str(caught.value)
    assert "bad" not in str(caught.value)


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_FIND_LINKS", "PIP_INDEX_URL", "PIP_FIND_LINKS"])
def test_a_variable_that_holds_no_address_is_named(home: Path, name: str) -> None:
    with pytest.raises(MachineError, match=f"^{name} names an index or a place"):
        sources(home, **{name: "http://user:secret@[bad/simple"})


@pytest.mark.parametrize("name", ["PIP_CONFIG_FILE", "UV_CONFIG_FILE"])
def test_a_configuration_that_is_no_file_takes_neither_time_nor_memory(home: Path, name: str) -> None:
    os.mkfifo(home / "pipe")
    for place in (home / "pipe", Path("/dev/zero"), home):
        with pytest.raises(MachineError, match="cannot be read: it is "):
            sources(home, **{name: str(place)})
    (home / "huge").touch()
    os.truncate(home / "huge", 1 << 36)
    with pytest.raises(MachineError, match="it is larger than"):
        sources(home, **{name: str(home / "huge")})


def test_a_second_index_of_equal_rank_is_never_used(home: Path) -> None:
    (home / "etc/pip.conf").write_text("[global]\nextra-index-url = https://extra.example.org\n")
    found = sources(
        home, PIP_EXTRA_INDEX_URL="https://extra.example.org", UV_EXTRA_INDEX_URL="https://e.example.org"
    )
    assert found == PythonSources()


def test_a_configuration_that_cannot_be_read_is_told(home: Path) -> None:
    (home / "etc/pip.conf").write_text("index-url = x\n")
    with pytest.raises(MachineError, match=r"pip\.conf"):
        sources(home)


def test_python_sources_of_a_site(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "x-1-py3-none-any.whl").touch()
    site = Site(
        name="x",
        origins={
            "pypi": ("https://one.example.org", "https://two.example.org"),
            "pytorch-cpu": ("https://cpu.example.org", f"file://{wheels}"),
            "debian:bookworm": ("https://deb.example.org",),
        },
        find_links=("https://links.example.org/", "/nowhere/at/all"),
    )
    found = python_sources(
        site,
        Machine(
            python=PythonSources(
                indexes=("https://machine.example.org",), find_links=("/tmp",), no_index=True
            )
        ),
    )
    # No fallback to an index that may be another's: "dependency confusion".
    assert found.indexes == ("https://one.example.org",)
    mirrored = site.model_copy(update={"mirrors": ("pypi",)})
    assert python_sources(mirrored, Machine()).indexes == site.origins["pypi"]
    assert found.named == {"pytorch-cpu": ("https://cpu.example.org",)}
    assert found.find_links == ("https://links.example.org/", str(wheels), "/tmp")
    assert not found.no_index
    assert found.local_directories() == (wheels, Path("/tmp"))


def test_a_site_whose_only_origin_is_a_directory_asks_no_index(tmp_path: Path) -> None:
    (tmp_path / "x-1-py3-none-any.whl").touch()
    found = python_sources(Site(name="x", origins={"pypi": (f"file://{tmp_path}",)}), Machine())
    assert found.no_index
    assert found.find_links == (str(tmp_path),)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://index.example.org/files/x.whl", "https://me:pw@index.example.org/files/x.whl"),
        ("https://files.example.org/x.whl", "https://files.example.org/x.whl"),
        ("http://index.example.org/x.whl", "http://index.example.org/x.whl"),
        ("https://index.example.org:8443/x.whl", "https://index.example.org:8443/x.whl"),
        ("https://links.example.org/x.whl", "https://you:pw@links.example.org/x.whl"),
        ("file:///wheels/x.whl", "file:///wheels/x.whl"),
    ],
)
def test_credentials_of_an_index_are_for_its_own_host_alone(address: str, expected: str) -> None:
    places = PythonSources(
        indexes=("https://me:pw@index.example.org/simple",),
        find_links=("https://you:pw@links.example.org", "/wheels"),
    )
    assert places.with_credentials(address) == expected
