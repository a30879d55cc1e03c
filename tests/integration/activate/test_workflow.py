"""`install_module`: verdict, site and store are found and used."""

import grp
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.activate.install import InstallResult
from envbuild.errors import CheckError, EnvbuildError, RequestError
from envbuild.events import Event, Warned
from envbuild.jobs.report import CheckResult
from envbuild.preflight import scan
from envbuild.store import verdicts
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system.apptainer import find
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows import module
from envbuild.workflows import status as status_workflow
from envbuild.workflows.images import named_images
from envbuild.workflows.inspect import inspect_image
from envbuild.workflows.module import InstallRequest, ListedModule, list_modules
from envbuild.workflows.settings import Settings
from envbuild.workflows.status import Status
from tests.integration.activate.conftest import TOOLS_OF_IMAGE, Place
from tests.support.images import read_manifest, read_sif
from tests.support.small_images import BASE, small_image

Envbuild = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def events():
    return []


@pytest.fixture
def settings(place, events, monkeypatch):
    # No site of this machine's own.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.path / "config"))
    return Settings(store=Store(place.path / "store"), emit=events.append)


def image_statuses(images: Sequence[Path], settings: Settings) -> list[Status]:
    return [
        member.get() for member in status_workflow.statuses(named_images(settings, images), settings).items
    ]


def module_statuses(root: Path, names: Sequence[str], settings: Settings) -> list[Status]:
    words = [Path(name) for name in names]
    named = named_images(settings, words, root=root) if words else named_images(settings, every=[root])
    return [member.get() for member in status_workflow.statuses(named, settings).items]


def report_of(image: Path, status: str, here: HostFingerprint) -> Report:
    manifest = read_manifest(image)
    return Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=2,
        checks=(CheckResult(status, "demo.sum/ranks", "1", "1", ""),),
        outputs={},
        fingerprint=here.digest,
        facts=here.facts,
        when="2026-11-20T10:00:00Z",
        seconds=1.0,
    )


def install_module(image: Path, *, settings: Settings, **options: Any) -> InstallResult:
    request = InstallRequest(image=image, **{"commands": TOOLS_OF_IMAGE, **options})
    return module.install_module(request, settings)


