"""The C++ types of a kernel's parameters, from the CUDA source or from a mangled name, and the elements they mean."""

import re
from functools import lru_cache
from typing import Any

import numpy as np

from refsim.ptx.text.entry_names import BUILTIN_TYPES, MangledArguments
from refsim.ptx.text.source_names import demangled

UNKNOWN = "?"
_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "std", "cuda"}
_CODES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=(\w+)",
        """bool=b1 float=f4 double=f8 half=f2 __half=f2 float16=f2 __nv_bfloat16=g2 nv_bfloat16=g2 size_t=u8 uintptr_t=u8
        ptrdiff_t=i8 cuComplex=vf4 cuFloatComplex=vf4 cuDoubleComplex=vf8 __nv_fp8_e4m3=q1 __nv_fp8_e5m2=q1""",
    )
)
"""Kind and bytes of an element: b bool, f float, g bfloat16, i and u integers, q FP8; v is a vector of them."""
_INTEGER = re.compile(r"(u(?=[a-z])|unsigned|signed)?(char|short|(?:long)+)?(?:int)?(?:(8|16|32|64)_t)?")
_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINES = r"#\s*define\s+{0}\b|\btypedef\b[^;]*\b{0}\s*;|\b(?:using|struct|class|enum|typename)\s+{0}\b"


def code_of(type: str) -> str:
    """Return an element's code by its C++ type: code_of("unsigned long") is "u8", of an unknown type ""."""
    if type.endswith("*") or type in _CODES:
        return _CODES.get(type, "u8")
    if type and (found := _INTEGER.fullmatch(type.replace(" ", ""))):
        sizes = {"char": 1, "short": 2, None: int(found[3] or 32) // 8}
        return f"{(found[1] or 'i')[0].replace('s', 'i')}{sizes.get(found[2], 8)}"
    element = code_of(type[:-1]) if type.endswith(("1", "2", "3", "4")) else ""
    return f"v{element}" if element else ""


C_NAMES = {np.dtype(code_of(name)).name: name for name in BUILTIN_TYPES.values() if code_of(name) and name != "half"}
"""The C++ name of each NumPy type: int64 is long long."""


def differs(element: np.dtype[Any], type: str) -> bool:
    """Return whether an array of such elements cannot be what a pointer to a C++ type points to.

    Sizes differ, or one is a float and the other a signed integer of that size. Bytes, unknown types and structs fit
    everything. Unsigned integers hold bits of anything of their size, 16-bit integers those of any 16-bit float, wide
    unsigned integers pairs of 16-bit elements, unsigned arrays words of FP8, vectors anything except wider floats. A
    complex number is two floats.
    """
    code, kind, size = code_of(type), str(element.kind), element.itemsize
    if kind == "c" or element.name == "bfloat16":
        kind, size = ("f", size // 2) if kind == "c" else ("g", size)
    if not code or kind not in "biufg" or (kind in "iu" and size == 1):
        return False
    wanted, width = code[-2], int(code[-1])
    if code[0] == "v":
        return kind == wanted == "f" and size > width
    if size != width:
        return not (width == 1 and (wanted in "iu" or kind + wanted == "uq")) and not (wanted == "u" and size == 2)
    return kind != wanted and "u" not in (kind, wanted) and not (size == 2 and "i" in (kind, wanted))


@lru_cache(maxsize=4096)
def declared_types(entry: str, source: str = "") -> tuple[str, ...]:
    """Return the types of an entry's parameters: "int*", "float", "?"; () where neither the name nor the source tells."""
    if entry.startswith("_Z"):
        try:
            return _MangledParameters(entry[2:]).all()
        except (ValueError, IndexError):
            entry = demangled(entry).rpartition("::")[2]
    text = _NO_CODE.sub(" ", source)
    heads = re.findall(rf"__global__\b[^;{{}}]*?\b{re.escape(entry)}\s*\(((?:[^()]|\([^()]*\))*)\)", text)
    found = {tuple(declared_type(each, text) for each in re.split(r",(?![^(<]*[)>])", head)) for head in heads}
    return found.pop() if len(found) == 1 else ()


def declared_type(declared: str, source: str = "") -> str:
    """Return the type of a parameter as it is declared: "const int* __restrict__ x" is "int*"."""
    declared = declared.partition("=")[0]
    if re.search(r"[(&#]|\.\.\.", declared):
        return UNKNOWN
    words = [word for word in re.findall(r"\w+|[*\[]", declared) if word not in _QUALIFIERS]
    names = words[: min((words.index(mark) for mark in "*[" if mark in words), default=None)]
    if "*" not in words and len(names) > 1 and not code_of(names[-1]):
        names = names[:-1]
    type = " ".join(names)
    is_own = any(re.search(_DEFINES.format(name), source) for name in names)
    is_known = (type == "void" or code_of(type)) and not is_own
    return (type if is_known else UNKNOWN) + "*" * (words.count("*") + words.count("["))


class _MangledParameters(MangledArguments):
    """The name and the parameters of a mangled function; ValueError and IndexError for what is not understood."""

    known: list[str]
    values: list[str]

    def all(self) -> tuple[str, ...]:
        """Return the types of the parameters, without const and volatile."""
        self.known, self.values, is_nested = [], [], self.text.startswith("N")
        self.at = int(is_nested)
        while (is_nested or not self.known) and (digits := re.compile(r"L?(\d+)").match(self.text, self.at)):
            self.at = digits.end() + int(digits[1])
            self.known.append(self.text[digits.end() : self.at])
        if is_template := self.text[self.at] == "I":
            self.values = self.many()
        else:
            self.known.pop()
        self.at += is_nested  # the name's E
        found = []
        while self.at < len(self.text):
            found.append(re.sub(" const| volatile", "", self.one(0)))
        return tuple(UNKNOWN if "&" in each else each for each in found[is_template:] if each != "void")

    def one(self, depth: int) -> str:
        """Return one type, by its number if it came before or is an argument of the template."""
        self.at += self.text.startswith("VK", self.at)
        start, letter = self.at, self.text[self.at]
        if place := re.compile(r"[ST]([0-9A-Z]*)_").match(self.text, start):
            self.at = place.end()
            found = (self.known if letter == "S" else self.values)[int(place[1], 36) + 1 if place[1] else 0]
        else:
            found = super().one(depth)
        if self.at == start or letter == "N" or "<" in found:
            raise ValueError(self.text)
        if letter == "T" or (letter not in "LS" and found not in BUILTIN_TYPES.values()):
            self.known.append(found)
        return found
