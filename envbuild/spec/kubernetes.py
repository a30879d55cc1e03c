"""The section `kubernetes` of a site file: what jobs need on a cluster of Kubernetes. Pure."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from envbuild.spec.model import BindTarget, ImagePath, Model, Text, errors_below, full_match

LONGEST_LABEL = 63  # characters; of names of pods, of labels and of parts of names in the DNS
# What each pod has: memory of its own, and the secret of its job.
RUN_DIRECTORY = "/run/envbuild"
OWN_MOUNTS = ("/tmp", "/dev/shm", RUN_DIRECTORY)  # noqa: S108  # the paths inside the image
_PART = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LONGEST_KEY = 253 + 1 + LONGEST_LABEL

ObjectName = Annotated[
    str, full_match(_PART, "a name in Kubernetes: lower case, digits and `-`", limit=LONGEST_LABEL)
]
ObjectKey = Annotated[
    str,
    full_match(
        rf"(?:{_PART}(?:\.{_PART})*/)?{_LABEL}",
        "a key in Kubernetes, such as `kueue.x-k8s.io/queue-name`: behind `/` at most 63 letters, digits,"
        " `-`, `_` and `.`",
        limit=_LONGEST_KEY,
    ),
]
LabelValue = Annotated[
    str,
    full_match(
        rf"(?:{_LABEL})?",
        "a value of a label: letters, digits, `-`, `_` and `.`, a letter or digit first and last",
        limit=LONGEST_LABEL,
    ),
]
Quantity = Annotated[
    str,
    full_match(
        r"[0-9]+(?:\.[0-9]+)?(?:m|k|[MGTPE]|[KMGTPE]i)?",
        "a quantity in quotes (`8`, `500m`, `64Gi`)",
    ),
]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]


class KubernetesVolume(Model):
    """A directory that pods see."""

    target: BindTarget
    """Path in the image."""
    claim: ObjectName | None = None
    """Name of a persistent volume claim."""
    path: ImagePath | None = None
    """Directory of the node; many clusters forbid it."""
    writable: bool = True
    """Whether programs can write there, as far as the files' permissions let them."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.claim is None) == (self.path is None):
            raise ValueError("a volume has either a `claim` or a `path`")
        return self


def _apart(volumes: tuple[KubernetesVolume, ...]) -> tuple[KubernetesVolume, ...]:
    targets = [*OWN_MOUNTS, *(volume.target for volume in volumes)]
    problems: dict[tuple[str | int, ...], str] = {
        (number, "target"): f"pods already have a volume at `{volume.target}`"
        for number, volume in enumerate(volumes)
        if volume.target in targets[: len(OWN_MOUNTS) + number]
    }
    if problems:
        raise errors_below(problems)
    return volumes


class SiteKubernetes(Model):
    """A cluster of Kubernetes, and what its administrators ask of jobs."""

    namespace: ObjectName | None = None
    """Namespace of jobs; that of kubectl if omitted."""
    gpu_resource: ObjectKey | None = None
    """Resource by which pods ask for GPUs (``nvidia.com/gpu``)."""
    resources: dict[ObjectKey, Quantity] = {}
    """Further resources of each pod: ``cpu``, ``memory``, devices of the fabric
    (``rdma/hca_shared_devices_a``)."""
    host_network: bool = False
    """Whether pods have the network of their node, as a fast fabric may need."""
    run_as_user: UserId | None = None
    """User id of jobs; ``export --user`` overrides it."""
    run_as_group: UserId | None = None
    """Group id of jobs; `run_as_user` if omitted."""
    labels: dict[ObjectKey, LabelValue] = {}
    """Labels of jobs (``kueue.x-k8s.io/queue-name``)."""
    annotations: dict[ObjectKey, Text] = {}
    """Annotations of jobs (``slurmjob.slinky.slurm.net/partition``)."""
    pod_labels: dict[ObjectKey, LabelValue] = {}
    """Labels of pods (``scheduling.x-k8s.io/pod-group``)."""
    pod_annotations: dict[ObjectKey, Text] = {}
    """Annotations of pods."""
    node_selector: dict[ObjectKey, LabelValue] = {}
    """Labels of the nodes that pods may run on."""
    scheduler_name: ObjectName | None = None
    """Scheduler of pods (``slurm-bridge-scheduler``); the cluster's default if omitted."""
    pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=64)] = ()
    """Secrets with logins to registries."""
    volumes: Annotated[tuple[KubernetesVolume, ...], Field(max_length=256), AfterValidator(_apart)] = ()
    """Directories that pods see."""
    working_directory: ImagePath = "/tmp"  # noqa: S108  # the path inside the image
    """Directory in which the command starts; in ``/tmp`` nothing outlives a pod."""
    trainer_runtime: ObjectName | None = None
    """ClusterTrainingRuntime of Kubeflow Trainer that TrainJobs name."""
