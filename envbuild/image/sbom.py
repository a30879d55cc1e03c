"""The software bill of materials of an image, as CycloneDX 1.6.

It follows from the lock and the image's packages alone, so that the same lock gives the same bytes: no time,
no random serial number. The tests validate it with CycloneDX's official library.

Source: CycloneDX 1.6 (ECMA-424); the package URL specification, types deb, pypi and generic.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from envbuild.digests import canonical_json
from envbuild.image.extension import ExtensionNote
from envbuild.image.packages import Contents, InstalledDeb
from envbuild.lock.model import DebPin, Lock, PythonPin, RecipePin
from envbuild.lock.text import dump

SPEC_VERSION = "1.6"

# Debian's short names (copyright-format 1.0, 7.2) → SPDX; other licences keep their name.
_SPDX = {
    "Apache-2.0": "Apache-2.0",
    "Artistic-2.0": "Artistic-2.0",
    "BSD-2-clause": "BSD-2-Clause",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD-3-clause": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "BSL-1.0": "BSL-1.0",
    "CC0-1.0": "CC0-1.0",
    "Expat": "MIT",
    "GPL-1+": "GPL-1.0-or-later",
    "GPL-2": "GPL-2.0-only",
    "GPL-2+": "GPL-2.0-or-later",
    "GPL-2.0+": "GPL-2.0-or-later",
    "GPL-3": "GPL-3.0-only",
    "GPL-3+": "GPL-3.0-or-later",
    "GPL-3.0+": "GPL-3.0-or-later",
    "ISC": "ISC",
    "LGPL-2": "LGPL-2.0-only",
    "LGPL-2+": "LGPL-2.0-or-later",
    "LGPL-2.1": "LGPL-2.1-only",
    "LGPL-2.1+": "LGPL-2.1-or-later",
    "LGPL-3": "LGPL-3.0-only",
    "LGPL-3+": "LGPL-3.0-or-later",
    "MIT": "MIT",
    "MPL-1.1": "MPL-1.1",
    "MPL-2.0": "MPL-2.0",
    "Zlib": "Zlib",
}

_Row = dict[str, Any]


def sbom(lock: Lock, contents: Contents, *, imported: Sequence[str] = ()) -> bytes:
    """Return an image's bill of materials: canonical JSON, one line.

    Components are the base, every .deb, wheel and source archive, the files of an imported root, and the
    recipes. Packages used only to build from source have the scope ``excluded``. An undeclared licence is
    ``unknown``. `imported` names the layers of untrusted accounts.
    """
    rows = _components(lock, contents)
    image = f"image:{lock.name}@{lock.version}"
    digest = hashlib.sha256(dump(lock).encode()).hexdigest()
    needs = _dependencies(lock, contents, rows)
    needs[image] = _direct(lock, rows)
    properties = {
        "lock": f"sha256:{digest}",
        "accelerator": lock.accelerator,
        "imported-layers": ", ".join(imported),
    }
    component = {"name": lock.name, "version": lock.version, "properties": _properties(properties)}
    tools = [
        {"name": tool.name, "version": tool.version, "hashes": _hashes(tool.digest)} for tool in lock.tools
    ]
    return _document(image, component, digest, rows, needs, tools=tools)


def sbom_of_additions(note: ExtensionNote) -> bytes:
    """Return the bill of materials of what was added to an image of another tool: JSON, canonical, one line.

    The image that it was added to is one component; what is in that is not known.
    """
    first = note.extensions[0]
    digest = hashlib.sha256(note.to_json().encode()).hexdigest()
    image = f"image:{digest}"
    of_tables = {"digest-of": "the tables of its file system"}
    rows = {f"base:{first.image}": _row("container", first.image, sha256=first.digest, properties=of_tables)}
    for package in note.packages.values():
        rows[f"pypi:{package.name}@{package.version}"] = _row(
            "library",
            package.name,
            version=package.version,
            purl=python_purl(package.name, package.version, package.file),
            sha256=package.sha256,
            properties={"file": package.file, "form": "wheel", "origin": package.origin},
        )
    for file in note.requests.files:
        rows[f"file:{file.target}"] = _row("file", file.target, sha256=file.sha256)
    return _document(image, {"name": first.image}, digest, rows, {image: [*rows]})


def _document(
    image: str,
    component: _Row,
    digest: str,
    rows: Mapping[str, _Row],
    needs: Mapping[str, Sequence[str]],
    *,
    tools: Sequence[_Row] = (),
) -> bytes:
    """Return the text of a bill: an image, its components by their refs, and which need which.

    `digest` is that of what the bill follows from.
    """
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        # Of version 5, as the schema requires.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'envbuild:sbom:sha256:{digest}')}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [{"type": "application", **tool} for tool in ({"name": "envbuild"}, *tools)]
            },
            "component": {"type": "container", "bom-ref": image, **component},
        },
        "components": [{**rows[ref], "bom-ref": ref} for ref in sorted(rows)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(needs[ref]))} for ref in sorted(needs)],
    }
    return (canonical_json(document) + "\n").encode()


def _row(
    kind: str,
    name: str,
    *,
    version: str = "",
    purl: str = "",
    sha256: str = "",
    licences: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> _Row:
    """Return a component; keys without a value are left out."""
    row = {
        "version": version,
        "purl": purl,
        "hashes": _hashes(sha256) if sha256 else [],
        "properties": _properties(properties or {}),
    }
    kept = {key: value for key, value in row.items() if value}
    return {"type": kind, "name": name, "licenses": _licences(licences), **kept}


def deb_purl(pin: DebPin, release: str = "") -> str:
    """Return the package URL of a Debian package, as scanners read it.

    `release` is the distribution with its version (``debian-12``), else the suite is named. `upstream` is the
    source package, which advisories name.
    """
    distribution, _, suite = pin.origin.partition(":")
    qualifiers = {"arch": pin.architecture, "distro": release or suite}
    if (source := _source_of(pin)) not in ("", pin.name):
        qualifiers["upstream"] = source
    named = "&".join(f"{key}={quote(value)}" for key, value in qualifiers.items() if value)
    version = quote(pin.version, safe=":~")
    return f"pkg:deb/{quote(distribution.lower())}/{quote(pin.name, safe='')}@{version}?{named}"


def _source_of(pin: DebPin) -> str:
    """Return the source package by the path of a file in Debian's pool (``pool/main/o/openssl/…``)."""
    match = re.match(r"pool/(?:.+/)?(?:lib)?[^/]/([^/]+)/[^/]+$", pin.file)
    return match[1] if match else ""


