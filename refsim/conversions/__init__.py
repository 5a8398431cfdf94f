"""Conversions between values and codes: exact encode and decode, one entry per instruction or library, and packing."""

from refsim.conversions.coding import decode, encode, round_bits
from refsim.conversions.packing import CONTAINERS, Container, pack, unpack
from refsim.conversions.policies import KNOWN_DIFFERENCES, PolicyDifference, diff_policies, policy_patterns
from refsim.conversions.registers import convert
from refsim.conversions.rounding import OVERFLOWS, PTX_ROUNDINGS, ROUNDINGS, RoundingName, round_to_odd
from refsim.conversions.rows import CONVERSIONS, Conversion, conversion_named
from refsim.formats import Overflow

__all__ = [
    "CONTAINERS",
    "CONVERSIONS",
    "KNOWN_DIFFERENCES",
    "OVERFLOWS",
    "PTX_ROUNDINGS",
    "ROUNDINGS",
    "Container",
    "Conversion",
    "Overflow",
    "PolicyDifference",
    "RoundingName",
    "conversion_named",
    "convert",
    "decode",
    "diff_policies",
    "encode",
    "pack",
    "policy_patterns",
    "round_bits",
    "round_to_odd",
    "unpack",
]


def __dir__() -> list[str]:
    return sorted(__all__)
