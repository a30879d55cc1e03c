"""`envbuild explain --facts`: the chain of a stack that somebody describes, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.system import files

GOOD = """\
frameworks.pytorch: {version: 2.13.0, toolkit: 13.0, accelerator: cuda}
python.version: 3.10
architecture: {image: amd64, host: amd64}
cuda: {toolkit: 13.0, forward_compat: false, majors: [13]}
gpus: {vendor: nvidia, architectures: [sm_90]}
driver.version: 580.95.05
"""
ROWS = """\
rows:
  - rule: SITE.no-580
    if: {gpus.vendor: nvidia}
    needs: {driver.version: ">=590"}
    reason: our nodes hang with older drivers
    severity: warning
    source: ticket 4711
    seen: "2026-11-20"
    fix: use the other partition
"""


@pytest.fixture(autouse=True)
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def explained(capsys: pytest.CaptureFixture[str], text: str, *words: str, name: str = "f.yaml") -> Any:
    Path(name).write_text(text)
    code, out, err = run(capsys, "--facts", name, "--json", *words)
    document = json.loads(out)
    assert err == ""
    assert code == (4 if document["verdict"] == "reject" else 0)
    return document


def rule(document: Any, rule_id: str) -> Any:
    (found,) = [entry for entry in document["rules"] if entry["id"] == rule_id]
    return found


def test_a_good_stack_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, GOOD)
    assert document["verdict"] == "ok"
    floor = rule(document, "CUDA.driver-floor")
    assert (floor["verdict"], floor["fix"], floor["silenced"]) == ("ok", "", "")
    facts = {fact["path"]: (fact["value"], fact["origin"]) for fact in floor["facts"]}
    # As it is written, and with its line.
    assert facts["cuda.toolkit"] == ("13.0", "f.yaml:4:17")
    assert facts["driver.version"] == ("580.95.05", "f.yaml:6:17")
    assert "(seen 2026-" in floor["source"]
    assert rule(document, "PYTHON.framework-range")["facts"][-1]["value"] == "3.10"
    assert {"pmi.spoken", "fabric.name"} <= set(document["lacking"])


def test_the_same_stack_in_dotted_keys_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    flat = {
        "frameworks": ["torch"],
        "frameworks.torch.version": "2.13.0",
        "frameworks.torch.toolkit": "13.0",
        "frameworks.torch.accelerator": "cuda",
        "gpus.vendor": "nvidia",
        "gpus.architectures": ["sm_70"],
        "architecture.image": "amd64",
    }
    document = explained(capsys, json.dumps(flat), name="f.json")
    assert rule(document, "GPU.arch-in-build")["verdict"] == "reject"
    assert rule(document, "GPU.arch-in-build")["subject"] == "pytorch"


def test_a_stack_is_refused_with_the_smallest_fix(capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(GOOD.replace("580.95.05", "570.86"))
    code, out, _ = run(capsys, "--facts", "f.yaml")
    assert code == 4
    assert (
        "reject   CUDA.driver-floor: CUDA 13 needs a driver of at least 580, and driver.version is 570.86\n"
        in out
    )
    assert "         driver.version = 570.86 (f.yaml:6:17)\n" in out
    assert "         fix: take a build for an older major release of CUDA, or another site\n" in out
    assert out.endswith("verdict: reject, f.yaml\n")
    # From the framework down.
    assert out.index("GPU.arch-in-build") < out.index("PYTHON.") < out.index("CUDA.driver-floor")


def test_rules_that_lack_facts_are_counted_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(GOOD)
    _, out, _ = run(capsys, "--facts", "f.yaml")
    assert "rules (`-v` lists them), for want of: " in out
    assert "PMI.intersection" not in out
    _, out, _ = run(capsys, "-v", "--facts", "f.yaml")
    assert "unknown  PMI.intersection: not known: `pmi.spoken`\n" in out


def test_nothing_known_and_what_has_not_been_read_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, "{}")["verdict"] == "unknown"
    document = explained(capsys, GOOD.replace("toolkit: 13.0", "toolkit: 14.0"))
    assert rule(document, "CUDA.driver-floor")["reason"] == "which driver CUDA 14 needs has not been read"
    assert document["verdict"] == "unknown"


def test_a_file_of_rows_counts_and_a_silence_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.yaml").write_text(
        ROWS + 'silences: [{rule: CUDA.driver-floor, reason: our driver can, date: "2026-11-20"}]\n'
    )
    document = explained(capsys, GOOD.replace("580.95.05", "570.86"), "--knowledge", "rows.yaml")
    assert document["verdict"] == "warn"
    assert rule(document, "SITE.no-580")["source"] == "ticket 4711 (seen 2026-11-20, rows.yaml)"
    floor = rule(document, "CUDA.driver-floor")
    assert (floor["verdict"], floor["silenced"]) == ("unknown", "our driver can (2026-11-20, rows.yaml)")
    assert document["silenced"] == {"CUDA.driver-floor": "our driver can (2026-11-20, rows.yaml)"}
    document = explained(capsys, GOOD, "--knowledge", "rows.yaml")
    assert rule(document, "CUDA.driver-floor")["verdict"] == "ok"


def test_facts_of_a_site_are_added_and_those_of_the_file_count_more(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    (work / "here.yaml").write_text(
        "name: here\ngpus: {vendor: nvidia, architectures: [sm_90]}\n"
        "partitions: {old: {gpus: {driver: '570.86'}}, new: {gpus: {driver: '580.95.05'}}}\n"
    )
    image = "".join(
        line for line in GOOD.splitlines(keepends=True) if not line.startswith(("gpus", "driver"))
    )
    document = explained(capsys, image, "--site", "here.yaml/old")
    assert (document["verdict"], document["sites"]) == ("reject", ["here/old"])
    # It fits one of the partitions.
    document = explained(capsys, image, "--site", "here.yaml")
    floors = [entry for entry in document["rules"] if entry["id"] == "CUDA.driver-floor"]
    assert [(entry["verdict"], entry["partition"]) for entry in floors] == [
        ("warn", "here/old"),
        ("ok", "here/new"),
    ]
    assert explained(capsys, GOOD, "--site", "here.yaml/old")["verdict"] == "ok"


def test_errors_of_a_file_of_facts_come_at_once_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(
        "cuda.forward_compat: sometimes\ndriver.version: [580, 590]\nmpi.abis: [b, [a]]\n"
    )
    code, out, err = run(capsys, "--facts", "f.yaml")
    assert (code, out) == (2, "")
    assert "`cuda.forward_compat` is not `true` or `false`\n  --> f.yaml:1:22\n" in err
    assert "`driver.version` is one value, not a list\n  --> f.yaml:2:17\n" in err
    assert "`mpi.abis` is not text\n  --> f.yaml:3:11\n" in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("driver.version: latest\n", "`driver.version` cannot be `latest`: not one version"),
        (
            "frameworks.jax.toolkit: cu121\n",
            "`frameworks.jax.toolkit` cannot be `cu121`: not one version",
        ),
        ("gpus.vendor: intel\n", "`gpus.vendor` cannot be `intel`: not one of nvidia, amd, none"),
        ("gpus.architectures: ['12.0']\n", "`gpus.architectures` cannot be `12.0`: `12.0` is not a GPU"),
        ("limits.shm: 64M\n", "`limits.shm` cannot be `64M`: Input should be a valid integer"),
        ("libc.family: uclibc\n", "`libc.family` cannot be `uclibc`: not one of glibc, musl"),
    ],
)
def test_a_value_that_a_fact_cannot_have_is_an_error(
    text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f.yaml").write_text(
        GOOD.replace("driver.version: 580.95.05\n", "").replace("gpus:", "other:") + text
    )
    code, out, err = run(capsys, "--facts", "f.yaml")
    assert (code, out) == (2, "")
    assert problem in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "gpus: {vendor: amd, architectures: [sm_90]}\n",
            "`gpus.architectures`: `sm_90` is not a GPU of amd\n  --> f.yaml:1:36\n",
        ),
        (
            "gpus: {vendor: none, architectures: [sm_90]}\n",
            "`gpus.architectures`: `sm_90` is a GPU, and `vendor` is none\n  --> f.yaml:1:37\n",
        ),
    ],
)
def test_facts_that_exclude_one_another_are_an_error(
    text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f.yaml").write_text(text)
    code, out, err = run(capsys, "--facts", "f.yaml")
    assert (code, out) == (2, "")
    assert problem in err


def test_the_rate_of_infiniband_is_a_fact(capsys: pytest.CaptureFixture[str]) -> None:
    for rate in ("HDR", "hdr"):
        assert explained(capsys, f"fabric.rate: {rate}\n")["verdict"] == "unknown"


def test_a_package_says_who_made_the_build_of_a_framework(capsys: pytest.CaptureFixture[str]) -> None:
    text = "frameworks.tensorflow: {version: 2.17.0, accelerator: cuda}\ncudnn.loaded: 9.7.1\n"
    assert rule(explained(capsys, text), "TENSORFLOW.cudnn-of-its-build")["verdict"] == "warn"
    document = explained(capsys, text + "packages.tensorflow: 2.17.0+nv25.2\n")
    assert "TENSORFLOW.cudnn-of-its-build" not in {entry["id"] for entry in document["rules"]}


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("driver: {version: 580.95.05}", "driver.version: 550", "driver.version"),
        (
            "frameworks.torch.version: 2.13.0",
            "frameworks: {pytorch: {version: 2.0}}",
            "frameworks.pytorch.version",
        ),
        ("packages: {flash-attn: 2.8.3}", "packages.Flash_Attn: 2.1", "packages.flash-attn"),
    ],
)
def test_a_fact_is_stated_once(
    first: str, second: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f.yaml").write_text(f"{first}\n{second}\n")
    code, out, err = run(capsys, "--facts", "f.yaml")
    assert (code, out) == (2, "")
    assert f"`{name}` is given twice\n  --> f.yaml:2:" in err
    assert "hint: it was first given at f.yaml:1:" in err


def test_the_case_of_a_name_and_the_processors_own_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("580.95.05", "570.86").replace("vendor: nvidia", "vendor: NVIDIA")
    assert rule(explained(capsys, text), "CUDA.driver-floor")["verdict"] == "reject"
    document = explained(capsys, GOOD.replace("host: amd64", "host: x86_64"))
    assert rule(document, "ARCH.same")["verdict"] == "ok"
    assert document["verdict"] == "ok"


@pytest.mark.parametrize("name", ["OpenMPI", "Open MPI", "openmpi", "open-mpi"])
def test_names_of_mpis_are_understood_as_people_write_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"mpi: {{family: {name}, version: 5.0.3, source: image}}\npmi.offered: [pmi2]\n"
    text += "scheduler: {name: SLURM, version: 24.05.4}\n"
    assert rule(explained(capsys, text), "PMI.intersection")["verdict"] == "reject"


@pytest.mark.parametrize(
    ("names", "architectures"),
    [
        ("[NVIDIA B200]", "sm_100"),
        ("[NVIDIA GeForce RTX 5090, NVIDIA H100 80GB HBM3]", "sm_120, sm_90"),
        ("[Tesla V100-SXM2-32GB, NVIDIA RTX 6000 Ada Generation]", "sm_70, sm_89"),
        ("[AMD Instinct MI250X/MI250]", "gfx90a"),
        ("[NVIDIA Z100]", ""),
    ],
)
def test_names_of_gpus_are_those_that_tools_show(
    names: str, architectures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = explained(capsys, f"gpus.names: {names}\nframeworks.torch.version: 2.5.1\n")
    found = {
        fact["value"]
        for entry in document["rules"]
        for fact in entry["facts"]
        if fact["path"] == "gpus.architectures"
    }
    assert found == ({architectures} if architectures else set())
    assert ("gpus.architectures" in document["lacking"]) == (not architectures)


def test_a_row_names_a_gpu_by_some_of_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.yaml").write_text(ROWS.replace("{gpus.vendor: nvidia}", "{gpus.names: H100}"))
    for names, verdicts in (("NVIDIA H100 80GB HBM3", ["warn"]), ("NVIDIA GH100", [])):
        document = explained(
            capsys, f"driver.version: 580\ngpus.names: ['{names}']\n", "--knowledge", "rows.yaml"
        )
        assert [entry["verdict"] for entry in document["rules"] if entry["id"] == "SITE.no-580"] == verdicts


@pytest.mark.parametrize("driver", ["driver.version: 550.54.15\n", "driver.cuda: 12.4\n"])
def test_a_driver_says_whose_it_is(driver: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, f"packages.torch: 2.9.1+cu130\ncuda.forward_compat: false\n{driver}")
    assert rule(document, "CUDA.driver-floor")["verdict"] == "reject"


@pytest.mark.parametrize(
    ("build", "gpu", "verdict"),
    [
        ("rocm6.2", "A100", "reject"),
        ("cu124", "MI250X", "reject"),
        ("cu124", "A100", "ok"),
        ("rocm6.2", "MI250X", "ok"),
        ("cpu", "MI250X", None),
    ],
)
def test_a_build_for_the_gpus_of_another_vendor_is_refused(
    build: str, gpu: str, verdict: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    document = explained(capsys, f"frameworks.torch.version: 2.5.1+{build}\ngpus.names: [{gpu}]\n")
    verdicts = [entry["verdict"] for entry in document["rules"] if entry["id"] == "GPU.vendor"]
    assert verdicts == ([verdict] if verdict else [])


def test_a_build_for_gpus_that_nobody_asked_for_also_runs_on_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, "frameworks.torch.version: 2.5.1+cu124\ngpus.vendor: none\n")
    assert "GPU.vendor" not in {entry["id"] for entry in document["rules"]}


@pytest.mark.parametrize(
    "text",
    [
        "frameworks.PyTorch.version: 2.0.1\n",
        "frameworks: [Torch]\nframeworks.Torch: {version: 2.0.1}\n",
        "packages.Torch: 2.0.1\n",
        "packages.tensorflow-gpu: 2.10.0\n",
        "packages.tensorflow-cpu: 2.10.0\n",
    ],
)
def test_a_framework_is_known_by_all_its_names(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    clash = rule(explained(capsys, f"packages.numpy: 2.0.0\n{text}"), "NUMPY.of-framework")
    assert clash["verdict"] in ("reject", "warn")


def test_releases_of_jax_are_those_of_its_packages(capsys: pytest.CaptureFixture[str]) -> None:
    text = "packages: {jaxlib: 0.6.2, jax-cuda12-plugin: 0.5.0.post1}\n"
    assert rule(explained(capsys, text), "JAX.one-release")["verdict"] == "reject"
    text = "packages: [jaxlib, jax-cuda12-plugin]\npackages.jaxlib: 0.6.2\n"
    assert rule(explained(capsys, text), "JAX.one-release")["verdict"] == "unknown"
    text += "packages.jax-cuda12-plugin: 0.6.2\n"
    assert rule(explained(capsys, text), "JAX.one-release")["verdict"] == "ok"


@pytest.mark.parametrize(
    ("packages", "verdict"),
    [
        ("{torch: 2.9.0, nvidia-cuda-runtime: 13.0.96}", "reject"),
        ("{torch: 2.9.0, nvidia-cuda-runtime-cu12: 12.8.90}", "ok"),
        ("{jax: 0.7.2, jaxlib: 0.7.2, jax-cuda13-plugin: 0.7.2}", "reject"),
        ("{jax: 0.7.2, jaxlib: 0.7.2, jax-cuda12-plugin: 0.7.2}", "ok"),
    ],
)
def test_packages_say_which_cuda_a_stack_has(
    packages: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"packages: {packages}\ndriver.version: 570.86\ncuda.forward_compat: false\n"
    assert rule(explained(capsys, text), "CUDA.driver-floor")["verdict"] == verdict


@pytest.mark.parametrize(
    ("loaded", "verdict"), [("9.10.2", "ok"), ("9.10.1", "reject"), ("9.10.2.20", "reject")]
)
def test_the_build_of_a_cudnn_counts_where_it_is_known(
    loaded: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = explained(capsys, f"packages.nvidia-cudnn-cu12: 9.10.2.21\ncudnn.loaded: {loaded}\n")
    assert rule(document, "CUDNN.not-older-than-built")["verdict"] == verdict


def test_versions_are_as_tools_show_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("580.95.05", "R580") + "host.kernel: 5.14.0-427.el9.x86_64\n"
    assert explained(capsys, text)["verdict"] == "ok"


def test_the_cuda_of_a_driver_stands_for_its_branch(capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, GOOD.replace("driver.version: 580.95.05", "driver.cuda: 12.4"))
    floor = rule(document, "CUDA.driver-floor")
    assert (floor["verdict"], floor["reason"]) == (
        "reject",
        "CUDA 13 needs a driver of at least 580, and driver.version is 550",
    )
    assert "f.yaml:6:14, table:driver-of-cuda" in {fact["origin"] for fact in floor["facts"]}
    # What is stated counts more.
    assert explained(capsys, GOOD + "driver.cuda: 12.4\n")["verdict"] == "ok"
    Path("f.yaml").write_text("driver.cuda: 99.1\n")
    code, _, err = run(capsys, "--facts", "f.yaml")
    assert (code, "which driver brought CUDA `99.1` is not known" in err) == (2, True)


def test_gpu_code_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "frameworks.torch.architectures: [sm_80, sm_90]\ngpus.architectures: [sm_120]\n"
    document = explained(capsys, text)
    assert rule(document, "GPU.arch-in-build")["verdict"] == "reject"
    origins = {fact["path"]: fact["origin"] for fact in rule(document, "GPU.arch-in-build")["facts"]}
    assert origins["gpus.vendor"] == "gpus.architectures"


def test_keys_that_are_not_facts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(capsys, GOOD + "cuda.tolkit: 13\nother: {os: Rocky 9}\nscheduler.version: null\n")
    assert document["unread"] == ["cuda.tolkit", "other.os"]
    Path("f.yaml").write_text("driver: 570\ncuda.tolkit: 13\ngpu: H100\n")
    _, out, _ = run(capsys, "--facts", "f.yaml")
    assert "not read driver, cuda.tolkit, gpu: not facts of envbuild\n" in out
    assert "gpu: did you mean `gpus.vendor`?\n" in out
    assert "driver: did you mean `driver.version`?\n" in out
    assert "cuda.tolkit: did you mean `cuda.toolkit`?\n" in out


def test_no_value_forges_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(r'injected.absent: ["x\nverdict: ok"]')
    _, out, _ = run(capsys, "-v", "--facts", "f.yaml")
    assert not any(line.startswith("verdict: ok") for line in out.splitlines())
    assert r"x\u000averdict: ok" in out


@pytest.mark.parametrize(
    "text",
    [
        "packages: {flash_attn: 2.6.3, flash-attn.framework: '2.4'}\nenvironment: {PATH: /bin}\n",
        "packages.Flash-Attn: 2.6.3\npackages.flash_attn.framework: '2.4'\n",
        "packages: {flash-attn: {framework: '2.4', cxx11_abi: true}}\nlimits: {shm: 67108864}\n",
    ],
)
def test_facts_of_extensions_and_variables_nested_or_dotted(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = explained(capsys, "frameworks.torch.version: 2.5.1\n" + text)
    clash = [entry for entry in document["rules"] if entry["verdict"] == "reject"]
    assert [(entry["id"], entry["subject"]) for entry in clash] == [
        ("PACKAGE.built-for-framework", "flash-attn")
    ]
    assert document["unread"] == []


def test_one_stack_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("image.sif", "--facts", "f.yaml")):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert "name one stack: a spec, an image, or a file of facts" in err
