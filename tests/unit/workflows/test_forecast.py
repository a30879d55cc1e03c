"""A change of a machine breaks images or not: each outlook has a reason, and unknown is never silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError, RequestError
from envbuild.rules.facts import Fact, Value, facts_from
from envbuild.rules.knowledge import KnowledgeFile, shipped
from envbuild.rules.repair import Repair
from envbuild.spec.load import load
from envbuild.spec.site import Site
from envbuild.system import files
from envbuild.workflows.forecast import KnownImage, Outlook, outlook, parse_changes
from tests.support.small_images import UNREAD, small_image

CUDA: dict[str, Value] = {
    "architecture.image": "amd64",
    "asked.accelerator": "cuda",
    "cuda.toolkit": "13.0",
    "cuda.majors": ("13",),
    "cuda.forward_compat": False,
    "mpi.family": "openmpi",
    "mpi.version": "5.0.11",
    "mpi.source": "image",
}
SITE = """\
name: here
architecture: amd64
gpus: {vendor: nvidia, architectures: [sm_90], driver: "580.95.05"}
scheduler: {name: slurm, version: "25.05.3", mpi_types: [pmix, pmi2], default_mpi_type: pmix, pmix: "5.0.7"}
"""


def site(text: str = SITE) -> Site:
    return load(Site, text.encode(), Path("here.yaml")).value


def looked(
    facts: dict[str, Value], *changes: str, now: str = SITE, then: str | None = None
) -> tuple[str, list[str]]:
    image = KnownImage(name="a", path=Path("a.sif"), facts=facts_from(facts, "lock"))
    found: Outlook = outlook(image, site(now), site(then or now), changed=parse_changes(changes))
    return found.state, [result.rule for result in found.results]


def test_a_change_that_touches_nothing_known_to_clash_holds() -> None:
    assert looked(CUDA, "driver.version=590.44.01") == ("holds", [])


def test_a_rule_that_reads_the_images_part_of_what_changes_is_not_touched() -> None:
    # A rule compares the image's glibc with the kernel, which is not known.
    _, rules = looked({**CUDA, "glibc.image": "2.36"}, "glibc.host=2.39")
    assert "GLIBC.kernel" not in rules


def test_an_older_driver_breaks_an_image() -> None:
    assert looked(CUDA, "driver.version=575.57.08") == ("breaks", ["CUDA.driver-floor"])
    then = SITE.replace("580.95.05", "575.57.08")
    assert looked(CUDA, then=then) == ("breaks", ["CUDA.driver-floor"])
    assert looked({**CUDA, "cuda.toolkit": "12.8", "cuda.majors": ("12",)}, then=then)[0] == "holds"


def test_what_is_refused_now_is_not_broken_by_the_change() -> None:
    old = SITE.replace("580.95.05", "575.57.08")
    assert looked(CUDA, "driver.version=570.86", now=old) == ("broken", ["CUDA.driver-floor"])
    assert looked(CUDA, "driver.version=580.95.05", now=old)[0] == "holds"


def test_an_image_that_is_refused_already_is_broken_whatever_else_then_refuses_it() -> None:
    old = SITE.replace("580.95.05", "575.57.08")
    state, rules = looked(CUDA, "scheduler.pmix=5.0.9", now=old)
    assert (state, rules) == ("broken", ["CUDA.driver-floor", "PMI.pmix-of-slurm"])
    # The driver is right then; ranks do not start.
    changes = ("scheduler.pmix=5.0.9", "driver.version=580.95.05")
    assert looked(CUDA, *changes, now=old) == ("broken", ["PMI.pmix-of-slurm"])


# Facts as a scan finds them, of images for CPUs: one without an MPI, and one with its own.
CPU: dict[str, Value] = {
    "architecture.image": "amd64",
    "asked.accelerator": "cpu",
    "cuda.toolkit": "",
    "cuda.majors": (),
    "frameworks": (),
    "glibc.image": "2.36",
    "mpi.abis": (),
    "mpi.needed_abis": (),
    "packages": (),
}
MPICH: dict[str, Value] = {
    **CPU,
    "mpi.abis": ("mpich",),
    "mpi.needed_abis": ("mpich",),
    "mpi.family": "mpich",
    "mpi.version": "5.0.2",
    "mpi.source": "image",
}


@pytest.mark.parametrize("change", ["scheduler.version=25.11.2", "scheduler.pmix=5.0.9", "pmi.offered=null"])
def test_an_image_without_an_mpi_holds_when_the_scheduler_changes(change: str) -> None:
    assert looked(CPU, change) == ("holds", [])


def test_a_rule_that_is_not_settled_is_shown_if_the_change_matters_to_it() -> None:
    # Which launcher starts ranks is not known. That Slurm is newer than 19.05 was so before.
    assert looked(MPICH, "scheduler.version=25.11.2") == ("holds", [])
    old = SITE.replace("25.05.3", "18.08.1")
    assert looked(MPICH, "scheduler.version=19.05.2", now=old) == ("unknown", ["MPI.known-bad"])


def test_a_driver_of_amd_does_not_concern_an_image_for_the_cpu() -> None:
    amd = "name: here\narchitecture: amd64\ngpus: {vendor: amd, architectures: [gfx90a], rocm: '6.2.1'}\n"
    assert looked(CPU, "rocm.driver=7.2.0", now=amd) == ("holds", [])
    rocm: dict[str, Value] = {**CPU, "asked.accelerator": "rocm", "rocm.toolkit": "6.2"}
    assert looked(rocm, "rocm.driver=7.2.0", now=amd) == ("warns", ["ROCM.driver-window"])


def test_an_update_of_slurm_breaks_the_start_of_ranks() -> None:
    assert looked(CUDA, "pmi.offered=pmi2") == ("breaks", ["PMI.intersection"])
    assert looked(CUDA, "scheduler.pmix=5.0.9") == ("breaks", ["PMI.pmix-of-slurm"])
    assert looked(CUDA, "scheduler.pmix=5.0.9", "scheduler.version=25.11.2")[0] == "holds"
    # It answers no client of its PMIx now; a newer one does.
    bad = SITE.replace("5.0.7", "5.0.8")
    assert looked(CUDA, "scheduler.version=25.05.5", now=bad) == ("broken", ["PMI.pmix-of-slurm"])
    assert looked(CUDA, "scheduler.version=25.11.2", now=bad)[0] == "holds"


def test_a_list_that_changes_is_the_whole_one() -> None:
    more = SITE.replace("default_mpi_type", "more_mpi_types: true, default_mpi_type")
    assert looked(CUDA, "pmi.offered=pmi2", now=more) == ("breaks", ["PMI.intersection"])


def test_a_new_warning_is_one() -> None:
    facts = {path: value for path, value in CUDA.items() if path != "cuda.forward_compat"}
    assert looked(facts, "driver.version=575.57.08") == ("warns", ["CUDA.driver-floor"])


def test_the_major_of_an_images_cuda_libraries_decides() -> None:
    facts = {path: value for path, value in CUDA.items() if path != "cuda.toolkit"}
    assert looked(facts, "driver.version=575.57.08") == ("breaks", ["CUDA.driver-floor"])


def test_a_change_of_gpus_and_drivers_does_not_concern_an_image_for_the_cpu() -> None:
    cpu: dict[str, Value] = {**CUDA, "asked.accelerator": "cpu", "cuda.toolkit": "", "cuda.majors": ()}
    assert looked(cpu, "driver.open_modules=true", now=SITE.replace("sm_90", "sm_70")) == ("holds", [])
    assert looked(cpu, "driver.version=590.44.01", now=SITE.replace("sm_90", "sm_70")) == ("holds", [])


def test_unknown_is_never_silent() -> None:
    # A driver of which only the branch is known, and a toolkit that nobody knows.
    facts = {path: value for path, value in CUDA.items() if not path.startswith("cuda.")}
    state, rules = looked(facts, "driver.version=575.57.08")
    assert state == "unknown"
    assert "CUDA.driver-floor" in rules
    unread = KnownImage(name="a", path=Path("a.sif"), facts=None, problem="it is damaged")
    assert outlook(unread, site(), site(), changed=parse_changes(["driver.version=1"])).state == "unknown"
    # A driver that the site no longer states.
    then = SITE.replace(', driver: "580.95.05"', "")
    assert looked(CUDA, then=then) == ("unknown", ["GPU.driver-floor", "CUDA.driver-floor"])


def repaired(facts: dict[str, Value], *changes: str, is_extended: bool = False) -> Repair | None:
    image = KnownImage(name="a", path=Path("a.sif"), facts=facts_from(facts, "lock"), is_extended=is_extended)
    return outlook(image, site(), site(), changed=parse_changes(changes)).repair


def test_a_repair_names_the_release_and_the_layers() -> None:
    pytorch: dict[str, Value] = {
        "frameworks": ("pytorch",),
        "frameworks.pytorch.accelerator": "cuda",
        "frameworks.pytorch.architectures": ("sm_90",),
    }
    found = repaired({**CUDA, **pytorch}, "driver.version=575.57.08")
    assert found is not None
    # The machine becomes older than what the image has.
    assert (found.release, found.layers) == ("older", ("accelerator", "framework pytorch"))
    assert found.steps == "an older release in the spec, and `envbuild build SPEC`"
    found = repaired({**CUDA, **pytorch}, "pmi.offered=pmi2")
    assert found is not None
    assert (found.release, found.layers) == ("", ("mpi",))
    # All lies on the base.
    found = repaired({**CUDA, **pytorch}, "architecture.host=arm64", is_extended=True)
    assert found is not None
    assert found.layers == ("base", "mpi", "accelerator", "framework pytorch", "packages")
    assert found.steps.endswith("; then `envbuild extend NEW.sif --like IMAGE` adds its packages again")


def test_an_image_that_is_too_old_for_the_machine_needs_a_newer_release() -> None:
    rows = (
        "rows:\n  - {rule: SITE.a, if: {mpi.family: openmpi, mpi.version: '<5.0.12'}, needs:"
        " {scheduler.version: '<25.11'}, reason: r, source: s, seen: '2026-11-20', fix: f}\n"
    )
    file = load(KnowledgeFile, rows.encode(), Path("rows.yaml")).value
    image = KnownImage(name="a", path=Path("a.sif"), facts=facts_from(CUDA, "lock"))
    changed = parse_changes(["scheduler.version=25.11.3"])
    found = outlook(image, site(), site(), changed=changed, knowledge=shipped().with_file(file, "rows.yaml"))
    assert (found.state, found.repair) == ("breaks", Repair(release="newer", layers=("mpi",)))


def test_an_image_for_another_architecture_is_built_there() -> None:
    found = repaired({"architecture.image": "arm64", "asked.accelerator": "cpu"}, "architecture.host=amd64")
    assert found is not None
    assert (found.release, found.architecture) == (None, "amd64")
    assert found.steps == "`envbuild build SPEC` on a machine of amd64"
    assert found.layers[0] == "base"
    # A driver that is too old is repaired as well.
    found = repaired(CUDA, "architecture.host=arm64", "driver.version=575.57.08")
    assert found is not None
    assert (found.release, found.architecture) == ("older", "arm64")


def test_no_change_of_an_image_repairs_the_machine() -> None:
    found = looked(CUDA, "runtime.name=apptainer", "runtime.setuid=false", "runtime.user_namespaces=false")
    assert found == ("breaks", ["RUNTIME.way-to-start"])
    changes = ("runtime.name=apptainer", "runtime.setuid=false", "runtime.user_namespaces=false")
    assert repaired(CUDA, *changes) is None


def test_needs_of_rules_that_a_centre_has_silenced_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    small_image(tmp_path, UNREAD, name="a.sif")
    knowledge = tmp_path / "etc/knowledge"
    knowledge.mkdir(parents=True)
    (knowledge / "a.yaml").write_text(
        'silences: [{rule: CUDA.driver-floor, reason: our driver can, date: "2026-11-20"}]\n'
    )
    why = f"our driver can (2026-11-20, {knowledge / 'a.yaml'})"
    with pytest.raises(SystemExit):
        main(["forecast", "--needs", "--all", str(tmp_path)])
    assert f"silenced CUDA.driver-floor: {why}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["forecast", "--needs", "--all", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["silenced"] == {"CUDA.driver-floor": why}


def test_a_fact_that_will_not_be_known_is_unknown() -> None:
    assert parse_changes(["driver.version=null"]) == {"driver.version": None}
    assert looked(CUDA, "driver.version=null") == ("unknown", ["GPU.driver-floor", "CUDA.driver-floor"])
    assert looked(CUDA, "pmi.offered=null") == ("unknown", ["PMI.intersection"])


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("driver.version=new", "not one version", "`driver.version` is the version of the host's GPU driver"),
        ("gpus.vendor=NVIDIA", "not one of nvidia, amd, none", "`gpus.vendor` is the "),
        ("pmi.offered=pmix,", "an entry is empty", "`pmi.offered` is the types"),
        ("runtime.setuid=no", "not `true` or `false`", "`runtime.setuid` says whether"),
        ("architecture.host=x86_64", "Input should be 'amd64' or 'arm64'", ""),
        ("scheduler.name=Slurm", "", ""),
    ],
)
def test_a_value_of_another_kind_is_an_error(text: str, problem: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_changes([text])
    assert caught.value.problem.startswith(f"--change: `{text}`: {problem}")
    assert (caught.value.hint or "").startswith(hint)


def test_changes_are_facts_of_a_machine() -> None:
    texts = ["driver.version=580.65", "gpus.architectures=sm_90,sm_80", "runtime.setuid=false"]
    assert {path: fact.value for path, fact in parse_changes(texts).items() if fact} == {
        "driver.version": "580.65",
        "gpus.architectures": ("sm_90", "sm_80"),
        "runtime.setuid": False,
    }
    assert parse_changes(["driver.version=1"]) == {"driver.version": Fact("1", "--change")}
    assert parse_changes(["limits.shm=67108864"]) == {"limits.shm": Fact("67108864", "--change")}
    wrong = ["driver.versoin=1", "cuda.toolkit=13", "driver.version", "gpus.vendor=amd", "gpus.vendor=none"]
    with pytest.raises(EnvbuildError) as caught:
        parse_changes(wrong)
    errors = {error.problem: error.hint for error in caught.value.each()}
    assert errors["--change: `driver.versoin` is not a fact of a machine"] == "did you mean `driver.version`?"
    assert "--change: `cuda.toolkit` is not a fact of a machine" in errors
    assert errors["--change: `driver.version` has no value"] == (
        "write `driver.version=VALUE`, or `driver.version=null` if it will not be known"
    )
    assert "--change: `gpus.vendor` is given twice" in errors
