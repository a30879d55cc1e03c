"""The rules that are functions, and the one judge of stacks by these and by rows.

A rule is a row (`envbuild/rules/knowledge/*.yaml`) unless it compares facts with one another, or has
conditions that a row cannot say. Each comes with a broken stack in `tests/unit/rules/cases`, and reads facts
of `FACTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from envbuild.rules import (
    extension_rules,  # noqa: F401  # importing it registers its rules
    versions,
)
from envbuild.rules.facts import Facts, facts_from, shown, texts_of
from envbuild.rules.judge import (
    RULES,
    Occasion,
    Rule,
    RuleResult,
    Stack,
    UnknownFact,
    in_chain,
    judge_rules,
    require,
)
from envbuild.rules.knowledge import UNREAD, Entry, Knowledge, shipped
from envbuild.rules.pmi import choose_pmi
from envbuild.rules.rows import holds, judge_rows
from envbuild.rules.tables import at_least, in_range, look_up, run_code, tables


def judge(facts: Facts, *occasions: Occasion, knowledge: Knowledge | None = None) -> tuple[RuleResult, ...]:
    """Judge a stack by the rules that are judged on one of these occasions; by all rules without one.

    Rows are those of `knowledge`; without it, envbuild's own.
    """
    known = knowledge or shipped()
    rules = [rule for rule in RULES if not occasions or not {*occasions}.isdisjoint(rule.judged_at)]
    entries = [each for each in known.entries if not occasions or not each[0].occasions.isdisjoint(occasions)]
    counting = [(entry, file) for entry, file in entries if file or entry.rule not in known.silences]
    silenced = [(entry, file) for entry, file in entries if not file and entry.rule in known.silences]
    results = (*judge_rules(facts, rules), *_judge_entries(facts, silenced))
    return tuple(
        sorted(
            (*(_silenced(result, known) for result in results), *_judge_entries(facts, counting)),
            key=in_chain,
        )
    )


def _judge_entries(facts: Facts, entries: Sequence[tuple[Entry, str]]) -> Iterator[RuleResult]:
    """Judge a stack by rows; GPUs and drivers that fit nothing do not concern an image for the CPU."""
    if "asked.accelerator" not in facts or facts["asked.accelerator"].value != "cpu":
        yield from judge_rows(facts, entries)
        return
    yield from judge_rows(facts, [each for each in entries if not each[0].of_gpus_alone])
    of_gpus = judge_rows(facts, [each for each in entries if each[0].of_gpus_alone])
    yield from (result for result in of_gpus if result.outcome == "compatible")


def judge_by(facts: Facts, rule_id: str) -> RuleResult | None:
    """Judge a stack by one rule of envbuild; None if the rule does not concern it."""
    entries = [each for each in shipped().entries if each[0].rule == rule_id]
    rules = [rule for rule in RULES if rule.id == rule_id]
    results = (*judge_rules(facts, rules), *judge_rows(facts, entries))
    return next(iter(results), None)


def function_rules() -> tuple[Rule, ...]:
    """Return the rules that are functions."""
    return tuple(RULES)


def rule_ids() -> tuple[str, ...]:
    """Return the ids of all rules of envbuild, sorted."""
    return tuple(sorted({*(rule.id for rule in RULES), *(entry.rule for entry, _ in shipped().entries)}))


def driver_floor(toolkit: str) -> str | None:
    """Return the oldest driver for a release of CUDA; None if that is unknown."""
    facts = facts_from({"gpus.vendor": "nvidia", "cuda.toolkit": toolkit, "cuda.forward_compat": False}, "")
    for row in shipped().of_rule("CUDA.driver-floor"):
        if all(path in facts and holds(path, facts[path].value, wanted) for path, wanted in row.if_.items()):
            needed = str(row.needs["driver.version"])
            return None if needed == UNREAD else needed.removeprefix(">=")
    return None


def _silenced(result: RuleResult, knowledge: Knowledge) -> RuleResult:
    """Return a result that neither refuses nor passes if the centre has silenced its rule."""
    why = knowledge.silences.get(result.rule)
    if why is None:
        return result
    outcome = result.outcome if result.outcome == "compatible" else "unknown"
    reason = result.reason if outcome == "compatible" else f"silenced: {why}; {result.reason}"
    return replace(result, outcome=outcome, warn=False, reason=reason, silenced=why)


def _for_gpus(stack: Stack) -> bool:
    return stack["asked.accelerator"] in ("cuda", "rocm")


def _gpu_build(stack: Stack) -> bool:
    return stack[stack.own("accelerator")] in ("cuda", "rocm")


def _cuda_on_nvidia(stack: Stack) -> bool:
    return stack["gpus.vendor"] == "nvidia" and bool(stack["cuda.toolkit"])


def _without_mpi(stack: Stack) -> bool:
    """Return whether a scan of the image has found no MPI, and programs do not use the host's either."""
    # An empty family is known to be absent; an unknown one is None.
    return stack.get("mpi.family") == "" and stack.get("mpi.source") != "host"


def _on_slingshot(stack: Stack) -> bool:
    return stack["fabric.name"] in ("slingshot-11", "slingshot")


def _on_host_mpi(stack: Stack) -> bool:
    return stack["mpi.source"] == "host"


def _on_cray_with_gpus(stack: Stack) -> bool:
    cray = _on_host_mpi(stack) and stack["host_mpi.implementation"] == "cray-mpich"
    return cray and stack["host_mpi.gpu_support"] is True


def _build(stack: Stack) -> str:
    return f"{stack.framework} {stack.show(stack.own('version'))}"


def _mpi(stack: Stack) -> str:
    return f"{stack.show('mpi.family')} {stack.show('mpi.version')}"


def _mpi_in_use(stack: Stack) -> str:
    """Return name and version of the MPI that ranks run on, for people."""
    if stack.get("mpi.source") != "host":
        return _mpi(stack)
    version = stack.get("host_mpi.version") or stack.get("host_mpi.base_version") or ""
    return f"{stack.show('host_mpi.implementation')} {version}".rstrip()


# GPUs, drivers, CUDA and ROCm.

_DEVICE = "amd-torch-device-"
_VENDORS = {"cuda": "nvidia", "rocm": "amd"}


def _needs_vendor(stack: Stack) -> Iterator[str]:
    if _for_gpus(stack):
        yield f"gpus.vendor {_VENDORS[stack.text('asked.accelerator')]}"


def _accelerators(stack: Stack) -> set[str]:
    """Return what a stack is for: as the spec asks, or else as its frameworks are built."""
    asked = stack.get("asked.accelerator")
    if asked is not None:
        return {str(asked)} & _VENDORS.keys()
    names = stack.texts("frameworks")
    return {stack.text(f"frameworks.{name}.accelerator") for name in names} & _VENDORS.keys()


def _for_some_gpus(stack: Stack) -> bool:
    # A build for GPUs that no spec asked for also runs on CPUs.
    has_gpus = stack.get("asked.accelerator") is not None or stack["gpus.vendor"] != "none"
    return has_gpus and bool(_accelerators(stack))


@Rule(
    id="GPU.vendor",
    judged_at=("export",),
    source=["CUDA is for NVIDIA's GPUs, ROCm for AMD's"],
    seen="2026-11-20",
    when=_for_some_gpus,
    needs=_needs_vendor,
    hint="choose the accelerator that the site has: `accelerator:` in the spec",
)
def gpu_vendor(stack: Stack) -> None:
    """The site's GPUs are of the vendor that the accelerator is for."""
    accelerators, vendor = _accelerators(stack), stack["gpus.vendor"]
    who = "frameworks are" if stack.get("asked.accelerator") is None else "spec asks"
    reason = f"the {who} for {', '.join(sorted(accelerators))}"
    require(
        vendor in {_VENDORS[name] for name in accelerators}, f"{reason}, and the site's GPUs are: {vendor}"
    )


@Rule(
    id="CUDA.gpu-spec-locks-gpu-build",
    source=[
        "https://github.com/speechLabBcCuny/EDANSA/issues/2",
        "https://github.com/pytorch/pytorch/issues/168065",
        "https://github.com/horovod/horovod/issues/4051",
    ],
    seen="2026-11-20",
    per_framework=True,
    when=_for_gpus,
    hint="an origin has only the build for CPU, or serves it first: see the origins in the site file",
)
def gpu_spec_locks_gpu_build(stack: Stack) -> None:
    """A spec for GPUs gets builds for GPUs."""
    built, accelerator = stack[stack.own("accelerator")], stack["asked.accelerator"]
    require(
        built == accelerator, f"the spec asks for {accelerator}, and {_build(stack)} is a build for {built}"
    )


@Rule(
    id="CUDA.forward-compat",
    source=["https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"],
    seen="unknown",
    # Stacks that run so are published, and no list of the drivers is.
    severity="note",
    when=lambda stack: _cuda_on_nvidia(stack) and stack["cuda.forward_compat"] is True,
    hint="test on a node of the site; only data-centre GPUs take it",
)
def forward_compat(stack: Stack) -> None:
    """With a cuda-compat package the driver is still new enough by itself."""
    driver, toolkit = stack.text("driver.version"), stack.text("cuda.toolkit")
    floor = driver_floor(toolkit)
    if floor is None:
        raise UnknownFact(f"CUDA.driver-floor[{toolkit}]")
    runs = f"CUDA {toolkit} runs on driver {driver} only through the image's cuda-compat package"
    require(at_least(driver, floor), f"{runs}, and which drivers that one accepts is not published")


