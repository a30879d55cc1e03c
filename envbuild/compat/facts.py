"""The one model of a stack's facts: what resolving, a site and an image say, and all that rules read.

Absent is unknown, and so is every field's default; see `envbuild.compat.sections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, TypeAdapter

from envbuild.compat.sections import (
    Architectures,
    AskedFacts,
    CudaFacts,
    CudnnFacts,
    DriverFacts,
    FabricFacts,
    FrameworkFacts,
    GpuFacts,
    HostMpiFacts,
    InjectedFacts,
    JaxFacts,
    LibraryFacts,
    MpiFacts,
    NcclFacts,
    NumpyFacts,
    PmiFacts,
    PythonFacts,
    RocmFacts,
    RuntimeFacts,
)
from envbuild.spec.model import Model

# An item of `frameworks` that a rule is judged for, in the paths of that rule.
ITEM = "it"


class Facts(Model):
    """Everything that rules may ask about a stack.

    A fact is addressed by its dotted path: ``driver.version``,
    ``frameworks.pytorch.architectures``.

    Attributes
    ----------
    origins : dict of str to str
        Path of a fact or of its section → where it stands: ``lock``,
        ``image``, ``site:NAME``, ``table:NAME``.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    architecture: Architectures = Architectures()
    asked: AskedFacts = AskedFacts()
    python: PythonFacts = PythonFacts()
    frameworks: dict[str, FrameworkFacts] | None = None
    glibc: LibraryFacts = LibraryFacts()
    libstdcxx: LibraryFacts = LibraryFacts()
    cuda: CudaFacts = CudaFacts()
    rocm: RocmFacts = RocmFacts()
    driver: DriverFacts = DriverFacts()
    gpus: GpuFacts = GpuFacts()
    nccl: NcclFacts = NcclFacts()
    cudnn: CudnnFacts = CudnnFacts()
    jax: JaxFacts = JaxFacts()
    numpy: NumpyFacts = NumpyFacts()
    mpi: MpiFacts = MpiFacts()
    host_mpi: HostMpiFacts = HostMpiFacts()
    pmi: PmiFacts = PmiFacts()
    fabric: FabricFacts = FabricFacts()
    injected: InjectedFacts = InjectedFacts()
    runtime: RuntimeFacts = RuntimeFacts()
    origins: dict[str, str] = {}

    def at(self, path: str) -> Any:  # noqa: ANN401  # text, truth, number or texts
        """Return the fact at a dotted path; None where it is unknown."""
        value: Any = self
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step, None)
            if value is None:
                return None
        return value

    def origin(self, path: str) -> str:
        """Return where a fact stands; empty where nobody said."""
        steps = path.split(".")
        paths = (".".join(steps[:depth]) for depth in range(len(steps), 0, -1))
        return next((self.origins[one] for one in paths if one in self.origins), "")


def make_facts(values: Mapping[str, Any], origins: Mapping[str, str]) -> Facts:
    """Return facts from dotted paths; those that are None are left out, with where they stand.

    Parameters
    ----------
    values : mapping
        Path → value: a text, a truth value, a number or a tuple of texts.
    origins : mapping
        Path of a fact or of its section → where it stands.
    """
    tree: dict[str, Any] = {}
    for path, value in values.items():
        if value is None:
            continue
        *sections, last = path.split(".")
        place = tree
        for step in sections:
            place = place.setdefault(step, {})
        place[last] = value
    return Facts.model_validate({**tree, "origins": dict(origins)})


def merge(image: Facts, host: Facts) -> Facts:
    """Put the facts of an image and of a host together; where both say something, the host is right."""
    return Facts.model_validate(_deep(_known(image), _known(host)))


def known_paths(item: bool = False) -> tuple[str, ...]:
    """Return the paths that rules may ask for.

    Parameters
    ----------
    item : bool
        Whether a rule is judged for each framework, and so may ask for ``it.…``.
    """
    paths = [
        f"{name}.{fact}"
        for name, field in Facts.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for fact in field.annotation.model_fields
    ]
    if item:
        paths += [f"{ITEM}.name", *(f"{ITEM}.{fact}" for fact in FrameworkFacts.model_fields)]
    return tuple(paths)


def kind_of(path: str) -> Literal["text", "texts", "truth", "number"]:
    """Return what kind of value a path of `known_paths` has."""
    section, _, fact = path.partition(".")
    if path == f"{ITEM}.name":
        return "text"
    model: Any = FrameworkFacts if section == ITEM else Facts.model_fields[section].annotation
    wanted = get_args(model.model_fields[fact].annotation)[0]
    if get_origin(wanted) is tuple:
        return "texts"
    return "truth" if wanted is bool else "number" if wanted is int else "text"


def json_schema() -> dict[str, Any]:
    """Return the model's JSON Schema, as it is published."""
    return TypeAdapter(Facts).json_schema(by_alias=True)


def _known(facts: Facts) -> dict[str, Any]:
    return facts.model_dump(exclude_none=True, by_alias=True)


def _deep(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(first)
    for key, value in second.items():
        before = both.get(key)
        both[key] = _deep(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both
