"""How the words of an opcode find their places in a form: modifiers stand in nearly any order.

The ISA prints one order, compilers and libraries write others, and ptxas takes `atom.global.gpu.acq_rel.add.u32`,
`div.ftz.rn.f32` and `ld.global.acquire.gpu.b32` as it takes the printed ones. What may not move was found by putting
permutations of every form to it (tests/ptx/test_modifier_order.py does so again):

- words that make the instruction stand in front, as the form has them: `cp.async`, `mad.hi`, `bar.red`;
- types keep their order: cvt.f16.f32 is not cvt.f32.f16;
- so do a few words of one meaning each: .row before .col, the space that is written before the one that is read.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

FIELD = re.compile(
    r"\.\{(?P<need>\w+):(?P<needs>[^}]*)\}|\{\.(?P<maybe>\w+):(?!:)(?P<mays>[^}]*)\}|\{\.(?P<flag>[\w:]+)\}"
)
_TYPE = re.compile(r"(?!b1024$)(?:[usb]\d+|b?f\d+|tf32|u?e\d+m\d+|pred)(?:x\d+)?")
# b1024, the size of a tensor map, moves freely.
_HALVES = frozenset({"hi", "lo", "wide"})

# fmt: off
FRONT: dict[str, frozenset[str]] = {
    "bar": frozenset({"warp", "cta", "sync", "arrive", "red"}),
    "barrier": frozenset({"cta", "cluster", "arrive", "wait", "red"}),
    "cp": frozenset({"async", "commit_group", "wait_group", "wait_all", "mbarrier", "arrive", "bulk", "reduce",
                     "tensor", "prefetch"}),
    "createpolicy": frozenset({"fractional", "range", "cvt"}),
    "cvt": frozenset({"pack"}),
    "cvta": frozenset({"to"}),
    "div": frozenset({"full"}),
    "dp2a": _HALVES,
    "fence": frozenset({"proxy"}),
    "griddepcontrol": frozenset({"launch_dependents", "wait"}),
    "mad": _HALVES, "mad24": _HALVES, "madc": _HALVES, "mul": _HALVES, "mul24": _HALVES,
    "mbarrier": frozenset({
        "init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx", "pending_count",
        "parity",
    }),
    "red": frozenset({"async"}),
    "st": frozenset({"async"}),
    "setmaxnreg": frozenset({"inc", "dec"}),
    "shf": frozenset({"l", "r"}),
    "tcgen05": frozenset({
        "alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld", "wait::st", "fence::before_thread_sync",
        "fence::after_thread_sync", "mma", "ws", "red", "commit", "cp", "shift",
    }),
    "tensormap": frozenset({"replace", "cp_fenceproxy"}),
    "wgmma": frozenset({"fence", "mma_async", "commit_group", "wait_group"}),
    "wmma": frozenset({"load", "mma", "store", "a", "b", "c", "d"}),
}
# fmt: on
"""By mnemonic, the words that stand in front of all others where a form begins with them."""

_LAYOUTS = {"row": "layout", "col": "layout"}
_PRIORITIES = {f"L2::evict_{name}": "priority" for name in ("last", "normal", "first", "unchanged")}
_PLACES = dict.fromkeys(("shared::cta", "shared::cluster", "shared", "global"), "place")
_REDUCTION = {"and": "reduction", "popc": "reduction"}
SEQUENCES: dict[str, dict[str, str]] = {
    "mma": _LAYOUTS,
    "wmma": _LAYOUTS,
    "wgmma": _REDUCTION,
    "createpolicy": _PRIORITIES,
    "tcgen05": dict.fromkeys(("b6x16_p32", "b4x16_p64"), "type"),
    "cp": _PLACES,
    "tensormap": _PLACES,
}
"""By mnemonic, words that keep their order among those of the same kind."""


def _kind(mnemonic: str, word: str) -> str | None:
    """What a word must keep its order with: types with types; None for a word that moves freely."""
    return "type" if _TYPE.fullmatch(word) else SEQUENCES.get(mnemonic, {}).get(word)


@dataclass(frozen=True)
class Slot:
    """One place of a form: its words, whether one must stand there, the keyword it gives (None: a fixed word)."""

    words: tuple[str, ...]
    is_required: bool
    keyword: str | None = None
    is_flag: bool = False

    @property
    def spellings(self) -> list[str]:
        """What may stand in the text: `{.sat}` is "" or ".sat"."""
        return [*([] if self.is_required else [""]), *(f".{word}" for word in self.words)]


@dataclass(frozen=True)
class OpcodeForm:
    """The opcode of a form: a mnemonic and slots in the order in which the ISA prints them."""

    mnemonic: str
    slots: tuple[Slot, ...]

    @cached_property
    def front(self) -> int:
        """How many slots, from the first, hold nothing but words that stay in front."""
        fixed = FRONT.get(self.mnemonic, frozenset())
        for number, slot in enumerate(self.slots):
            if not fixed.issuperset(slot.words):
                return number
        return len(self.slots)

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Every word that some slot may hold."""
        return frozenset().union(*(slot.words for slot in self.slots))

    @cached_property
    def least(self) -> int:
        """How many words must stand there."""
        return sum(slot.is_required for slot in self.slots)

    def match(self, words: list[str]) -> tuple[dict[str, Any], bool] | None:
        """The keywords that the words behind the mnemonic give, and whether they stand as printed; None if no match."""
        if not self.least <= len(words) <= len(self.slots) or not self.vocabulary.issuperset(words):
            return None
        taken: list[int] = []
        found: dict[str, Any] = {}
        left = list(range(len(words)))
        for number, slot in enumerate(self.slots):
            candidates = left[:1] if number < self.front else left
            at = next((index for index in candidates if words[index] in slot.words), None)
            if at is None and slot.is_required:
                return None
            if slot.keyword is not None:
                found[slot.keyword] = at is not None if slot.is_flag else None if at is None else words[at]
            if at is not None:
                left.remove(at)
                taken.append(at)
        if left or not self._keeps_order(words, taken):
            return None
        return found, taken == sorted(taken)

    def _keeps_order(self, words: list[str], taken: list[int]) -> bool:
        last: dict[str, int] = {}
        for at in taken:
            kind = _kind(self.mnemonic, words[at])
            if kind is not None and last.setdefault(kind, at) > at:
                return False
            if kind is not None:
                last[kind] = at
        return True


def parse_opcode(text: str) -> OpcodeForm:
    """The opcode of a form: `add{.sat}.{type:u32|s32}` has an optional slot and a required one."""
    mnemonic = re.split(r"[.{]", text, maxsplit=1)[0]
    slots: list[Slot] = []
    position = len(mnemonic)

    def fixed(part: str) -> None:
        slots.extend(Slot((word,), True) for word in part.split(".")[1:])

    for piece in FIELD.finditer(text):
        fixed(text[position : piece.start()])
        position = piece.end()
        if need := piece["need"]:
            slots.append(Slot(tuple(piece["needs"].split("|")), True, need))
        elif maybe := piece["maybe"]:
            slots.append(Slot(tuple(piece["mays"].split("|")), False, maybe))
        else:
            slots.append(Slot((piece["flag"],), False, piece["flag"].replace("::", "_").lower(), is_flag=True))
    fixed(text[position:])
    return OpcodeForm(mnemonic, tuple(slots))
