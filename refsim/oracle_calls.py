"""Calls of refsim's own oracles, reported while the oracle of a kernel runs: slow definitions judge their results."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")
HEARER: ContextVar[Callable[[str, dict[str, Any], Any], None] | None] = ContextVar("HEARER", default=None)
"""The function that is called after each call of an oracle, with its name, arguments and result."""


def reported(name: str) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Return a decorator that reports each call of an oracle to HEARER, under this name."""

    def decorated(oracle: Callable[Given, Made]) -> Callable[Given, Made]:
        @wraps(oracle)
        def call(*values: Given.args, **named: Given.kwargs) -> Made:
            made = oracle(*values, **named)
            if (hear := HEARER.get()) is not None:
                given = signature(oracle).bind(*values, **named)
                given.apply_defaults()
                hear(name, given.arguments, made)
            return made

        return call

    return decorated
