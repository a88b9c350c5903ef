"""The key of a function: its syntax tree without docstrings, comments, its own name, and the names of its locals.

What only renames or rewords leaves the key as it is, so that mutants that were tried stay tried.
"""

from __future__ import annotations

import ast
import copy
import hashlib


def syntax_key(function: ast.FunctionDef) -> str:
    r"""Twelve hexadecimal digits.

    >>> one, two = (ast.parse(text).body[0] for text in ("def f(a):\n 'Says.'\n b = a\n return b",
    ...                                                  "def g(c):\n d = c\n return d"))
    >>> syntax_key(one) == syntax_key(two)
    True
    """
    tree = copy.deepcopy(function)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.setdefault(node.arg, f"v{len(names)}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, f"v{len(names)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.arg = names[node.arg]
        elif isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    tree.name = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]
