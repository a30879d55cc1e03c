"""Write a release from the commit that is checked out: wheel, sdist, bill of materials, provenance, bundle.

A release is written from a commit, in two directories, and refused if the bytes differ. The bundle holds
the wheel, the locked wheels of its dependencies for each supported Python, and a script that installs them
without a network; it is tried in empty Debian roots that have no network.

Exit codes: 0 done, 5 the release is refused or this machine lacks something.

Sources: SLSA provenance v1; in-toto Statement v1; CycloneDX 1.6; SOURCE_DATE_EPOCH (reproducible-builds.org).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import common
import manpages
from common import SetupError
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from envbuild import __version__
from envbuild.system.envelopes import Statement
from envbuild.system.keys import PrivateKey

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "requirements" / "run.txt"
INSTALL = ROOT / "setup" / "install.sh"
PACKAGING = ROOT / "packaging"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that the bundle installs under."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
ROOTS = ("bookworm", "trixie")
"""Debian releases in whose empty roots the bundle is tried: the oldest Python, and a newer one."""
BUILD_TYPE = "urn:envbuild:release:v1"
VERSION = __version__
STEM = f"envbuild-{VERSION}"

# What a user needs of an installation, tried in a root without network.
_TRIAL = f"""\
set -eu
cd /root
tar xf {STEM}-bundle.tar.gz
sh {STEM}-bundle/install.sh /opt/envbuild
test "$(/opt/envbuild/bin/envbuild --version)" = "envbuild {__version__}"
/opt/envbuild/bin/envbuild recipes ls | grep -q pytorch
/opt/envbuild/bin/envbuild site ls | grep -q lumi
printf 'packages:\\n  numpy: "1.26.4"\\n' > facts.yaml
/opt/envbuild/bin/envbuild explain --facts facts.yaml >/dev/null
test -s /opt/envbuild/share/man/man1/envbuild-build.1
{STEM}-bundle/pilot.sh -h | grep -q pilot.sh
"""


def main() -> None:
    """Write the release below a directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--key", type=Path, metavar="PEM", help="sign the provenance")
    options = parser.parse_args()
    os.umask(0o022)
    commit, epoch = _commit()
    with tempfile.TemporaryDirectory(prefix="envbuild-release-") as name:
        work = Path(name)
        files = _distributions(work, commit, epoch)
        check_contents(next(path for path in files if path.suffix == ".whl"))
        wheels = _locked_wheels(work / "wheels")
        files.append(_bundle(work, files, wheels, epoch))
        files.append(_bill(work, wheels))
        files += packaging(work, files)
        files += _provenance(work, files, commit, options.key)
        _try(work, files)
        sums = "".join(f"{sha256_of(path)}  {path.name}\n" for path in sorted(files))
        (work / "SHA256SUMS").write_text(sums)
        shutil.rmtree(options.output, ignore_errors=True)
        options.output.mkdir(parents=True)
        for path in (*sorted(files), work / "SHA256SUMS"):
            shutil.copyfile(path, options.output / path.name)
            print(f"release: {options.output / path.name} ({path.stat().st_size / 1e6:.1f} MB)")


def _commit() -> tuple[str, int]:
    """Return the commit that is checked out, and its time (seconds since 1970); SetupError: files differ."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise SetupError(
            f"{len(changed)} files differ from the commit, among them `{changed[0][3:]}`",
            "a release is made from a commit: commit the changes, or use a fresh clone",
        )
    commit, epoch = _git("log", "-1", "--format=%H %ct").split()
    return commit, int(epoch)


def _git(*words: str) -> str:
    done = common.capture(["git", "-C", str(ROOT), *words])
    if done.returncode != 0:
        raise SetupError(f"`git {' '.join(words)}` failed: {done.stderr.strip()}", "run this in a clone")
    return done.stdout


def _distributions(work: Path, commit: str, epoch: int) -> list[Path]:
    """Build wheel and sdist of a commit twice, in two directories; SetupError: the bytes differ."""
    built: list[dict[str, Path]] = []
    for directory in (work / "a", work / "b-with-another-name"):
        (directory / "source").mkdir(parents=True)
        archive = str(directory / "source.tar")
        common.run(["git", "-C", str(ROOT), "archive", "-o", archive, commit])
        common.run(["tar", "-x", "-f", archive, "-C", str(directory / "source")])
        environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        words = [sys.executable, "-m", "hatchling", "build", "-d", str(directory / "dist")]
        common.run(words, env=environ, cwd=str(directory / "source"))
        built.append({path.name: path for path in (directory / "dist").iterdir()})
    first, second = built
    differing = [name for name in first if first[name].read_bytes() != second[name].read_bytes()]
    if differing or first.keys() != second.keys():
        raise SetupError(f"two builds of one commit differ: {', '.join(differing or first.keys())}")
    return [first[name] for name in sorted(first)]


def check_contents(wheel: Path) -> None:
    """Refuse a wheel without a man page, a completion script, or data that envbuild needs."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    data = f"{STEM}.data/data/share"
    needed = [f"{data}/man/man1/{name}" for name in manpages.pages()]
    needed += [f"{data}/{path}" for path in manpages.COMPLETIONS.values()]
    needed += ["envbuild/data/recipes/pytorch/recipe.yaml", "envbuild/data/docs/schemas/spec.json"]
    absent = sorted(set(needed).difference(names))
    if absent:
        raise SetupError(f"the wheel lacks {', '.join(absent)}", "`make man` writes pages and completions")


