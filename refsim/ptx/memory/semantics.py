"""How an instruction takes part in the memory model: weak or strong, and what it orders for which scope.

Sources: PTX ISA, memory consistency model, and the sections of ld, st, atom, red, membar, fence and
cp.reduce.async.bulk. A modifier counts at any place of the opcode: all orders that the assembler takes are equal.
"""

from dataclasses import dataclass
from functools import lru_cache

CTA, CLUSTER, GPU, SYS = range(4)
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": SYS}
_ATOMIC = frozenset({"atom", "red"})
_ACQUIRES, _RELEASES = frozenset({"acquire", "acq_rel", "sc"}), frozenset({"release", "acq_rel", "sc"})
_STRONG = frozenset({"relaxed", "volatile", "mmio"}) | _ACQUIRES | _RELEASES
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True)
class Semantics:
    """The guarantees of one opcode. `scope` counts only if it is `strong`. A vector is `elements` accesses. `returns`
    is false for red, which writes and returns no value. `sequential` marks fence.sc and membar."""

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    scope: int = SYS
    atomic: bool = False
    elements: int = 1
    returns: bool = True
    sequential: bool = False


WEAK = Semantics()


@lru_cache(maxsize=4096)
def semantics(opcode: str) -> Semantics:
    """Return the semantics of a load, a store, an atomic or a fence. volatile is relaxed.sys. atom and red are
    relaxed.gpu by default, fence is acq_rel by default, and membar is a fence.sc."""
    mnemonic, *words = opcode.split(".")
    named = frozenset(words)
    scope = next((SCOPES[word] for word in words if word in SCOPES), None)
    elements = next((_VECTORS[word] for word in words if word in _VECTORS), 1)
    if mnemonic in ("membar", "fence"):
        if "proxy" in named or "mbarrier_init" in named:
            return WEAK
        plain = mnemonic == "membar" or named.isdisjoint(_ACQUIRES | _RELEASES)
        acquires, releases = (plain or not named.isdisjoint(kind) for kind in (_ACQUIRES, _RELEASES))
        sequential = mnemonic == "membar" or "sc" in named
        return Semantics(True, acquires, releases, SYS if scope is None else scope, sequential=sequential)
    if mnemonic in _ATOMIC:
        acquires = mnemonic == "atom" and not named.isdisjoint(_ACQUIRES)
        return Semantics(
            True,
            acquires,
            not named.isdisjoint(_RELEASES),
            GPU if scope is None else scope,
            True,
            elements,
            mnemonic == "atom",
        )
    if mnemonic == "cp" and "reduce" in named:  # an update of each element that returns no value
        return Semantics(True, scope=GPU, atomic=True, returns=False)
    if named.isdisjoint(_STRONG):
        return Semantics(elements=elements) if elements > 1 else WEAK
    acquires, releases = "acquire" in named, "release" in named
    return Semantics(True, acquires, releases, SYS if scope is None else scope, False, elements)