def _needs_newer_apptainer(stack: Stack) -> Iterator[str]:
    if stack["cuda.forward_compat"] is True and (floor := driver_floor(stack.text("cuda.toolkit"))):
        yield f"runtime.version >=1.5 where runtime.name apptainer and driver.version <{floor}"


@Rule(
    id="CUDA.forward-compat-order",
    judged_at=("start",),
    source=[
        "https://github.com/EESSI/software-layer/issues/231",
        "apptainer/apptainer:CHANGELOG.md v1.5.0",
    ],
    seen="2026-11-28",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: stack["cuda.forward_compat"] is True and stack["runtime.name"] == "apptainer",
    needs=_needs_newer_apptainer,
    hint="put the compat directory before /.singularity.d/libs on LD_LIBRARY_PATH, or update the driver",
)
def compatibility_package_comes_first(stack: Stack) -> None:
    """Apptainer leaves the image's cuda-compat package before the host's libcuda, if the driver needs it."""
    if versions.in_range(stack.text("runtime.version"), ">=1.5", "vendor"):
        return
    driver, toolkit = stack.get("driver.version"), stack.get("cuda.toolkit")
    floor = driver_floor(str(toolkit)) if toolkit else None
    order = "Apptainer before 1.5 puts the host's libcuda before the image's cuda-compat package"
    if driver is None or floor is None:
        raise UnknownFact(reason=f"{order}, and whether the driver needs that is not known")
    require(at_least(str(driver), floor), f"{order}, which CUDA {toolkit} needs on driver {driver}")


def _driver_meets(driver: str, condition: str) -> bool | None:
    """Return whether a driver meets a condition of ``NVIDIA_REQUIRE_CUDA``; None for those of other kinds."""
    match = re.fullmatch(r"(cuda|driver)(>=|<=|=|<|>)([0-9.]+)", condition)
    if match is None:
        return None
    name, operator, limit = match[1], match[2].replace("=", "==") if match[2] == "=" else match[2], match[3]
    branch = look_up("driver-of-cuda", limit) if name == "cuda" else (limit,)
    return None if branch is None else versions.in_range(driver, f"{operator}{branch[0]}", "branch")


def _needs_requested_driver(stack: Stack) -> Iterator[str]:
    if alternatives := stack.texts("cuda.requires"):
        requested = (alternative.replace(",", " and ") for alternative in alternatives)
        yield f"a driver with {' or '.join(requested)} where gpus.vendor nvidia"


@Rule(
    id="CUDA.image-requires",
    source=[
        "https://github.com/MauriceNino/dashdot/issues/1226",
        "NVIDIA/nvidia-docker: NVIDIA_REQUIRE_*, spaces are `or`, and commas `and`",
    ],
    seen="2026-11-27",
    # NVIDIA's runtime refuses to start it; Apptainer does not look.
    severity="warning",
    when=lambda stack: (
        stack["gpus.vendor"] == "nvidia"
        and bool(stack["cuda.requires"])
        and str(stack.get("environment.NVIDIA_DISABLE_REQUIRE") or "").lower() not in ("1", "true")
    ),
    needs=_needs_requested_driver,
    hint="take an image for an older CUDA; NVIDIA's container runtime refuses to start this one",
)
def image_requires_driver(stack: Stack) -> None:
    """The driver meets what the makers of the image ask of it (`NVIDIA_REQUIRE_CUDA`)."""
    driver, alternatives = stack.text("driver.version"), stack.texts("cuda.requires")
    met = []
    for alternative in alternatives:
        truths = [_driver_meets(driver, condition) for condition in alternative.split(",")]
        met.append(False if False in truths else None if None in truths else True)
    reason = f"the image asks for a driver with {' or '.join(alternatives[:3])}, and the site has {driver}"
    require(True if True in met else None if None in met else False, reason)


def _needs_older_driver(stack: Stack) -> Iterator[str]:
    if stack["cuda.compat"] and stack["cuda.driver_library"] == "image":
        yield f"driver.version of branch {stack.text('cuda.compat').partition('.')[0]} or older"


@Rule(
    id="CUDA.compat-not-older",
    source=["https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"],
    seen="2026-11-28",
    when=lambda stack: (
        stack["gpus.vendor"] == "nvidia"
        and bool(stack["cuda.compat"])
        and stack["cuda.driver_library"] == "image"
    ),
    needs=_needs_older_driver,
    hint="take the directory of cuda-compat off LD_LIBRARY_PATH, or take a newer image",
)
def compatibility_package_is_newer(stack: Stack) -> None:
    """The image's cuda-compat, if processes load it, is not older than the driver."""
    compat, driver = stack.text("cuda.compat"), stack.text("driver.version")
    older = versions.in_range(compat, f"<{driver.partition('.')[0]}", "branch")
    require(
        None if older is None else not older,
        f"processes load the libcuda of the image's cuda-compat {compat}, older than the driver {driver}",
    )


# GPUs that take a cuda-compat package; some workstation boards do, too.
_DATA_CENTRE = re.compile(
    r"(?:[KMP][0-9]+m?|V100S?|T4G?|A(?:2|10|16|30|40|100|800)|H[0-9]+|L(?:2|4|20|40)S?|G?B[23]00|GH200)"
)


@Rule(
    id="CUDA.compat-loaded",
    source=[
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/291",
        "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
    ],
    seen="2026-11-28",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: (
        stack["cuda.driver_library"] == "image"
        and stack["gpus.vendor"] == "nvidia"
        and bool(stack["cuda.compat"])
        and versions.in_range(stack.text("driver.version"), f"<{stack.text('cuda.compat')}", "branch") is True
    ),
    hint="let the host's libcuda win: take the directory of cuda-compat off the loader's path",
)
def compatibility_package_on_its_gpus(stack: Stack) -> None:
    """Processes load a cuda-compat package that is newer than the driver on data-centre GPUs alone."""
    names = stack.texts_or_none("gpus.names")
    if names is None:
        version = stack.show("cuda.compat")
        reason = (
            f"processes load the libcuda of the image's cuda-compat {version}, which runs on data-centre GPUs"
        )
        raise UnknownFact(reason=f"{reason} alone, and the GPUs are not known")
    others = [
        name for name in names if not any(_DATA_CENTRE.fullmatch(word) for word in re.split(r"[\s_-]+", name))
    ]
    reason = (
        f"processes load the libcuda of the image's cuda-compat {stack.show('cuda.compat')}, and the GPUs are"
    )
    require(
        not others, f"{reason} {shown(tuple(others))}: on others than data-centre GPUs CUDA fails (error 804)"
    )


# Packages that compile GPU code while a program runs, and hand it to the driver as PTX.
_COMPILERS = ("numba", "openmm")


def _compilers(stack: Stack) -> list[str]:
    return [name for name in _COMPILERS if f"packages.{name}" in stack.facts]


def _needs_compiling_driver(stack: Stack) -> Iterator[str]:
    if _compilers(stack) and stack["cuda.toolkit"] and stack["cuda.forward_compat"] is False:
        yield f"driver.version >={stack.look_up('driver-of-cuda', stack.text('cuda.toolkit'))[0]}"


@Rule(
    id="CUDA.run-time-code",
    source=[
        "https://github.com/quantaosun/Dock-MD-FEP/issues/2",
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: PTX",
    ],
    seen="2026-11-28",
    severity="warning",
    when=lambda stack: (
        bool(_compilers(stack)) and _cuda_on_nvidia(stack) and stack["cuda.forward_compat"] is False
    ),
    needs=_needs_compiling_driver,
    hint="take libraries of a CUDA that is not newer than the driver's, or update the driver",
)
def run_time_code_for_driver(stack: Stack) -> None:
    """GPU code that is compiled while a program runs is not of a newer CUDA than the driver's."""
    toolkit, driver = stack.text("cuda.toolkit"), stack.text("driver.version")
    (branch,) = stack.look_up("driver-of-cuda", toolkit)
    older = versions.in_range(driver, f"<{branch}", "branch")
    code = f"{' and '.join(_compilers(stack))}: code compiled at run time is of CUDA {toolkit}"
    reason = f"{code}, and the driver {driver} is older than it (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"
    require(None if older is None else not older, reason)


@Rule(
    id="CUDA.fabric-manager",
    source=["NVIDIA Fabric Manager user guide: its version has to be the driver's"],
    seen="2026-11-28",
    when=lambda stack: (
        bool(stack.facts.get("driver.fabric_manager"))
        and bool(stack["driver.fabric_manager"])
        and stack.get("asked.accelerator") != "cpu"
    ),
    hint="install the Fabric Manager of the driver's version; CUDA fails with `system not yet initialized`",
)
def fabric_manager_of_driver(stack: Stack) -> None:
    """The Fabric Manager of nodes with NVSwitch is of the driver's version."""
    manager, driver = stack.text("driver.fabric_manager"), stack.text("driver.version")
    same = versions.in_range(driver, f"=={manager}", "branch")
    require(same, f"the Fabric Manager is {manager}, and the driver {driver}")


