"""Explain why two results differ: find the causes that turn one output into the other in every bit.

A plan is every choice on the way from operands to bits. A cause changes one choice. It is reported only where the
changed plan gives the bits of the output in every element, whether the element differs or not.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.causes.explaining import explain_diff as explain_diff
    from refsim.causes.explanation import DiffExplanation as DiffExplanation
    from refsim.causes.explanation import DiffOutcome as DiffOutcome
    from refsim.causes.explanation import SumsSoFar as SumsSoFar
    from refsim.causes.operands import IntegerOperands as IntegerOperands
    from refsim.causes.operands import ProductOperands as ProductOperands
    from refsim.causes.operands import WeightOperands as WeightOperands
    from refsim.causes.quantised_from import QuantizedFrom as QuantizedFrom
    from refsim.causes.row_operands import AttentionOperands as AttentionOperands
    from refsim.causes.row_operands import RowOperands as RowOperands
    from refsim.causes.search import Named as Named
    from refsim.computations.ways import Cause as Cause
    from refsim.computations.ways import Family as Family
else:
    __getattr__, __dir__ = exports(__name__)
