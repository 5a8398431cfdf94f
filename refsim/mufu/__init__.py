"""NVIDIA's special-function unit (MUFU) bit for bit: tables of quadratics, and the unit's functions."""
