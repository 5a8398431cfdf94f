"""What mma.sync and wmma have in common: shapes, and the types that one of them multiplies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The element types that one shape multiplies, the accumulators it offers and the first target that has it."""

    m: int
    n: int
    k: int
    types: tuple[str, ...]
    accumulators: tuple[str, ...]
    since: str

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"
