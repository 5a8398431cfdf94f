"""Shapes of mma.sync and wmma, with the types that each multiplies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Describe the element types of one shape, the accumulators it offers and the first target that has it."""

    m: int
    n: int
    k: int
    types: tuple[str, ...]
    accumulators: tuple[str, ...]
    since: str

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"
