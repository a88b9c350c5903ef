"""Whether a solver can be loaded; where it cannot, nothing is decided, and one line says why."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

INSTALLED_BY: Mapping[str, str] = {"z3": "z3-solver", "cvc5": "placealg[check]"}
"""Solver -> what to install where it is missing; cvc5 comes with the extra `check`."""


class NoSolver(Exception):
    """A solver that is missing or cannot be loaded, which the text names; the command line exits with 3."""


def why_not(solver: str) -> str:
    """Why a solver cannot be loaded, and how to install it; "" where it can.

    >>> why_not("json"), why_not("no_such_solver")
    ('', 'is not installed: pip install no_such_solver')
    """
    try:
        module = import_module(solver)
    except ModuleNotFoundError as error:
        if error.name == solver:
            return f"is not installed: pip install {INSTALLED_BY.get(solver, solver)}"
        return f"is not whole: {' '.join(str(error).split())}"
    except Exception as error:
        return f"cannot be loaded: {' '.join(str(error).split()) or type(error).__name__}"
    return "" if getattr(module, "__file__", None) else "is not whole: its folder holds no module"


def require(solver: str, role: str) -> None:
    """Raise NoSolver unless a solver can be loaded; `role` is what it is here."""
    if why := why_not(solver):
        raise NoSolver(f"{role}, {solver}, {why}")
