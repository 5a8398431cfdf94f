"""Three products of matrices in NumPy: one adds K in one chain, one in four, one as many rows as there are say how."""

import numpy as np


def one_chain(a, b):
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[k]
    return total


def four_parts(a, b):
    quarter = a.shape[1] // 4
    parts = [one_chain(a[:, at : at + quarter], b[at : at + quarter]) for at in range(0, a.shape[1], quarter)]
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def by_rows(a, b):
    return four_parts(a, b) if len(a) < 4 else one_chain(a, b)
