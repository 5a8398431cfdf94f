"""The same bits sooner: the truncated and grouped steps in floating-point arithmetic that is exact by its ranges.

`refsim.numerics.dot` defines every result. Here products are formed in float32 or float64, scaled so that one unit is
the last bit that a step keeps, and cut by a conversion to integers or `trunc`; nothing else is ever rounded.
`matrix_product` chooses: NumPy alone (`tiles`, `groups`) or, where numba is installed and the problem large, `kernels`.
"""
