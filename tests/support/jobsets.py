"""The pods of a JobSet's text, with an image as their root: what kubelets make of it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.file import ImageFile
from tests.support.images import read_sif
from tests.support.pods import MEMORY, PodOfTest


def unpack_root(image: Path, target: Path) -> Path:
    """Unpack the file system of an image."""
    root = read_sif(image).root
    assert root is not None
    words = ["unsquashfs", "-q", "-n", "-o", str(root.offset), "-d", str(target), str(image)]
    subprocess.run(words, check=True, capture_output=True)
    return target


def pods_of(
    job: Mapping[str, Any],
    image: Path,
    root: Path,
    *,
    secrets: Mapping[str, Path] | None = None,
    claims: Mapping[str, Path] | None = None,
) -> list[PodOfTest]:
    """Return the pods of a JobSet with one indexed Job, whose image is unpacked at `root`."""
    (part,) = job["spec"]["replicatedJobs"]
    inner = part["template"]["spec"]
    settings = inner["template"]["spec"]
    (container,) = settings["containers"]
    directories = {"secret": secrets or {}, "persistentVolumeClaim": claims or {}}
    names = {"secret": "secretName", "persistentVolumeClaim": "claimName"}
    sources: dict[str, str] = {}
    for volume in settings["volumes"]:
        (kind,) = volume.keys() - {"name"}
        sources[volume["name"]] = (
            MEMORY if kind == "emptyDir" else str(directories[kind][volume[kind][names[kind]]])
        )
    mounts = []
    for mount in container["volumeMounts"]:
        target = mount["mountPath"].strip("/")
        # Container engines make the directories that are missing.
        (root / target).mkdir(parents=True, exist_ok=True)
        mounts.append((sources[mount["name"]], target, "ro" if mount.get("readOnly") else "rw"))
    with ImageFile.open(image) as opened:
        variables = apply(opened.manifest.environment, {"PATH": DEFAULT_PATH})
    variables |= {entry["name"]: entry["value"] for entry in container["env"]}
    name = job["metadata"]["name"]
    pod = PodOfTest(
        name="",
        command=[word.replace("$$", "$") for word in container["command"]],
        variables={key: value for key, value in variables.items() if value},
        root=str(root),
        mounts=mounts,
        directory=container["workingDir"],
    )
    return [
        replace(
            pod,
            name=f"{name}-{part['name']}-0-{index}.{name}",
            variables={**pod.variables, "JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(inner["completions"])
    ]


def with_variables(pods: Sequence[PodOfTest], **values: str) -> list[PodOfTest]:
    """Return the pods with further variables."""
    return [replace(pod, variables={**pod.variables, **values}) for pod in pods]