def _release(lock: Lock) -> tuple[str, str]:
    """Return distribution and version of the base, as its os-release names them; empty if they are unknown.

    Of Debian the version is that of base-files, which has the release in front (``12.4+deb12u14``).
    """
    if lock.base_image is not None:
        return lock.base_image.distribution, lock.base_image.version
    files = next((pin for pin in lock.base_debs if pin.name == "base-files"), None)
    number = re.match(r"[0-9]+", files.version) if files and files.origin.startswith("debian:") else None
    return ("debian", number[0]) if number else ("", "")


def python_purl(name: str, version: str, file: str) -> str:
    """Return the package URL of a Python distribution; the file name distinguishes its builds."""
    return f"pkg:pypi/{quote(name)}@{quote(version, safe='')}?file_name={quote(file, safe='')}"


def _components(lock: Lock, contents: Contents) -> dict[str, _Row]:
    properties = {
        "architecture": lock.architecture,
        "glibc": lock.base.glibc,
        "python": lock.base.python,
        "digest-of": "the definition of the base image",
    }
    if lock.base_image is not None:
        properties |= {"image": lock.base_image.image, "manifest": lock.base_image.digest}
    # Scanners choose their advisories by these two.
    distribution, version = _release(lock)
    properties |= {"base": lock.base.name if distribution else ""}
    base = _row(
        "operating-system",
        distribution or lock.base.name,
        version=version,
        sha256=lock.base.digest,
        properties=properties,
    )
    release = f"{distribution}-{version}" if distribution == "debian" else ""
    rows = {f"base:{lock.base.name}": base}
    for recipe in lock.recipes:
        properties = {
            "kind": recipe.kind,
            "variant": recipe.variant,
            "digest-of": "the recipe and its files",
        }
        rows[_recipe(recipe)] = _row(
            "data", recipe.name, version=recipe.version, sha256=recipe.digest, properties=properties
        )
    for root in lock.base_root:
        properties = {"kind": root.kind, "layer": "base"}
        rows[f"root:{root.sha256}"] = _row("file", root.file, sha256=root.sha256, properties=properties)
    pinned: dict[str, DebPin | PythonPin] = {}
    for layer, pins in (("base", lock.base_debs), ("system", lock.system_debs)):
        for deb in pins:
            rows[_deb(deb)] = _deb_row(deb, contents, layer, release)
            pinned[_deb(deb)] = deb
    for wheel in lock.python:
        rows[_wheel(wheel)] = _python_row(wheel, contents)
        pinned[_wheel(wheel)] = wheel
    # Packages of an imported root are known by name, without their files.
    for installed in contents.debs.values() if lock.base_root else ():
        row = _row(
            "library",
            installed.name,
            version=installed.version,
            licences=contents.deb_licences.get(installed.name, ()),
            properties={"layer": "base", "recorded-in": "the root's list of packages"},
        )
        rows.setdefault(f"deb:{installed.name}@{installed.version}", row)
    for build_deb in lock.build_debs:
        row = _deb_row(build_deb, contents, build_deb.layer, release)
        _add_used(rows, pinned, _deb(build_deb), build_deb, row)
    for build_wheel in lock.build_python:
        _add_used(rows, pinned, _wheel(build_wheel), build_wheel, _python_row(build_wheel, contents))
    return rows


