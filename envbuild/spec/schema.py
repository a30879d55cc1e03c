"""JSON Schemas of the models, for editors to complete and check files.

Draft 7, which the language server of every editor supports. A schema covers one file alone;
`envbuild.spec.check` checks a spec together with its recipes, base image and site.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from envbuild.spec.base import BaseImage
from envbuild.spec.config import Config
from envbuild.spec.descriptions import descriptions
from envbuild.spec.error_messages import one_line
from envbuild.spec.job import JobHeader
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site

DIALECT = "http://json-schema.org/draft-07/schema#"

# Kind of a file → its model.
MODELS: Mapping[str, type[BaseModel]] = {
    "spec": EnvSpec,
    "recipe": Recipe,
    "job": JobHeader,
    "base": BaseImage,
    "site": Site,
    "config": Config,
}


def json_schema(model: type, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a model or dataclass; `title` names the file for people."""
    schema = TypeAdapter(model).json_schema(
        by_alias=True, ref_template="#/definitions/{model}", schema_generator=_Generator
    )
    definitions = schema.pop("$defs", {})
    tables = {"definitions": _draft_7(definitions)} if definitions else {}
    return {"$schema": DIALECT, "title": title, **_draft_7(schema), **tables}


class _Generator(GenerateJsonSchema):
    """Pydantic's own, without titles of fields and empty defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002  # pydantic's signature
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        table = super().dataclass_schema(schema)
        _describe(table, schema["cls"])
        return table

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        table = super().model_schema(schema)
        _describe(table, schema["cls"])
        return table

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        # Pydantic's own describes the keys that match a pattern, and allows all others.
        limits = {"minProperties": schema["min_length"]} if "min_length" in schema else {}
        return {
            "type": "object",
            "additionalProperties": self.generate_inner(schema["values_schema"]),
            "propertyNames": self.generate_inner(schema["keys_schema"]),
            **limits,
        }

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        table = super().default_schema(schema)
        if not table.get("default") or isinstance(table["default"], dict):
            table.pop("default", None)
        return table

    def encode_default(self, dft: object) -> Any:  # noqa: ANN401  # as pydantic's
        return str(dft) if isinstance(dft, Choice) else super().encode_default(dft)


def _describe(table: JsonSchemaValue, model: type) -> None:
    """Add the descriptions of a model's fields to its schema."""
    for key, text in descriptions(model).items():
        table["properties"][key].setdefault("description", text)


def _draft_7(value: Any) -> Any:  # noqa: ANN401  # JSON
    """Return a schema as of draft 7, with descriptions in one line and without the titles of models."""
    if isinstance(value, list):
        return [_draft_7(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    schema = {
        key: one_line(entry) if key == "description" and isinstance(entry, str) else _draft_7(entry)
        for key, entry in value.items()
        if not (key == "title" and isinstance(entry, str))
    }
    if "$ref" in schema and len(schema) > 1:  # draft 7 ignores everything beside a reference
        return {"allOf": [{"$ref": schema.pop("$ref")}], **schema}
    return schema