@Rule(
    id="CUDA.fabric-manager-runs",
    source=["https://github.com/aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop/issues/33"],
    seen="2026-11-28",
    # GPUs on PCIe boards have no NVSwitch.
    severity="warning",
    when=lambda stack: (
        "driver.fabric_manager" in stack.facts
        and stack.get("asked.accelerator") != "cpu"
        and {"sm_80", "sm_90", "sm_100"} & {*stack.texts("gpus.architectures")} != set()
    ),
    hint="install the Fabric Manager of the driver's version, if the nodes have NVSwitch",
)
def fabric_manager_runs(stack: Stack) -> None:
    """Nodes with NVSwitch have a Fabric Manager."""
    manager, gpus = stack.text("driver.fabric_manager"), stack.show("gpus.architectures")
    reason = f"the GPUs are {gpus}, and there is no Fabric Manager: behind NVSwitch CUDA fails with error 802"
    require(bool(manager), reason)


@Rule(
    id="CUDA.one-major",
    source=["https://github.com/NVIDIA/tensorflow/issues/110"],
    seen="2026-11-20",
    when=lambda stack: bool(stack["cuda.majors"]),
    hint="pin the frameworks to builds for one CUDA, or make an image of each",
)
def cuda_one_major(stack: Stack) -> None:
    """All CUDA libraries of an image are of one major."""
    majors = stack.texts("cuda.majors")
    require(len(set(majors)) == 1, f"the image holds libraries of several CUDA majors: {shown(majors)}")


def _needs_gpus_of_code(stack: Stack) -> Iterator[str]:
    if _gpu_build(stack):
        code, vendor = stack.texts(stack.own("architectures")), _VENDORS[stack.text(stack.own("accelerator"))]
        yield f"gpus.architectures that run {shown(code)} where gpus.vendor {vendor}"


@Rule(
    id="GPU.arch-in-build",
    source=[
        "https://github.com/andreimargeloiu/WPFS/issues/3",
        "https://github.com/remsky/Kokoro-FastAPI/issues/306",
        "https://github.com/pytorch/pytorch/issues/53738",
    ],
    seen="2026-11-20",
    per_framework=True,
    when=lambda stack: _gpu_build(stack) and stack["gpus.vendor"] in ("nvidia", "amd"),
    needs=_needs_gpus_of_code,
    hint="take another version or variant of the framework: both decide which GPUs it runs on",
)
def gpu_code_in_build(stack: Stack) -> None:
    """Each framework's build has code for the site's GPUs."""
    gpus, code = stack.texts("gpus.architectures"), _code_or_none(stack)
    if code is None:
        _no_build_runs(stack, gpus)
        code = _code(stack)
    reason = f"{_build(stack)} has code for {shown(code)}, and the site's GPUs are {shown(gpus)}"
    runs = run_code(gpus, code)
    if runs is None and any(target.startswith("compute_") for target in code):
        _driver_compiles_ptx(stack, reason)
    require(runs, reason)


def _code(stack: Stack) -> tuple[str, ...]:
    """Return the GPU code of a framework's build: what its files have, or else what its makers publish."""
    code = _code_or_none(stack)
    return stack.texts(stack.own("published")) if code is None else code


def _code_or_none(stack: Stack) -> tuple[str, ...] | None:
    """Return the GPU code of a framework's build; None if it is not known."""
    code = stack.texts_or_none(stack.own("architectures"))
    return stack.texts_or_none(stack.own("published")) if code is None else code


def _no_build_runs(stack: Stack, gpus: tuple[str, ...]) -> None:
    """Refuse GPUs that a published build runs on for no processor, while that of the image is not known.

    Only a local version (`+cu128`) says that a build is its makers'.
    """
    toolkit = stack.get(stack.own("toolkit"))
    is_published = "+" in stack.text(stack.own("version")) and stack.get(stack.own("publisher")) != "nvidia"
    if toolkit is None or not is_published or "architecture.image" in stack.facts:
        return
    build = (stack.framework, stack.text(stack.own("version")), stack.text(stack.own("accelerator")), toolkit)
    builds = [look_up("code-of-framework", *map(str, build), name) for name in ("amd64", "arm64")]
    code = tuple(dict.fromkeys(target for each in builds for target in each or ()))
    reason = f"{_build(stack)} has code for {shown(code)}, and the site's GPUs are {shown(gpus)}"
    if code and run_code(gpus, code) is False:
        require(False, reason)


def _driver_compiles_ptx(stack: Stack, reason: str) -> None:
    """Refuse PTX of a CUDA release that is newer than the driver: that one cannot compile it."""
    toolkit, driver = stack.get(stack.own("toolkit")), stack.get("driver.version")
    needed = look_up("driver-of-cuda", str(toolkit)) if toolkit else None
    if needed is not None and driver is not None:
        older = versions.in_range(str(driver), f"<{needed[0]}", "branch")
        require(
            not older,
            f"{reason}: the driver {driver} is older than CUDA {toolkit}, and compiles no PTX of it",
        )


@Rule(
    id="GPU.only-by-older-ptx",
    source=[
        "https://github.com/ai2cm/ace/issues/301",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility",
    ],
    seen="2026-11-28",
    per_framework=True,
    # The driver compiles it at the first start; libraries may have no code for the GPU at all.
    severity="warning",
    when=lambda stack: _gpu_build(stack) and stack["gpus.vendor"] == "nvidia",
    hint="take a build with code for these GPUs; the first start compiles for minutes, and may fail",
)
def ptx_of_own_generation(stack: Stack) -> None:
    """GPUs run code of their own generation, and not PTX of an older one alone."""
    gpus, code = stack.texts("gpus.architectures"), _code(stack)
    runs = run_code(gpus, code)
    older = runs is None and not any(target.startswith("compute_") for target in _newest_ptx(gpus, code))
    reason = (
        f"{_build(stack)} has code for {shown(code)}, and the GPUs {shown(gpus)} compile it from older PTX"
    )
    require(not older, reason)


def _newest_ptx(gpus: Sequence[str], code: Sequence[str]) -> list[str]:
    """Return the PTX that is of the generation of one of the GPUs: ``compute_90`` for ``sm_90``."""
    generations = {gpu.removeprefix("sm_").rstrip("af")[:-1] for gpu in gpus}
    ptx = [target for target in code if target.startswith("compute_")]
    return [target for target in ptx if target.removeprefix("compute_").rstrip("af")[:-1] in generations]


def _has_device_packages(stack: Stack) -> bool:
    """Return whether a build of PyTorch for ROCm keeps the code for each GPU in a package of its own.

    AMD's builds name all numbers of the release (`+rocm7.14.0`), PyTorch's own have all code (`+rocm7.14`).
    """
    release = re.search(r"\+rocm([0-9]+\.[0-9]+)\.[0-9]", stack.text("packages.torch"))
    return release is not None and bool(at_least(release[1], "7.14"))


def _device_packages(stack: Stack) -> tuple[str, ...]:
    """Return the GPUs whose code is in a package of the image (``gfx90a``), sorted."""
    names = stack.texts("packages")
    return tuple(sorted(name.removeprefix(_DEVICE) for name in names if name.startswith(_DEVICE)))


def _needs_gpus_of_packages(stack: Stack) -> Iterator[str]:
    if _has_device_packages(stack) and (gpus := _device_packages(stack)):
        yield f"gpus.architectures that run {shown(gpus)} where gpus.vendor amd"


@Rule(
    id="ROCM.device-package",
    source=[
        "https://github.com/ROCm/TheRock/issues/7839",
        "https://github.com/ROCm/TheRock/issues/7081",
        "https://github.com/astral-sh/uv/pull/21683",
    ],
    seen="2026-11-28",
    when=_has_device_packages,
    needs=_needs_gpus_of_packages,
    hint="ask for `torch[device-gfx90a]`, with the architecture of your GPUs; a recipe does for the site's",
)
def torch_has_device_code(stack: Stack) -> None:
    """PyTorch for ROCm 7.14 and newer has the package with the code for the site's GPUs."""
    packaged = _device_packages(stack)
    build = f"torch {stack.text('packages.torch')}"
    require(bool(packaged), f"{build} sees GPUs and runs no kernel on any: no package has its code for one")
    gpus = stack.texts("gpus.architectures")
    lacking = sorted({*gpus} - {*packaged})
    reason = f"{build} has code for {shown(packaged)}, and none for the site's GPUs {shown(tuple(lacking))}"
    require(not lacking, reason)


@Rule(
    id="GPU.build-for-cpu",
    source=[
        "https://github.com/pytorch/pytorch/issues/168065",
        "https://github.com/conda/conda/issues/14761",
    ],
    seen="2026-11-28",
    per_framework=True,
    severity="warning",
    # One that asks for GPUs is refused: CUDA.gpu-spec-locks-gpu-build.
    when=lambda stack: (
        stack[stack.own("accelerator")] == "cpu"
        and stack["gpus.vendor"] in ("nvidia", "amd")
        and stack.get("asked.accelerator") not in ("cpu", "cuda", "rocm")
        and not any(
            texts_of(stack.facts, f"frameworks.{name}.accelerator") in (("cuda",), ("rocm",))
            for name in texts_of(stack.facts, "frameworks")
        )
    ),
    hint="take its build for these GPUs; if it is meant for the CPU, say `accelerator: cpu` in the spec",
)
def build_for_gpus(stack: Stack) -> None:
    """On machines with GPUs a framework's build uses them."""
    built, vendor = stack[stack.own("accelerator")], stack["gpus.vendor"]
    require(built != "cpu", f"{_build(stack)} is a build for the CPU, and leaves the GPUs of {vendor} idle")


