"""refsim banks: the cost of an access to shared memory, and the lanes that collide."""

from typing import TYPE_CHECKING, Any, cast

from refsim.cli.arguments import require_few, words_in
from refsim.cli.delivery import answering
from refsim.cli.extents import AddressParam, ShapeParam, Whole, parse_address
from refsim.cli.names import LAYOUT, SWIZZLE
from refsim.cli.options import Options, argument, option
from refsim.cli.spelled import count_in
from refsim.errors import RefsimError
from refsim.render import Cell, Column, Document, Table, Wording

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from refsim.layouts.banks import BankConflicts, Collision
    from refsim.layouts.families import Fragment
    from refsim.layouts.swizzles import Swizzle

PHASES = (
    Column("phase", align="right", strong=True),
    Column("lanes"),
    Column("wavefronts", align="right", strong=True),
    Column("ideal", align="right", drop=1),
    Column("collisions", label="same bank, other words"),
)
LISTED = 4


class BanksOptions(Options):
    """The options of `refsim banks`."""

    addresses: tuple[str, ...] = argument("[ADDRESS...|FRAGMENT|-]")
    width: str | None = option(
        "1, 2, 4, 8 or 16 bytes for each lane, or an instruction such as ld.shared.v4.b32 (default: 16; with "
        "--layout, one element).",
        metavar="BYTES|INSTRUCTION",
    )
    stride: int | None = option("Bytes between addresses, instead of a list.", metavar="BYTES", type=AddressParam())
    lanes: int = option("Only the first N lanes.", type=Whole(1, 32), default=32)
    start: int = option("Address of the first lane or of the tile.", type=AddressParam(), default=0)
    swizzle: "Swizzle | None" = option("Swizzle that is applied to the addresses.", metavar="NAME", type=SWIZZLE)
    layout: "Fragment | None" = option("Threads load this fragment from a K-major tile.", metavar="NAME", type=LAYOUT)
    tile: tuple[int, int] | None = option(
        "Tile in shared memory that --layout accesses (default: the smallest; ldmatrix and stmatrix need one).",
        type=ShapeParam(),
    )


@answering()
def command(asked: BanksOptions) -> Document:
    """Count the wavefronts of a shared-memory access, phase by phase, and show which lanes collide.

    The lanes access the byte ADDRESSes. Hardware serves 8 lanes in a phase if each lane accesses 16 bytes, 16 lanes for 8
    bytes, and all 32 lanes for 4 bytes or less. A phase needs as many wavefronts as the busiest bank has distinct 4-byte
    words. Lanes that access the same word share it at no cost. SVG shows which lane each bank serves in each wavefront.

    \b
      refsim banks --stride 128 --lanes 8
      refsim banks --stride 128 --lanes 8 --swizzle 128B
      refsim banks --layout mma.m16n8k16.bf16.a --swizzle 128B --width 4
      refsim banks ldmatrix.m8n8.x4.b16 --tile 16x64 --swizzle 128B
    """
    from refsim.layouts.banks import bank_conflicts
    from refsim.layouts.pictures import access_picture

    fragment, addresses, stride = asked.layout, asked.addresses, asked.stride
    if fragment is None and len(addresses) == 1 and addresses[0][:1].isalpha():
        fragment, addresses = LAYOUT.convert(addresses[0], None, None), ()
    given = [bool(addresses), stride is not None, fragment is not None]
    if sum(given) != 1:
        what = "more than one access is given" if any(given) else "no access is given"
        help = "give addresses, or --stride BYTES, or --layout NAME: one of the three"
        raise RefsimError("usage", what, "refsim banks", help=help)
    if asked.tile is not None and fragment is None:
        raise RefsimError("usage", "--tile is for --layout", "refsim banks", help="give --layout NAME too")
    if fragment is not None and fragment.memory_bits:
        found = _of_matrices(fragment, asked)
    elif fragment is not None:
        found = _of_fragment(fragment, asked)
    elif stride is not None:
        found = _of_addresses([asked.start + lane * stride for lane in range(asked.lanes)], asked)
    else:
        parsed = [parse_address(word) for word in words_in(addresses)]
        require_few(len(parsed), "refsim.layouts.bank_conflicts(addresses) in Python takes arrays of any size")
        found = _of_addresses(parsed, asked)
    found = bank_conflicts(found.addresses[..., : asked.lanes], found.width)
    facts = {
        "wavefronts": found.total,
        "ideal": int(found.wavefronts.size),
        "excess": found.excess,
        "width": found.width,
    }
    headline = Wording((f"{found}",), facts)
    several = found.wavefronts.size > found.wavefronts.shape[-1]
    access = Column("access", align="right", drop=2, text=several)
    phases = Table((access, *PHASES), tuple(_phases(found)), key="phases")
    return Document((headline, phases), "bank conflicts", (found.source,), drawing=access_picture(found))


