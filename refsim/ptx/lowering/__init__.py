"""Statements to blocks of bound steps, and blocks to Python functions."""