@Rule(
    id="CUDA.of-framework",
    source=["https://github.com/deepspeedai/DeepSpeed/pull/5035"],
    seen="2026-11-28",
    per_framework=True,
    # It runs on its own libraries; what is compiled with this CUDA is for another one.
    severity="warning",
    when=lambda stack: stack[stack.own("accelerator")] == "cuda",
    hint="take a framework for the CUDA of the image, or a base image with the framework's CUDA",
)
def toolkit_of_framework(stack: Stack) -> None:
    """A framework is built for the major of CUDA that the image has."""
    built, toolkit = stack.text(stack.own("toolkit")), stack.text("cuda.toolkit")
    same = versions.in_range(toolkit, f"=={built.partition('.')[0]}.*", "branch")
    require(
        same, f"{_build(stack)} is built for CUDA {built}, and the image has {toolkit}: extensions do not fit"
    )


@Rule(
    id="GPU.build-as-published",
    source=["wheels of torch 2.13.0 and 2.14.1, whose makers' list named PTX that is in neither"],
    seen="2026-11-22",
    per_framework=True,
    severity="warning",
    when=_gpu_build,
    hint="it is another build, or its makers have changed it: the code in the files counts",
)
def gpu_build_as_published(stack: Stack) -> None:
    """The files of a framework have code for the GPUs that its makers name."""
    published, held = stack.texts(stack.own("published")), stack.texts(stack.own("architectures"))
    reason = (
        f"{_build(stack)} was published with code for {shown(published)}, and its files have {shown(held)}"
    )
    require(set(published) <= set(held), reason)


@Rule(
    id="CUDNN.not-older-than-built",
    source=["https://github.com/pytorch/pytorch/issues/80637"],
    seen="2026-11-20",
    when=lambda stack: bool(stack["cudnn.built"]),
    hint="take the directory of the older one off LD_LIBRARY_PATH",
)
def cudnn_not_older_than_built(stack: Stack) -> None:
    """The loaded cuDNN is not older than the one that was locked for the framework."""
    loaded, built = stack.text("cudnn.loaded"), stack.text("cudnn.built")
    # Wheels count builds of a release in a fourth number, which the library's own version lacks.
    release = ".".join(built.split(".")[: max(3, len(loaded.split(".")))])
    reason = f"the framework was built with cuDNN {built}, and the loader finds {loaded} first"
    require(at_least(loaded, release), reason)


@Rule(
    id="NCCL.not-older-than-built",
    source=[
        "https://github.com/pytorch/pytorch/issues/119932",
        "https://github.com/pytorch/pytorch/issues/186591",
    ],
    seen="2026-11-28",
    when=lambda stack: bool(stack["nccl.built"]),
    hint="take the directory of the older one off LD_LIBRARY_PATH",
)
def nccl_not_older_than_built(stack: Stack) -> None:
    """The loaded NCCL is not of an older release than the one that the framework asks for."""
    loaded, built = stack.text("nccl.loaded"), stack.text("nccl.built")
    release = ".".join(built.split(".")[:2])
    reason = f"the framework is built with NCCL {built}, and the loader finds {loaded} first"
    require(versions.in_range(loaded, f">={release}", "branch"), reason)


@Rule(
    id="JAX.library-not-newer",
    source=[
        "jax-ml/jax:jax/_src/lib/__init__.py@cec06d11: check_jaxlib_version",
        "https://github.com/google-deepmind/alphafold/issues/1064",
        "https://github.com/jina-ai/dalle-flow/pull/68, of jax 0.3.13",
    ],
    seen="2026-11-28",
    when=lambda stack: (
        "packages.jaxlib" in stack.facts
        # From 0.4.30 on its metadata say so, too: JAX.of-package.
        and versions.in_range(stack.text("frameworks.jax.version"), ">=0.3.13,<0.4.30", "pep440") is True
    ),
    hint="pin jax and jaxlib to one version",
)
def jax_library_not_newer(stack: Stack) -> None:
    """JAX's library is not newer than JAX, which refuses to be imported with a newer one."""
    jax, jaxlib = stack.text("frameworks.jax.version"), stack.text("packages.jaxlib")
    newer = versions.in_range(jaxlib, f">{_release(jax)}", "vendor")
    require(
        None if newer is None else not newer, f"jaxlib is {jaxlib}, and jax {jax} takes none that is newer"
    )


@Rule(
    id="JAX.one-release",
    source=[
        "https://github.com/jax-ml/jax/issues/22416",
        # `check_plugin_version`; the metadata of jax says which releases of jaxlib it takes.
        "jaxlib 0.10.2: plugin_support.py",
    ],
    seen="2026-11-26",
    when=lambda stack: bool(stack["jax.releases"]),
    hint="pin them all to one version",
)
def jax_one_release(stack: Stack) -> None:
    """JAX's library and its plug-ins for CUDA are of one release."""
    releases = stack.texts("jax.releases")
    reason = f"jaxlib and its plug-ins for CUDA are of several releases: {shown(releases)}"
    require(len(set(releases)) == 1, reason)


def _release(version: str) -> str:
    """Return the numbers of a version: ``0.4.26`` of ``0.4.26.dev20240401+cu12``."""
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return numbers[0] if numbers else version


# The interconnect, and settings by which a job silently falls back to a slow one.


@Rule(
    id="FABRIC.slingshot-needs-cxi",
    judged_at=("fabric",),
    source=["eth-cscs/cscs-docs:docs/software/communication/nccl.md@80abed13"],
    seen="2026-08-20",
    severity="warning",
    warn_if_unknown=True,
    # NCCL and RCCL use libfabric, too.
    when=lambda stack: _on_slingshot(stack) and not (_without_mpi(stack) and not _for_gpus(stack)),
    hint="`envbuild launch --fabric host` sets it, unless the site's `fabric.environment` does; then a job"
    " without cxi stops",
)
def slingshot_needs_cxi(stack: Stack) -> None:
    """On Slingshot libfabric is restricted to cxi."""
    provider, chosen = stack["fabric.provider"], stack.get("fabric.ofi_provider")
    settings = f"its provider `{provider}` and FI_PROVIDER `{stack.show('fabric.ofi_provider')}`"
    reason = f"the fabric is {stack['fabric.name']}, {settings}: jobs may silently fall back to TCP"
    # `lnx` links cxi with shared memory.
    require(provider == "cxi" and chosen in (None, "cxi", "lnx"), reason)
    stack.text("fabric.ofi_provider")


@Rule(
    id="FABRIC.provider-fails-closed",
    judged_at=("fabric",),
    source=["ofiwg/libfabric:man/fabric.7.md@v2.6.0"],
    seen="2026-11-22",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: (
        stack["fabric.provider"] in ("efa", "verbs", "psm2", "opx")
        and not (_without_mpi(stack) and not _for_gpus(stack))
    ),
    hint="`envbuild launch --fabric host` sets it, unless the site's `fabric.environment` does; then a job"
    " without it stops",
)
def provider_fails_closed(stack: Stack) -> None:
    """The fabric's provider is the only one that libfabric may use."""
    chosen, provider = stack["fabric.ofi_provider"], stack["fabric.provider"]
    settings = f"the fabric's provider is `{provider}` and FI_PROVIDER `{shown(chosen)}`"
    require(chosen == provider, f"{settings}: jobs may silently fall back to TCP")


@Rule(
    id="FABRIC.settings-known",
    judged_at=("fabric",),
    source=["ofiwg/libfabric:man/fabric.7.md@v2.6.0"],
    seen="2026-11-22",
    severity="warning",
    when=lambda stack: "fabric.settings_known" in stack.facts,
    hint="the documentation of each MPI says what stops it: set that in the site's `fabric.environment`",
)
def fabric_settings_known(stack: Stack) -> None:
    """It is known which settings stop a job without the fabric's provider."""
    provider = f"the provider {stack['fabric.provider']}" if stack.get("fabric.provider") else "no provider"
    reason = f"the site names {provider}, and no setting is known that stops a job without it"
    require(bool(stack["fabric.settings_known"]), f"{reason}: jobs may silently fall back to TCP")


@Rule(
    id="FABRIC.settings-kept",
    judged_at=("fabric",),
    source=["ofiwg/libfabric:man/fabric.7.md@v2.6.0"],
    seen="2026-11-22",
    severity="warning",
    when=lambda stack: "fabric.overridden" in stack.facts,
    hint="remove it from the site's `fabric.environment`",
)
def fabric_settings_kept(stack: Stack) -> None:
    """The site's own variables keep the settings that stop a job without the fabric's provider."""
    overridden = stack.texts("fabric.overridden")
    require(not overridden, f"the site sets {shown(overridden)}: jobs may silently take another way")


@Rule(
    id="FABRIC.ucx-may-take-tcp",
    judged_at=("fabric",),
    source=[
        "openucx/ucx:docs/source/faq.md@9466d104",
        "MPICH 5.0.2 on UCX with `UCX_TLS=^tcp,cma`, and with `rc,self` and no card, run",
    ],
    seen="2026-11-22",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: not _without_mpi(stack) and stack["fabric.provider"] == "ucx",
    hint="`envbuild launch --fabric host` forbids it, unless the site's `fabric.environment` says otherwise",
)
def ucx_may_take_tcp(stack: Stack) -> None:
    """UCX may not use TCP."""
    takes_tcp, setting = stack["fabric.ucx_takes_tcp"], stack.show("fabric.ucx_tls")
    reason = (
        f"UCX drives the fabric, and UCX_TLS `{setting}` allows TCP: without a card it silently uses that"
    )
    require(takes_tcp is False, reason)


# The beginnings of UCX's transports that leave a node, and its words for sets that contain them.
_BETWEEN_NODES = ("all", "ib", "rc", "dc", "ud", "tcp", "srd", "gga", "ugni")


