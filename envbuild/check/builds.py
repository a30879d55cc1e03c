"""S2: was each framework built for the accelerator that its image is for? Pure.

Standard library only, Python 3.9 or newer: travels in every image.
"""

from __future__ import annotations

from collections.abc import Mapping

from envbuild.check.findings import Finding

# What Horovod was built for → how `horovodrun --check-build` calls it; that command always ends with code 0.
_OF_HOROVOD = {
    "horovod.torch": "PyTorch",
    "horovod.tensorflow": "TensorFlow",
    "horovod.keras": "TensorFlow",
    "horovod.mxnet": "MXNet",
}
_HINT = "the resolver took another build than the image is for: look at the file's name in the lock"


def judge_builds(facts: Mapping[str, object], manifest: Mapping[str, object]) -> list[Finding]:
    """Return a finding for each framework that tells how it was built.

    Parameters
    ----------
    facts : mapping
        The probe's JSON: ``builds``, ``horovod`` and ``accelerator``.
    manifest : mapping
        The image's manifest, as JSON data.
    """
    builds = facts.get("builds")
    accelerator = str(facts.get("accelerator") or "")
    found = [
        _judge_build(str(name), build, accelerator)
        for name, build in sorted(builds.items() if isinstance(builds, dict) else ())
        if isinstance(build, dict)
    ]
    horovod = facts.get("horovod")
    if isinstance(horovod, dict):
        found.append(_judge_horovod(horovod, manifest))
    return found


def _judge_build(name: str, build: Mapping[str, object], accelerator: str) -> Finding:
    check = f"S2.build/{name}"
    family, _, version = accelerator.partition("@")
    if "error" in build or not family:
        why = str(build.get("error") or "the image does not say what it is for")
        return Finding("SKIP", check, "how it was built", why[:200])
    cuda, hip = str(build.get("cuda") or ""), str(build.get("hip") or "")
    architectures = build.get("architectures")
    listed = ",".join(map(str, architectures)) if isinstance(architectures, list) else ""
    observed = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "no GPU code"
    observed += f", {listed}" if listed else ""
    if family == "cpu":
        return Finding("PASS", check, "any build", observed)
    told = cuda if family == "cuda" else hip
    # A build that names no number (`built`) is of the family, and that is all that it tells.
    same = bool(told) and (
        not version or not told[0].isdigit() or told.split(".")[0] == version.split(".")[0]
    )
    expected = f"{'CUDA' if family == 'cuda' else 'ROCm'} {version}".strip()
    return Finding("PASS" if same else "FAIL", check, expected, observed, "" if same else _HINT)


def _judge_horovod(told: Mapping[str, object], manifest: Mapping[str, object]) -> Finding:
    if not told:
        return Finding("SKIP", "S2.horovod", "how it was built", "`horovodrun --check-build` tells nothing")
    imports = [str(name) for name in _list(manifest.get("imports"))]
    wanted = [_OF_HOROVOD[name] for name in imports if name in _OF_HOROVOD]
    wanted += ["MPI"] if manifest.get("mpi") else []
    built = {str(name) for part in ("frameworks", "controllers") for name in _list(told.get(part))}
    operations = ", ".join(map(str, _list(told.get("operations")))) or "none"
    observed = f"{', '.join(sorted(built)) or 'nothing'}; operations: {operations}"
    lacking = [name for name in wanted if name not in built]
    hint = "build it with the frameworks and the MPI in the sandbox: `build.against` of its recipe"
    expected = ", ".join(dict.fromkeys(wanted)) or "any build"
    return Finding("FAIL" if lacking else "PASS", "S2.horovod", expected, observed, hint if lacking else "")


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []
