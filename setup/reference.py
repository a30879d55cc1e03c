"""Write the JSON Schemas of envbuild's files, docs/schemas/*.json, and their pages, docs/reference/*.md.

Their text comes from the JSON Schemas, which come from the models. Their
examples are whole files below docs/reference/examples, which contain every key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from envbuild.spec.oracles import ORACLES
from envbuild.workflows.choices import SchemaKind
from envbuild.workflows.schema import schema_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES, SCHEMAS = DOCS / "reference", DOCS / "schemas"
_LINE = "<!-- Written from the models by `make reference`. -->"
_WIDTH = 100
# How YAML ends a document of one word.
_END = "...\n"
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
    "string": "text",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """The part of a page above its keys."""

    name: str
    """Name of the schema, of the page and of the first example."""
    title: str
    prose: str
    """Markdown, without the heading."""
    more: tuple[str, ...] = ()
    """Further examples, for keys that exclude others."""


_TEXTS = (
    "A *line of text* has no line breaks and no control characters, and at most 4096 characters; "
    "a name has at most 128."
)

ALL = (
    Page(
        name="spec",
        title="The spec",
        prose="The contents of an image, as users request it: `spec.yaml`, read by `envbuild lock`, `plan` "
        "and `build`. `envbuild init` writes a first one. Unknown keys are errors.",
        more=("spec-image",),
    ),
    Page(
        name="recipe",
        title="The recipe",
        prose="One framework, MPI or fabric library, or "
        "[software that sites supply](../howto/site-libraries.md): `recipes/NAME/recipe.yaml`. "
        "[Add a toolkit](../tutorials/add-a-toolkit.md) explains one; "
        "`envbuild recipes new` writes a first one, and "
        "`envbuild recipes check` checks it. The example shows every key once, more than a real recipe has.",
        more=("recipe-site",),
    ),
    Page(
        name="job",
        title="The job",
        prose="The header of a job, a Python file `recipes/NAME/verify/FILE.py`: what the job proves, what "
        "its ranks must report, and by which faults it must fail. "
        "The header is a comment block with YAML inside. "
        "It begins with a line `# /// job` and ends with `# ///`; each line between begins with `# `. "
        "A file without a header is a module that jobs import. "
        "[Write a job](../howto/write-a-job.md) explains one; "
        "[the standard oracles](oracles.md) are those that `oracle` names. "
        "`envbuild recipes check NAME` checks headers, and with `--image IMAGE.sif` it runs all controls. "
        "The example shows every key once, without the `# ` before each line.",
    ),
    Page(
        name="base",
        title="The base image",
        prose="The operating system of an image: `base-images/NAME.yaml`. [Base images](../howto/bases.md) "
        "describes the existing ones and finished roots. "
        "Either `origins` or `root` names the source of the files.",
        more=("base-root",),
    ),
    Page(
        name="site",
        title="The site",
        prose="Facts about a machine: `site.yaml`, or `sites/NAME.yaml`. "
        "[Describing a machine](../howto/sites.md) explains how to write one; "
        "`envbuild site probe` drafts it. "
        "Every key but `name` is optional; an omitted key means unknown.",
        more=("site-amd",),
    ),
    Page(
        name="config",
        title="The configuration",
        prose="Values that a centre or a user sets once instead of options and variables: "
        "`/etc/envbuild/config.yaml` and `~/.config/envbuild/config.yaml`. "
        "[Configure envbuild](../howto/configure.md) says in which order they count; "
        "`envbuild doctor --config` shows each value and what sets it. Every key is optional. "
        "In a path, `~` at the beginning stands for the home directory, "
        "and a part `$USER` for the login name.",
    ),
    Page(
        name="knowledge",
        title="Rows of knowledge",
        prose="Rules of a centre or a user: `/etc/envbuild/knowledge/*.yaml` and "
        "`~/.config/envbuild/knowledge/*.yaml`, which add to [those of envbuild](rules.md#rows). "
        "[A centre's own rules](../howto/knowledge.md) explains one.",
    ),
    Page(
        name="lock",
        title="The lock",
        prose="The exact packages and tools of an image: `STEM.lock.yaml`, written by `envbuild lock` and "
        "`build`, to keep beside the spec. It has a target for each architecture for which it was locked; "
        "the copy in an image has the one that the image is made from. Tools may read it; do not edit it. "
        "Lists are sorted, so that the same request gives the same text. If the base is a finished root, "
        "`base_root` replaces `base_debs`.",
        more=("lock-root", "lock-image"),
    ),
)


def pages() -> dict[str, str]:
    """Return all pages: file name → text."""
    return {**{f"{page.name}.md": _page(page) for page in ALL}, "oracles.md": _oracles()}


def examples(page: Page) -> list[Path]:
    """Return the files that a page shows."""
    return [PAGES / "examples" / f"{name}.yaml" for name in (page.name, *page.more)]


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield each key of a schema with its whole path, its entry, and whether it is required.

    Keys of a table that occurs twice are yielded at the first place, also if not the same ones are required.
    """
    yield from _table(schema, schema, "", set())


