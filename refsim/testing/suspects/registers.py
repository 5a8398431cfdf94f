"""Repairs of matrix fragments: registers exchanged, and the swizzle that a descriptor of shared memory names."""

from collections.abc import Iterator

from refsim.testing.suspects.listing import ListedLine, PtxListing, split

MODES = {"128B": 1, "64B": 2, "32B": 3, "none": 0}
"""The swizzle of a `wgmma` descriptor, in its two highest bits."""
_SWIZZLE = 62


def of_a_exchanged(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a product with the two inner registers of A exchanged, or with its only two."""
    if line.name in ("mma", "wgmma") and len(line.operands) > 2:
        yield from _with(line, 1)


def of_b_exchanged(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a product with the registers of B exchanged."""
    if line.name == "mma" and len(line.operands) > 2:
        yield from _with(line, 2)


def accumulators_exchanged(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a product of four accumulators with the two inner ones exchanged, before and after."""
    if line.name == "mma" and len(line.operands) > 3 and len(_registers(line.operands[0])) == 4:
        yield from _with(line, 0, 3)


def matrices_exchanged(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield ldmatrix and stmatrix with the two inner registers exchanged, or with their only two."""
    if line.name in ("ldmatrix", "stmatrix"):
        yield from _with(line, 0 if line.name == "ldmatrix" else 1)


def selected_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a choice of two selectors of `prmt` the other way round."""
    if line.name == "selp" and any(use.name == "prmt" for use in listing.uses(line.operands[0])):
        chosen, other = (listing.constant(each) for each in line.operands[1:3])
        if chosen.isdigit() and other.isdigit():
            yield line.renamed(line.opcode, line.operands[0], other, chosen, line.operands[3])


def swizzle_described(mode: int, listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a `wgmma` descriptor's constant with another swizzle."""
    is_wide = line.name in ("or", "add", "mov") and line.words[-1].endswith("64")
    if not is_wide or not listing.has_descriptors:
        return
    given = line.operands[-1]
    number = int(given) % (1 << 64) if given.lstrip("-").isdigit() else 0
    other = number & ~(3 << _SWIZZLE) | mode << _SWIZZLE
    is_descriptor = number >> 32 & 0x3FFF and not number >> 46 & 7
    if is_descriptor and other != number:
        yield line.renamed(line.opcode, *line.operands[:-1], str(other - (other >> 63 << 64)))


def _registers(operand: str) -> tuple[str, ...]:
    return split(operand.strip()[1:-1]) if operand.strip().startswith("{") else ()


def _with(line: ListedLine, *places: int) -> Iterator[str]:
    """Yield the line with two registers exchanged in some operands, if each has two or four."""
    operands = list(line.operands)
    for at in places:
        held = _registers(operands[at])
        if len(held) not in (2, 4):
            return
        first = 1 if len(held) == 4 else 0
        exchanged = [*held[:first], held[first + 1], held[first], *held[first + 2 :]]
        operands[at] = "{" + ", ".join(exchanged) + "}"
    yield line.renamed(line.opcode, *operands)
