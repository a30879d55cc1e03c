"""PyTorch for ROCm from an index of stand-ins: the shape of 7.14 and 10, and that of 7.2.

Their names and requirements are those of AMD's index (ROCm/TheRock: RELEASES.md, promote_packages_test.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from envbuild.image.packages import Contents
from envbuild.image.sbom import sbom
from envbuild.inputs.spec import read_spec
from envbuild.lock.diff import diff
from envbuild.lock.model import Lock
from envbuild.resolve.compatibility import judge_lock
from envbuild.rules.judge import RuleResult
from envbuild.spec.resolved import ResolvedSpec
from tests.support.mirrors import write_index, write_wheel
from tests.support.resolve_desk import PLATFORM, Desk
from tests.support.resolved_specs import base_image

GPUS = ("gfx90a", "gfx942", "gfx950")
SITE = """\
name: {name}
architecture: amd64
gpus: {{vendor: amd, count: 8, architectures: [{gpu}], rocm: "{driver}"}}
origins:
  pypi: [{server}/simple]
  amd-rocm10.0: [{server}/rocm10.0]
  amd-rocm7.14: [{server}/rocm7.14]
  pytorch-rocm7.2: [{server}/rocm7.2]
"""


def publish(desk: Desk, release: str, torch: str) -> None:
    """Write AMD's index of a release: host code, and the code for each GPU in packages of its own."""
    version, build = f"{release}.0", f"{torch}+rocm{release}.0"
    extras = {gpu: f"device-{gpu}" for gpu in GPUS}
    made = [
        write_wheel(desk.wheels, "rocm-sdk-core", version),
        write_wheel(desk.wheels, "rocm-sdk-libraries", version, requires=[f"rocm-sdk-core=={version}"]),
        write_wheel(desk.wheels, "rocm-bootstrap", "0.1.0"),
        write_wheel(
            desk.wheels,
            "torch",
            build,
            tag=PLATFORM,
            extras=[*extras.values(), "device-all"],
            requires=[
                "rocm-bootstrap",
                f"rocm[libraries]=={version}",
                "gamma",
                *(f"amd-torch-device-{gpu}=={build}; extra == '{extra}'" for gpu, extra in extras.items()),
                *(f"amd-torch-device-{gpu}=={build}; extra == 'device-all'" for gpu in GPUS),
            ],
        ),
    ]
    for gpu in GPUS:
        needs = [f"rocm-sdk-libraries=={version}"]
        made.append(write_wheel(desk.wheels, f"rocm-sdk-device-{gpu}", version, requires=needs))
        needs = [f"rocm-sdk-device-{gpu}=={version}"]
        made.append(write_wheel(desk.wheels, f"amd-torch-device-{gpu}", build, requires=needs))
    write_index(desk.server.root, made, under=f"rocm{release}")
    metadata = f"""\
        Metadata-Version: 2.2
        Name: rocm
        Version: {version}
        Requires-Dist: rocm-sdk-core=={version}
        Provides-Extra: libraries
        Requires-Dist: rocm-sdk-libraries=={version}; extra == "libraries"
        """
    project = '[build-system]\nrequires = ["setuptools>=70.2.0"]\n'
    files = {"PKG-INFO": dedent(metadata), "pyproject_toml": project}
    desk.add_source("rocm", version, under=f"rocm{release}", **files)


