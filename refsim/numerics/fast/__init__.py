"""Fast paths with equal bits: the truncated and grouped steps in floating-point arithmetic that is exact by its ranges.

`refsim.numerics.dot` defines every result. Here products are formed in float32 or float64, scaled so that one unit is
the last bit that a step keeps, and cut by a conversion to integers or `trunc`; no other operation rounds. Read `domain`
(where the paths are exact), `operands` (A or B decoded), `tiles` (the truncated steps in NumPy); then `product` (a whole
product, its division and the grouped steps), `threads`, `compiled` and `kernels` (the steps in numba, if installed).
"""
