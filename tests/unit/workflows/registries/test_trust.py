"""`config.yaml` requires signatures of images that come from elsewhere, and a test that passed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envbuild.errors import CheckError, MachineError, ManyErrors, RequestError
from envbuild.events import ignore
from envbuild.inputs.config import read_configs
from envbuild.inputs.sites import read_site
from envbuild.jobs.report import CheckResult
from envbuild.store import verdicts
from envbuild.store.images import stored_images
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system import files
from envbuild.system.apptainer import Apptainer
from envbuild.system.keys import PublicKey
from envbuild.workflows.images import image_file
from envbuild.workflows.module import InstallRequest, install_module
from envbuild.workflows.pull import pull_image
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import make_key, sign_image
from envbuild.workflows.trust import requirements
from tests.support.images import read_manifest
from tests.support.registry import Registry


def require(config: Path, *keys: Path, more: str = "") -> None:
    files = ", ".join(f"{key}.pub" for key in keys)
    config.write_text(f"require_signature: [{files}]\n{more}")


def tested(image: Path, settings: Settings, *checks: tuple[str, str]) -> None:
    """Record a test of an image in a store, by the status and name of each check."""
    manifest = read_manifest(image)
    report = Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=4,
        checks=[CheckResult(status, name, "1", "1") for status, name in (("PASS", "a/ranks"), *checks)],
        fingerprint="sha256:" + "ab" * 32,
        facts={"kernel": "6.1"},
        when="2026-11-21T01:00:00Z",
    )
    verdicts.record(settings.store, report)


@pytest.fixture
def builder(tmp_path: Path) -> Settings:
    """The settings of who signs: their store has the verdicts that are signed."""
    return Settings(store=Store(tmp_path / "builder"))


def test_an_image_that_a_required_key_signed_is_pulled(
    registry: Registry,
    image: Path,
    settings: Settings,
    builder: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
) -> None:
    name = f"{registry.host}/lab/one:1"
    other = make_key(tmp_path / "other.key").private
    sign_image(image, key, builder)
    push_image(image, name, ignore)
    require(config, other, key)
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    # An image may say which layers it has: none of them gets a key here.
    assert list(settings.store.records()) == []
    require(config, other)
    with pytest.raises(RequestError, match="no key of it signed its provenance") as caught:
        pull_image(name, tmp_path / "more.sif", settings)
    assert PublicKey.read(Path(f"{other}.pub")).fingerprint in caught.value.hint
    assert not (tmp_path / "more.sif").exists()


def test_an_image_that_is_not_signed_never_has_a_name(
    registry: Registry, image: Path, settings: Settings, key: Path, config: Path, tmp_path: Path
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    require(config, key)
    with pytest.raises(RequestError, match="is not signed as `require_signature` in"):
        pull_image(name, tmp_path / "got.sif", settings)
    # So for each command that takes the name of an image.
    with pytest.raises(RequestError, match="is not signed as `require_signature` in"):
        image_file(Path(name), settings)
    assert list(tmp_path.glob("*got*")) == []
    assert [entry for path in settings.store.root.glob("images/*/*") for entry in stored_images(path)] == []
    with pytest.raises(RequestError, match="is not signed as `require_signature` in"):
        install_module(InstallRequest(image=image, root=tmp_path / "sw"), settings)
    assert not (tmp_path / "sw").exists()


def test_each_file_is_obeyed(
    registry: Registry,
    image: Path,
    settings: Settings,
    builder: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = tmp_path / "machine/config.yaml"
    machine.parent.mkdir()
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", machine.parent)
    other = make_key(tmp_path / "other.key").private
    require(config, key)
    require(machine, other)
    name = f"{registry.host}/lab/one:1"
    sign_image(image, key, builder)
    push_image(image, name, ignore)
    with pytest.raises(RequestError, match="no key of it signed its provenance"):
        pull_image(name, tmp_path / "got.sif", settings)
    sign_image(image, other, builder)
    push_image(image, name, ignore)
    pull_image(name, tmp_path / "got.sif", settings)


def test_a_revoked_key_signs_nothing(
    registry: Registry,
    image: Path,
    settings: Settings,
    builder: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
) -> None:
    name = f"{registry.host}/lab/one:1"
    sign_image(image, key, builder)
    push_image(image, name, ignore)
    require(config, key, more=f"revoked: [{key}.pub]\n")
    with pytest.raises(RequestError, match="is not signed") as caught:
        pull_image(name, tmp_path / "got.sif", settings)
    assert "all are revoked" in caught.value.hint


@pytest.mark.parametrize(
    ("check", "passes"),
    [(("PASS", "a/sum"), True), (("FAIL", "a/sum"), False), (("SKIP", "gpu.visible"), False), (None, False)],
)
def test_a_required_test_is_a_signed_verdict_that_passed(
    registry: Registry,
    image: Path,
    settings: Settings,
    builder: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
    check: tuple[str, str] | None,
    passes: bool,
) -> None:
    name = f"{registry.host}/lab/one:1"
    if check is not None:
        tested(image, builder, check)
    sign_image(image, key, builder)
    push_image(image, name, ignore)
    require(config, key, more="require_pass: true\n")
    if passes:
        pull_image(name, tmp_path / "got.sif", settings)
    else:
        with pytest.raises(RequestError, match="no signed verdict says that"):
            pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").exists() == passes


def test_a_module_of_an_image_without_signed_verdict_needs_a_test_here(
    image: Path,
    settings: Settings,
    builder: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Settings, "find_apptainer", lambda *_: Apptainer(program=Path("/nowhere"), version="1.4.5")
    )
    sign_image(image, key, builder)
    require(config, key, more="require_pass: true\n")
    with pytest.raises(CheckError, match="has no test that passed on this host"):
        install_module(InstallRequest(image=image, root=tmp_path / "sw"), settings)


def test_who_requires_a_test_says_whose_verdicts_count(config: Path) -> None:
    config.write_text("require_pass: true\n")
    with pytest.raises((RequestError, ManyErrors), match="must name the keys whose verdicts count"):
        read_configs()


@pytest.mark.parametrize("text", ["not a key", None])
def test_a_key_that_cannot_be_read_lets_nothing_in(
    registry: Registry, image: Path, settings: Settings, config: Path, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "k.pub").write_text(text)
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    require(config, tmp_path / "k")
    with pytest.raises(RequestError, match=r"k\.pub") as caught:
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert not (tmp_path / "got.sif").exists()
    # A user can correct neither by a key of their own.
    assert str(caught.value.at) == f"{config}:1:21"
    assert "correct that line" in caught.value.hint


def test_a_revoked_key_that_cannot_be_read_is_named_with_its_line(key: Path, config: Path) -> None:
    require(config, key, more="revoked: [SHA256:bufp2CDa2CpMTyyFquzahG17FARgWHbyX8X+D6cFxe8, /absent.pub]\n")
    with pytest.raises(RequestError, match=r"there is no file `/absent\.pub`") as caught:
        requirements()
    assert str(caught.value.at) == f"{config}:2:63"


def test_without_cryptography_nothing_comes_in(
    registry: Registry,
    image: Path,
    settings: Settings,
    key: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    require(config, key)
    monkeypatch.delitem(sys.modules, "envbuild.system.keys")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MachineError, match="cryptography"):
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert not (tmp_path / "got.sif").exists()


@pytest.mark.redteam
@pytest.mark.parametrize(
    "line",
    [
        "require_signature: [/k.pub]",
        "require_pass: false",
        "revoked: [/k.pub]",
        "upstreams: [{registry: h.org/a, trust: /k.pub}]",
    ],
)
def test_no_site_file_says_whom_this_machine_trusts(site: Path, tmp_path: Path, line: str) -> None:
    other = tmp_path / "other.yaml"
    for path, named in ((other, other), (site, None)):
        path.write_text(f"name: other\n{line}\n")
        with pytest.raises(
            (RequestError, ManyErrors), match=f"unknown key `{line.partition(':')[0]}`"
        ) as caught:
            read_site(named)
        assert "config.yaml" in caught.value.hint