@Rule(
    id="FABRIC.ucx-between-nodes",
    judged_at=("fabric",),
    source=[
        "https://github.com/open-mpi/ompi/issues/9836",
        "openucx/ucx:docs/source/faq.md@9466d104",
    ],
    seen="2026-11-28",
    # Jobs on one node run.
    severity="warning",
    when=lambda stack: bool(stack["fabric.ucx_tls"]) and not stack.text("fabric.ucx_tls").startswith("^"),
    hint="add a network to UCX_TLS (`rc`, `ud` or `dc` on InfiniBand), or unset it",
)
def ucx_reaches_other_nodes(stack: Stack) -> None:
    """UCX may use a transport between nodes."""
    names = [name.strip() for name in stack.text("fabric.ucx_tls").split(",")]
    reason = f"UCX_TLS is {stack.show('fabric.ucx_tls')}, and none of these reaches another node"
    require(any(name.startswith(_BETWEEN_NODES) for name in names), reason)


def _needs_drivable_fabric(stack: Stack) -> Iterator[str]:
    own_mpi = stack.get("mpi.source") != "host" and not _without_mpi(stack)
    if own_mpi and "cxi" not in stack.texts("mpi.providers"):
        yield "not fabric.name slingshot-11"


@Rule(
    id="FABRIC.image-mpi-on-slingshot",
    judged_at=("fabric",),
    source=["Lumi-supercomputer/lumi-userguide:docs/runjobs/scheduled-jobs/container-jobs.md@6c3a26c0"],
    seen="2024-10-15",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: _on_slingshot(stack) and not _without_mpi(stack) and stack["mpi.source"] == "image",
    needs=_needs_drivable_fabric,
    hint="use the host's MPI if the ABI fits: `mpi` in the site file, and `envbuild launch --mpi host`",
)
def image_mpi_on_slingshot(stack: Stack) -> None:
    """The image's own MPI can drive the fabric."""
    providers, fabric = stack.texts("mpi.providers"), stack["fabric.name"]
    drives = f"the image's {_mpi(stack)} drives {shown(providers)}, and {fabric} needs cxi"
    slow = "unless a setting forbids it, messages take a slow path without an error"
    require("cxi" in providers, f"{drives}: {slow}")


# Provider of a fabric → those with which an MPI drives it. Slingshot has a rule of its own.
_DRIVES = {
    "verbs": ("openib", "verbs", "ucx", "mlx", "psm3"),
    "ucx": ("openib", "ucx", "mlx", "verbs", "psm3"),
    "mlx": ("openib", "ucx", "mlx", "verbs", "psm3"),
    "psm3": ("psm3", "verbs", "ucx", "mlx"),
    "psm2": ("psm2", "opx"),
    "opx": ("opx", "psm2"),
    "efa": ("efa",),
    "gni": ("gni", "ugni"),
}


def _needs_driven_fabric(stack: Stack) -> Iterator[str]:
    if stack.get("mpi.source") != "host" and not _without_mpi(stack):
        has = set(stack.texts("mpi.providers"))
        undriven = [name for name, driving in _DRIVES.items() if not has & set(driving)]
        if undriven:
            yield f"not fabric.provider {' or '.join(undriven)}"


@Rule(
    id="FABRIC.image-mpi-drives",
    judged_at=("fabric",),
    source=[
        "CSCfi/csc-user-guide:docs/support/wn/comp-new.md@dff081f2",
        "https://github.com/open-mpi/ompi/issues/9838",
        "ofiwg/libfabric:man/fabric.7.md@v2.6.0",
    ],
    seen="2026-11-28",
    # Messages may take TCP.
    severity="warning",
    when=lambda stack: (
        stack.get("mpi.source") != "host" and not _without_mpi(stack) and stack["fabric.provider"] in _DRIVES
    ),
    needs=_needs_driven_fabric,
    hint="take an MPI that is built for the fabric, or the host's: `envbuild launch --mpi host`",
)
def image_mpi_drives_fabric(stack: Stack) -> None:
    """The image's own MPI has a way to the site's fabric."""
    has, provider = stack.texts("mpi.providers"), stack.text("fabric.provider")
    reason = f"the image's {_mpi(stack)} drives {shown(has)}, and the fabric's provider is {provider}"
    require(bool({*has} & {*_DRIVES[provider]}), f"{reason}: messages take a slow path, or none")


def _needs_nccl_plugin(stack: Stack) -> Iterator[str]:
    if _for_gpus(stack):
        yield "a libnccl-net in fabric.plugin_files where fabric.provider cxi or efa"


@Rule(
    id="FABRIC.nccl-plugin-present",
    judged_at=("fabric",),
    source=["https://github.com/NVIDIA/nccl/issues/959"],
    seen="2026-11-20",
    when=lambda stack: _for_gpus(stack) and stack["fabric.provider"] in ("cxi", "efa"),
    needs=_needs_nccl_plugin,
    hint="name the plug-in in the site file: `fabric.nccl_plugin`",
)
def nccl_plugin_present(stack: Stack) -> None:
    """NCCL finds the network plug-in of the fabric."""
    plugins, provider = stack.texts("fabric.plugin_files"), stack["fabric.provider"]
    reason = f"the fabric's provider is {provider}, and there is no libnccl-net: NCCL would use sockets"
    require(bool(plugins), reason)


@Rule(
    id="FABRIC.nccl-net-fails-closed",
    judged_at=("fabric",),
    source=[
        "https://github.com/SemiAnalysisAI/InferenceX/pull/2979",
        "NVIDIA/nccl:docs/userguide/source/env.rst@5067397c",
    ],
    seen="2026-08-20",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: _for_gpus(stack) and stack["fabric.provider"] != "tcp",
    hint="set NCCL_NET in the site's `fabric.environment`: AWS Libfabric for cxi and efa, IB for InfiniBand",
)
def nccl_net_fails_closed(stack: Stack) -> None:
    """NCCL_NET names the network, so that a missing one stops the job."""
    network, provider = stack["fabric.nccl_net"], stack["fabric.provider"]
    fallback = f"if the plug-in for {provider} does not load, NCCL uses sockets without an error"
    require(bool(network), f"NCCL_NET is not set: {fallback}")


@Rule(
    id="FABRIC.nccl-net-plugin-overrides",
    judged_at=("fabric",),
    source=["eth-cscs/cscs-docs:docs/software/communication/nccl.md@80abed13"],
    seen="2026-08-20",
    when=lambda stack: bool(stack["fabric.nccl_net"]),
    hint="unset NCCL_NET_PLUGIN",
)
def nccl_net_plugin_overrides(stack: Stack) -> None:
    """NCCL_NET_PLUGIN does not hide the network that NCCL_NET names."""
    plugin = stack["fabric.nccl_net_plugin"]
    plugins = stack.texts("fabric.plugin_files") if plugin else ()
    order = f"NCCL_NET_PLUGIN={plugin} comes before NCCL_NET={stack['fabric.nccl_net']}"
    require(not plugin or plugin in plugins, f"{order}, and the only plug-ins are: {shown(plugins)}")


def _needs_plugin_for_cuda(stack: Stack) -> Iterator[str]:
    if majors := stack.texts("cuda.majors"):
        yield f"fabric.plugin_majors with {shown(majors)}, or none"


@Rule(
    id="FABRIC.plugin-cuda-major",
    judged_at=("fabric",),
    source=["eth-cscs/cscs-docs:docs/software/container-engine/resource-hook.md@80abed13"],
    seen="2026-08-20",
    when=lambda stack: bool(stack["fabric.plugin_majors"]),
    needs=_needs_plugin_for_cuda,
    hint="choose the plug-in's variant for the image's CUDA, or the one that is linked dynamically",
)
def plugin_cuda_major(stack: Stack) -> None:
    """NCCL's network plug-in is linked for the image's CUDA major."""
    majors, linked = stack.texts("cuda.majors"), stack.texts("fabric.plugin_majors")
    reason = f"the image has CUDA {shown(majors)}, and the host's NCCL plug-in is for {shown(linked)}"
    require(set(majors) <= set(linked), reason)


# The host's libraries, the container runtime and Python.


@Rule(
    id="ARCH.same",
    judged_at=("start", "export"),
    source=["a program of another architecture does not start"],
    seen="2026-11-20",
    needs=lambda stack: [f"architecture.host {stack['architecture.image']}"],
    hint="build it for that architecture; `architecture` of the site file is that of the compute nodes",
)
def same_architecture(stack: Stack) -> None:
    """Image and host are of one processor architecture."""
    image, host = stack["architecture.image"], stack["architecture.host"]
    require(image == host, f"the image is for {image}, and the host is {host}")


def _may_get_host_libraries(library: str) -> Callable[[Stack], bool]:
    """Return whether libraries of the host come into the image: for its GPUs, its MPI or its fabric."""

    def may_get(stack: Stack) -> bool:
        runs_on_own = stack.get("asked.accelerator") == "cpu" and stack.get("mpi.source") in ("image", "")
        gets_others = stack.get("fabric.settings_known") is not None  # known for the host's fabric alone
        return not runs_on_own or gets_others or stack.get(f"{library}.injected") is not None

    return may_get


