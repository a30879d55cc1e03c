"""Exact integer arithmetic in n, r and h: what a recipe may expect of a reported value."""

from __future__ import annotations

import ast
from collections.abc import Mapping

# Python writes and reads integers of at most 4300 digits; a report could not hold a longer one.
MAX_BITS = 14_000


def evaluate(expression: str, *, n: int, r: int = 0, h: int = 1) -> int:
    """Return the exact value of an integer expression in `n` (ranks), `r` (this rank) and `h` (hosts).

    It may hold integers, ``n``, ``r``, ``h``, ``+ - * // **``, signs and parentheses. ValueError: it holds
    anything else, divides by zero, or is longer than `MAX_BITS` bits.
    """
    if len(expression) > 500:
        raise ValueError("the expression is longer than 500 characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body, {"n": n, "r": r, "h": h})
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"`{expression}` is not arithmetic in n, r and h") from error


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand, names)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        return _combined(node.op, _value(node.left, names), _value(node.right, names))
    raise ValueError(
        f"`{ast.unparse(node)}` is not allowed: integers, n, r, h, + - * // ** and parentheses are"
    )


def _combined(operator: ast.operator, left: int, right: int) -> int:
    if isinstance(operator, ast.Pow):
        if right < 0 or left.bit_length() * right > MAX_BITS:
            raise ValueError(f"{left}**{right} is not an integer of at most {MAX_BITS} bits")
        return int(left**right)
    if isinstance(operator, ast.FloorDiv):
        if right == 0:
            raise ValueError("division by zero")
        return left // right
    if left.bit_length() + right.bit_length() > MAX_BITS:
        raise ValueError(f"a term is longer than {MAX_BITS} bits")
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    raise ValueError("only + - * // ** are allowed")
