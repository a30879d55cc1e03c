"""The model of config.yaml: values that a centre or a user sets once, instead of options and variables.

Facts of a machine are in its site file. `envbuild.inputs.config` finds the files.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Discriminator, Field, Tag, model_validator

from envbuild.spec.fields import Format
from envbuild.spec.model import MAX_DEPTH, MAX_TEXT, ImagePath, Model, errors_below, full_match
from envbuild.spec.site import OptionWord, QueueName

_PART = r"(?!\.{0,2}(?:/|$))[^/\x00-\x1f\x7f]+"
OwnPath = Annotated[
    str,
    full_match(
        rf"~?(?:/{_PART}){{1,{MAX_DEPTH}}}",
        "an absolute path, or one below `~`, without `.`, `..` and `//`",
        limit=MAX_TEXT,
    ),
]
"""A path, in which ``~`` at the beginning stands for the home directory, and a part ``$USER`` for the login
name."""
RepositoryName = Annotated[
    str,
    full_match(
        r"[A-Za-z0-9\[][A-Za-z0-9.:\[\]-]*/[a-z0-9]+([._/-]+[a-z0-9]+)*",
        "a repository of a registry, such as `registry.example.org/team/layers`",
        limit=512,
    ),
]
RegistryHost = Annotated[
    str,
    full_match(
        r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?",
        "the host of a registry, such as `registry.example.org:5000`",
    ),
]
RevokedKey = Annotated[
    str,
    full_match(
        r"SHA256:[A-Za-z0-9+/]{43}|/.+",
        "the name of a key (`SHA256:…`), or the absolute path of its file",
        limit=MAX_TEXT,
    ),
]
AccountName = Annotated[
    str, full_match(r"[a-z_][a-z0-9_.-]*|[0-9]+", "an account: a login name or a user id")
]
JobAccount = Annotated[str, full_match(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*", "an account of the scheduler")]
JobTime = Annotated[
    str,
    full_match(
        r"[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}",
        "a limit as sbatch takes it, such as `01:00:00`",
    ),
]


class UpstreamStore(Model):
    """A store of another account, whose layers are used in place."""

    path: ImagePath
    """Its directory."""
    owner: AccountName
    """Login name or user id of the account that builds there; users of this machine trust it."""


class UpstreamRegistry(Model):
    """A repository of a registry, whose layers are fetched."""

    registry: RepositoryName
    """Its name: ``HOST/NAME``, as `build --push-layers` has it."""
    trust: ImagePath
    """File with the public key whose signatures count; users of this machine trust its owner."""


def _kind_of_upstream(value: object) -> str:
    is_registry = "registry" in value if isinstance(value, dict) else isinstance(value, UpstreamRegistry)
    return "registry" if is_registry else "path"


AnyUpstream = Annotated[
    Annotated[UpstreamStore, Tag("path")] | Annotated[UpstreamRegistry, Tag("registry")],
    Discriminator(_kind_of_upstream),
]


class JobDefaults(Model):
    """Options of sbatch for jobs that envbuild submits, by ``--nodes`` or ``--submit``."""

    partition: QueueName | None = None
    """Partition, as ``--partition``."""
    account: JobAccount | None = None
    """Account, as ``--account``."""
    time: JobTime | None = None
    """Time limit, as ``--time``."""
    ranks_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Ranks on each node of ``test --nodes``, as ``--ranks-per-node``."""
    options: tuple[OptionWord, ...] = ()
    """Further options, before those of ``--slurm``."""


class Config(Model):
    """The configuration: values for all users of a machine, or of one user."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    store: OwnPath | None = None
    """Where layers and files are kept, as ``--store``; each user needs another directory
    (``/scratch/$USER/envbuild``)."""
    apptainer: OwnPath | None = None
    """The Apptainer to use, as ``--apptainer``."""
    tmpdir: OwnPath | None = None
    """Directory for temporary files of builds, as ``ENVBUILD_TMPDIR``."""
    recipes: tuple[OwnPath, ...] = ()
    """Directories to search for recipes, behind those of ``--recipes``."""
    plain_http: tuple[RegistryHost, ...] = ()
    """Registries that have no TLS, as ``ENVBUILD_PLAIN_HTTP``."""
    jobs: JobDefaults = JobDefaults()
    """Options of jobs of Slurm."""
    upstreams: tuple[AnyUpstream, ...] = ()
    """Stores of other accounts, and registries, to take layers from, in order."""
    require_signature: tuple[ImagePath, ...] = ()
    """Files with public keys: of images that are pulled or installed as modules, and of layers of others, one
    of these keys must have signed each."""
    require_pass: bool = False
    """Whether such images must have passed their test, as a key of `require_signature` states, or for modules
    a test on this host."""
    revoked: tuple[RevokedKey, ...] = ()
    """Keys whose signatures no longer count: ``SHA256:…``, or files with public keys."""
    log: OwnPath | None = None
    """File that gets a line of JSON for each image that is built, extended, tested or installed as a
    module; none by default."""
    retirement_days: Annotated[int, Field(ge=1, le=3650)] | None = None
    """Days from ``module retire`` to the removal of the module, more than the longest job runs."""

    @model_validator(mode="after")
    def _names_whose_verdicts_count(self) -> Self:
        if self.require_pass and not self.require_signature:
            problem = "`require_signature` must name the keys whose verdicts count"
            raise errors_below({("require_pass",): problem})
        return self
