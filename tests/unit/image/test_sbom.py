"""The bill of materials: judged by the form's own library, the same for everybody, and honest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from packageurl import PackageURL

from envbuild.errors import RequestError
from envbuild.image.packages import (
    Contents,
    InstalledDeb,
    deb_licences,
    installed_debs,
    wheel_licences,
)
from envbuild.image.sbom import deb_purl, python_purl, sbom
from envbuild.image.sif import SBOM
from envbuild.image.sifformat import Descriptor, Kind
from envbuild.lock.model import DebPin, Lock, PythonPin, RootPin, ToolPin
from envbuild.workflows.sbom import write_sbom
from tests.support.resolved_specs import bare_lock, build_deb, deb, recipe_pin, wheel
from tests.support.schemas import bill_complaint
from tests.support.small_images import UNREAD, small_image

SITE = "/opt/env/lib/python3.11/site-packages"
DEP5 = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Depends: libgcc-s1, libcrypt1 (>= 1:4.4.10-10~) | libcrypt2

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 12.2.0
Provides: libgcc1 (= 1:12.2.0)
Depends: gcc-12-base (= 12.2.0), libc6:any (>= 2.35)

Package: gone
Status: deinstall ok config-files
Version: 1
"""


LOCK = bare_lock(
    name="small",
    recipes=(recipe_pin("pytorch", "2.13"),),
    requests=("torch",),
    base_debs=(deb("libc6", "2.36-9", sha256="a" * 64), deb("libgcc-s1", "12.2.0", sha256="c" * 64)),
    python=(
        wheel("torch", "2.13.0+cpu", layer="framework:pytorch", requires=("six",), sha256="b" * 64),
        wheel("six", "1.17.0", sha256="d" * 64),
        wheel("horovod", "0.28", file="horovod-0.28.tar.gz"),
    ),
    tools=(ToolPin(name="uv", version="uv 0.13", digest="sha256:" + "2" * 64),),
)
CONTENTS = Contents(
    debs={each.name: each for each in installed_debs(STATUS)},
    deb_licences={"libc6": ("GPL-2+", "LGPL-2.1+"), "libgcc-s1": ()},
    wheel_licences={"torch": ("=BSD-3-Clause",), "six": ("MIT",)},
)


