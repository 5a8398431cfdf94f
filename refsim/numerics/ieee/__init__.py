"""IEEE 754 arithmetic of PTX scalar instructions on NumPy arrays: exact, rounded once, in every mode.

The dtype of an array is its format: float16 is f16, uint16 holds bf16 patterns, float32 and float64 are themselves.
Operands broadcast and the result has the operands' dtype. Every function is pure and emits no NumPy warning.
"""

from refsim.numerics.ieee.arithmetic import COMPARISONS as COMPARISONS
from refsim.numerics.ieee.arithmetic import absolute as absolute
from refsim.numerics.ieee.arithmetic import add as add
from refsim.numerics.ieee.arithmetic import compare as compare
from refsim.numerics.ieee.arithmetic import div as div
from refsim.numerics.ieee.arithmetic import float_to_float as float_to_float
from refsim.numerics.ieee.arithmetic import float_to_integer as float_to_integer
from refsim.numerics.ieee.arithmetic import integer_to_float as integer_to_float
from refsim.numerics.ieee.arithmetic import maximum as maximum
from refsim.numerics.ieee.arithmetic import minimum as minimum
from refsim.numerics.ieee.arithmetic import mul as mul
from refsim.numerics.ieee.arithmetic import negate as negate
from refsim.numerics.ieee.arithmetic import rcp as rcp
from refsim.numerics.ieee.arithmetic import round_to_integral as round_to_integral
from refsim.numerics.ieee.arithmetic import sqrt as sqrt
from refsim.numerics.ieee.arithmetic import sub as sub
from refsim.numerics.ieee.fused import fma as fma
from refsim.numerics.ieee.patterns import ROUNDING_MODIFIERS as ROUNDING_MODIFIERS
from refsim.numerics.ieee.patterns import ConversionModifier as ConversionModifier
from refsim.numerics.ieee.patterns import IntegralModifier as IntegralModifier
from refsim.numerics.ieee.patterns import RoundingModifier as RoundingModifier
from refsim.numerics.ieee.transcendental import cos as cos
from refsim.numerics.ieee.transcendental import ex2 as ex2
from refsim.numerics.ieee.transcendental import lg2 as lg2
from refsim.numerics.ieee.transcendental import rsqrt as rsqrt
from refsim.numerics.ieee.transcendental import sin as sin
from refsim.numerics.ieee.transcendental import tanh as tanh
