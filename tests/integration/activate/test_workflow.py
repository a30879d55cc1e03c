"""`install_module`: verdict, site and store are found and used."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.check import verdicts
from envbuild.check.findings import Finding
from envbuild.check.report import Report
from envbuild.errors import EnvbuildError, ManyErrors, RequestError
from envbuild.events import Event, Warned
from envbuild.image.sif import read_manifest, read_sif
from envbuild.store.store import Store
from envbuild.system.apptainer import find
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows.module import install_module
from envbuild.workflows.settings import Settings


@pytest.fixture
def events():
    return []


@pytest.fixture
def settings(place, events, monkeypatch):
    # No site of this machine's own.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.path / "config"))
    return Settings(store=Store(place.path / "store"), emit=events.append)


def report_of(image: Path, status: str, here: HostFingerprint) -> Report:
    manifest = read_manifest(image)
    return Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=2,
        findings=(Finding(status, "D0/job", "1", "1", ""),),
        outputs={},
        fingerprint=here.digest,
        facts=here.facts,
        when="2026-11-20T10:00:00Z",
        seconds=1.0,
    )


def warnings(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


def test_an_image_that_was_never_tested_is_warned_of(images, place, settings, events):
    installed = install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings)
    assert place.run(installed.home / "bin/tool", "x").stdout == "tool of 1.0: x\n"
    assert warnings(events) == ["test verdict: absent: this image was never tested here"]


@pytest.mark.parametrize(("status", "word", "count"), [("PASS", "passed", 0), ("FAIL", "FAILED", 1)])
def test_the_last_verdict_is_found(images, place, settings, events, status, word, count):
    verdicts.record(settings.store.root, report_of(images["1.0"], status, fingerprint(find())))
    installed = install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings)
    assert f"Tested:   {word} (2026-11-20T10:00:00Z, 2 ranks, host " in installed.modulefile.read_text()
    assert len(warnings(events)) == count


def test_the_verdict_of_another_host_is_stale(images, place, settings, events):
    here = fingerprint(find())
    other = replace(here, facts={**here.facts, "kernel": "5.14"})
    verdicts.record(settings.store.root, report_of(images["1.0"], "PASS", other))
    installed = install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings)
    text = installed.modulefile.read_text()
    assert "stale: tested on another host, or before this one changed (passed there: " in text
    assert "kernel: 5.14 there, " in text
    assert len(warnings(events)) == 1


def test_a_thin_one_takes_its_parts_from_the_image_into_the_store(images, place, settings):
    installed = install_module(images["1.0"], root=place.path / "sw", thin=True, settings=settings)
    blobs = [path for path in (place.path / "store/blobs").rglob("*") if path.is_file()]
    assert sorted(path.name for path in blobs) == sorted(
        part.digest[7:] for part in read_manifest(images["1.0"]).parts
    )
    assert place.run(installed.home / "bin/cat", "/opt/env/layer").stdout == "upper\n"
    assert not install_module(images["1.0"], root=place.path / "sw", thin=True, settings=settings).changed


@pytest.mark.parametrize("named", [True, False])
def test_the_sites_binds_are_used(images, place, settings, named):
    data = place.directory("data")
    text = f"name: here\nbinds: [{{source: {data}, target: /data, writable: true}}]\n"
    site = place.path / ("here.yaml" if named else "config/envbuild/site.yaml")
    site.parent.mkdir(parents=True, exist_ok=True)
    site.write_text(text)
    if named:
        settings = Settings(store=settings.store, site=site)
    installed = install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings)
    place.run(installed.home / "bin/bash", "-c", "echo x >/data/file")
    assert [path.name for path in data.iterdir()] == ["file"]


def test_a_file_that_is_no_image_leaves_nothing(place, settings):
    (place.path / "x.sif").write_text("no image")
    with pytest.raises(EnvbuildError) as caught:
        install_module(place.path / "x.sif", root=place.path / "sw", thin=False, settings=settings)
    assert caught.value.exit_code == 2
    assert not (place.path / "sw").exists()


def damaged(image: Path, place: Path, *parts: int) -> Path:
    """Copy an image, with one byte in the middle of some of its parts changed."""
    data = bytearray(image.read_bytes())
    partitions = read_sif(image).partitions
    for index in parts:
        data[partitions[index].offset + partitions[index].size // 2] ^= 1
    copy = place / "damaged.sif"
    copy.write_bytes(data)
    return copy


@pytest.mark.parametrize("thin", [False, True])
def test_a_damaged_image_is_not_installed_under_the_verdict_of_the_good_one(images, place, settings, thin):
    verdicts.record(settings.store.root, report_of(images["1.0"], "PASS", fingerprint(find())))
    image = damaged(images["1.0"], place.path, 1)
    with pytest.raises(RequestError, match=r"the part `python` of the image is damaged: .* is sha256:"):
        install_module(image, root=place.path / "sw", thin=thin, settings=settings)
    assert not (place.path / "sw").exists()
    assert not (settings.store.root / "blobs").exists()


def test_every_damaged_part_is_named(images, place, settings):
    with pytest.raises(ManyErrors) as caught:
        install_module(
            damaged(images["1.0"], place.path, 0, 2), root=place.path / "sw", thin=False, settings=settings
        )
    names = [error.problem.split("`")[1] for error in caught.value.errors]
    assert names == ["base", "metadata"]


def test_a_damaged_installation_is_mended(images, place, settings):
    installed = install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings)
    copy = installed.home / "image.sif"
    copy.write_bytes(damaged(images["1.0"], place.path, 1).read_bytes())
    assert install_module(images["1.0"], root=place.path / "sw", thin=False, settings=settings).changed
    assert copy.read_bytes() == images["1.0"].read_bytes()


def test_a_damaged_part_of_the_store_is_taken_again(images, place, settings):
    install_module(images["1.0"], root=place.path / "sw", thin=True, settings=settings)
    part = read_manifest(images["1.0"]).parts[1]
    blob = settings.store.blob_path(part.digest)
    good = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    install_module(images["1.0"], root=place.path / "sw", thin=True, settings=settings)
    assert blob.read_bytes() == good


@pytest.mark.parametrize(("setting", "warned"), [("no", True), ("yes", False), ("driver", False)])
def test_a_machine_without_overlay_is_warned_of(images, place, settings, events, setting, warned):
    conf = place.path / "apptainer.conf"
    conf.write_text(f"# enable overlay = no\nenable overlay = {setting}\n")
    stand_in = place.path / "apptainer"
    stand_in.write_text(
        f"#!/bin/sh\ncase $1 in\n--version) echo apptainer version 1.4.5 ;;\n"
        f"buildcfg) echo SYSCONFDIR=/etc; echo APPTAINER_CONF_FILE={conf} ;;\nesac\n"
    )
    stand_in.chmod(0o755)
    chosen = replace(settings, apptainer=stand_in)
    installed = install_module(images["1.0"], root=place.path / "sw", thin=True, settings=chosen)
    assert any("`enable overlay = no`" in text for text in warnings(events)) == warned
    assert any("--flat" in text for text in installed.warnings) == warned