def _library_ceiling(stack: Stack, library: str, kind: str) -> None:
    image, needed = stack.text(f"{library}.image"), stack.get(f"{library}.injected")
    if needed is None:
        # Host libraries need nothing newer than the host has, and perhaps something older.
        require(at_least(image, stack.text(f"{library}.host")) or None, "")
    elif needed:
        reason = f"the host's libraries need {kind}{needed}, and the image has {kind}{image}"
        require(at_least(image, str(needed)), reason)


def _needs_old_libraries(library: str) -> Callable[[Stack], Iterator[str]]:
    def needs(stack: Stack) -> Iterator[str]:
        if stack.get("mpi.source") == "host":
            yield f"host libraries that need {library} <={stack[f'{library}.image']}"

    return needs


@Rule(
    id="GLIBC.host-library-ceiling",
    judged_at=("host-libraries",),
    source=["https://github.com/apptainer/apptainer/pull/2606"],
    seen="2026-11-20",
    when=_may_get_host_libraries("glibc"),
    needs=_needs_old_libraries("glibc"),
    hint="run on the image's own libraries, or build the image on a newer base",
)
def glibc_ceiling(stack: Stack) -> None:
    """The image's C library is as new as the host's libraries need."""
    _library_ceiling(stack, "glibc", "glibc ")


def _needs_old_host(stack: Stack) -> Iterator[str]:
    if stack.get("mpi.source") == "host":
        yield f"glibc.host <={stack['glibc.image']}, or host libraries that need no newer glibc"


@Rule(
    id="GLIBC.host-newer",
    judged_at=("host-mpi",),
    source=[
        "https://github.com/olcf/olcf_containers_examples/pull/3",
        "https://github.com/apptainer/apptainer/pull/2606",
    ],
    seen="2026-11-28",
    # Many libraries of a newer host ask for no newer symbol: those that are read decide.
    severity="warning",
    when=lambda stack: _on_host_mpi(stack) and "glibc.injected" not in stack.facts,
    needs=_needs_old_host,
    hint="run `envbuild check` of the image on a node: it reads which glibc the host's libraries need",
)
def host_glibc_not_newer(stack: Stack) -> None:
    """The host, whose MPI libraries run in the image, has no newer C library than the image."""
    image, host = stack.text("glibc.image"), stack.text("glibc.host")
    reason = (
        f"the host's MPI comes from glibc {host}, and the image has {image}: its libraries may need newer"
    )
    require(at_least(image, host), f"{reason} symbols")


@Rule(
    id="GLIBCXX.host-library-ceiling",
    judged_at=("host-libraries",),
    source=["https://github.com/apptainer/apptainer/pull/1622"],
    seen="2026-11-20",
    when=_may_get_host_libraries("libstdcxx"),
    needs=_needs_old_libraries("libstdcxx"),
    hint="run on the image's own libraries, or build the image on a newer base",
)
def glibcxx_ceiling(stack: Stack) -> None:
    """The image's C++ library is as new as the host's libraries need."""
    _library_ceiling(stack, "libstdcxx", "GLIBCXX_")


# Directories of the host that hold one version of a product, and the fact with the version in use.
_VERSIONED = (
    (re.compile(r"/(?:mpich|openmpi|mvapich2?|intel-?mpi)[/-]([0-9]+(?:\.[0-9]+)+)"), "host_mpi.version"),
    (re.compile(r"/libfabric[/-]([0-9]+(?:\.[0-9]+)+)"), "fabric.libfabric"),
    (re.compile(r"/rocm[/-]([0-9]+(?:\.[0-9]+)+)"), "rocm.toolkit"),
    (re.compile(r"/cuda[/-]([0-9]+(?:\.[0-9]+)+)"), "cuda.toolkit"),
)
# Where a distribution has its libraries. An image may have those, too.
_OF_DISTRIBUTION = re.compile(r"/(?:usr/)?lib(?:64|/[a-z0-9_]+-linux-gnu)?/[^/]+")


def _uses(stack: Stack, path: str) -> bool | None:
    """Return whether an image uses a path of the host; None if that is not known."""
    for pattern, fact in _VERSIONED:
        if match := pattern.search(path):
            if fact == "host_mpi.version" and stack.get("mpi.source") == "image":
                return False
            used = stack.get(fact)
            numbers = str(used).split(".") if used else []
            return numbers == match[1].split(".")[: len(numbers)]
    if _OF_DISTRIBUTION.fullmatch(path) and "injected.unresolved" not in stack.facts:
        return None
    return True


@Rule(
    id="HOST.binds-exist",
    judged_at=("host-libraries",),
    source=["https://github.com/Lumi-supercomputer/LUMI-EasyBuild-contrib/issues/422"],
    seen="2026-11-20",
    hint="update the site file: `envbuild site check` lists what has changed on the host",
)
def host_files_exist(stack: Stack) -> None:
    """Every library and directory of the host that an image uses is there."""
    absent = {path: _uses(stack, path) for path in stack.texts("injected.absent")}
    used = [path for path, is_used in absent.items() if is_used]
    require(not used, f"the site file names what is absent on the host, or no library: {shown(tuple(used))}")
    if unknown := [path for path, is_used in absent.items() if is_used is None]:
        reason = f"whether the image needs what is absent on the host is not known: {shown(tuple(unknown))}"
        raise UnknownFact(reason=reason)


# What nothing brings → the facts that say why, in words.
_HAS_INSTEAD = (
    (re.compile(r"lib(?:cu[a-z]+|nv[a-zA-Z0-9]+|nccl)\.so\.[0-9]+"), "cuda.majors", "the image has CUDA"),
    (re.compile(r"FABRIC_[0-9.]+"), "fabric.libfabric", "libfabric is"),
    (re.compile(r"FABRIC_[0-9.]+"), "fabric.plugin_version", "NCCL's plug-in is"),
    (re.compile(r"GLIBC_[0-9.]+"), "glibc.image", "the image has glibc"),
    (re.compile(r"GLIBCXX_[0-9.]+"), "libstdcxx.image", "the image's C++ library has GLIBCXX_"),
    (
        re.compile(r"libmpi_cxx\.so\.[0-9]+"),
        "mpi.version",
        "the image's MPI, perhaps without C++ bindings, is",
    ),
)


def _has_instead(stack: Stack, unresolved: Sequence[str]) -> Iterator[str]:
    """Yield, in words, what there is in the place of what nothing brings."""
    for pattern, path, words in _HAS_INSTEAD:
        if any(pattern.fullmatch(name) for name in unresolved) and (value := stack.get(path)):
            space = "" if words.endswith("_") else " "
            yield f"; {words}{space}{shown(value)}"


@Rule(
    id="HOST.injected-closure",
    judged_at=("host-libraries",),
    source=[
        "https://github.com/Lumi-supercomputer/LUMI-EasyBuild-contrib/pull/51",
        "eth-cscs/cscs-docs:docs/software/container-engine/known-issue.md@80abed13",
    ],
    seen="2026-11-20",
    hint="update the site file: `envbuild site check` lists what has changed on the host",
)
def host_libraries_complete(stack: Stack) -> None:
    """Everything that the host's libraries need is in the image or comes with them."""
    unresolved = stack.texts("injected.unresolved")
    instead = "".join(_has_instead(stack, unresolved))
    require(not unresolved, f"the host's libraries need what nothing brings: {shown(unresolved)}{instead}")


@Rule(
    id="HOST.injected-abi",
    judged_at=("host-libraries",),
    source=["https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/"],
    seen="2026-11-28",
    when=lambda stack: "injected.foreign" in stack.facts,
    hint="name files for the image's processor and Python in the site file, or build the image for theirs",
)
def host_files_fit(stack: Stack) -> None:
    """The host's files in the image are for its processor and its Python, and hide nothing of it."""
    foreign = stack.texts("injected.foreign")
    require(not foreign, f"files of the host do not fit the image: {shown(foreign)}")


@Rule(
    id="HOST.supplies",
    judged_at=("start", "export"),
    source=["docs/decisions/0037-software-that-sites-supply.md"],
    seen="2026-11-28",
    when=lambda stack: bool(stack.get("asked.from_site")),
    needs=lambda stack: (f"host.supplies {name}" for name in stack.texts("asked.from_site")),
    hint="name the software under `supplies` of the site file: docs/howto/site-libraries.md",
)
def site_supplies(stack: Stack) -> None:
    """The site supplies all that recipes of the kind `site` in the image ask for."""
    offered = stack.texts("host.supplies")
    absent = tuple(name for name in stack.texts("asked.from_site") if name not in offered)
    require(not absent, f"the site does not supply: {shown(absent)}")
    lacking = stack.texts("injected.unsupplied")
    require(not lacking, f"the site does not supply: {shown(lacking)}")


@Rule(
    id="HOST.bind-targets",
    judged_at=("start",),
    source=["olcf/olcf-user-docs:software/containers_on_frontier.rst@27459031"],
    seen="2026-07-22",
    hint="bind below a directory that the image has, or add it to the spec: `files`",
)
def bind_targets_exist(stack: Stack) -> None:
    """The image has the targets of the site's binds, if the runtime cannot make them."""
    absent = stack.texts("injected.bind_targets_absent")
    require(not absent, f"the image lacks targets of the site's binds: {shown(absent)}")


@Rule(
    id="HOST.no-shadowing",
    judged_at=("start",),
    source=["https://github.com/apptainer/apptainer/issues/1621"],
    seen="2026-11-20",
    hint="bind only the devices (/dev/kfd, /dev/dri), or to another target",
)
def no_shadowing(stack: Stack) -> None:
    """No bind of the site covers the image's own GPU libraries."""
    shadowed = stack.texts("injected.shadowed")
    require(not shadowed, f"binds of the site cover the image's own GPU libraries in: {shown(shadowed)}")