@pytest.fixture
def amd(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk with AMD's and PyTorch's indexes; the plain one has placeholders of the same names."""
    publish(desk, "10.0", "2.13.0")
    publish(desk, "7.14", "2.11.0")
    old = write_wheel(desk.wheels, "torch", "2.13.0+rocm7.2", requires=["gamma"], tag=PLATFORM)
    write_index(desk.server.root, [old], under="rocm7.2")
    names = ("rocm-sdk-core", "rocm-sdk-libraries", "setuptools", "numpy")
    versions = ("0.0.1", "0.0.1", "80.0", "2.4.0")
    write_index(
        desk.server.root,
        [write_wheel(desk.wheels, name, version) for name, version in zip(names, versions, strict=True)],
    )
    monkeypatch.chdir(desk.directory)
    return desk


def ask(
    desk: Desk,
    accelerator: str = "rocm",
    gpu: str = "gfx90a",
    driver: str = "7.2.0",
    content: str = "frameworks: [pytorch]",
) -> ResolvedSpec:
    """Return a spec for a site of AMD's GPUs."""
    site, spec = Path("site.yaml"), Path("spec.yaml")
    site.write_text(SITE.format(name="here", gpu=gpu, driver=driver, server=desk.server.address))
    spec.write_text(f'name: x\nversion: "1"\nbase: debian-12\naccelerator: {accelerator}\n{content}\n')
    resolved = read_spec(spec, site=site, architecture="amd64")
    desk.site = resolved.site
    # The desk's archive has the packages of this base.
    return replace(resolved, base_file=replace(resolved.base_file, value=base_image()))


def warned(resolved: ResolvedSpec, lock: Lock) -> dict[str, RuleResult]:
    """Return the rules that refuse or warn."""
    results = judge_lock(resolved, lock)
    return {result.rule: result for result in results if result.warn or result.outcome == "incompatible"}


@pytest.mark.parametrize(
    ("accelerator", "gpu", "build"),
    [
        ("rocm", "gfx90a", "2.13.0+rocm10.0.0"),
        ("rocm", "gfx942", "2.13.0+rocm10.0.0"),
        ("rocm@7.14", "gfx90a", "2.11.0+rocm7.14.0"),
    ],
)
def test_the_sites_gpu_chooses_the_packages_with_its_code(
    amd: Desk, accelerator: str, gpu: str, build: str
) -> None:
    resolved = ask(amd, accelerator, gpu)
    lock = amd.lock(resolved)
    release = build.partition("+rocm")[2]
    origin = f"amd-rocm{release.removesuffix('.0')}"
    pins = {pin.name: pin for pin in lock.python}
    assert {pin.name: pin.version for pin in lock.python if pin.origin == origin} == {
        "torch": build,
        f"amd-torch-device-{gpu}": build,
        "rocm": release,
        "rocm-bootstrap": "0.1.0",
        "rocm-sdk-core": release,
        "rocm-sdk-libraries": release,
        f"rocm-sdk-device-{gpu}": release,
    }
    assert {pin.name for pin in lock.python if pin.origin == "pypi"} == {"gamma", "numpy"}
    # Libraries and code for GPUs are layers that other images of this release share.
    assert pins["torch"].layer == "framework:pytorch"
    assert {pins[name].layer for name in pins if name.startswith(("rocm", "amd-"))} == {"accelerator"}
    # The selector is a source archive, which is built without its choice at build time.
    assert pins["rocm"].file == f"rocm-{release}.tar.gz"
    assert [(pin.name, pin.layer) for pin in lock.build_python] == [("setuptools", "source:rocm")]
    assert diff(lock, resolved) == ()
    assert amd.lock(resolved, lock, upgrade=[]) == lock
    assert warned(resolved, lock) == {}


def test_without_a_site_the_image_has_the_code_for_all_gpus_and_says_so(amd: Desk) -> None:
    spec = Path("spec.yaml")
    ask(amd)
    nowhere = Path("site.yaml")
    nowhere.write_text(re.sub("gpus: .*", "", nowhere.read_text()))
    resolved = read_spec(spec, site=nowhere, architecture="amd64")
    assert resolved.remarks[-1].startswith("pytorch brings the code for every GPU of rocm")
    resolved = replace(resolved, base_file=replace(resolved.base_file, value=base_image()))
    names = {pin.name for pin in amd.lock(resolved).python}
    assert {f"amd-torch-device-{gpu}" for gpu in GPUS} <= names


def test_the_sites_driver_chooses_the_release_and_the_old_shape_needs_no_package_of_a_gpu(amd: Desk) -> None:
    resolved = ask(amd, driver="6.4")
    assert resolved.why_release == (
        "rocm 7.2 is the newest that fits; 10.0, 7.14: AMD supports ROCm 7.14 and newer on drivers of the"
        " year before it, from that of 7.0 on, and rocm.driver is 6.4 on the site `here`"
    )
    lock = amd.lock(resolved)
    assert {pin.name: pin.origin for pin in lock.python} == {
        "gamma": "pypi",
        "numpy": "pypi",
        "torch": "pytorch-rocm7.2",
    }
    assert lock.build_python == ()
    assert warned(resolved, lock) == {}


def test_rules_refuse_what_runs_no_kernel_on_the_sites_gpus(amd: Desk) -> None:
    lock = amd.lock(ask(amd))
    elsewhere = ask(amd, gpu="gfx942")
    device = warned(elsewhere, lock)["ROCM.device-package"]
    assert (device.outcome, device.reason) == (
        "incompatible",
        "torch 2.13.0+rocm10.0.0 has code for gfx90a, and none for the site's GPUs gfx942",
    )
    # `pip install torch` from the same index, without an extra.
    kept = (pin for pin in lock.python if not pin.name.startswith("amd-"))
    of_others = (replace(pin, requires=tuple(n for n in pin.requires if n[:4] != "amd-")) for pin in kept)
    without = replace(lock, python=tuple(of_others))
    device = warned(ask(amd), without)["ROCM.device-package"]
    assert device.reason == (
        "torch 2.13.0+rocm10.0.0 sees GPUs and runs no kernel on any: no package has its code for one"
    )
    # A driver that no release here runs on: the newest is locked, and the window of the driver is reported.
    old = ask(amd, driver="6.1")
    assert old.frameworks[0].variant_name == "rocm-10.0"
    window = warned(old, amd.lock(old))["ROCM.driver-window"]
    assert "on the driver of 6.1" in window.reason or "from that of 7.0 on" in window.reason


def test_libraries_of_rocm_that_the_spec_names_come_from_the_sites_origin(amd: Desk) -> None:
    plugin = write_wheel(amd.wheels, "jax-rocm7-plugin", "0.12.0", tag=PLATFORM)
    write_index(amd.server.root, [plugin])
    packages = 'packages: {python: ["rocm[libraries]", rocm-sdk-device-gfx90a, jax-rocm7-plugin]}'
    resolved = ask(amd, "rocm@7.14", content=packages)
    lock = amd.lock(resolved)
    assert {pin.name: pin.origin for pin in lock.python} == {
        "jax-rocm7-plugin": "pypi",
        **dict.fromkeys(
            ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx90a"), "amd-rocm7.14"
        ),
    }
    assert diff(lock, resolved) == ()


def test_an_origin_without_an_address_is_named(amd: Desk) -> None:
    resolved = ask(amd)
    site = Path("site.yaml")
    site.write_text(re.sub("  amd-rocm10.0.*", "", site.read_text()))
    resolved = read_spec(Path("spec.yaml"), site=site, architecture="amd64")
    amd.site = resolved.site
    error = amd.error(replace(resolved, base_file=replace(resolved.base_file, value=base_image())))
    assert "`torch` comes from the origin `amd-rocm10.0`" in str(error.hint)


def test_the_bill_lists_the_libraries_and_the_code_for_the_gpu(amd: Desk) -> None:
    lock = amd.lock(ask(amd))
    bill = json.loads(sbom(lock, Contents()))
    components = {entry["name"]: entry for entry in bill["components"]}
    assert components["amd-torch-device-gfx90a"]["version"] == "2.13.0+rocm10.0.0"
    assert components["rocm-sdk-device-gfx90a"]["version"] == "10.0.0"
    assert components["rocm"]["version"] == "10.0.0"
