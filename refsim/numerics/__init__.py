"""Arithmetic on arrays of numbers: exact, one rounding, no mode that outlives a call."""