def _of_addresses(addresses: list[int], asked: BanksOptions) -> "BankConflicts":
    """Return the conflicts of one access or several, a warp each."""
    from refsim.layouts.banks import bank_conflicts
    from refsim.layouts.holders import WARP

    count, width = len(addresses), asked.width or "16"
    if count > WARP and count % WARP:
        what, rule = f"{count} addresses are not a whole number of accesses", f"a warp has 1 to {WARP} lanes"
        raise RefsimError("bad-access", what, rule=rule, help=f"give up to {WARP} addresses, or a multiple of it")
    access_bytes = count_in(width)
    accesses = [addresses[first : first + WARP] for first in range(0, count, WARP)] if count > WARP else addresses
    moved = asked.swizzle(accesses) if asked.swizzle else accesses
    return bank_conflicts(moved, width if access_bytes is None else access_bytes)


def _of_fragment(fragment: "Fragment", asked: BanksOptions) -> "BankConflicts":
    """Return the conflicts when the threads of a fragment load it from a K-major tile."""
    from refsim.layouts.banks import access_width, layout_conflicts
    from refsim.layouts.swizzles import swizzle
    from refsim.layouts.tiles import atom_rows, tile

    if fragment.name.endswith((".sfa", ".sfb")):
        raise RefsimError("bad-access", f"some lanes hold no element of {fragment.name}", "--layout")
    if fragment.element_bits not in (8, 16, 32) or fragment.slot_bits != fragment.element_bits:
        raise RefsimError(
            "bad-dtype",
            f"{fragment.name} has elements of {fragment.element_bits} bits",
            where="--layout",
            rule="tiles hold elements of 8, 16 or 32 bits",
        )
    width = asked.width
    access_bytes = None if width is None else access_width(width) if count_in(width) is None else count_in(width)
    size, across = fragment.element_bits // 8, fragment.name.endswith(".b")
    extents, pattern = fragment.shape[::-1] if across else fragment.shape, asked.swizzle or swizzle("none")
    atom = (atom_rows(pattern), pattern.span_bytes // size)
    least = tuple(-(-extent // part) * part for extent, part in zip(extents, atom, strict=True))
    rows, cols = asked.tile or least
    if rows < extents[0] or cols < extents[1]:
        what = f"a tile of {rows} x {cols} does not hold the {extents[0]} x {extents[1]} elements of {fragment.name}"
        raise RefsimError("bad-shape", what, "--tile", help=f"--tile {least[0]}x{least[1]} or larger")
    made = tile("K", pattern, size, (rows, cols))
    placed = cast("Fragment", _ByColumn(fragment)) if across else fragment
    return layout_conflicts(placed, made, access_bytes, asked.start)


def _of_matrices(fragment: "Fragment", asked: BanksOptions) -> "BankConflicts":
    from refsim.layouts.banks import matrix_conflicts

    if asked.tile is None:
        what = f"each lane of {fragment.name} gives the address of a row"
        rule = "what it costs depends on the tile that the rows lie in"
        help = f"--tile {fragment.shape[0]}x64, with --swizzle NAME where it is swizzled"
        raise RefsimError("missing-argument", what, rule=rule, help=help)
    padded = max(8, fragment.memory_bits)  # rows of 6 and 4 bits take 16 bytes
    return matrix_conflicts(fragment.shape[0], asked.tile, padded, asked.swizzle, asked.start)


class _ByColumn:
    """A B operand with the coordinates of a tile: (n, k) instead of (k, n)."""

    def __init__(self, fragment: "Fragment") -> None:
        self.threads, self.values, self._coord = fragment.threads, fragment.values, fragment.coord

    def coord(self, thread: "ArrayLike", value: "ArrayLike") -> "tuple[NDArray[Any], NDArray[Any]]":
        """Return (n, k) of the element that a thread and a value hold."""
        k, n = self._coord(thread, value)
        return n, k


def _phases(found: "BankConflicts") -> list[tuple[Cell, ...]]:
    count = found.wavefronts.shape[-1]
    lanes = found.addresses.shape[-1]
    rows: list[tuple[Cell, ...]] = []
    for access, wavefronts in enumerate(found.wavefronts.reshape(-1, count).tolist()):
        collisions = found.collisions(access)
        for phase in range(count):
            first, last = phase * found.phase_lanes, min(lanes, (phase + 1) * found.phase_lanes) - 1
            met = [each for each in collisions if each.phase == phase]
            rows.append((access, phase, f"{first}..{last}", wavefronts[phase], 1, _collided(met)))
    return rows


def _collided(met: "list[Collision]") -> str | None:
    """Return the busiest banks of a phase and the lanes that access each word, None without a collision."""
    if not met:
        return None
    groups: dict[str, list[int]] = {}
    for each in met:
        groups.setdefault(" | ".join("+".join(map(str, lanes)) for lanes in each.lanes), []).append(each.bank)
    spelled = [f"{_banks(banks)}: lanes {lanes}" for lanes, banks in groups.items()]
    more = f" and {len(spelled) - LISTED} more groups of banks" if len(spelled) > LISTED else ""
    return "; ".join(spelled[:LISTED]) + more


def _banks(banks: list[int]) -> str:
    if len(banks) > 1 and banks[-1] - banks[0] == len(banks) - 1:
        return f"banks {banks[0]}..{banks[-1]}"
    return f"bank{'s' * (len(banks) > 1)} {', '.join(map(str, banks))}"