def _add_used(
    rows: dict[str, _Row],
    pinned: Mapping[str, DebPin | PythonPin],
    ref: str,
    used: DebPin | PythonPin,
    row: _Row,
) -> None:
    """Add a package that builds used: once for several builds, and not if the image holds the same file."""
    if ref in rows and (ref not in pinned or pinned[ref].sha256 != used.sha256):
        ref += f"#{used.sha256[:12]}"
    rows.setdefault(ref, {**row, "scope": "excluded"})


def _deb_row(pin: DebPin, contents: Contents, layer: str, release: str) -> _Row:
    row = _row(
        "library",
        pin.name,
        version=pin.version,
        purl=deb_purl(pin, release),
        sha256=pin.sha256,
        licences=contents.deb_licences.get(pin.name, ()),
        properties={"file": pin.file_name, "layer": layer, "origin": pin.origin},
    )
    if source := _source_of(pin):
        # Trivy reads no `upstream` of a purl.
        row["properties"] = [*row["properties"], {"name": "aquasecurity:trivy:SrcName", "value": source}]
    return row


def _python_row(pin: PythonPin, contents: Contents) -> _Row:
    form = "wheel" if pin.is_wheel else "source archive"
    return _row(
        "library",
        pin.name,
        version=pin.version,
        purl=python_purl(pin.name, pin.version, pin.file),
        sha256=pin.sha256,
        licences=contents.wheel_licences.get(pin.name, ()),
        properties={"file": pin.file, "form": form, "layer": pin.layer, "origin": pin.origin},
    )


def _dependencies(lock: Lock, contents: Contents, rows: Mapping[str, _Row]) -> dict[str, list[str]]:
    """Return the dependencies that the packages declare: ref → refs."""
    needs: dict[str, list[str]] = {ref: [] for ref in rows}
    refs = {pin.name: _deb(pin) for pin in (*lock.base_debs, *lock.system_debs)}
    if lock.base_root:
        refs |= {deb.name: f"deb:{deb.name}@{deb.version}" for deb in contents.debs.values()}
    offered = dict(refs)
    for deb in contents.debs.values():
        for name in deb.provides:
            if deb.name in refs:
                offered.setdefault(name, refs[deb.name])
    for name, ref in refs.items():
        if name in contents.debs:
            needs[ref] += _deb_needs(contents.debs[name], offered)
    wheels = {pin.name: _wheel(pin) for pin in lock.python}
    for pin in lock.python:
        needs[_wheel(pin)] += [wheels[name] for name in pin.requires if name in wheels]
    for recipe in lock.recipes:
        owned = "mpi" if recipe.kind == "mpi" else f"{recipe.kind}:{recipe.name}"
        needs[_recipe(recipe)] += [_wheel(pin) for pin in lock.python if pin.layer == owned]
    base = f"base:{lock.base.name}"
    needs[base] += [_deb(pin) for pin in lock.base_debs]
    needs[base] += [ref for ref in rows if ref.startswith("root:")]
    if lock.base_root:
        needs[base] += list(refs.values())
    return needs


def _deb_needs(deb: InstalledDeb, offered: Mapping[str, str]) -> list[str]:
    """Return the first available package of each group of alternatives."""
    refs = (next((offered[name] for name in group if name in offered), None) for group in deb.depends)
    return [ref for ref in refs if ref is not None]


def _direct(lock: Lock, rows: Mapping[str, _Row]) -> list[str]:
    """Return the components of an image that no other component depends on."""
    resolved = {name for pin in lock.python for name in pin.requires if name != pin.name}
    direct = [f"base:{lock.base.name}", *(_recipe(recipe) for recipe in lock.recipes)]
    direct += [_wheel(pin) for pin in lock.python if pin.layer == "python" and pin.name not in resolved]
    direct += [_deb(pin) for pin in lock.system_debs]
    return [ref for ref in direct if ref in rows]


def _deb(pin: DebPin) -> str:
    return f"deb:{pin.name}@{pin.version}"


def _wheel(pin: PythonPin) -> str:
    return f"pypi:{pin.name}@{pin.version}"


def _recipe(pin: RecipePin) -> str:
    return f"recipe:{pin.name}"


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256.removeprefix("sha256:")}]


def _licences(names: Sequence[str]) -> list[_Row]:
    if len(names) == 1 and names[0].startswith("="):
        return [{"expression": names[0].removeprefix("=")}]
    # Two names of one licence count once.
    unique = sorted({_SPDX.get(name, name): name for name in names}.values())
    return [{"license": {"id": _SPDX[name]} if name in _SPDX else {"name": name}} for name in unique] or [
        {"license": {"name": "unknown"}}
    ]


def _properties(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"envbuild:{name}", "value": text} for name, text in sorted(facts.items()) if text]
