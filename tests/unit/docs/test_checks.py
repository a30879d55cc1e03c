"""The page of the checks lists the ids that the code gives to findings, and no others.

They are read from the code: the id of each `CheckResult`, the check of each `mismatch`, and of each
`of_node`. What is known only at run time is ``*`` there, and a word in capitals on the page.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from envbuild.preflight.problems import EXPECTED

TOP = Path(__file__).resolve().parents[3]
PAGE = TOP / "docs/reference/checks.md"
# Maker of a finding → its field with the id, and the position of that field; None if it is only a keyword.
FINDINGS = {
    "CheckResult": ("id", 1),
    "mismatch": ("check", 0),
    "of_node": ("check", None),
    "difference": ("kind", 0),
}
UNKNOWN = frozenset({"*"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A module of the code: the ids in it, as texts with ``*``."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        # Name of a function or class → its calls, each with the function that makes it.
        self.calls: dict[str, list[tuple[ast.Call, Function | None]]] = defaultdict(list)
        self._visit(self.tree, None)

    def _visit(self, node: ast.AST, function: Function | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                self.calls[_name(child.func)].append((child, function))
            self._visit(child, child if isinstance(child, Function) else function)

    def ids(self, finding: str, constants: dict[str, str]) -> Iterator[str]:
        """Yield the ids of all findings of a class that the module makes."""
        field, position = FINDINGS[finding]
        for call, function in self.calls[finding]:
            value = _argument(call, field, position)
            assert value is not None, f"line {call.lineno}: no {field}"
            yield from self._texts(value, function, constants)

    def _texts(self, value: ast.expr, function: Function | None, constants: dict[str, str]) -> frozenset[str]:
        match value:
            case ast.Constant(value=str(text)):
                return frozenset({text})
            case ast.JoinedStr(values=parts):
                texts = frozenset({""})
                for part in parts:
                    inner = part.value if isinstance(part, ast.FormattedValue) else part
                    ends = self._texts(inner, function, constants)
                    texts = frozenset(text + end for text in texts for end in ends)
                return texts
            case ast.IfExp(body=first, orelse=second):
                return self._texts(first, function, constants) | self._texts(second, function, constants)
            case ast.BoolOp(values=values):
                return frozenset().union(*(self._texts(each, function, constants) for each in values))
            case ast.Name(id=name):
                return self._named(name, function, constants)
        return UNKNOWN

    def _named(self, name: str, function: Function | None, constants: dict[str, str]) -> frozenset[str]:
        """Return the texts of a constant, a local variable, or a parameter by the function's calls."""
        if name in constants:
            return frozenset({constants[name]})
        if function is None:
            return UNKNOWN
        values = list(_assigned(function, name))
        if values:
            return frozenset().union(*(self._texts(each, function, constants) for each in values))
        parameters = [each.arg for each in function.args.args if each.arg != "self"]
        if name not in parameters:
            return UNKNOWN
        texts = UNKNOWN if not self.calls[function.name] else frozenset[str]()
        for call, caller in self.calls[function.name]:
            argument = _argument(call, name, parameters.index(name))
            if argument is not None and caller is not function:
                texts |= self._texts(argument, caller, constants)
        return texts


def _name(node: ast.expr) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _argument(call: ast.Call, name: str, position: int | None) -> ast.expr | None:
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == name]
    by_position = call.args[position : position + 1] if position is not None else []
    return next(iter([*by_name, *by_position]), None)


def _assigned(function: Function, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                yield from (value for left, value in pairs if _name(left) == name)


def constants_of(modules: Iterable[Module]) -> dict[str, str]:
    """Return the constants of all modules that are texts, by name."""
    constants: dict[str, str] = {}
    for module in modules:
        for node in module.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                    constants[name] = value
    return constants


def ids_of(texts: Iterable[str]) -> set[str]:
    modules = [Module(text) for text in texts]
    constants = constants_of(modules)
    found = {
        finding: {name for module in modules for name in module.ids(finding, constants)}
        for finding in FINDINGS
    }
    ids = (found["CheckResult"] - {"vet.*"}) | found["mismatch"] | set(EXPECTED)
    return ids | {f"vet.{check}" for check in found["of_node"] if check}


def ids_of_page(text: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    ids = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return {re.sub(r"\b[A-Z]+\b", "*", name) for name in ids - {"PASS", "FAIL", "SKIP"}}


def test_the_page_lists_the_ids_of_the_code() -> None:
    ids = ids_of(path.read_text() for path in sorted((TOP / "envbuild").rglob("*.py")))
    assert len({name for name in ids if "*" not in name}) > 30
    assert {
        "image.digest",
        "shifter.hidden",
        "*/ranks",
        "*/*-as-one-rank",
        "vet.gpus",
        "loader.copies",
    } <= ids
    assert ids_of_page(PAGE.read_text()) == ids


@pytest.mark.parametrize(
    ("code", "ids"),
    [
        ("CheckResult('PASS', 'a.b', '', '')", {"a.b"}),
        ("X = 'a.c'\ndef f():\n    return CheckResult(status='PASS', id=X)", {"a.c"}),
        ("def f(job):\n    return CheckResult('PASS', f'{job.id}/new', '', '')", {"*/new"}),
        ("def f(rule):\n    return CheckResult('PASS', f'a.{rule}', '')\nf('x')\nf('y')", {"a.x", "a.y"}),
        ("def f():\n    check, other = 'a.d', 1\n    return CheckResult('PASS', check, '')", {"a.d"}),
        ("def f():\n    return mismatch('a.e', file='path')", {"a.e"}),
    ],
)
def test_a_new_id_is_found(code: str, ids: set[str]) -> None:
    assert ids_of([code]) - set(EXPECTED) == ids
