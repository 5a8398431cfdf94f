"""Triton on the simulated GPU: its compiler up to PTX, and a driver of its own instead of NVIDIA's."""