def _needs_runtime_with_path(stack: Stack) -> Iterator[str]:
    path = stack.text("environment.LD_LIBRARY_PATH")
    if path and "/.singularity.d/libs" not in path:
        yield "not runtime.name singularity with runtime.version >=3.6.0,<3.6.2"


@Rule(
    id="RUNTIME.gpu-libraries-on-path",
    source=["https://github.com/apptainer/singularity/issues/5499"],
    seen="2026-11-20",
    severity="warning",
    warn_if_unknown=True,
    when=lambda stack: (
        stack["runtime.name"] == "singularity"
        and versions.in_range(stack.text("runtime.version"), ">=3.6.0,<3.6.2", "vendor") is True
    ),
    needs=_needs_runtime_with_path,
    hint="end LD_LIBRARY_PATH with /.singularity.d/libs, or take another release",
)
def gpu_libraries_on_path(stack: Stack) -> None:
    """The runtime adds the GPU's libraries to the image's LD_LIBRARY_PATH."""
    runtime, path = stack.text("runtime.version"), stack.text("environment.LD_LIBRARY_PATH")
    reason = f"Singularity {runtime} loses the host's GPU libraries if LD_LIBRARY_PATH is set: it is `{path}`"
    require(not path or "/.singularity.d/libs" in path, reason)


@Rule(
    id="PYTHON.user-site",
    source=["https://docs.python.org/3/library/site.html"],
    seen="2026-11-28",
    # Whether somebody has such packages is unknown.
    severity="note",
    when=lambda stack: stack["runtime.isolates_home"] is False,
    hint="set PYTHONNOUSERSITE=1 in the spec's `environment`",
)
def no_user_site(stack: Stack) -> None:
    """Python packages of the user's home directory do not come before the image's."""
    setting = stack.text("environment.PYTHONNOUSERSITE")
    require(bool(setting), "the runtime shows the home directory, and ~/.local/lib/python… is searched first")


@Rule(
    id="RUNTIME.present",
    judged_at=("start",),
    source=["https://github.com/jade-hpc-gpu/jade-hpc-gpu.github.io/issues/188"],
    seen="2026-11-28",
    hint="install a container runtime on the compute nodes, or name it in the site file",
)
def runtime_present(stack: Stack) -> None:
    """The site has a container runtime."""
    require(bool(stack.text("runtime.name")), "the site has no container runtime: no image starts")


@Rule(
    id="RUNTIME.way-to-start",
    judged_at=("start",),
    source=["https://apptainer.org/docs/admin/1.4/user_namespace.html"],
    seen="2026-11-22",
    when=lambda stack: stack["runtime.name"] in ("apptainer", "singularity", "singularityce"),
    needs=lambda _: ["runtime.setuid yes or runtime.user_namespaces yes"],
    hint="install it set-user-id, or allow user namespaces (`user.max_user_namespaces`)",
)
def way_to_start(stack: Stack) -> None:
    """The runtime starts images set-user-id, or users may make user namespaces."""
    ways = ("runtime.setuid", "runtime.user_namespaces")
    possible = any(stack.get(way) is True for way in ways) or any(stack[way] is True for way in ways)
    reason = f"the site's {stack['runtime.name']} is not installed set-user-id, and users may make no user"
    require(possible, f"{reason} namespaces: no image starts")


# The image's MPI, the host's in its place, and how ranks find each other.


def _same_name_other_abi(stack: Stack) -> bool:
    """Return whether libmpi.so.12 is Open MPI 1.10's on one side and MPICH's on the other."""
    image = set(texts_of(stack.facts, "mpi.needed_abis") or texts_of(stack.facts, "mpi.abis"))
    host, named_12 = set(texts_of(stack.facts, "host_mpi.abis")), {"mpich", "openmpi-12"}
    return not image & host and bool(image & named_12) and bool(host & named_12)


def _needs_abi(stack: Stack) -> Iterator[str]:
    if stack.get("mpi.source") == "host":
        needed = stack.get("mpi.needed_abis") or stack["mpi.abis"]
        yield f"host_mpi.abis with {shown(needed)}"


@Rule(
    id="MPI.abi-family",
    judged_at=("host-mpi",),
    source=[
        "pmodels/mpich:doc/wiki/testing/ABI_Compatibility_Initiative.md@6a79bf65",
        "https://docs.open-mpi.org/en/main/building-apps/abi-compatibility.html",
    ],
    seen="2026-11-20",
    when=lambda stack: _on_host_mpi(stack) and not _same_name_other_abi(stack),
    needs=_needs_abi,
    hint="use the image's own MPI, or build the image on an MPI of the host's ABI",
)
def mpi_abi_family(stack: Stack) -> None:
    """The host's MPI offers the ABI that programs were built for."""
    offered = stack.texts("host_mpi.abis")
    host = f"the host's {stack.show('host_mpi.implementation')} offers: {shown(offered)}"
    if stack.get("mpi.needed_abis") is not None:
        needed = stack.texts("mpi.needed_abis")
        require(
            set(needed) <= set(offered), f"programs of the image need the ABI {shown(needed)}, and {host}"
        )
    own = stack.texts("mpi.abis")
    image = "nothing in the image needs an MPI of a known ABI"
    if own:
        image = f"the image's MPI is {_mpi(stack)} (ABI: {shown(own)})"
    require(bool(set(own) & set(offered)), f"{image}, and {host}")
    stack.texts("mpi.needed_abis")


@Rule(
    id="MPI.openmpi-1.10-is-not-mpich",
    judged_at=("host-mpi",),
    source=[
        "open-mpi/ompi:VERSION@v1.10.7",
        "pmodels/mpich:doc/wiki/testing/ABI_Compatibility_Initiative.md@6a79bf65",
    ],
    seen="2026-11-20",
    when=lambda stack: _on_host_mpi(stack) and _same_name_other_abi(stack),
    hint="use the image's own MPI, or name the host's other MPI in the site file",
)
def libmpi_12_of_one_family(stack: Stack) -> None:
    """Open MPI 1.10 and the MPICH family share the name libmpi.so.12 and nothing else."""
    image = stack.get("mpi.needed_abis") or stack["mpi.abis"]
    host = stack.texts("host_mpi.abis")
    require(False, f"both have libmpi.so.12: the image's ABI is {shown(image)}, and the host's {shown(host)}")


@Rule(
    id="MPI.programs-of-image",
    source=[
        "https://docs.open-mpi.org/en/main/building-apps/abi-compatibility.html",
        "pmodels/mpich:doc/wiki/testing/ABI_Compatibility_Initiative.md@6a79bf65",
    ],
    seen="2026-11-28",
    when=lambda stack: stack["mpi.source"] == "image" and bool(stack["mpi.needed_abis"]),
    hint="build them with the image's MPI, or take an image with the MPI that they were built with",
)
def programs_for_image_mpi(stack: Stack) -> None:
    """The image's own MPI offers the ABI that its programs were built for."""
    needed, offered = stack.texts("mpi.needed_abis"), stack.texts("mpi.abis")
    names = stack.texts_or_none("mpi.needed_sonames")
    libraries = f" ({shown(names)})" if names else ""
    reason = f"programs need the MPI ABI {shown(needed)}{libraries}, and the image's {_mpi(stack)} offers"
    require(set(needed) <= set(offered), f"{reason} {shown(offered)}")


def _needs_new_mpich(stack: Stack) -> Iterator[str]:
    if stack.get("mpi.source") == "host" and stack["mpi.family"] == "mpich":
        yield f"host_mpi.base_version >={stack['mpi.version']}"


@Rule(
    id="MPI.swap-direction",
    judged_at=("host-mpi",),
    source=[
        "eth-cscs/sarus:doc/config/mpi-hook.rst@4a8fdc43",
        "https://github.com/cp2k/cp2k/pull/4006",
        "mpi4py's extension for MPICH and Debian 12's MPICH 4.0.2 in the place of 5.0.2, run",
    ],
    seen="2026-11-22",
    severity="warning",
    when=lambda stack: (
        _on_host_mpi(stack) and stack["mpi.family"] == "mpich" and "mpich" in stack.texts("host_mpi.abis")
    ),
    needs=_needs_new_mpich,
    hint="`--mpi host` compares what programs call with the host's library, and refuses missing symbols;"
    " an image on an older MPICH is safe",
)
def mpi_swap_direction(stack: Stack) -> None:
    """The host's MPI is not older than the image's."""
    base, version = stack.text("host_mpi.base_version"), stack.text("mpi.version")
    host = f"the host's {stack.show('host_mpi.implementation')} is made from the older {base}"
    reason = f"the image's MPICH is {version}, and {host}: it may lack symbols"
    # Cray names the MPICH below its MPI 3.4a2, and it has all of 3.4.
    require(versions.in_range(base, f">={version}", "vendor"), reason)