def document(lock: Lock = LOCK, contents: Contents = CONTENTS) -> dict[str, Any]:
    text = sbom(lock, contents).decode()
    assert bill_complaint(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def row(found: dict[str, Any], ref: str) -> dict[str, Any]:
    (one,) = (each for each in found["components"] if each["bom-ref"] == ref)
    return dict(one)


def needs(found: dict[str, Any], ref: str) -> list[str]:
    (one,) = (each for each in found["dependencies"] if each["ref"] == ref)
    return list(one["dependsOn"])


class TestDocument:
    def test_every_package_is_there_with_its_hash(self) -> None:
        found = document()
        pins: list[DebPin | PythonPin] = [*LOCK.base_debs, *LOCK.python]
        for pin in pins:
            ref = f"{'deb' if isinstance(pin, DebPin) else 'pypi'}:{pin.name}@{pin.version}"
            assert row(found, ref)["hashes"] == [{"alg": "SHA-256", "content": pin.sha256}]
        assert {"base:debian-12", "recipe:pytorch"} <= {each["bom-ref"] for each in found["components"]}
        assert len(found["components"]) == len(pins) + 2

    def test_the_official_library_reads_it(self) -> None:
        bom = Bom.from_json(document())  # type: ignore[attr-defined]
        assert bom.serial_number.version == 5
        assert {str(component.purl) for component in bom.components if component.name == "six"} == {
            "pkg:pypi/six@1.17.0?file_name=six-1.17.0-py3-none-any.whl"
        }
        bom.validate()

    def test_the_same_lock_the_same_bytes_and_another_another(self) -> None:
        assert sbom(LOCK, CONTENTS) == sbom(replace(LOCK), CONTENTS)
        other = document(replace(LOCK, version="2"))
        assert other["serialNumber"] != document()["serialNumber"]
        assert "timestamp" not in json.dumps(other)

    def test_licences_as_they_are_told_and_unknown_where_not(self) -> None:
        found = document()
        assert row(found, "deb:libc6@2.36-9")["licenses"] == [
            {"license": {"id": "GPL-2.0-or-later"}},
            {"license": {"id": "LGPL-2.1-or-later"}},
        ]
        assert row(found, "pypi:torch@2.13.0+cpu")["licenses"] == [{"expression": "BSD-3-Clause"}]
        unknown = [{"license": {"name": "unknown"}}]
        assert row(found, "deb:libgcc-s1@12.2.0")["licenses"] == unknown
        assert row(found, "pypi:horovod@0.28")["licenses"] == unknown

    def test_who_needs_whom(self) -> None:
        found = document()
        assert needs(found, "deb:libc6@2.36-9") == ["deb:libgcc-s1@12.2.0"]
        assert needs(found, "deb:libgcc-s1@12.2.0") == ["deb:libc6@2.36-9"]
        assert needs(found, "pypi:torch@2.13.0+cpu") == ["pypi:six@1.17.0"]
        assert needs(found, "recipe:pytorch") == ["pypi:torch@2.13.0+cpu"]
        assert needs(found, "image:small@1") == ["base:debian-12", "pypi:horovod@0.28", "recipe:pytorch"]

    def test_every_reference_is_somebody(self) -> None:
        found = document()
        refs = {each["bom-ref"] for each in found["components"]} | {"image:small@1"}
        assert {each["ref"] for each in found["dependencies"]} == refs
        assert {ref for each in found["dependencies"] for ref in each["dependsOn"]} <= refs

    def test_what_a_build_used_is_told_apart(self) -> None:
        tool = build_deb(LOCK.base_debs[0], "framework:x")
        cmake = replace(tool, name="cmake", sha256="8" * 64)
        older = wheel("six", "1.17.0", sha256="9" * 64, layer="framework:horovod")
        lock = replace(
            LOCK, build_debs=(tool, cmake, replace(cmake, layer="framework:y")), build_python=(older,)
        )
        found = document(lock)
        assert row(found, "deb:cmake@2.36-9")["scope"] == "excluded"
        assert "scope" not in row(found, "deb:libc6@2.36-9"), "the image holds it, too"
        assert row(found, f"pypi:six@1.17.0#{'9' * 12}")["scope"] == "excluded"

    def test_a_finished_root_is_told_by_its_own_list(self) -> None:
        root = RootPin(kind="tar", file="root.tar", size_bytes=1, sha256="7" * 64)
        found = document(replace(LOCK, base_debs=(), base_root=(root,)))
        assert "hashes" not in row(found, "deb:libc6@2.36-9")
        recorded = {"name": "envbuild:recorded-in", "value": "the root's list of packages"}
        assert recorded in row(found, "deb:libc6@2.36-9")["properties"]
        assert row(found, f"root:{'7' * 64}")["hashes"]
        assert "deb:libc6@2.36-9" in needs(found, "base:debian-12")

    def test_an_image_that_says_nothing(self) -> None:
        found = document(contents=Contents())
        assert all(each["licenses"] == [{"license": {"name": "unknown"}}] for each in found["components"])


class TestScanners:
    """Grype and Trivy choose advisories by distribution, its version and the source package."""

    BASE_FILES = deb("base-files", "12.4+deb12u14")
    SSL = replace(
        deb("libssl3", "3.0.17-1~deb12u3", origin="debian:bookworm-security"),
        file="pool/updates/main/o/openssl/libssl3_3.0.17-1~deb12u3_amd64.deb",
    )

    def test_debian_is_named_as_its_os_release_does(self) -> None:
        found = document(replace(LOCK, base_debs=(self.BASE_FILES, self.SSL)))
        base = row(found, "base:debian-12")
        assert (base["type"], base["name"], base["version"]) == ("operating-system", "debian", "12")
        assert {"name": "envbuild:base", "value": "debian-12"} in base["properties"]
        ssl = row(found, "deb:libssl3@3.0.17-1~deb12u3")
        assert PackageURL.from_string(ssl["purl"]).qualifiers == {
            "arch": "amd64",
            "distro": "debian-12",
            "upstream": "openssl",
        }
        assert {"name": "aquasecurity:trivy:SrcName", "value": "openssl"} in ssl["properties"]
        own = row(found, "deb:base-files@12.4+deb12u14")
        assert "upstream" not in PackageURL.from_string(own["purl"]).qualifiers

    def test_a_base_that_does_not_say_its_version_is_not_guessed(self) -> None:
        base = row(document(), "base:debian-12")
        assert base["name"] == "debian-12"
        assert "version" not in base

    @pytest.mark.parametrize(
        ("file", "source"),
        [
            ("pool/main/libx/libxml2/libgcc-s1_12.2.0_amd64.deb", "libxml2"),
            ("pool/main/g/gcc-12/libgcc-s1_12.2.0_amd64.deb", "gcc-12"),
            ("pool/libgcc-s1_12.2.0_amd64.deb", ""),
        ],
    )
    def test_the_source_package(self, file: str, source: str) -> None:
        pin = replace(deb("libgcc-s1", "12.2.0"), file=file)
        assert PackageURL.from_string(deb_purl(pin)).qualifiers.get("upstream", "") == source


class TestPurl:
    @pytest.mark.parametrize(
        ("name", "version"),
        [("libc6", "2.36-9+deb12u1"), ("g++", "4:12.2.0~rc-3"), ("libstdc++6", "12.2.0-14")],
    )
    def test_debs(self, name: str, version: str) -> None:
        pin = deb(name, version, origin="debian:bookworm-security")
        parsed = PackageURL.from_string(deb_purl(pin))
        assert (parsed.type, parsed.namespace, parsed.name, parsed.version) == (
            "deb",
            "debian",
            name,
            version,
        )
        assert parsed.qualifiers == {"arch": "amd64", "distro": "bookworm-security"}
        assert parsed.to_string() == deb_purl(pin)

    @pytest.mark.parametrize("version", ["1.17.0", "2.13.0+cpu", "1!2.0.post1"])
    def test_wheels(self, version: str) -> None:
        pin = wheel("torch", version)
        parsed = PackageURL.from_string(python_purl(pin.name, pin.version, pin.file))
        assert (parsed.type, parsed.name, parsed.version) == ("pypi", "torch", version)
        assert parsed.qualifiers == {"file_name": pin.file}


class TestPackages:
    def test_the_list_of_packages(self) -> None:
        libc, gcc = installed_debs(STATUS)
        assert libc == InstalledDeb(
            name="libc6",
            version="2.36-9",
            depends=(("libgcc-s1",), ("libcrypt1", "libcrypt2")),
        )
        assert gcc.provides == ("libgcc1",)
        assert gcc.depends == (("gcc-12-base",), ("libc6",))

    @pytest.mark.parametrize(
        ("text", "licences"),
        [
            ("", ()),
            ("This is free software under the GPL.\nLicense: no form of ours\n", ()),
            (
                "see /usr/share/common-licenses/LGPL-2.1 and\n`/usr/share/common-licenses/GPL-2'.\n"
                "in `/usr/share/common-licenses/GPL-2.'",
                ("common-licenses/GPL-2", "common-licenses/LGPL-2.1"),
            ),
            (f"{DEP5}License: Expat\n see /usr/share/common-licenses/GPL-2\n", ("Expat",)),
            (f"{DEP5}Files: *\nLicense: Expat\n text\n\nFiles: x\nLicense:  GPL-2+\n", ("Expat", "GPL-2+")),
            (f"{DEP5}License:\nLicense: {'x' * 200}\n", ()),
        ],
    )
    def test_copyright_files(self, text: str, licences: tuple[str, ...]) -> None:
        assert deb_licences(text) == licences

    @pytest.mark.parametrize(
        ("lines", "licences"),
        [
            ("License-Expression: MIT OR Apache-2.0\nLicense: old", ("=MIT OR Apache-2.0",)),
            ("License: BSD-3-Clause", ("BSD-3-Clause",)),
            ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", ("MIT License",)),
            ("License: a\n        text of\n        many lines\nClassifier: License :: OSI Approved", ()),
            ("", ()),
        ],
    )
    def test_metadata_of_wheels(self, lines: str, licences: tuple[str, ...]) -> None:
        text = f"Metadata-Version: 2.4\nName: Some_Thing\n{lines}\n\nLicense: of the description\n"
        assert wheel_licences(text) == ("some-thing", licences)


class TestImage:
    @pytest.mark.parametrize(
        "spoilt", [b"{", b'{"bomFormat": "\xff"}', b"[" * 100_000], ids=["cut", "byte", "deep"]
    )
    def test_a_damaged_one_in_an_image_is_told(self, tmp_path: Path, spoilt: bytes) -> None:
        """As something else has made it: the image holds what was written."""
        image = small_image(tmp_path, UNREAD, bill=spoilt)
        with pytest.raises(RequestError, match=r"the bill of materials in `small\.sif` is damaged"):
            write_sbom(image, tmp_path / "bill.json")
        assert not (tmp_path / "bill.json").exists()

    def test_one_that_is_not_as_it_was_written_is_not_shown(self, tmp_path: Path) -> None:
        image = small_image(tmp_path, UNREAD, bill=b'{"bomFormat":"CycloneDX"}\n')
        content = image.read_bytes()
        assert content.count(b"CycloneDX") == 1
        image.write_bytes(content.replace(b"CycloneDX", b"CycloneDY"))
        with pytest.raises(RequestError, match=r"`small\.sif` was changed or damaged: .*bill of materials"):
            write_sbom(image, tmp_path / "bill.json")
        assert not (tmp_path / "bill.json").exists()

    def test_its_kind_and_form_in_the_table(self) -> None:
        packed = Descriptor(number=1, kind=Kind.SBOM, offset=4096, size=1, padded_size=1, name=SBOM).pack()
        assert packed[:4] == (0x4009).to_bytes(4, "little")
        # The first of the forms that sif's library knows: CycloneDX as JSON.
        assert packed[-384:] == (1).to_bytes(4, "little").ljust(384, b"\0")