def warnings(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


def test_an_image_that_was_never_tested_is_warned_of(images, place, settings, events):
    installed = install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    assert place.run(installed.layout.home / "bin/tool", "x").stdout == "tool of 1.0: x\n"
    assert warnings(events) == ["test verdict: UNTESTED (never tested here)"]


def test_who_can_write_to_the_root(images, place, settings, events):
    root = place.path / "sw"
    root.mkdir()
    root.chmod(0o2775)
    group = grp.getgrgid(root.stat().st_gid).gr_name
    install_module(images["1.0"], root=root, link=False, settings=settings)
    assert f"the group `{group}` can write to `{root}`" in warnings(events)[0]
    root.chmod(0o777)
    with pytest.raises(RequestError, match="everybody can write to"):
        install_module(images["1.0"], root=root, link=False, settings=settings)


@pytest.mark.parametrize(("status", "word", "count"), [("PASS", "PASS", 0), ("FAIL", "FAIL", 1)])
def test_the_last_verdict_is_found(images, place, settings, events, status, word, count):
    verdicts.record(settings.store, report_of(images["1.0"], status, fingerprint(find())))
    installed = install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    (shown,) = listed(place, settings).values()
    assert shown.word == word
    assert shown.text.startswith("2026-11-20T10:00:00Z, 2 ranks, host fingerprint ")
    assert installed.layout.modulefile.read_text().count(word) == 0
    assert len(warnings(events)) == count


def test_the_verdict_of_another_host_is_stale(images, place, settings, events):
    here = fingerprint(find())
    other = replace(here, facts={**here.facts, "kernel": "5.14"})
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", other))
    install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    (text,) = warnings(events)
    assert "STALE (passed on another host, or before this one changed: " in text
    assert "kernel: 5.14 there, " in text


def statuses(settings: Settings, *images: Path) -> list[tuple[str, str, str]]:
    return [(status.state, status.name, status.text) for status in image_statuses(images, settings)]


def test_status_follows_the_tests_and_the_host(images, place, settings):
    image = images["1.0"]
    assert statuses(settings, image) == [("absent", "small/1.0", "never tested here: run `envbuild test`")]
    here = fingerprint(find())
    other = replace(here, facts={**here.facts, "kernel": "5.14"})
    verdicts.record(settings.store, report_of(image, "PASS", other))
    ((state, _, text),) = statuses(settings, image)
    assert state == "stale"
    assert "kernel: 5.14 there, " in text
    verdicts.record(settings.store, report_of(image, "FAIL", here))
    ((state, _, text),) = statuses(settings, image)
    assert (state, "failed: demo.sum/ranks" in text) == ("failed", True)
    verdicts.record(settings.store, report_of(image, "PASS", here))
    assert statuses(settings, image)[0][0] == "passed"
    root = place.path / "sw"
    install_module(image, root=root, link=False, settings=settings)
    install_module(images["2.0"], root=root, link=False, settings=settings)
    states = {module.name: module.state for module in module_statuses(root, (), settings)}
    assert states == {"small/1.0": "passed", "small/2.0": "absent"}
    assert [module.name for module in module_statuses(root, ["small/1.0"], settings)] == ["small/1.0"]
    with pytest.raises(RequestError, match="no module `other` is installed"):
        module_statuses(root, ["small", "other"], settings)


def test_the_pass_of_an_image_whose_bytes_changed_does_not_count(images, place, settings):
    image = place.directory("changing") / "small.sif"
    shutil.copy(images["1.0"], image)
    verdicts.record(settings.store, report_of(image, "PASS", settings.this_host()))
    assert statuses(settings, image)[0][0] == "passed"
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + root.size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    ((state, _, text),) = statuses(settings, image)
    assert state == "changed"
    assert "its test does not count: layer" in text
    shutil.copy(images["1.0"], image)
    assert statuses(settings, image)[0][0] == "passed"


def test_users_see_the_verdict_of_the_account_that_installed(images, place, settings):
    """Their stores have none; on another host, and of another image, it does not count for them either."""
    theirs = Settings(store=Store(place.path / "theirs"), emit=settings.emit)
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", settings.this_host()))
    verdicts.record(settings.store, report_of(images["2.0"], "FAIL", settings.this_host()))
    for version in ("1.0", "2.0"):
        installed = install_module(images[version], root=place.path / "sw", link=False, settings=settings)
    assert {name: item.word for name, item in listed(place, theirs).items()} == {
        "small/1.0": "PASS",
        "small/2.0": "FAIL",
    }
    # That of another image proves nothing of this one.
    failed = installed.layout.home / "verdict.json"
    failed.write_bytes((failed.parents[1] / "1.0/verdict.json").read_bytes())
    assert listed(place, theirs)["small/2.0"].word == "UNTESTED"


def _another_image(image: Path, images: dict[str, Path]) -> None:
    shutil.copy(images["2.0"], image)


def _another_byte(image: Path, images: dict[str, Path]) -> None:
    before = image.stat()
    root = read_sif(image).root
    assert root is not None
    with image.open("r+b") as file:
        file.seek(root.offset + root.size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


def _no_image(image: Path, images: dict[str, Path]) -> None:
    image.write_text("not an image")


def _nothing(image: Path, images: dict[str, Path]) -> None:
    image.unlink()


@pytest.mark.parametrize("link", [False, True], ids=["copied", "linked"])
@pytest.mark.parametrize("replace_by", [_another_image, _another_byte, _no_image, _nothing])
def test_the_pass_of_a_module_whose_image_was_replaced_does_not_count(
    images, place, settings, link, replace_by
):
    """All that shows a verdict compares the image, as `status IMAGE` does."""
    image, root = place.directory("own") / "small.sif", place.path / "sw"
    shutil.copy(images["1.0"], image)
    verdicts.record(settings.store, report_of(image, "PASS", settings.this_host()))
    installed = install_module(image, root=root, link=link, settings=settings)
    started = image if link else installed.layout.home / "image.sif"
    assert listed(place, settings)["small/1.0"].word == "PASS"
    replace_by(started, images)
    (module,) = listed(place, settings).values()
    (of_one,), (of_all,) = module_statuses(root, ["small/1.0"], settings), module_statuses(root, (), settings)
    is_gone = replace_by is _nothing
    assert {module.word, of_one.word, of_all.word} == {"BROKEN" if is_gone else "CHANGED"}
    assert ("is missing" if is_gone else "its test does not count: ") in of_one.text
    assert module.text == of_one.text == of_all.text
    if replace_by is _another_byte:
        assert "layer " in of_one.text


def test_inspect_compares_as_well(place, settings):
    image = small_image(place.directory("own"), BASE)
    verdicts.record(settings.store, report_of(image, "PASS", settings.this_host()))
    assert inspect_image(image, settings).verdict.startswith("PASS (")
    _another_byte(image, {})
    assert inspect_image(image, settings).verdict.startswith("CHANGED (the image was changed or damaged")


def test_a_compared_image_is_not_read_again_wherever_it_lies(place, settings, monkeypatch):
    """A module's copy and the image that it was made from are known side by side."""
    image, root = small_image(place.directory("own"), BASE), place.path / "sw"
    verdicts.record(settings.store, report_of(image, "PASS", settings.this_host()))
    install_module(image, root=root, link=False, settings=settings, commands=())
    assert [item.state for item in listed(place, settings).values()] == ["passed"]
    assert image_statuses([image], settings)[0].state == "passed"

    def read(*_: object, **__: object) -> tuple[str, ...]:
        raise AssertionError("an image that was compared is read again")

    monkeypatch.setattr(scan, "verify_image", read)
    assert [item.state for item in listed(place, settings).values()] == ["passed"]
    assert image_statuses([image], settings)[0].state == "passed"


@pytest.mark.parametrize("link", [False, True], ids=["copied", "linked"])
def test_a_restored_image_starts_again_by_the_command_that_is_shown(images, place, envbuild, link):
    """A copy of it with its times, in its place: what a backup or another file system makes."""
    image, root = place.directory("own") / "small.sif", place.path / "sw"
    shutil.copy(images["1.0"], image)
    install = ("module", "install", image, "--root", root, "--command", "tool", *(["--link"] if link else []))
    assert envbuild(*install).returncode == 0
    started = image if link else root / "envs/small/1.0/image.sif"
    shutil.copy2(started, place.path / "backup")
    started.unlink()
    time.sleep(1.1)  # times count in seconds
    shutil.copy2(place.path / "backup", started)
    refused = place.run(root / "envs/small/1.0/bin/tool", "x")
    assert (refused.stdout, refused.returncode) == ("", 121)
    words = refused.stderr.splitlines()[-1].removeprefix("envbuild:").split()
    assert words[:3] == ["envbuild", "module", "install"]
    again = envbuild(*words[1:])
    assert again.returncode == 0, again.stderr
    assert place.run(root / "envs/small/1.0/bin/tool", "x").stdout == "tool of 1.0: x\n"


def test_another_image_in_the_place_of_a_copy_is_not_taken_by_that_command(images, place, envbuild):
    root = place.path / "sw"
    install = ("module", "install", images["1.0"], "--root", root, "--command", "tool")
    assert envbuild(*install).returncode == 0
    copy = root / "envs/small/1.0/image.sif"
    time.sleep(1.1)  # times count in seconds
    shutil.copy(images["2.0"], copy)
    refused = place.run(root / "envs/small/1.0/bin/tool", "x")
    words = refused.stderr.splitlines()[-1].removeprefix("envbuild:").split()
    again = envbuild(*words[1:])
    assert again.returncode == 2
    assert "this is another image than the module small/1.0 was made from" in again.stderr
    assert envbuild(*install).returncode == 0
    assert place.run(root / "envs/small/1.0/bin/tool", "x").stdout == "tool of 1.0: x\n"


def test_a_pass_without_a_gpu_is_no_pass(place, settings, events):
    image = small_image(place.directory("own"), BASE, accelerator="cuda")
    root = place.path / "sw"
    report = report_of(image, "PASS", fingerprint(find()))
    without = CheckResult("SKIP", "gpu.visible", "a GPU", "none here")
    verdicts.record(settings.store, replace(report, checks=(*report.checks, without)))
    for required in ({"require_pass": True, "commands": ()}, {"require_gpu": True, "commands": ()}):
        with pytest.raises(CheckError, match=r"has no test that passed on this host: CPU-ONLY \(") as caught:
            install_module(image, root=root, settings=settings, **required)
        assert "where there is a GPU" in caught.value.hint
    install_module(image, root=root, settings=settings, commands=())
    assert warnings(events)[-1].startswith("test verdict: CPU-ONLY (")
    (module,) = listed(place, settings).values()
    assert (module.state, module.word) == ("cpu-only", "CPU-ONLY")
    assert [status.word for status in image_statuses([image], settings)] == ["CPU-ONLY"]
    verdicts.record(settings.store, replace(report, gpus=1))
    assert [status.word for status in module_statuses(root, (), settings)] == ["PASS"]
    again = install_module(image, root=root, settings=settings, require_gpu=True, commands=())
    assert not again.changed


def test_a_pass_on_gpus_is_not_required_of_an_image_for_cpus(images, place, settings):
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", fingerprint(find())))
    with pytest.raises(CheckError, match=r"--require-gpu: .* is an image for CPUs"):
        install_module(images["1.0"], root=place.path / "sw", settings=settings, require_gpu=True)


def test_a_pass_can_be_required(images, place, settings):
    image, root = images["1.0"], place.path / "sw"
    with pytest.raises(CheckError, match=r"no test that passed on this host: UNTESTED \(never tested here\)"):
        install_module(image, root=root, link=False, settings=settings, require_pass=True)
    assert not root.exists()
    verdicts.record(settings.store, report_of(image, "FAIL", fingerprint(find())))
    with pytest.raises(CheckError, match=r"no test that passed on this host: FAIL \(") as caught:
        install_module(image, root=root, link=False, settings=settings, require_pass=True)
    assert caught.value.hint.startswith("`envbuild test` shows what failed: correct that")
    verdicts.record(settings.store, report_of(image, "PASS", fingerprint(find())))
    assert install_module(image, root=root, link=False, settings=settings, require_pass=True).changed


def test_a_linked_one_takes_no_more_than_its_wrappers(images, place, settings):
    image = images["1.0"]
    before = image.stat()
    installed = install_module(image, root=place.path / "sw", link=True, settings=settings)
    assert place.run(installed.layout.home / "bin/tool-cat", "/opt/env/layer").stdout == "upper\n"
    assert sum(path.stat().st_size for path in (place.path / "sw").rglob("*") if path.is_file()) < 1 << 20
    assert not (settings.store.path / "blobs").exists()
    assert not install_module(image, root=place.path / "sw", link=True, settings=settings).changed
    assert image.stat().st_mtime_ns == before.st_mtime_ns


def test_a_link_to_an_image_is_linked_as_it_is(images, place, settings):
    """As where `current.sif` is moved on: what the module names is what was asked for."""
    current, one, two = (place.path / name for name in ("current.sif", "one.sif", "two.sif"))
    for made_s, (image, version) in enumerate([(one, "1.0"), (two, "2.0")]):
        shutil.copy(images[version], image)
        os.utime(image, (made_s, made_s))
    current.symlink_to(one)
    installed = install_module(current, root=place.path / "sw", link=True, settings=settings)
    tool = installed.layout.home / "bin/tool"
    assert place.run(tool, "x").stdout == "tool of 1.0: x\n"
    inside = place.run(installed.layout.home / "bin/envbuild-exec", "bash", "-c", f"'{tool}' y")
    assert inside.stdout == "tool of 1.0: y\n", inside.stderr
    current.unlink()
    current.symlink_to(two)
    done = place.run(tool, "x")
    assert (done.stdout, done.returncode) == ("", 121)
    assert f"the image of small/1.0 has changed since it was installed: {current}" in done.stderr


def test_a_copy_takes_the_place_of_a_link_and_a_link_that_of_a_copy(images, place, settings):
    image = place.path / "image.sif"
    shutil.copy(images["1.0"], image)
    root = place.path / "sw"
    linked = install_module(image, root=root, link=True, settings=settings)
    release = linked.layout.home.resolve()
    copied = install_module(image, root=root, link=False, settings=settings)
    assert copied.replaced == release
    image.unlink()
    assert place.run(copied.layout.home / "bin/tool", "x").stdout == "tool of 1.0: x\n"
    shutil.copy(images["1.0"], image)
    again = install_module(image, root=root, link=True, settings=settings)
    assert again.layout.home.resolve() == release
    image.unlink()
    assert place.run(again.layout.home / "bin/tool", "x").returncode == 121


@pytest.mark.parametrize("named", [True, False])
def test_the_sites_binds_are_used(images, place, settings, named):
    data = place.directory("data")
    text = f"name: here\nbinds: [{{source: {data}, target: /data}}]\n"
    site = place.path / ("here.yaml" if named else "config/envbuild/site.yaml")
    site.parent.mkdir(parents=True, exist_ok=True)
    site.write_text(text)
    if named:
        settings = Settings(store=settings.store, site=site)
    installed = install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    place.run(installed.layout.home / "bin/tool-bash", "-c", "echo x >/data/file")
    assert [path.name for path in data.iterdir()] == ["file"]


def test_a_site_that_starts_in_user_namespaces_alone_is_followed(images, place, settings):
    site = place.path / "site.yaml"
    site.write_text("name: site\nruntimes: [{name: apptainer, setuid: false}]\n")
    settings = replace(settings, site=site)
    installed = install_module(images["1.0"], root=place.path / "sw", settings=settings)
    assert "\n_eb_userns=yes\n" in (installed.layout.home / "bin/launcher").read_text()
    assert place.run(installed.layout.home / "bin/tool", "x").stdout == "tool of 1.0: x\n"


def test_a_bind_that_is_not_here_is_told(images, place, settings, events):
    site = place.path / "site.yaml"
    site.write_text("name: site\nbinds: [{source: /nowhere, target: /gone}]\n")
    install_module(images["1.0"], root=place.path / "sw", link=False, settings=replace(settings, site=site))
    assert warnings(events)[0] == (
        "HOST.binds-exist: the site `site` binds /nowhere, which is not here: ranks lack it"
    )


def test_a_file_that_is_no_image_leaves_nothing(place, settings):
    (place.path / "x.sif").write_text("no image")
    with pytest.raises(EnvbuildError) as caught:
        install_module(place.path / "x.sif", root=place.path / "sw", link=False, settings=settings)
    assert caught.value.exit_code == 2
    assert not (place.path / "sw").exists()


def damaged(image: Path, place: Path, *layers: int) -> Path:
    """Copy an image, with one byte in the middle of some of its layers changed."""
    content = bytearray(image.read_bytes())
    root, system = read_sif(image).root, read_manifest(image).file_system
    assert root is not None
    assert system is not None
    for index in layers:
        layer = system.layers[index]
        content[root.offset + layer.offset + layer.size_bytes // 2] ^= 1
    copy = place / "damaged.sif"
    copy.write_bytes(content)
    return copy


@pytest.mark.parametrize("link", [False, True])
def test_a_damaged_image_is_not_installed_under_the_verdict_of_the_good_one(images, place, settings, link):
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", fingerprint(find())))
    image = damaged(images["1.0"], place.path, 1)
    with pytest.raises(
        RequestError, match=r"`damaged\.sif` was changed or damaged: layer wheel:framework$"
    ) as caught:
        install_module(image, root=place.path / "sw", link=link, settings=settings)
    assert caught.value.hint == "build it again, or copy it again from where it came"
    assert not (place.path / "sw").exists()


def test_every_damaged_layer_is_named(images, place, settings):
    image = damaged(images["1.0"], place.path, 0, 2)
    with pytest.raises(RequestError, match=r"damaged: layer base, layer metadata$"):
        install_module(image, root=place.path / "sw", link=False, settings=settings)


def test_a_damaged_installation_is_repaired(images, place, settings):
    installed = install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    copy = installed.layout.home / "image.sif"
    copy.write_bytes(damaged(images["1.0"], place.path, 1).read_bytes())
    assert install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings).changed
    assert copy.read_bytes() == images["1.0"].read_bytes()


def test_it_is_told_that_others_cannot_read_a_linked_image(images, place, settings, events):
    image = place.path / "image.sif"
    shutil.copy(images["1.0"], image)
    image.chmod(0o600)
    install_module(image, root=place.path / "sw", link=True, settings=settings)
    assert f"only you can start this: others may not read `{image}`" in warnings(events)


def listed(place: Place, settings: Settings) -> dict[str, ListedModule]:
    return {item.module.layout.label: item for item in list_modules(place.path / "sw", settings)}


def test_what_is_installed_is_listed_with_image_verdict_and_kind(images, place, settings):
    here = fingerprint(find())
    other = replace(here, facts={**here.facts, "kernel": "5.14"})
    root = place.path / "sw"
    install_module(images["1.0"], root=root, link=False, settings=settings, default=True)
    install_module(images["2.0"], root=root, link=True, settings=settings)
    before = listed(place, settings)
    assert [item.state for item in before.values()] == ["absent"] * 2
    # The newest verdict counts, not that of the modulefile.
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", here))
    verdicts.record(settings.store, report_of(images["2.0"], "PASS", other))
    after = listed(place, settings)
    assert list(after) == ["small/1.0", "small/2.0"]
    one, two = after.values()
    assert (one.module.default, one.module.image, one.state) == (
        True, root / "envs/small/1.0/image.sif", "passed",
    )  # fmt: skip
    assert (two.module.default, two.module.image, two.state) == (False, images["2.0"], "stale")
    assert two.module.record is not None
    assert two.module.record.digest == read_manifest(images["2.0"]).digest
    assert one.module.problems == two.module.problems == ()


def test_the_verdict_of_one_on_the_hosts_mpi_is_that_of_this_mpi(images, place, settings):
    installed = install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    here = fingerprint(find()).with_fact("mpi", "mpich 5.0.1 libmpi.so.12:sha256:1")
    verdicts.record(settings.store, report_of(images["1.0"], "PASS", here))
    assert listed(place, settings)["small/1.0"].state == "stale"
    record = installed.layout.home / "installed.json"
    data = json.loads(record.read_text())
    record.write_text(json.dumps({**data, "host_libraries": {"mpi": here.facts["mpi"]}}))
    assert listed(place, settings)["small/1.0"].state == "passed"


@pytest.fixture
def envbuild(place: Place, installed: Path) -> Envbuild:
    """Run the installed command."""

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        store = ["--store", str(place.work / "store")] if words[1] != "uninstall" else []
        return place.run(installed, *words, *store, env={"XDG_CONFIG_HOME": str(place.path / "config")})

    return run


def test_a_users_way_from_install_to_uninstall(images, place, envbuild):
    root = place.work / "sw"
    root.mkdir()
    install = ("module", "install", images["1.0"], "--root", root)
    said = envbuild(*install, "--default")
    assert said.returncode == 0, said.stderr
    assert envbuild("module", "install", images["2.0"], "--root", root, "--link").returncode == 0
    shown = envbuild("module", "ls", "--root", root)
    one, two = (read_manifest(images[version]).digest[7:23] for version in ("1.0", "2.0"))
    assert shown.stdout.splitlines() == [
        f"small/1.0 (default)  copy  UNTESTED  {one}  {root}/envs/small/1.0",
        f"small/2.0            link  UNTESTED  {two}  {root}/envs/small/2.0",
    ]
    data = json.loads(envbuild("module", "ls", "--root", root, "--json").stdout)
    assert [item["module"] for item in data] == ["small/1.0", "small/2.0"]
    assert data[0] == {
        "module": "small/1.0",
        "default": True,
        "retired_until": None,
        "deprecated_on": None,
        "use": None,
        "digest": read_manifest(images["1.0"]).digest,
        "linked": False,
        "image": f"{root}/envs/small/1.0/image.sif",
        "host_libraries": {},
        "verdict": {"state": "absent", "text": ""},
        "home": f"{root}/envs/small/1.0",
        "modulefiles": [f"{root}/modulefiles/small/1.0"],
        "replaced": [],
        "problems": [],
    }
    (root / "envs/small/2.0/installed.json").unlink()
    broken = envbuild("module", "ls", "--root", root).stdout.splitlines()[1]
    assert broken.endswith(f"unknown           broken: {root}/envs/small/2.0 holds no installation")

    said = envbuild("module", "uninstall", "small", "--root", root)
    assert (said.returncode, said.stdout) == (2, "")
    assert "error: `small` is installed in 2 versions: 1.0, 2.0\n" in said.stderr
    said = envbuild("module", "uninstall", "small/1.0", "--root", root, "--json")
    assert said.stderr == "small/1.0: uninstalled\nsmall: the default is now 2.0\n"
    (done,) = json.loads(said.stdout)
    assert f"{root}/modulefiles/small/1.0" in done["removed"]
    said = envbuild("module", "uninstall", "small/2.0", "--root", root)
    assert (said.returncode, said.stdout) == (2, "")
    assert "error: envbuild did not install this\n  --> " in said.stderr
    # Installed again it is whole, and can go.
    envbuild("module", "install", images["2.0"], "--root", root, "--link")
    assert envbuild("module", "uninstall", "small", "--root", root).returncode == 0
    assert sorted(path.name for path in root.rglob("*")) == ["envs", "modulefiles"]
    shown = envbuild("module", "ls", "--root", root)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", f"{root}: nothing is installed\n")
    assert envbuild("module", "ls", "--root", root, "--json").stdout == "[]\n"
    said = envbuild("module", "ls", "--root", place.work / "nowhere")
    assert said.stderr.startswith("error: there is no directory `")


@pytest.mark.slow  # unit/activate has the commands of a module
def test_commands_that_only_the_image_names_are_listed_and_not_installed(images, place, envbuild):
    root = place.work / "sw"
    install = ("module", "install", images["1.0"], "--root", root)
    refused = envbuild(*install, "--command", "tool", "--command", "mine", "--command", "cd")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("error: --command ") == 2
    assert "--command mine: `" in refused.stderr
    said = envbuild(*install, "--command", "tool")
    assert said.returncode == 0, said.stderr
    why = "no recipe of this installation has it; `--command tool-cat` adds one"
    assert f"no wrapper for `tool-cat`: {why}" in said.stderr.splitlines()
    commands = root / "envs/small/1.0/bin"
    ours = {"launcher", "python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell"}
    assert {path.name for path in commands.iterdir()} == {*ours, "tool"}
    data = json.loads(envbuild(*install, "--json").stdout)
    assert set(data["commands"]) == ours - {"launcher"}
    assert data["left_out"]["tool-cat"] == why
    # What was installed before, and is not now, does not stay in the way.
    assert {path.name for path in commands.iterdir()} == ours
    for name in ("cat", "apptainer", "../x", "", "-x", "a b"):
        refused = envbuild(*install, f"--command={name}")
        assert (refused.returncode, refused.stdout) == (2, ""), name
    assert {path.name for path in commands.iterdir()} == ours


def test_who_did_not_install_it_cannot_remove_it(images, place, settings, envbuild):
    install_module(images["1.0"], root=place.path / "sw", link=False, settings=settings)
    before = sorted(place.path.joinpath("sw").rglob("*"))
    shelf = place.path / "sw/envs/small"
    shelf.chmod(0o555)
    said = envbuild("module", "uninstall", "small", "--root", place.path / "sw")
    shelf.chmod(0o755)
    assert said.returncode == 2
    assert "Permission denied" in said.stderr
    assert sorted(place.path.joinpath("sw").rglob("*")) == before