@Rule(
    id="MPI.hybrid-launch-series",
    judged_at=("ranks",),
    source=[
        "https://github.com/apptainer/singularity/issues/165",
        "https://github.com/hpc/charliecloud/issues/367",
    ],
    seen="2026-11-28",
    when=lambda stack: (
        stack["mpi.launcher"] == "host" and not _on_host_mpi(stack) and stack["mpi.family"] == "openmpi"
    ),
    hint="start with the image's own mpiexec, or with srun",
)
def hybrid_launch_series(stack: Stack) -> None:
    """A host's mpirun and the image's Open MPI are of one series."""
    host, image = stack.text("host_mpi.base_version"), stack.text("mpi.version")
    reason = f"the host's mpirun is of Open MPI {host}, and the image's library {image}"
    series = [version.partition(".")[0] for version in (host, image)]
    if all(versions.in_range(version, "<3", "branch") for version in (host, image)):
        # They compare their versions as text.
        require(host == image, f"{reason}: before Open MPI 3 they have to be the same")
    elif series[0] != series[1] and all(
        versions.in_range(version, ">=4", "branch") for version in (host, image)
    ):
        # From 4 on they speak PMIx, whose releases know one another.
        raise UnknownFact(reason=f"{reason}: only a test shows whether ranks meet")
    require(series[0] == series[1], f"{reason}: they do not speak to each other")


def _abi_differs(stack: Stack) -> bool:
    needed, offered = (texts_of(stack.facts, path) for path in ("mpi.needed_abis", "host_mpi.abis"))
    return bool(offered) and not set(needed) <= set(offered)


# Framework of Open MPI's components → the variable that selects some of them.
_SELECTIONS = {name: f"environment.OMPI_MCA_{name}" for name in ("pml", "mtl", "btl")}


def _selected(setting: str) -> list[str]:
    """Return the components that a variable of Open MPI selects; none if it excludes some (``^openib``)."""
    return [] if setting.startswith("^") else [name.strip() for name in setting.split(",") if name.strip()]


@Rule(
    id="MPI.removed-components",
    source=[
        "open-mpi/ompi: opal/mca/btl, ompi/mca/pml and ompi/mca/mtl of v3.1.6, v4.0.7, v4.1.8 and v5.0.8",
        "https://github.com/open-mpi/ompi/issues/5280",
    ],
    seen="2026-11-28",
    severity="warning",
    when=lambda stack: stack.get("mpi.source") != "host" and stack["mpi.family"] == "openmpi",
    hint="take the variable out of the image's environment, or set ucx, or ob1 with tcp, in its place",
)
def selected_components_exist(stack: Stack) -> None:
    """The components that the image's variables select are in its Open MPI."""
    settings = {framework: stack.get(path) for framework, path in _SELECTIONS.items()}
    for framework, setting in settings.items():
        for component in _selected(str(setting or "")):
            version = stack.text("mpi.version")
            removed = look_up("removed-openmpi-components", framework, component)
            reason = f"OMPI_MCA_{framework} selects {component}, which Open MPI {version} no longer has"
            require(removed is None or in_range(version, removed[0]) is False, f"{reason}: MPI_Init may fail")
    for framework, setting in settings.items():
        if setting is None:
            raise UnknownFact(_SELECTIONS[framework])


def _needs_companions(stack: Stack) -> Iterator[str]:
    if stack.get("mpi.source") == "host" and (names := stack.texts("mpi.needed_sonames")):
        yield f"host_mpi.sonames with {shown(names)}"


@Rule(
    id="MPI.companion-libraries",
    judged_at=("host-mpi",),
    source=["olcf/olcf-user-docs:software/containers_on_frontier.rst@27459031"],
    seen="2026-07-22",
    # Libraries of another ABI have other names: `MPI.abi-family` refuses them.
    when=lambda stack: _on_host_mpi(stack) and not _abi_differs(stack),
    needs=_needs_companions,
    hint="build without the C++ or Fortran bindings that the host lacks, or use the image's own MPI",
)
def mpi_companion_libraries(stack: Stack) -> None:
    """The host offers every MPI library that programs need."""
    needed, offered = stack.texts("mpi.needed_sonames"), stack.texts("host_mpi.sonames")
    reason = f"programs need {shown(needed)}, and the host offers only {shown(offered)}"
    require(set(needed) <= set(offered), reason)


@Rule(
    id="MPI.rpath-defeats-swap",
    judged_at=("host-mpi",),
    source=["https://github.com/NERSC/shifter/issues/287", "https://github.com/amanzi/amanzi/issues/787"],
    seen="2026-11-20",
    when=_on_host_mpi,
    hint="link with `-Wl,--enable-new-dtags`, or use `patchelf --remove-rpath`: DT_RUNPATH does no harm",
)
def no_rpath_to_mpi(stack: Stack) -> None:
    """No DT_RPATH leads to the image's own MPI."""
    files = stack.texts("mpi.rpath_files")
    reason = f"DT_RPATH leads to the image's own MPI in: {shown(files)}; the host's would never be loaded"
    require(not files, reason)


@Rule(
    id="MPI.gtl-linked",
    judged_at=("host-mpi",),
    source=["https://github.com/APPFL/APPFL/issues/258"],
    seen="2026-11-20",
    when=_on_cray_with_gpus,
    hint="link programs with the libmpi_gtl of the GPU's vendor, or set the variable to 0 in the site file",
)
def mpi_gtl_linked(stack: Stack) -> None:
    """MPI on GPU memory has Cray's transport library."""
    reason = "the site sets MPICH_GPU_SUPPORT_ENABLED=1, and nothing loads libmpi_gtl: MPI_Init would fail"
    require(stack["mpi.gtl"] is True, reason)


def _needs_pmi(stack: Stack) -> Iterator[str]:
    """Yield the types of `srun --mpi` of which the scheduler has to offer one."""
    if _without_mpi(stack):
        return
    if stack.get("mpi.source") != "host":
        stack.text("mpi.family")
    sure, possible = stack.texts("pmi.spoken"), stack.texts_or_none("pmi.optional") or ()
    if_built = [f"{name} if the MPI was built for it" for name in possible if name not in sure]
    yield f"pmi.offered with {' or '.join([*sure, *if_built])}"


@Rule(
    id="PMI.intersection",
    source=[
        "https://github.com/open-mpi/ompi/issues/13523",
        "open-mpi/ompi:docs/launching-apps/slurm.rst@8efebee7",
        "Lumi-supercomputer/lumi-userguide:docs/runjobs/scheduled-jobs/container-jobs.md@6c3a26c0",
    ],
    seen="2026-11-20",
    when=lambda stack: not _without_mpi(stack),
    needs=_needs_pmi,
    hint="ask the site for one of these types, or choose another MPI",
)
def pmi_intersection(stack: Stack) -> None:
    """The scheduler offers a PMI that the MPI speaks."""
    spoken, offered = stack.texts("pmi.spoken"), stack.texts("pmi.offered")
    choice = choose_pmi(
        spoken=spoken,
        optional=stack.texts_or_none("pmi.optional"),
        offered=offered,
        more_offered=stack.get("pmi.more_offered") is True,
        mpi=_mpi_in_use(stack),
    )
    if choice.outcome == "unknown":
        raise UnknownFact(reason=choice.reason)
    require(choice.outcome == "compatible", choice.reason)


@Rule(
    id="PMI.default-type",
    source=["https://github.com/open-mpi/ompi/issues/13523"],
    seen="2026-11-20",
    severity="note",
    when=lambda stack: not _without_mpi(stack),
    hint="`srun --mpi=TYPE` with one that both know; `envbuild launch` writes it",
)
def pmi_default_type(stack: Stack) -> None:
    """The default of srun is a PMI that the MPI speaks."""
    default, spoken = stack["pmi.default"], stack.texts("pmi.spoken")
    reason = f"srun takes {default} by default, and {_mpi_in_use(stack)} speaks {shown(spoken)}"
    require(default in spoken, reason)


def _speaks_pmix(stack: Stack) -> bool:
    spoken = stack.texts("pmi.spoken") or stack.texts("pmi.optional")
    return any(mpi_type.startswith("pmix") for mpi_type in spoken)


def _needs_answering_slurm(stack: Stack) -> Iterator[str]:
    if _speaks_pmix(stack):
        for row in (row for row in tables()["slurm-of-pmix"].rows if row.values[0] != ">=0"):
            yield f"scheduler.version {row.values[0]} where scheduler.pmix {row.match[0]}"


def _not_each_slurm_answers(stack: Stack) -> bool:
    return stack.look_up("slurm-of-pmix", stack.text("scheduler.pmix")) != (">=0",)


@Rule(
    id="PMI.pmix-of-slurm",
    judged_at=("job", "export"),
    source=[
        "SchedMD/slurm:CHANGELOG/slurm-25.11.md@284c3b95",
        "https://github.com/openpmix/openpmix/issues/3645",
    ],
    seen="2026-08-20",
    warn_if_unknown=True,
    when=lambda stack: (
        stack["scheduler.name"] == "slurm"
        and not _without_mpi(stack)
        and _speaks_pmix(stack)
        and _not_each_slurm_answers(stack)
    ),
    needs=_needs_answering_slurm,
    hint="ask the site for a newer Slurm, or for another PMIx below it; an MPI that speaks pmi2 starts",
)
def pmix_of_slurm(stack: Stack) -> None:
    """Slurm answers the clients of the PMIx that it loads."""
    pmix, slurm = stack.text("scheduler.pmix"), stack.get("scheduler.version")
    (versions,) = stack.look_up("slurm-of-pmix", pmix)
    if slurm is None:
        reason = f"only Slurm {versions} answers with PMIx {pmix}, and the version of the site's is not known"
        raise UnknownFact(reason=reason)
    reason = f"Slurm {slurm} with PMIx {pmix} never answers, and {_mpi_in_use(stack)} waits in MPI_Init"
    require(in_range(str(slurm), versions), f"{reason}; Slurm {versions} answers")
