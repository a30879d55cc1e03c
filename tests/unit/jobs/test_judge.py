"""Each way in which ranks may fail to talk, and what the judge says of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from envbuild.jobs.envbuild_libraries import is_blas
from envbuild.jobs.judge import (
    GpuSurvey,
    Job,
    LaunchResult,
    blas_of,
    judge_gpus,
    judge_imports,
    judge_job,
    judge_mapped,
    judge_ranks,
    relative_difference,
    tutorial_file,
)
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import CheckResult
from tests.unit.jobs.stage import GOOD_END, all_ranks, job, report, reports


def statuses(findings: list[CheckResult]) -> dict[str, str]:
    return {finding.id: finding.status for finding in findings}


@pytest.mark.parametrize("ranks", [1, 2, 3, 64])
def test_all_ranks_once_pass(ranks: int) -> None:
    finding = judge_ranks("demo.train", ranks, all_ranks(ranks))
    assert (finding.status, finding.id) == ("PASS", "demo.train/ranks")
    assert finding.expected == finding.observed


@pytest.mark.parametrize(
    ("found", "hint"),
    [
        pytest.param(reports(report(0, 1), report(0, 1, pid=7)), "singletons", id="singletons"),
        pytest.param(reports(report(0, 2)), "no sound report of rank 1", id="missing"),
        pytest.param(Reports(), "no sound report of rank 0,1", id="nothing"),
        pytest.param(
            reports(report(0, 2), report(0, 2, pid=7)), "rank 0 reported more than once", id="duplicate"
        ),
        pytest.param(
            reports(report(0, 2), report(1, 2), report(1, 2, pid=7)),
            "rank 1 reported more than once",
            id="one too many",
        ),
        pytest.param(
            reports(report(0, 2), report(1, 2, pid=100)), "one process", id="two reports of one process"
        ),
        pytest.param(
            reports(report(0, 2), report(2, 2)), "no sound report of rank 1", id="rank out of range"
        ),
        pytest.param(reports(report(0, 2), report(-1, 2)), "no sound report of rank 1", id="negative rank"),
        pytest.param(reports(report(0, 3), report(1, 3)), "", id="another size"),
        pytest.param(reports(report(0, 2), report(1, 3)), "", id="sizes differ"),
        pytest.param(
            reports(report(0, 2), report(1, 2), problems=("report-x.json: no JSON",)),
            "report-x.json",
            id="garbled",
        ),
    ],
)
def test_anything_else_fails_with_its_reason(found: Reports, hint: str) -> None:
    finding = judge_ranks("demo.train", 2, found)
    assert finding.status == "FAIL"
    assert hint in finding.hint
    assert finding.expected != finding.observed


def test_equal_numbers_in_other_process_namespaces_or_hosts_are_other_processes() -> None:
    elsewhere = reports(
        report(0, 3), report(1, 3, pid=100, process="pid:[2]"), report(2, 3, pid=100, host="other")
    )
    assert judge_ranks("demo.train", 3, elsewhere).status == "PASS"


def test_exact_values_by_rank() -> None:
    demo = job(expect={"sum": "n*(n+1)//2", "cell": "n + r"})
    good = all_ranks(3, lambda rank: {"sum": 6.0, "cell": 3 + rank})
    assert set(statuses(judge_job(demo, 3, good, GOOD_END)).values()) == {"PASS"}
    swapped = all_ranks(3, lambda rank: {"sum": 6, "cell": 5 - rank})
    assert statuses(judge_job(demo, 3, swapped, GOOD_END)) == {
        "demo.train/ranks": "PASS",
        "demo.train/end": "PASS",
        "demo.train/cell": "FAIL",
        "demo.train/sum": "PASS",
    }


def test_expected_of_hosts() -> None:
    """As many as the ranks themselves report from, whatever a rank counts."""
    demo = job(expect={"executor_hosts": "h"})
    hosts = ("a", "b", "b")
    found = [report(rank, 3, host=host, values={"executor_hosts": 2}) for rank, host in enumerate(hosts)]
    assert statuses(judge_job(demo, 3, reports(*found), GOOD_END))["demo.train/executor_hosts"] == "PASS"
    (*_, finding) = judge_job(demo, 3, all_ranks(3, lambda _: {"executor_hosts": 2}), GOOD_END)
    assert (finding.status, finding.expected, finding.observed[:12]) == ("FAIL", "1", "2 on rank 0,")
    assert judge_job(job(expect={"x": "n//h"}), 3, Reports(), GOOD_END)[2].expected == "3"


@pytest.mark.parametrize("value", [5, 6.0000001, "6", None, True, [6], math.nan, math.inf, {"PASS": True}])
def test_one_wrong_value_on_one_rank_fails(value: object) -> None:
    found = all_ranks(3, lambda rank: {"sum": value if rank == 2 else 6})
    (*_, finding) = judge_job(job(expect={"sum": "n*(n+1)//2"}), 3, found, GOOD_END)
    assert finding.status == "FAIL"
    assert finding.expected == "6"
    assert "on rank 2" in finding.observed
    assert finding.hint == "look here"


def test_true_is_not_one() -> None:
    found = all_ranks(1, lambda _: {"sum": True})
    assert statuses(judge_job(job(expect={"sum": "n"}), 1, found, GOOD_END))["demo.train/sum"] == "FAIL"


def test_a_value_that_nobody_reports_fails() -> None:
    assert (
        statuses(judge_job(job(expect={"sum": "n"}), 2, all_ranks(2), GOOD_END))["demo.train/sum"] == "FAIL"
    )
    same = job(same_on_all_ranks=("hash",))
    assert statuses(judge_job(same, 2, all_ranks(2), GOOD_END))["demo.train/hash"] == "FAIL"


def test_a_job_that_says_pass_is_not_asked() -> None:
    liar = all_ranks(2, lambda _: {"sum": 1, "PASS": True, "status": "PASS"})
    assert (
        statuses(judge_job(job(expect={"sum": "n*(n+1)//2"}), 2, liar, GOOD_END))["demo.train/sum"] == "FAIL"
    )


def test_what_holds_on_fewer_ranks_is_skipped_never_passed() -> None:
    demo = job(expect={"sum": "3"}, same_on_all_ranks=("hash",), compare_with_single={"loss": 0.1})
    values = {"sum": 3, "hash": "a", "loss": 1.0}
    one = reports(report(0, 2, values=values))
    single = reports(report(0, 1, values=values))
    found = statuses(judge_job(demo, 2, one, GOOD_END, single))
    assert found == {
        "demo.train/ranks": "FAIL",
        "demo.train/end": "PASS",
        "demo.train/sum": "SKIP",
        "demo.train/hash": "SKIP",
        "demo.train/loss-as-one-rank": "SKIP",
    }


def test_singletons_show_what_they_got() -> None:
    found = reports(*(report(0, 1, pid=pid, values={"weight": -1.0}) for pid in (1, 2)))
    finding = judge_job(job(expect={"weight": "-(n*(n+1)//2)"}), 2, found, GOOD_END)[2]
    assert (finding.status, finding.expected) == ("FAIL", "-3")
    assert finding.observed == "-1.0 on rank 0, -1.0 on rank 0"


def test_a_job_that_is_still_the_template_is_skipped_and_never_passes() -> None:
    demo = job(expect={"sum": "3"})
    template = all_ranks(2, lambda _: {"sum": 3, "still_the_template": True})
    (check,) = judge_job(demo, 2, template, GOOD_END)
    assert (check.status, check.id, check.observed) == ("SKIP", "demo.train/template", "still the template")
    # One rank that says so is enough.
    one = all_ranks(2, lambda rank: {"sum": 3} if rank else {"sum": 3, "still_the_template": True})
    assert [found.status for found in judge_job(demo, 2, one, GOOD_END)] == ["SKIP"]
    # Its failures stay: the ranks of the template communicate, too.
    wrong = all_ranks(2, lambda _: {"sum": 1, "still_the_template": True})
    failed = [found.id for found in judge_job(demo, 2, wrong, GOOD_END) if found.status == "FAIL"]
    assert failed == ["demo.train/sum"]


@pytest.mark.parametrize(
    ("ended", "observed"),
    [
        (LaunchResult(code=3), "exit code 3"),
        (LaunchResult(code=-1, timed_out=True, limit_s=90), "ended after 90 s"),
    ],
)
def test_a_bad_end_fails_whatever_was_reported(ended: LaunchResult, observed: str) -> None:
    finding = judge_job(job(), 2, all_ranks(2), ended)[1]
    assert (finding.status, finding.observed) == ("FAIL", observed)


@pytest.mark.parametrize("value", ["b", None, math.nan])
def test_the_same_on_all_ranks(value: object) -> None:
    demo = job(same_on_all_ranks=("hash",))
    same = all_ranks(2, lambda _: {"hash": "a"})
    assert statuses(judge_job(demo, 2, same, GOOD_END))["demo.train/hash"] == "PASS"
    other = all_ranks(2, lambda rank: {"hash": value if rank else "a"})
    assert statuses(judge_job(demo, 2, other, GOOD_END))["demo.train/hash"] == "FAIL"


def test_not_a_number_is_not_the_same_as_itself() -> None:
    found = all_ranks(2, lambda _: {"hash": math.nan})
    assert (
        statuses(judge_job(job(same_on_all_ranks=("hash",)), 2, found, GOOD_END))["demo.train/hash"] == "FAIL"
    )


def test_compared_with_one_rank() -> None:
    demo = job(compare_with_single={"losses": 1e-5})
    single = reports(report(0, 1, values={"losses": [4.0, 2.0]}))
    near = all_ranks(2, lambda _: {"losses": [4.0, 2.00001]})
    far = all_ranks(2, lambda rank: {"losses": [4.0, 2.0 + rank]})
    check = "demo.train/losses-as-one-rank"
    assert statuses(judge_job(demo, 2, near, GOOD_END, single))[check] == "PASS"
    assert statuses(judge_job(demo, 2, far, GOOD_END, single))[check] == "FAIL"
    for nothing in (None, Reports(), reports(report(0, 2, values={"losses": [4.0, 2.0]}))):
        assert statuses(judge_job(demo, 2, near, GOOD_END, nothing))[check] == "FAIL"
    odd_values: list[object] = [[4.0], "4", [4.0, math.nan], [4.0, True], [], {}]
    for value in odd_values:
        odd = reports(*(report(rank, 2, values={"losses": value}) for rank in range(2)))
        assert statuses(judge_job(demo, 2, odd, GOOD_END, single))[check] == "FAIL"


@pytest.mark.parametrize(
    ("fit", "status"),
    [
        ([4.0, 2.00001], "PASS"),
        ([4.0, 2.001], "FAIL"),
        ([4.0], "FAIL"),
        ([4.0, math.nan], "FAIL"),
        (None, "FAIL"),
    ],
)
def test_compared_with_what_the_rank_reports_beside_it(fit: object, status: str) -> None:
    demo = job(compare_with_reported={"fit": {"newton": 1e-5}})
    found = all_ranks(2, lambda rank: {"fit": fit if rank else [4.0, 2.0], "newton": [4.0, 2.0]})
    finding = judge_job(demo, 2, found, GOOD_END)[2]
    assert (finding.id, finding.status, finding.expected) == (
        "demo.train/fit-as-newton",
        status,
        "difference<=1e-05",
    )
    alone = reports(report(0, 2, values={"fit": 1.0, "newton": 1.0}))
    assert judge_job(demo, 2, alone, GOOD_END)[2].status == "SKIP"
    assert judge_job(demo, 2, all_ranks(2), GOOD_END)[2].observed == "no comparable numbers"


@pytest.mark.parametrize(
    ("value", "reference", "difference"),
    [
        (1.0, 1.0, 0.0),
        (0.0, 0.0, 0.0),
        ([1.0, 0.001], [1.0, 0.0], 0.001),
        (1.5, 1.0, 0.5),
        (1.0, 0.0, math.inf),
        (math.nan, math.nan, None),
        (math.inf, math.inf, None),
        (10**400, 10**400, None),
        ([1.0], [1.0, 2.0], None),
        (True, 1, None),
        ("1", 1, None),
    ],
)
def test_relative_difference(value: object, reference: object, difference: float | None) -> None:
    assert relative_difference(value, reference) == difference


def test_a_wrong_expression_is_the_recipes_fault() -> None:
    (*_, finding) = judge_job(job(expect={"sum": "n/2"}), 2, all_ranks(2, lambda _: {"sum": 1}), GOOD_END)
    assert finding.status == "FAIL"
    assert "the recipe's expression is wrong" in finding.hint


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "-s"])
def test_a_job_outside_its_place_is_not_run(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        Job(id="demo.train", recipe="demo", file=name).command()
    with pytest.raises(ValueError, match="plain name"):
        Job(id="demo.train", recipe=name, file="demo.py").command()


def test_one_copy_of_each_library_in_a_process() -> None:
    one = ["/opt/mpi/lib/libmpi.so.12.5.0"]
    two = [*one, "/usr/lib/libmpi.so.40"]
    standard = [*one, "/opt/mpi/lib/libmpi_abi.so.1"]
    assert judge_mapped([reports(report(0, 2, libraries=one), report(1, 2, libraries=one))]).status == "PASS"
    # Two ranks may each have their own copy; what counts is one process.
    assert (
        judge_mapped([reports(report(0, 2, libraries=one), report(1, 2, libraries=two[1:]))]).status == "PASS"
    )
    for libraries in (two, standard):
        finding = judge_mapped([reports(report(0, 2, libraries=one), report(1, 2, libraries=libraries))])
        assert finding.status == "FAIL"
        assert libraries[1] in finding.observed
    assert judge_mapped([]).status == "SKIP"
    assert judge_mapped([reports(report(0, 1, libraries=[None, 3]))]).status == "PASS"


def test_each_rank_names_the_blas_that_it_loaded() -> None:
    numpy = "/opt/env/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-ff651d7f.so"
    mkl = ["/opt/env/lib/libmkl_core.so.3", "/opt/env/lib/libmkl_rt.so.3"]
    run = reports(
        report(0, 3, libraries=["/opt/mpi/lib/libmpi.so.12", numpy]),
        report(1, 3, libraries=[numpy]),
        report(2, 3, libraries=[*mkl, "/usr/lib/libblasphemy.so.1", None]),
    )
    assert [(found.ranks, found.libraries) for found in blas_of("a.b", run)] == [
        ((2,), tuple(mkl)),
        ((0, 1), (numpy,)),
    ]
    assert blas_of("a.b", run)[0].line() == "a.b, ranks 2: libmkl_core.so.3, libmkl_rt.so.3"
    (none,) = blas_of("a.b", reports(report(0, 1, libraries=[])))
    assert none.line() == "a.b, ranks 0: none"


@pytest.mark.parametrize(
    "name",
    [
        "libopenblas.so.0",
        "libopenblasp-r0.3.29.so",
        "libopenblas64_p-r0-0cf96a72.3.23.dev.so",
        "libscipy_openblas-68440149.so",
        "libmkl_rt.so.3",
        "libblas.so.3.11.0",
        "libblis-mt.so.4",
        "libflexiblas.so.3",
        "libarmpl_lp64_mp.so",
        "libnvpl_blas_core.so.0",
    ],
)
def test_names_of_blas_libraries(name: str) -> None:
    assert is_blas(name)


@pytest.mark.parametrize("name", ["libcublas.so.13", "librocblas.so.5", "libhipblas.so.3", "libmpi.so.12"])
def test_blas_of_gpus_is_not_that_of_ranks(name: str) -> None:
    assert not is_blas(name)


@pytest.mark.parametrize(
    ("modules", "failed"),
    [
        ({"numpy": {"error": None}, "torch": {"error": None}}, {}),
        ({"numpy": {"error": None}, "torch": {"error": "ImportError: no"}}, {"torch": "ImportError: no"}),
        ({"numpy": {"error": None}}, {"torch": "not tried"}),
        ({"numpy": {"error": ""}, "torch": {"error": None}}, {"numpy": ""}),
        ({}, {"numpy": "not tried", "torch": "not tried"}),
    ],
)
def test_every_module_must_import(modules: dict[str, object], failed: dict[str, str]) -> None:
    checks = judge_imports([], ["numpy", "torch"], [], {"modules": modules})
    assert {check.id for check in checks} == {"image.imports"}
    observed = {check.expected: check.observed for check in checks if check.status == "FAIL"}
    assert observed == {f"`import {name}`": reason for name, reason in failed.items()}
    passed = ",".join(name for name in ("numpy", "torch") if name not in failed)
    assert [check.expected for check in checks if check.status == "PASS"] == ([passed] if passed else [])


def test_the_tutorial_of_every_recipe_must_run() -> None:
    words = ["jax", "keras"]
    scripts = {tutorial_file("jax"): None, tutorial_file("keras"): "ImportError: no backend"}
    results = {"modules": {"jax": {"error": None}}, "scripts": scripts}
    imports, tutorials = judge_imports([], ["jax"], words, results)
    assert imports.status == "PASS"
    assert (tutorials.status, tutorials.id) == ("FAIL", "image.tutorials")
    assert tutorials.hint == "keras: ImportError: no backend"
    scripts[tutorial_file("keras")] = None
    assert judge_imports([], ["jax"], words, results)[1].status == "PASS"


SQUARES = 384306618446643200
H200 = {"name": "NVIDIA H200", "id": "GPU-1", "architecture": "sm_90"}


def survey(**changes: object) -> dict[str, object]:
    return {"vendor": "nvidia", "gpus": [], "error": "", "hidden": "", **changes}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(survey(vendor=""), [("SKIP", "gpu.visible", "none here")], id="no GPU"),
        pytest.param(
            survey(gpus=[{**H200, "sum": SQUARES}] * 2),
            [("PASS", "gpu.visible", "2 x NVIDIA H200 sm_90"), ("PASS", "gpu.kernel", f"{SQUARES} on each")],
            id="good",
        ),
        pytest.param(
            survey(gpus=[{**H200, "sum": SQUARES}, {**H200, "id": "GPU-2", "sum": SQUARES + 1}]),
            [
                ("PASS", "gpu.visible", "2 x NVIDIA H200 sm_90"),
                ("FAIL", "gpu.kernel", f"GPU-2: {SQUARES + 1}"),
            ],
            id="computes wrongly",
        ),
        pytest.param(
            survey(gpus=[{**H200, "error": "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"}]),
            [
                ("PASS", "gpu.visible", "1 x NVIDIA H200 sm_90"),
                ("FAIL", "gpu.kernel", "GPU-1: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"),
            ],
            id="does not compute",
        ),
        pytest.param(
            survey(error="libcuda.so.1: cannot open shared object file"),
            [("FAIL", "gpu.visible", "libcuda.so.1: cannot open shared object file")],
            id="no driver in the image",
        ),
        pytest.param(
            survey(hidden="CUDA_VISIBLE_DEVICES="),
            [("SKIP", "gpu.visible", "hidden by CUDA_VISIBLE_DEVICES=")],
            id="hidden",
        ),
        pytest.param(survey(), [("FAIL", "gpu.visible", "none here")], id="a driver without a GPU"),
        pytest.param(
            survey(vendor="amd", gpus=[{"name": "gfx942", "id": "GPU-1", "architecture": "gfx942"}]),
            [("PASS", "gpu.visible", "1 x gfx942")],
            id="AMD",
        ),
    ],
)
def test_gpus_are_judged(data: dict[str, object], expected: list[tuple[str, str, str]]) -> None:
    checks = judge_gpus(GpuSurvey.from_data(data))
    assert [(check.status, check.id, check.observed) for check in checks] == expected


@pytest.mark.parametrize("data", [[], None, {}, {"gpus": 3}, survey(gpus=[1]), survey(gpus=[{"wrong": 1}])])
def test_what_is_no_survey_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a survey"):
        GpuSurvey.from_data(data)


@pytest.mark.parametrize(
    ("gpus", "status", "observed"),
    [
        (lambda rank: [f"GPU-{rank}"], "PASS", "2 GPUs"),
        (lambda _: ["GPU-0"], "FAIL", "shared: GPU-0"),
        (lambda _: [], "FAIL", "0 on rank 0"),
        (lambda rank: [f"GPU-{rank}", "GPU-9"], "FAIL", "2 on rank 0"),
        (lambda _: "GPU-0", "FAIL", "0 on rank 0"),
    ],
)
def test_each_rank_has_a_gpu_for_itself(gpus: Callable[[int], object], status: str, observed: str) -> None:
    ranks = all_ranks(2, lambda rank: {"gpus": gpus(rank)})
    checks = judge_job(job(gpus_per_rank=1), 2, ranks, GOOD_END)
    (check,) = [check for check in checks if check.id == "demo.train/gpus"]
    assert (check.status, check.observed) == (status, observed)


def test_a_gpu_of_the_same_name_on_another_host_is_another() -> None:
    ranks = [report(rank, 2, host=f"node{rank}", values={"gpus": ["GPU-0"]}) for rank in range(2)]
    assert (
        statuses(judge_job(job(gpus_per_rank=1), 2, reports(*ranks), GOOD_END))["demo.train/gpus"] == "PASS"
    )


@pytest.mark.parametrize(
    ("rate", "status", "observed"),
    [
        (2.5, "PASS", "2.5"),
        (1.0, "PASS", "1"),
        (0.5, "FAIL", "0.5"),
        (None, "FAIL", "no number"),
        (math.nan, "FAIL", "no number"),
        (True, "FAIL", "no number"),
        ([3.0, 3.0], "FAIL", "no number"),
    ],
)
def test_the_slowest_rank_reaches_the_floor(rate: object, status: str, observed: str) -> None:
    ranks = all_ranks(2, lambda rank: {"rate": rate if rank else 9.0})
    checks = judge_job(job(at_least={"rate": 1.0}), 2, ranks, GOOD_END)
    (check,) = [check for check in checks if check.id == "demo.train/rate"]
    assert (check.status, check.observed, check.expected) == (status, observed, ">=1")
