"""Jobs of Kubernetes: pods in which the ranks of an image start. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.image.command_launchers import lone_launcher
from envbuild.image.model import METADATA_DIR, Manifest
from envbuild.launch.formats import PodFormat
from envbuild.launch.runtimes import WRITTEN
from envbuild.launch.schedulers import Work, work_for
from envbuild.spec.kubernetes import LONGEST_LABEL, RUN_DIRECTORY, SiteKubernetes
from envbuild.spec.model import IMAGE
from envbuild.spec.site import Site

# Families of MPI whose ranks Hydra starts in pods.
_BY_HYDRA = ("mpich", "intel-mpi")
_START = ("/usr/bin/python3", "-I", f"{METADATA_DIR}/lib/envbuild/jobs/pod.py", "--")
_MASTER_PORT = "29500"
# The kernel takes variables of up to 128 KiB.
_LONGEST_VARIABLE = 100_000
# Those of Kubeflow Trainer's runtimes have this name.
_REPLICATED_JOBS: Mapping[PodFormat, str] = {"jobset": "ranks", "trainjob": "node"}
# JobSet's own label of pods: with the name of their JobSet, which for a TrainJob is the TrainJob's.
_LABEL_OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
# A pod's name ends in `-` and five characters that Kubernetes chooses.
_SUFFIX = 6
_FILE_NAME = "secret"
# JSON allows these in texts, and YAML takes them for line breaks or leaves them out.
_BREAKS_OF_YAML = {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, 0xFEFF)}
_WORD_OF_YAML = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLaunch:
    """The pods of a job: checked, so that every form of it can be written."""

    manifest: Manifest
    site: Site
    cluster: SiteKubernetes
    image: str
    """``HOST/NAME@sha256:…``, which Kubernetes pulls."""
    name: str
    """Name of the job."""
    form: PodFormat
    user: int
    group: int
    work: Work
    pods: int
    """Count."""
    ranks_per_pod: int
    """Count."""

    @property
    def replicated_job(self) -> str:
        """Name of the part of the JobSet that has the pods."""
        return _REPLICATED_JOBS[self.form]

    @property
    def pod_names(self) -> list[str]:
        """The host names of the pods, in rank order: those that JobSet's headless service has."""
        return [f"{self.name}-{self.replicated_job}-0-{index}.{self.name}" for index in range(self.pods)]

    @property
    def by_mpi(self) -> bool:
        """Whether the image's MPI starts the ranks, across the pods."""
        return bool(self.manifest.mpi_family)

    @property
    def secret(self) -> str:
        """Name of the Secret by which the pods of a job with MPI trust each other; empty without MPI."""
        return f"{self.name}-pods" if self.by_mpi else ""

    @property
    def lines_to_type(self) -> list[str]:
        """The lines that the user types before ``kubectl apply``."""
        if not self.secret:
            return []
        namespace = f" --namespace {self.cluster.namespace}" if self.cluster.namespace else ""
        return [
            f"openssl rand -hex 32 | kubectl create secret generic {self.secret}{namespace}"
            f" --from-file={_FILE_NAME}=/dev/stdin"
        ]

    @property
    def command(self) -> list[str]:
        """The words that start the ranks of a pod; Kubernetes would replace ``$(NAME)`` in them."""
        words = [*_START, *self.manifest.rank_words, *self.work.command]
        return [word.replace("$", "$$") for word in words]

    @property
    def variables(self) -> list[dict[str, str]]:
        """The variables of a pod, as a container's `env`."""
        names = self.pod_names
        values = {
            # The user has no home in an image.
            "HOME": "/tmp",  # noqa: S108  # the path inside the image
            "ENVBUILD_POD_NAMES": ",".join(names),
            "ENVBUILD_POD_START": "mpi" if self.by_mpi else "plain",
            "ENVBUILD_RANKS_PER_POD": str(self.ranks_per_pod),
        }
        if self.secret:
            values["ENVBUILD_POD_SECRET_FILE"] = f"{RUN_DIRECTORY}/{_FILE_NAME}"
        if self.manifest.rank_words and self.pods * self.ranks_per_pod > 1:
            values |= {"MASTER_ADDR": names[0], "MASTER_PORT": _MASTER_PORT}
        return [{"name": name, "value": value} for name, value in sorted(values.items())]

    @property
    def resources(self) -> dict[str, str]:
        """Resource → quantity of each pod; requests are equal to limits if none are stated."""
        gpus = {self.cluster.gpu_resource: str(self.work.gpus_per_node)} if self.cluster.gpu_resource else {}
        gpus = gpus if self.work.gpus_per_node else {}
        return dict(sorted({**self.cluster.resources, **gpus}.items()))

    @property
    def container_security(self) -> dict[str, Any]:
        """The security context of the container: no privilege, and a root that stays as it is."""
        return {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """The mounts of the container."""
        mounts: list[dict[str, Any]] = [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the path inside the image
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ]
        if self.secret:
            mounts.append({"name": "secret", "mountPath": RUN_DIRECTORY, "readOnly": True})
        for number, volume in enumerate(self.cluster.volumes):
            mounts.append(
                {"name": f"site-{number}", "mountPath": volume.target, "readOnly": not volume.writable}
            )
        return mounts

    @property
    def pod_settings(self) -> dict[str, Any]:
        """The parts of a pod's spec that both forms of a job state."""
        cluster = self.cluster
        labels = {"matchLabels": {_LABEL_OF_JOBSET: self.name}}
        apart = [{"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}]
        volumes: list[dict[str, Any]] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
        if self.secret:
            volumes.append({"name": "secret", "secret": {"secretName": self.secret, "defaultMode": 0o444}})
        for number, volume in enumerate(cluster.volumes):
            if volume.claim is not None:
                source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": volume.claim}}
            else:
                source = {"hostPath": {"path": volume.path, "type": "Directory"}}
            volumes.append({"name": f"site-{number}", **source})
        settings: dict[str, Any] = {
            # A pod is a node of the job.
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": self.user,
                "runAsGroup": self.group,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": volumes,
        }
        # An image is for one architecture, and clusters may have nodes of several.
        nodes = {"kubernetes.io/arch": self.manifest.architecture, **cluster.node_selector}
        settings["nodeSelector"] = dict(sorted(nodes.items()))
        if cluster.pull_secrets:
            settings["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
        return settings

    def head_lines(self) -> list[str]:
        """Return the comment at the beginning: what starts where, and the lines to type."""
        manifest = self.manifest
        return [
            f"{WRITTEN}: {manifest.name}/{manifest.version} in pods at {self.site.name}.",
            f"# {manifest.digest}",
            *(f"# {line}" for line in self.lines_to_type),
        ]

    def text(self, document: Mapping[str, Any]) -> str:
        """Return the text of a job."""
        return "\n".join([*self.head_lines(), *_yaml_lines(document)]) + "\n"

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the job, with the site's labels and annotations."""
        return {
            "name": self.name,
            **({"namespace": self.cluster.namespace} if self.cluster.namespace else {}),
            **labels_and_annotations(self.cluster.labels, self.cluster.annotations),
        }


def labels_and_annotations(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return labels and annotations as metadata have them, without empty ones."""
    both = {"labels": dict(sorted(labels.items())), "annotations": dict(sorted(annotations.items()))}
    return {key: value for key, value in both.items() if value}


def pod_launch(
    manifest: Manifest, site: Site, form: PodFormat, *, image: str, name: str, user: tuple[int, int] | None
) -> PodLaunch:
    """Return the pods of an image's job at a site.

    An empty `name` is the image's; without `user`, its id and that of its group are the site's. RequestError:
    all that Kubernetes would refuse, or that would start other ranks, at once.
    """
    cluster = site.kubernetes
    errors: list[EnvbuildError] = []
    if cluster is None:
        hint = "describe the cluster in the site file: `kubernetes: {gpu_resource: nvidia.com/gpu}`"
        errors.append(RequestError(f"the site `{site.name}` has no `kubernetes` section", hint=hint))
        cluster = SiteKubernetes()
    work, for_gpus = Work(name="", head=(), body=()), manifest.accelerator != "cpu"
    try:
        work = work_for(site, for_gpus=for_gpus, launch=manifest.launch)
    except EnvbuildError as error:
        errors.append(error)
    pods = work.nodes or 1
    ranks_per_pod = work.ranks_per_node or (work.ranks // pods) or 1
    user_id, group_id = user or (cluster.run_as_user, cluster.run_as_group or cluster.run_as_user)
    chosen = name or re.sub(r"[._]+", "-", manifest.name)
    errors += [
        *_problems_of_image(manifest, image),
        *_problems_of_name(chosen, _REPLICATED_JOBS[form], pods),
        *_problems_of_ranks(manifest, site, cluster, work, pods, ranks_per_pod),
    ]
    if form == "trainjob" and site.kubernetes is not None and cluster.trainer_runtime is None:
        problem = f"the site `{site.name}` names no runtime of Kubeflow Trainer"
        hint = (
            "`kubectl get clustertrainingruntimes` lists them; name one: `kubernetes: {trainer_runtime: …}`"
        )
        errors.append(RequestError(problem, hint=hint))
    if not user_id or not group_id:
        problem = (
            "root starts no pods" if user else f"the site `{site.name}` names no user whose pods they are"
        )
        hint = "`--user UID:GID` names yours, as `id` prints them; `run_as_user` of the site file is for all"
        errors.append(RequestError(problem, hint=hint))
    raise_all(errors)
    launch = PodLaunch(
        manifest=manifest,
        site=site,
        cluster=cluster,
        image=image,
        name=chosen,
        form=form,
        user=user_id or 0,
        group=group_id or 0,
        work=work,
        pods=pods,
        ranks_per_pod=ranks_per_pod,
    )
    if sum(len(pod) + 1 for pod in launch.pod_names) > _LONGEST_VARIABLE:
        raise RequestError(
            f"the names of {pods} pods are too long for a variable", hint="name the job shorter"
        )
    return launch


def _problems_of_image(manifest: Manifest, image: str) -> Iterator[RequestError]:
    push = "`envbuild push --format oci` sends it there; --image takes HOST/NAME@sha256:…, as that prints it"
    if not image:
        yield RequestError("Kubernetes pulls images from a registry, and none is named", hint=push)
    elif not re.fullmatch(IMAGE, image):
        yield RequestError(f"{image!a} is not an image in a registry", hint=push)
    elif "@sha256:" not in image:
        yield RequestError(f"`{image}` has no digest: a tag may be another image tomorrow", hint=push)
    if not manifest.starts_in_pods:
        problem = "the image has nothing that starts ranks in pods: an earlier version of envbuild made it"
        yield RequestError(problem, hint="build it again")


def _problems_of_name(name: str, replicated_job: str, pods: int) -> Iterator[RequestError]:
    hint = "give the job another name with --name"
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", name):
        problem = f"{name!a} cannot name a job: lower-case letters, digits and `-`, a letter first"
        yield RequestError(problem, hint=hint)
    length = len(f"{name}-{replicated_job}-0-{pods - 1}") + _SUFFIX
    if length > LONGEST_LABEL:
        problem = (
            f"pods of `{name[:80]}` would have names of {length} characters, and {LONGEST_LABEL} are allowed"
        )
        yield RequestError(problem, hint=hint)


def _problems_of_ranks(
    manifest: Manifest, site: Site, cluster: SiteKubernetes, work: Work, pods: int, ranks_per_pod: int
) -> Iterator[RequestError]:
    ranks = pods * ranks_per_pod
    if manifest.launch is None:
        yield RequestError(
            "the image states no command",
            hint="add `launch: {command: [python, train.py]}` to its spec, and build it again",
        )
    elif lone := lone_launcher(manifest.launch.command, {}, ranks=ranks, nodes=pods):
        problem = f"`{lone.launcher.name}` starts ranks itself, and each of {ranks} ranks would start it"
        yield RequestError(problem, hint="leave it and its options out of `launch: {command: …}`")
    if work.ranks and ranks != work.ranks:
        problem = f"{work.ranks} ranks cannot be shared evenly by {pods} pods"
        yield RequestError(problem, hint="state `nodes` or `ranks_per_node` in `launch` of the spec")
    if manifest.mpi_family not in ("", *_BY_HYDRA):
        problem = f"ranks of {manifest.mpi} do not start in pods"
        yield RequestError(
            problem, hint=f"use one of {', '.join(_BY_HYDRA)}; without `mpi`, torchrun's variables"
        )
    if manifest.accelerator == "cpu":
        return
    if cluster.gpu_resource is None:
        problem = f"the image is for GPUs, and the site `{site.name}` does not say how pods ask for them"
        yield RequestError(problem, hint="name the resource: `kubernetes: {gpu_resource: nvidia.com/gpu}`")
    if not work.gpus_per_node:
        problem = f"the image is for GPUs, and neither its spec nor the site `{site.name}` says how many"
        yield RequestError(problem, hint="state `gpus_per_rank` and `ranks_per_node`, or `gpus: {count: …}`")
    elif not work.ranks_per_node:
        problem = f"{work.ranks} ranks cannot be shared by nodes with {work.gpus_per_node} GPUs each"
        yield RequestError(problem, hint="state `nodes` or `ranks_per_node` in `launch` of the spec")


def _yaml_lines(value: Any, indent: str = "") -> Iterator[str]:  # noqa: ANN401  # of any document
    """Yield the lines of a mapping or a list; texts are quoted: no reader takes one for a number."""
    entries = value.items() if isinstance(value, Mapping) else ((None, entry) for entry in value)
    for key, entry in entries:
        name = "-" if key is None else f"{key if _WORD_OF_YAML.fullmatch(key) else json.dumps(key)}:"
        if isinstance(entry, (Mapping, list)) and entry:
            if key is None:
                first, *rest = _yaml_lines(entry, f"{indent}  ")
                yield f"{indent}- {first.strip()}"
                yield from rest
            else:
                yield f"{indent}{name}"
                yield from _yaml_lines(entry, f"{indent}  ")
        else:
            yield f"{indent}{name} {json.dumps(entry, ensure_ascii=False).translate(_BREAKS_OF_YAML)}"
