"""Link several PTX modules into one: external declarations of one module refer to definitions of another."""

import re
from collections.abc import Sequence

from refsim.errors import RefsimError

_HEADER = re.compile(r"^[ \t]*\.(version|target|address_size)\b.*$", re.MULTILINE)
_VERSION = re.compile(r"^([ \t]*\.version[ \t]+)(\d+)\.(\d+)", re.MULTILINE)
_FILE = re.compile(r"^([ \t]*\.file[ \t]+)(\d+)", re.MULTILINE)
_LOC = re.compile(r"(\.loc[ \t]+|inlined_at[ \t]+)(\d+)")
_DEBUG = re.compile(r"^[ \t]*\.section[ \t]+\.debug\w*[ \t\r\n]*\{.*?^[ \t]*\}", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(
    r"^[ \t]*((?:\.(?:visible|weak|extern|common)[ \t]+)?)\.(?:entry|func|global|const|shared)\b"
    r"(?:[ \t]*\((?:[^()]*)\))?(?:[ \t]+\.(?:align[ \t]+\d+|\w+))*[ \t]+([\w$%]+)",
    re.MULTILINE,
)
GRID_FUNCTIONS = """
#include <cooperative_groups.h>
extern "C" __device__ unsigned long long cudaCGGetIntrinsicHandle(enum cudaCGScope scope) {
    return (unsigned long long)cooperative_groups::details::get_grid_workspace();
}
extern "C" __device__ cudaError_t cudaCGSynchronize(unsigned long long handle, unsigned flags) {
    cooperative_groups::this_grid().sync();
    return cudaSuccess;
}
"""
"""The device runtime's functions for groups of a grid, written with CUDA's own headers."""
_FILES = 1000
"""Source file numbers are per module: the numbers of module n begin at n times this one."""


def joined(texts: Sequence[str]) -> str:
    """Return one PTX text of several, with the lines of the parts one after another.

    A private name that another module has too is renamed. RefsimError `compile-error` for a visible name defined twice.
    """
    shown: set[str] = set()
    found, taken = [], set[str]()
    for number, whole in enumerate(texts):
        text = whole
        own = {name: linkage.strip(" \t.") for linkage, name in _DEFINED.findall(text)}
        for name in sorted(shown & {name for name, linkage in own.items() if linkage == "visible"}):
            raise RefsimError(
                "compile-error", f"{name} is defined by two modules", rule="a visible name has one definition"
            )
        for name in taken & {name for name, linkage in own.items() if not linkage}:
            text = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", f"{name}_of_module_{number}", text)
        shown |= {name for name, linkage in own.items() if linkage == "visible"}
        taken |= set(own)
        found.append(_renumbered(_without_debug(text), number) if number else text)
    newest = max(
        (tuple(map(int, each.group(2, 3))) for text in texts for each in _VERSION.finditer(text)), default=(0, 0)
    )
    return _VERSION.sub(lambda each: f"{each[1]}{newest[0]}.{newest[1]}", "\n".join(found))


def needs_grid_functions(texts: Sequence[str]) -> bool:
    """Return whether modules call the device runtime's functions for groups of a grid."""
    return any("cudaCGGetIntrinsicHandle" in text or "cudaCGSynchronize" in text for text in texts)


def _without_debug(text: str) -> str:
    """Return a text without its header and debug sections; line numbers stay."""
    for pattern in (_DEBUG, _HEADER):
        text = pattern.sub(lambda each: "\n" * each[0].count("\n"), text)
    return text


def _renumbered(text: str, number: int) -> str:
    for pattern in (_FILE, _LOC):
        text = pattern.sub(lambda each: f"{each[1]}{int(each[2]) + number * _FILES}", text)
    return text
