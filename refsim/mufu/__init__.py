"""NVIDIA's special-function unit (MUFU) bit for bit: tables of quadratics, and the functions that the unit makes of them."""
