"""The same bits sooner: the truncated and grouped steps in floating-point arithmetic that is exact by its ranges.

`refsim.numerics.dot` defines every result. Here products are formed in float32 or float64, scaled so that one unit is
the last bit that a step keeps, and cut by a conversion to integers or `trunc`; nothing else is ever rounded. Read
`domain` (where that is exact), `operands` (A or B decoded), `tiles` and `groups` (the steps in NumPy); then `product` (a
whole product), `plan` and `threads` (how it is divided), `compiled` and `kernels` (the steps in numba, if installed).
"""
