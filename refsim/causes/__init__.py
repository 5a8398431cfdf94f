"""Explain why two results differ: find the causes that turn one output into the other in every bit.

A plan is every choice on the way from operands to bits. A cause changes one choice. It is reported only where the
changed plan gives the bits of the output in every element, whether the element differs or not.
"""

from refsim.causes.attention_operands import AttentionOperands
from refsim.causes.explaining import explain_diff
from refsim.causes.explanation import DiffExplanation, DiffOutcome, SumsSoFar
from refsim.causes.integer_operands import IntegerOperands
from refsim.causes.operands import ProductOperands
from refsim.causes.quantised_from import QuantizedFrom
from refsim.causes.row_operands import RowOperands
from refsim.causes.rows import Cause, Family
from refsim.causes.search import Named
from refsim.causes.weight_operands import WeightOperands

__all__ = [
    "AttentionOperands",
    "Cause",
    "DiffExplanation",
    "DiffOutcome",
    "Family",
    "IntegerOperands",
    "Named",
    "ProductOperands",
    "QuantizedFrom",
    "RowOperands",
    "SumsSoFar",
    "WeightOperands",
    "explain_diff",
]


def __dir__() -> list[str]:
    return sorted(__all__)
