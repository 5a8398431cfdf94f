"""IEEE 754 arithmetic of PTX scalar instructions on NumPy arrays: exact, rounded once, in every mode.

The dtype of an array is its format: float16 is f16, uint16 holds bf16 patterns, float32 and float64 are themselves.
Operands broadcast and the result has the operands' dtype. Every function is pure and emits no NumPy warning.
"""

from refsim.numerics.ieee.arithmetic import add, div, mul, rcp, sqrt, sub
from refsim.numerics.ieee.comparing import COMPARISONS, absolute, compare, maximum, minimum, negate
from refsim.numerics.ieee.converting import float_to_float, float_to_integer, integer_to_float, round_to_integral
from refsim.numerics.ieee.fused import fma
from refsim.numerics.ieee.patterns import ROUNDING_MODIFIERS, ConversionModifier, IntegralModifier, RoundingModifier
from refsim.numerics.ieee.transcendental import cos, ex2, lg2, rsqrt, sin, tanh

__all__ = [
    "COMPARISONS",
    "ROUNDING_MODIFIERS",
    "ConversionModifier",
    "IntegralModifier",
    "RoundingModifier",
    "absolute",
    "add",
    "compare",
    "cos",
    "div",
    "ex2",
    "float_to_float",
    "float_to_integer",
    "fma",
    "integer_to_float",
    "lg2",
    "maximum",
    "minimum",
    "mul",
    "negate",
    "rcp",
    "round_to_integral",
    "rsqrt",
    "sin",
    "sqrt",
    "sub",
    "tanh",
]
