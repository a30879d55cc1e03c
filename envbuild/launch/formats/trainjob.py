"""A TrainJob of Kubeflow Trainer, which makes a JobSet by a runtime of the site. Pure.

Read, not run: trainer.kubeflow.org/v1alpha1. Its `runtimePatches` change what the runtime says of pods;
network, scheduler and working directory are the runtime's own.
"""

from __future__ import annotations

from typing import Any

from envbuild.launch.formats.pods import PodLaunch, labels_and_annotations

# The name that runtimes of Trainer give the container that trains.
_CONTAINER = "node"


def render(launch: PodLaunch) -> str:
    """Return the manifest of a TrainJob."""
    cluster = launch.cluster
    pod_metadata = labels_and_annotations(cluster.pod_labels, cluster.pod_annotations)
    container = {
        "name": _CONTAINER,
        "securityContext": launch.container_security,
        "volumeMounts": launch.mounts,
    }
    pod = {
        **({"metadata": pod_metadata} if pod_metadata else {}),
        "spec": {**launch.pod_settings, "containers": [container]},
    }
    metadata = labels_and_annotations(cluster.labels, cluster.annotations)
    job_set: dict[str, Any] = {
        # slurm-bridge and Kueue read those of the JobSet.
        **({"metadata": metadata} if metadata else {}),
        "spec": {
            "replicatedJobs": [{"name": launch.replicated_job, "template": {"spec": {"template": pod}}}],
        },
    }
    trainer: dict[str, Any] = {
        "image": launch.image,
        "command": launch.command,
        "env": launch.variables,
        "numNodes": launch.pods,
        **({"resourcesPerNode": {"limits": launch.resources}} if launch.resources else {}),
    }
    return launch.text(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": launch.metadata(),
            "spec": {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org",
                    "kind": "ClusterTrainingRuntime",
                    "name": cluster.trainer_runtime,
                },
                **({"activeDeadlineSeconds": 60 * launch.work.time_min} if launch.work.time_min else {}),
                "trainer": trainer,
                "runtimePatches": [
                    {"manager": "envbuild", "trainingRuntimeSpec": {"template": job_set}},
                ],
            },
        }
    )
