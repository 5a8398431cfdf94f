"""The C++ types of a kernel's parameters, from the CUDA source or from a mangled name, and the elements they mean."""

import re
from functools import lru_cache
from typing import Any

import numpy as np

from refsim.ptx.text.source_names import MangledName

UNKNOWN = "?"
_BUILTIN = dict(
    re.findall(
        r"(\w)=([\w ]+)",
        """v=void,b=bool,c=char,a=signed char,h=unsigned char,s=short,t=unsigned short,i=int,j=unsigned int,l=long,
        m=unsigned long,x=long long,y=unsigned long long,f=float,d=double""",
    )
)
_INTEGER = {"signed", "unsigned", "short", "long", "int", "char"}
_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "std", "cuda"}
_CODES = dict(
    re.findall(
        r"(\w+)=(\w+)",
        """bool=b1 float=f4 double=f8 half=f2 __half=f2 float16=f2 __nv_bfloat16=g2 nv_bfloat16=g2 ushort=u2 uint=u4 ulong=u8
        ulonglong=u8 longlong=i8 size_t=u8 uintptr_t=u8 ptrdiff_t=i8 cuComplex=vf4 cuFloatComplex=vf4 cuDoubleComplex=vf8
        __nv_fp8_e4m3=q1 __nv_fp8_e5m2=q1""",
    )
)
"""Kind and bytes of an element: b bool, f float, g bfloat16, i and u integers, q FP8; v is a vector of them."""
_VECTOR = re.compile(r"(u?(?:char|short|int|long|longlong)|float|double|_*half|_*nv_bfloat16)[1234]")
_FIXED = re.compile(r"(u?)int(8|16|32|64)_t")
_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINES = r"#\s*define\s+{0}\b|\btypedef\b[^;]*\b{0}\s*;|\b(?:using|struct|class|enum|typename)\s+{0}\b"


def code_of(type: str) -> str:
    """Return an element's code by its C++ type: code_of("unsigned long") is "u8", of an unknown type ""."""
    words = set(type.split())
    if words and words <= _INTEGER:
        size = 1 if "char" in words else 2 if "short" in words else 8 if "long" in words else 4
        return f"{'u' if 'unsigned' in words else 'i'}{size}"
    if found := _FIXED.fullmatch(type):
        return f"{found[1] or 'i'}{int(found[2]) // 8}"
    found = _VECTOR.fullmatch(type)
    return "u8" if type.endswith("*") else f"v{code_of(found[1])}" if found else _CODES.get(type, "")


def differs(element: np.dtype[Any], type: str) -> bool:
    """Return whether an array of such elements cannot be what a pointer to a C++ type points to.

    Sizes differ, or one is a float and the other a signed integer of that size. Bytes, unknown types and structs fit
    everything. Unsigned integers hold bits of anything of their size, 16-bit integers those of any 16-bit float, wide
    unsigned integers pairs of 16-bit elements, vectors anything except wider floats. A complex number is two floats.
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
        return not (width == 1 and wanted in "iu") and not (wanted == "u" and size == 2)
    return kind != wanted and "u" not in (kind, wanted) and not (size == 2 and "i" in (kind, wanted))


@lru_cache(maxsize=4096)
def declared_types(entry: str, source: str = "") -> tuple[str, ...]:
    """Return the types of an entry's parameters: "int*", "float", "?"; () where neither the name nor the source tells."""
    if entry.startswith("_Z"):
        try:
            return _MangledTypes(entry[2:]).parameters()
        except (ValueError, IndexError):
            return ()
    text = _NO_CODE.sub(" ", source)
    heads = re.findall(rf"__global__\b[^;{{}}]*?\b{re.escape(entry)}\s*\(((?:[^()]|\([^()]*\))*)\)", text)
    found = {tuple(_type(each, text) for each in re.split(r",(?![^(<]*[)>])", head)) for head in heads}
    return found.pop() if len(found) == 1 else ()


def _type(declared: str, source: str) -> str:
    """Return the type of a parameter as it is declared: "const int* __restrict__ x" is "int*"."""
    declared = declared.partition("=")[0]
    if re.search(r"[(&#]|\.\.\.", declared):
        return UNKNOWN
    words = [word for word in re.findall(r"\w+|[*\[]", declared) if word not in _QUALIFIERS]
    names = words[: min((words.index(mark) for mark in "*[" if mark in words), default=None)]
    if "*" not in words and len(names) > 1 and names[-1] not in _INTEGER:
        names = names[:-1]
    type = " ".join(names)
    is_own = any(re.search(_DEFINES.format(name), source) for name in names)
    is_known = (type == "void" or code_of(type)) and not is_own and "<" not in declared
    return (type if is_known else UNKNOWN) + "*" * (words.count("*") + words.count("["))


class _MangledTypes(MangledName):
    """A position in an Itanium-mangled function; ValueError and IndexError for what is not understood."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.known: list[str] = []
        self.values: list[str] = []

    def parameters(self) -> tuple[str, ...]:
        """Return the types of the function's parameters."""
        if self.scoped().endswith("<>"):
            self.type()  # only a template's name says what it returns
        found = []
        while self.at < len(self.text):
            found.append(self.type())
        return tuple(each for each in found if each != "void")

    def scoped(self) -> str:
        """Return the name of a function or a class; its prefixes are known from then on."""
        is_nested, found = self.accept("N"), ""
        while not (self.accept("E") if is_nested else found and self.text[self.at : self.at + 1] != "I"):
            if found and found not in self.known:
                self.known.append(found)
            if self.accept("I"):
                self.values = []
                while not self.accept("E"):
                    self.values.append(self.type())
                found += "<>"
                if not is_nested:
                    break
            elif self.text[self.at] == "S":
                found = self.type()
            elif word := self.part(""):
                found = f"{found}::{word}"
            else:
                raise ValueError(self.text)
        return found.removeprefix("::")

    def type(self) -> str:
        """Return a type as `declared_types` does, without const and volatile."""
        letter = self.text[self.at]
        if letter.isdigit() or letter == "N":
            made = self.scoped()
        elif letter in _BUILTIN:
            self.at += 1
            return _BUILTIN[letter]
        elif letter == "L":  # a literal as the argument of a template
            self.at = self.text.index("E", self.at) + 1
            return UNKNOWN
        elif place := re.compile(r"([ST])([0-9A-Z]*)_").match(self.text, self.at):
            self.at = place.end()
            made = (self.known if letter == "S" else self.values)[int(place[2], 36) + 1 if place[2] else 0]
            if letter == "S":
                return made
        elif letter in "VKPRO":
            self.at += 2 if self.text.startswith("VK", self.at) else 1
            made = self.type()
            made = made + "*" if letter == "P" else made if letter in "VK" else UNKNOWN
        else:
            raise ValueError(self.text)
        self.known.append(made)
        return made