def _locked_wheels(directory: Path) -> list[Path]:
    """Fetch the locked wheels of all dependencies, for all supported Pythons; digests are checked."""
    for python in PYTHONS:
        words = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        words += ["--only-binary", ":all:", "--require-hashes", "-r", str(RUN), "-d", str(directory)]
        words += ["--python-version", python, "--implementation", "cp"]
        for platform in PLATFORMS:
            words += ["--platform", platform]
        common.run(words)
    return sorted(directory.iterdir())


def _bundle(work: Path, distributions: Sequence[Path], wheels: Sequence[Path], epoch: int) -> Path:
    """Write the archive with all that an installation without a network needs."""
    wheel = next(path for path in distributions if path.suffix == ".whl")
    requirements = f"{RUN.read_text()}envbuild=={__version__} \\\n    --hash=sha256:{sha256_of(wheel)}\n"
    contents = {
        "install.sh": (INSTALL.read_bytes(), 0o755),
        "requirements.txt": (requirements.encode(), 0o644),
        "pilot.sh": ((ROOT / "examples/pilot.sh").read_bytes(), 0o755),
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        **{f"wheels/{path.name}": (path.read_bytes(), 0o644) for path in (wheel, *wheels)},
    }
    bundle = work / f"{STEM}-bundle.tar.gz"
    with (
        bundle.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, (content, mode) in sorted(contents.items()):
            member = tarfile.TarInfo(f"{STEM}-bundle/{name}")
            member.size, member.mode, member.mtime = len(content), mode, epoch
            archive.addfile(member, io.BytesIO(content))
    return bundle


def packaging(work: Path, files: Sequence[Path]) -> list[Path]:
    """Write the files by which RPM, EasyBuild and Spack install the bundle."""
    bundle = next(path for path in files if path.name.endswith("-bundle.tar.gz"))
    written: list[Path] = []
    for template in sorted(PACKAGING.iterdir()):
        text = template.read_text().replace("@VERSION@", __version__)
        path = work / template.name.replace("@VERSION@", __version__)
        path.write_text(text.replace("@BUNDLE_SHA256@", sha256_of(bundle)))
        written.append(path)
    return written


def _bill(work: Path, wheels: Iterable[Path]) -> Path:
    """Write the bill of materials of the tool itself: each locked dependency, with licence and digests."""
    licences = LicenseFactory()
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"envbuild:{__version__}:{sha256_of(RUN)}"))
    bom.metadata.component = Component(
        name="envbuild",
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref="envbuild",
        licenses=[licences.make_from_string("Apache-2.0")],
    )
    components: dict[str, Component] = {}
    for path in wheels:
        metadata = _metadata(path)
        name, version = re.sub(r"[-_.]+", "-", metadata["Name"]).lower(), metadata["Version"]
        component = components.setdefault(
            name,
            Component(
                name=name,
                version=version,
                type=ComponentType.LIBRARY,
                bom_ref=f"pypi:{name}",
                purl=PackageURL("pypi", name=name, version=version),
                licenses=[licences.make_from_string(_licence(metadata))],
            ),
        )
        component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=sha256_of(path)))
    bom.components.update(components.values())
    bom.register_dependency(bom.metadata.component, components.values())
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # Of the moment in which it was written, which nothing follows from.
    document["metadata"].pop("timestamp", None)
    bill = work / f"{STEM}.cdx.json"
    bill.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return bill


def _metadata(wheel: Path) -> Any:  # noqa: ANN401  # a message of the standard library
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return HeaderParser().parsestr(archive.read(name).decode())


def _licence(metadata: Any) -> str:  # noqa: ANN401  # as above
    """Return the licence that a wheel declares: by expression, by classifiers, or in words."""
    if metadata["License-Expression"]:
        return str(metadata["License-Expression"])
    classified = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier", [])
        if text.startswith("License :: ")
    ]
    in_words = (metadata["License"] or "").strip().splitlines()
    named = classified[:1] or in_words[:1]
    if not named:
        raise SetupError(f"the wheel of {metadata['Name']} declares no licence")
    return str(named[0])


def _provenance(work: Path, files: Sequence[Path], commit: str, key: Path | None) -> list[Path]:
    """Write the statement on how the files were made; signed if there is a key."""
    statement = Statement(
        subjects={path.name: sha256_of(path) for path in sorted(files)},
        predicate_type="https://slsa.dev/provenance/v1",
        predicate={
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": __version__},
                "resolvedDependencies": [
                    {"name": "envbuild", "digest": {"gitCommit": commit}},
                    {"name": "requirements/run.txt", "digest": {"sha256": sha256_of(RUN)}},
                ],
            },
            "runDetails": {"builder": {"id": "urn:envbuild:make-release"}},
        },
    )
    plain = work / f"{STEM}.provenance.json"
    plain.write_text(statement.text() + "\n")
    if key is None:
        return [plain]
    signed = work / f"{STEM}.provenance.intoto.jsonl"
    signed.write_bytes(statement.signed(PrivateKey.read(key)) + b"\n")
    return [plain, signed]


def _try(work: Path, files: Sequence[Path]) -> None:
    """Install the bundle in empty Debian roots without a network, and use it; SetupError: that fails."""
    trial = work / "trial"
    trial.mkdir()
    bundle = next(path for path in files if path.name.endswith("-bundle.tar.gz"))
    shutil.copyfile(bundle, trial / bundle.name)
    (trial / "try.sh").write_text(_TRIAL)
    for suite in ROOTS:
        print(f"release: trying the bundle in an empty root of {suite}, without a network", flush=True)
        words = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", "--format=null"]
        words += [f"--customize-hook=copy-in {trial / bundle.name} {trial / 'try.sh'} /root"]
        words += ['--customize-hook=chroot "$1" unshare --net sh /root/try.sh']
        common.run([*words, suite, "-"])


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
