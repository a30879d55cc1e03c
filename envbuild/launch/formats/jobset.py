"""A JobSet of Kubernetes: one indexed Job, whose pods are the nodes of a job. Pure.

Read, not run: jobset.x-k8s.io/v1alpha2. JobSet's headless service gives each pod a name by which others find
it, and `JOB_COMPLETION_INDEX` is its number.
"""

from __future__ import annotations

from typing import Any

from envbuild.launch.formats.pods import PodLaunch, labels_and_annotations


def render(launch: PodLaunch) -> str:
    """Return the manifest of a JobSet."""
    cluster = launch.cluster
    container: dict[str, Any] = {
        "name": "ranks",
        "image": launch.image,
        "command": launch.command,
        "workingDir": cluster.working_directory,
        "env": launch.variables,
        **({"resources": {"limits": launch.resources}} if launch.resources else {}),
        "securityContext": launch.container_security,
        "volumeMounts": launch.mounts,
    }
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if cluster.host_network else {}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **network,
        **({"schedulerName": cluster.scheduler_name} if cluster.scheduler_name else {}),
        **launch.pod_settings,
        "containers": [container],
    }
    metadata = labels_and_annotations(cluster.pod_labels, cluster.pod_annotations)
    job = {
        "completionMode": "Indexed",
        "completions": launch.pods,
        "parallelism": launch.pods,
        # A job without one of its pods cannot go on.
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": 60 * launch.work.time_min} if launch.work.time_min else {}),
        "template": {**({"metadata": metadata} if metadata else {}), "spec": pod},
    }
    return launch.text(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": launch.metadata(),
            "spec": {
                # Pods find each other before all of them are ready.
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "failurePolicy": {"maxRestarts": 0},
                "replicatedJobs": [{"name": launch.replicated_job, "replicas": 1, "template": {"spec": job}}],
            },
        }
    )