def values_at(value: Any, path: str) -> Iterator[Any]:  # noqa: ANN401  # YAML
    """Yield the values of a file at a key of `keys`."""
    steps = path.split(".") if path else []
    if not steps:
        yield value
        return
    step, rest = steps[0], ".".join(steps[1:])
    if step.endswith("[]"):
        for entry in (value or {}).get(step[:-2], ()):
            # An entry that is not a table has no keys.
            yield from values_at(entry, rest) if isinstance(entry, dict) else ()
    elif step == "NAME":
        for entry in value.values():
            # An entry that is not a table has no keys.
            yield from values_at(entry, rest) if isinstance(entry, dict) else ()
    elif step in value:
        yield from values_at(value[step], rest)


def main() -> None:
    """Write the schemas and the pages."""
    for kind in get_args(SchemaKind):
        (SCHEMAS / f"{kind}.json").write_text(schema_text(kind), encoding="utf-8")
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


def _page(page: Page) -> str:
    schema = json.loads(schema_text(page.name))
    texts = [path.read_text() for path in examples(page)]
    values = [yaml.safe_load(text) for text in texts]
    parts = [f"# {page.title}", _LINE, page.prose]
    parts.append(
        f"`envbuild schema {page.name}` prints the schema for [editors](../howto/editors.md). {_TEXTS}"
    )
    parts.append("## Example")
    parts += [f"```yaml\n{text}```" for text in texts]
    parts.append("## Keys")
    for path, entry, required in keys(schema):
        words = [_kind(schema, entry), "**required**" if required else _default(entry)]
        parts += [f"### {path}", "; ".join(words), entry["description"]]
        # Something that is there rather than an empty list.
        shown = max((value for whole in values for value in values_at(whole, path)), key=bool, default=None)
        parts.append(_example(path, shown))
    return "\n\n".join(parts) + "\n"


def _oracles() -> str:
    parts = [
        "# The standard oracles",
        _LINE,
        "Expectations that many jobs share. A job takes them over with `oracle: NAME` in "
        "[its header](job.md), and can add to them or replace parts. "
        "Expressions are in n (ranks) and r (the rank that reports).",
        "The controls come along. For one with variables, envbuild sets them; for any other the job marks "
        "the line that the fault replaces: `# control NAME: CODE`.",
    ]
    for name, oracle in ORACLES.items():
        parts += [f"## {name}", f"Title: {oracle.title}.", oracle.explanation.strip()]
        if oracle.functions:
            functions = " and ".join(f"`{function}`" for function in oracle.functions)
            parts.append(f"`envbuild_job` helps with it: {functions}.")
        keys = ("expect", "same_on_all_ranks", "compare_with_single")
        shown: dict[str, Any] = {key: getattr(oracle, key) for key in keys if getattr(oracle, key)}
        shown["controls"] = {
            fault: {"fails": control.fails, "environment": control.environment}
            if control.environment
            else control.fails
            for fault, control in oracle.controls.items()
        }
        parts.append(f"```yaml\n{_dumped(json.loads(json.dumps(shown)))}```")
    return "\n\n".join(parts) + "\n"


