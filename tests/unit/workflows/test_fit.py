"""`check --all`: which images can run at a site, by their facts; unknown is never silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.preflight.image_facts import facts_text
from envbuild.rules.facts import Fact, Value, facts_from
from envbuild.system import squashfs
from envbuild.workflows import fit
from envbuild.workflows.forecast import KnownImage
from tests.support.small_images import BASE, small_image

NVIDIA = """\
name: there
architecture: amd64
gpus: {vendor: nvidia, architectures: [sm_90], driver: "575.57.08"}
"""
PARTITIONS = """\
name: there
architecture: amd64
partitions:
  old: {gpus: {vendor: nvidia, architectures: [sm_90], driver: "575.57.08"}}
  new: {gpus: {vendor: nvidia, architectures: [sm_90], driver: "580.95.05"}}
default_partition: new
"""
CUDA: dict[str, Value] = {
    "architecture.image": "amd64",
    "asked.accelerator": "cuda",
    "cuda.toolkit": "13.0",
    "cuda.majors": ("13",),
    "cuda.forward_compat": False,
}


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    apps = tmp_path / "apps"
    apps.mkdir()
    facts = facts_text({path: Fact(value, "lock") for path, value in CUDA.items()})
    small_image(apps, BASE, name="cuda.sif", facts=facts)
    older = facts_from(CUDA | {"cuda.toolkit": "12.8", "cuda.majors": ("12",)}, "lock")
    small_image(apps, BASE, name="older.sif", facts=facts_text(older))
    (tmp_path / "tree").mkdir()
    squashfs.make(tmp_path / "tree", apps / "foreign.sif")
    return apps


def check(capsys: pytest.CaptureFixture[str], site: str, *words: str) -> tuple[int, str]:
    Path("there.yaml").write_text(site)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--all", "apps", "--site", "there.yaml", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_images_that_break_come_first_with_their_reasons(
    apps: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scanned(*_: object) -> None:
        raise AssertionError("it carries facts, and is scanned")

    monkeypatch.setattr("envbuild.preflight.image_facts.scan_image", scanned)
    code, text = check(capsys, NVIDIA)
    assert code == 4
    lines = text.splitlines()
    state, name, reason = lines[0].split(maxsplit=2)
    assert (state, name) == ("reject", "cuda.sif")
    assert reason.startswith("CUDA.driver-floor: CUDA 13 needs a driver of at least 580")
    assert lines[-1].startswith("1 reject, ")
    document: Any = json.loads(check(capsys, NVIDIA, "--json")[1])
    (refused,) = [member for member in document["members"] if member["exit_code"] == 4]
    (partition,) = refused["result"]["partitions"]
    assert [rule["id"] for rule in partition["rules"]] == ["CUDA.driver-floor"]
    assert partition["rules"][0]["source"]
    # Its files show nothing, and what is known of the site alone is no verdict on it.
    verdicts = {member["name"]: member["result"]["verdict"] for member in document["members"]}
    assert verdicts["foreign.sif"] == "unknown"


def test_an_image_that_cannot_be_read_is_no_pass(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in apps.glob("*.sif"):
        path.unlink()
    assert check(capsys, NVIDIA) == (0, "no images\n")
    image = small_image(apps, BASE, name="cut.sif")
    image.write_bytes(image.read_bytes()[:3000])
    code, text = check(capsys, NVIDIA)
    assert code == 4
    assert text.splitlines()[-1] == "1 unknown"


def test_an_image_that_fits_one_partition_can_run(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, PARTITIONS, "--json")
    verdicts = {
        member["name"]: [(entry["name"], entry["verdict"]) for entry in member["result"]["partitions"]]
        for member in json.loads(text)["members"]
    }
    assert verdicts["foreign.sif"] == [("there/old", "unknown"), ("there/new", "unknown")]
    assert dict(verdicts["cuda.sif"])["there/old"] == "reject"
    assert dict(verdicts["cuda.sif"])["there/new"] != "reject"
    assert code == 0


SLINGSHOT = """\
name: there
architecture: amd64
scheduler: {name: slurm, mpi_types: [pmix, pmi2], default_mpi_type: pmix}
fabric: {name: slingshot-11, provider: cxi}
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # Whether it holds an MPI is not known.
        ({}, "unknown"),
        ({"mpi.abis": (), "mpi.needed_abis": ()}, "ok"),
        # A default of srun that the MPI does not speak is a note: `launch` names another type.
        (
            {
                "mpi.family": "mpich",
                "mpi.version": "5.0.2",
                "mpi.source": "image",
                "mpi.providers": ("cxi",),
                "pmi.spoken": ("pmi2",),
                "fabric.ofi_provider": "cxi",
                "fabric.settings_unknown": (),
            },
            "ok",
        ),
    ],
    ids=["not-known", "without-mpi", "note"],
)
def test_rules_on_mpi_are_for_images_with_mpi(
    apps: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Value], expected: str
) -> None:
    facts = facts_from({"architecture.image": "amd64", "asked.accelerator": "cpu", **more}, "lock")
    small_image(apps, BASE, name="plain.sif", facts=facts_text(facts))
    members = json.loads(check(capsys, SLINGSHOT, "--json")[1])["members"]
    (result,) = [member["result"] for member in members if member["name"] == "plain.sif"]
    assert result["verdict"] == expected, result


@pytest.mark.parametrize(("words", "expected"), [((), "ok"), (("--fabric", "host"), "unknown")])
def test_a_newer_host_says_nothing_of_an_image_that_gets_none_of_its_libraries(
    apps: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    own: dict[str, Value] = {"mpi.abis": (), "mpi.needed_abis": (), "glibc.image": "2.36"}
    facts = facts_from({"architecture.image": "amd64", "asked.accelerator": "cpu", **own}, "lock")
    small_image(apps, BASE, name="plain.sif", facts=facts_text(facts))
    site = "name: there\narchitecture: amd64\nglibc: '2.38'\nfabric: {name: infiniband, provider: ucx}\n"
    members = json.loads(check(capsys, site, "--json", *words)[1])["members"]
    (result,) = [member["result"] for member in members if member["name"] == "plain.sif"]
    assert result["verdict"] == expected, result


def test_types_of_srun_that_only_a_site_has_are_warned_of(
    apps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.yaml").write_text(SLINGSHOT.replace("pmi2]", "foo, pmix_v5]"))
    for words in (["check"], ["forecast", "--change", "pmi.offered=bar,pmix"]):
        with pytest.raises(SystemExit):
            main([*words, "--all", "apps", "--site", "there.yaml"])
        said = capsys.readouterr().err
        assert "neither Slurm nor Cray has these types of `srun --mpi`: foo (" in said
        assert ("`srun --mpi`: bar (" in said) == ("forecast" in words)


def test_without_a_site_nothing_is_judged(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "--all", "apps"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no site is known" in said
    assert "`envbuild site probe`" in said
    with pytest.raises(SystemExit) as ended:
        main(["check", "--all", "apps", "--srun"])
    assert ended.value.code == 2


def test_an_image_without_facts_is_unknown() -> None:
    unread = fit.SiteFit(image=KnownImage(name="a", path=Path("a.sif"), problem="damaged"), partitions=())
    assert (unread.verdict, unread.reasons) == ("unknown", ("damaged",))


def test_several_images_are_checked_in_full(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "apps/cuda.sif", "apps/foreign.sif", "apps/none.sif"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()] == [
        ["PASS", "apps/cuda.sif"],
        ["failed", "apps/foreign.sif"],
        ["failed", "apps/none.sif"],
    ]
    assert "there is no image" in printed.err
