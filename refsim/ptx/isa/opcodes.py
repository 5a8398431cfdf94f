"""The assignment of an opcode's words to the places of a form: modifiers may be in nearly any order.

The ISA prints one order, compilers and libraries write others, and ptxas accepts `atom.global.gpu.acq_rel.add.u32`,
`div.ftz.rn.f32` and `ld.global.acquire.gpu.b32` as well as the printed order. Permutations of every form were given to
ptxas to find the words that must not move (tests/ptx/test_modifier_order.py repeats this):

- words that make the instruction stay in front, as in the form: `cp.async`, `mad.hi`, `bar.red`;
- types keep their order: cvt.f16.f32 is not cvt.f32.f16;
- a few words of one meaning keep their order: .row before .col, the written space before the read one.
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
    "clusterlaunchcontrol": frozenset({"try_cancel", "async", "query_cancel"}),
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
"""By mnemonic, the words that stay in front of all others in a form that begins with them."""

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
"""By mnemonic, words that keep their order among words of one class, and the class."""


def _kind(mnemonic: str, word: str) -> str | None:
    """Return the class of words among which a word keeps its order (types with types); None for a word that moves
    freely."""
    return "type" if _TYPE.fullmatch(word) else SEQUENCES.get(mnemonic, {}).get(word)


@dataclass(frozen=True)
class Slot:
    """One place of a form: its words, whether one is required, and the keyword that it sets (None: a fixed word)."""

    words: tuple[str, ...]
    is_required: bool
    keyword: str | None = None
    is_flag: bool = False

    @property
    def spellings(self) -> list[str]:
        """Return the texts that may fill the slot: `{.sat}` is "" or ".sat"."""
        return [*([] if self.is_required else [""]), *(f".{word}" for word in self.words)]


@dataclass(frozen=True)
class OpcodeForm:
    """The opcode of a form: a mnemonic and slots in the ISA's printed order."""

    mnemonic: str
    slots: tuple[Slot, ...]

    @cached_property
    def front(self) -> int:
        """Return how many leading slots hold only words that stay in front."""
        fixed = FRONT.get(self.mnemonic, frozenset())
        for number, slot in enumerate(self.slots):
            if not fixed.issuperset(slot.words):
                return number
        return len(self.slots)

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Return every word that some slot may hold."""
        return frozenset().union(*(slot.words for slot in self.slots))

    @cached_property
    def least(self) -> int:
        """Return how many words an opcode has at least after its mnemonic."""
        return sum(slot.is_required for slot in self.slots)

    def match(self, words: list[str]) -> tuple[dict[str, Any], bool] | None:
        """Return the keywords that the words after the mnemonic set, and whether their order is the printed one.
        Returns None if the words do not match."""
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
    """Return the opcode of a form: `add{.sat}.{type:u32|s32}` has an optional slot and a required one."""
    mnemonic = re.split(r"[.{]", text, maxsplit=1)[0]
    slots: list[Slot] = []
    position = len(mnemonic)

    def fixed(part: str) -> None:
        """Append a required slot for each fixed word."""
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