def _table(
    schema: dict[str, Any], table: dict[str, Any], prefix: str, seen: set[str]
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for key, entry in table["properties"].items():
        path = f"{prefix}{key}"
        yield path, entry, key in table.get("required", ())
        for name, between in _inner(entry):
            inner = schema["definitions"][name]
            if (keys_of_inner := " ".join(inner["properties"])) not in seen:
                seen.add(keys_of_inner)
                yield from _table(schema, inner, f"{path}{between}.", seen)


def _inner(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tables whose keys are below a key, and the text between them in a path."""
    if "$ref" in entry:
        yield entry["$ref"].rpartition("/")[2], ""
    for branch in _branches(entry):
        yield from _inner(branch)
    for key, between in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(entry.get(key), dict):
            yield from ((name, between) for name, _ in _inner(entry[key]))


def _branches(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return next((entry[key] for key in ("anyOf", "oneOf", "allOf") if key in entry), [])


def _kind(schema: dict[str, Any], entry: dict[str, Any]) -> str:
    """Describe the allowed values of an entry."""
    branches = [branch for branch in _branches(entry) if branch != {"type": "null"}]
    if branches:
        return ", or ".join(_kind(schema, branch) for branch in branches)
    if "$ref" in entry:
        table = schema["definitions"][entry["$ref"].rpartition("/")[2]]
        return "a table of " + ", ".join(f"`{key}`" for key in table["properties"])
    if entry["type"] == "array":
        least = ", at least one" if entry.get("minItems") else ""
        return f"a list{least}, each {_kind(schema, entry['items'])}"
    if entry["type"] == "object":
        names = _kind(schema, entry["propertyNames"])
        least = ", at least one" if entry.get("minProperties") else ""
        return f"a mapping{least}: {names} → {_kind(schema, entry['additionalProperties'])}"
    return _simple(entry)


def _simple(entry: dict[str, Any]) -> str:
    if "const" in entry:
        return f"`{json.dumps(entry['const'])}`"
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    words = _WORDS[entry["type"]]
    if "patternErrorMessage" in entry:
        words = entry["patternErrorMessage"].removeprefix("expected ")
    elif "pattern" in entry:
        words = f"text: `{_regular(entry['pattern'])}`"
    limits = (("minimum", "at least"), ("exclusiveMinimum", "more than"), ("maximum", "at most"))
    return ", ".join([words, *(f"{word} {entry[key]:,.15g}" for key, word in limits if key in entry)])


def _regular(pattern: str) -> str:
    """Return a regular expression without its anchors."""
    whole = re.fullmatch(r"\^(?:\(\?:(.*)\)|(.*))\$", pattern)
    return (whole[1] or whole[2]) if whole else pattern


def _default(entry: dict[str, Any]) -> str:
    if "$comment" in entry:
        return str(entry["$comment"])
    if "default" in entry:
        return f"default: `{json.dumps(entry['default'])}`" if entry["default"] != "cpu" else "default: `cpu`"
    if "anyOf" in entry and {"type": "null"} in entry["anyOf"]:
        return "default: none"
    if "allOf" in entry:
        return "default: that of its keys"
    return "default: `false`" if entry.get("type") == "boolean" else "default: empty"


def _example(path: str, value: Any) -> str:  # noqa: ANN401  # YAML
    key = path.rpartition(".")[2]
    if isinstance(value, list | dict):
        text = _dumped({key: value})
    else:
        text = f"{key}: {_dumped(value).removesuffix(_END)}"
    return f"```yaml\n{text}```"


def _dumped(value: Any) -> str:  # noqa: ANN401  # YAML
    return yaml.safe_dump(value, default_flow_style=None, sort_keys=False, allow_unicode=True, width=_WIDTH)


if __name__ == "__main__":
    main()
