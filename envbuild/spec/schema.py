"""Models as JSON Schema: what editors complete and check a file by while it is written.

Draft 7, which every editor's language server knows. A schema tells what one
file alone can say; what recipes, base images and sites make of it is for
`envbuild.spec.check`. What keys mean comes from the "Attributes" of the
models' docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from envbuild.spec.base import BaseImage
from envbuild.spec.control import Controls
from envbuild.spec.docstrings import described
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site

DIALECT = "http://json-schema.org/draft-07/schema#"

# What a file is for people → its model.
MODELS: Mapping[str, type[BaseModel]] = {
    "spec": EnvSpec,
    "recipe": Recipe,
    "controls": Controls,
    "base": BaseImage,
    "site": Site,
}


def json_schema(model: type, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a model or dataclass.

    Parameters
    ----------
    title : str
        What the file is, for people.

    Returns
    -------
    dict
        Every key has a description, and keys that are not known are refused.
    """
    schema = TypeAdapter(model).json_schema(
        by_alias=True, ref_template="#/definitions/{model}", schema_generator=_Generator
    )
    definitions = schema.pop("$defs", {})
    whole = {"$schema": DIALECT, "title": title, **schema, "definitions": definitions}
    return {key: _draft_7(value) for key, value in whole.items() if value != {}}


def _summary(model: type) -> str:
    text = inspect.cleandoc(model.__doc__ or "")
    said = re.split(r"\n\n[A-Z][a-z]+\n-+\n", text)[0]
    return " ".join(said.split()).replace("``", "`")


class _Generator(GenerateJsonSchema):
    """Pydantic's own, with our docstrings, and without titles and defaults that say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002  # pydantic's signature
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _explained(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        for base in schema["cls"].__mro__:  # pydantic describes no inherited fields
            for name, field in getattr(base, "__pydantic_fields__", {}).items():
                if field.description:
                    found["properties"][name].setdefault("description", field.description)
        return {**_explained(found, schema["cls"]), "additionalProperties": False}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        # Pydantic's own says what keys of a pattern hold, and lets all others through.
        return {
            "type": "object",
            "additionalProperties": self.generate_inner(schema["values_schema"]),
            "propertyNames": self.generate_inner(schema["keys_schema"]),
        }

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        if not found.get("default") or isinstance(found["default"], dict):
            found.pop("default", None)
        return found

    def encode_default(self, dft: object) -> Any:  # noqa: ANN401  # as pydantic's
        return str(dft) if isinstance(dft, Choice) else super().encode_default(dft)


def _explained(schema: JsonSchemaValue, model: type) -> JsonSchemaValue:
    said = described(model)
    for name, key in _keys(model):
        if name in said:
            schema["properties"][key]["description"] = said[name]
    schema.pop("title", None)
    return {**schema, "description": _summary(model)}


def _keys(model: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a model and the key that each has in a file."""
    if is_dataclass(model):
        yield from ((field.name, field.name) for field in fields(model))
    elif issubclass(model, BaseModel):
        yield from ((name, field.alias or name) for name, field in model.model_fields.items())


def _draft_7(value: Any) -> Any:  # noqa: ANN401  # JSON
    """Put a reference that has something beside it into `allOf`: draft 7 overlooks what stands beside one."""
    if isinstance(value, list):
        return [_draft_7(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    whole = {key: _draft_7(entry) for key, entry in value.items()}
    if isinstance(whole.get("description"), str):
        whole["description"] = " ".join(whole["description"].split()).replace("``", "`")
    if "$ref" in whole and len(whole) > 1:
        return {"allOf": [{"$ref": whole.pop("$ref")}], **whole}
    return whole
