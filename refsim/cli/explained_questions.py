"""The options of each question of `refsim explain-diff`. An option without a meaning there is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from refsim.cli.function_operands import ATTENTION_OPTIONS, ROW_OPTIONS, SCALED_OPTIONS
from refsim.cli.integer_operands import integer_types
from refsim.errors import RefsimError

OF_EVERY_ANSWER = frozenset({"form", "output", "citations", "first", "second", "seconds"})
OF_FILES = OF_EVERY_ANSWER | {"row", "keys"}
_OF_PRODUCTS = OF_FILES | {"left", "right", "begin", "a_scale", "b_scale", "a_format", "b_format"}
_OF_FLOATS = _OF_PRODUCTS | {"unit", "target"}


@dataclass(frozen=True)
class Inquiry:
    """A question, the option that asks it, and every parameter that has a meaning in it."""

    name: str
    said_by: str
    options: frozenset[str]


CASE = Inquiry("a case", "CASE", OF_EVERY_ANSWER | {"trust"})
KERNEL = Inquiry("a kernel and its case", "KERNEL CASE", OF_EVERY_ANSWER | {"files"})
OUTPUTS = Inquiry("outputs alone", "A B", OF_FILES)
PRODUCT = Inquiry("a product", "--a and --b", _OF_FLOATS | {"k", "instruction_k", "interval", "at", "b_zero"})
EXPERTS = Inquiry("rows of experts", "--m-indices", _OF_FLOATS | {"m_indices", "k", "instruction_k", "interval", "at"})
BLOCKS = Inquiry("a block-scaled product", "--scale-format", _OF_FLOATS | {"scale_format", "global_scale"})
OF_INTEGERS = Inquiry(
    "a product of integers", "--a-format s8", _OF_PRODUCTS | {"a_zero", "b_zero", "d_zero", "d_format", "at"}
)
_OF_FUNCTIONS = OF_FILES | {*SCALED_OPTIONS, "operand_format"}
ROW = Inquiry("a function of rows", "--row", _OF_FUNCTIONS | {*ROW_OPTIONS})
ATTENTION = Inquiry("attention", "--attention", _OF_FUNCTIONS | {*ATTENTION_OPTIONS, "k", "unit", "target", "at"})
VALUES = Inquiry("values that were rounded", "--values", OF_FILES | {"values", "scales"})
QUANTISER = Inquiry(
    "a quantizer",
    "--quantized",
    OF_FILES | {"quantized", "block", "scales", "want_scales", "layout", "recipe", "operand_format"},
)
QUESTIONS = (OUTPUTS, PRODUCT, EXPERTS, BLOCKS, OF_INTEGERS, ROW, ATTENTION, VALUES, QUANTISER, CASE, KERNEL)
_SAID_BY = {"attention": ATTENTION, "function": ROW, "quantized": QUANTISER, "values": VALUES}


def asked_of_files(given: Mapping[str, Any]) -> Inquiry:
    """Return the question that the given options about files ask."""
    for name, question in _SAID_BY.items():
        if name in given:
            return question
    if "left" not in given and "right" not in given:
        return OUTPUTS
    if integer_types(given.get("a_format"), given.get("b_format")) is not None:
        return OF_INTEGERS
    return EXPERTS if "m_indices" in given else BLOCKS if "scale_format" in given else PRODUCT


def refuse_strangers(*, of_files: bool) -> None:
    """Raise RefsimError for the first given option that does not belong to the question of this call."""
    context = click.get_current_context()
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    kernel = CASE if given.get("second") is None else KERNEL
    question = asked_of_files(given) if of_files else kernel
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in given and name not in question.options:
            option = max(parameter.opts, key=len)
            homes = ", ".join(f"{each.name} ({each.said_by})" for each in QUESTIONS if name in each.options)
            raise RefsimError("usage", f"{option} with {question.name}", rule=f"it belongs to {homes}")
