"""Fragments by name: the thread, and the value of that thread, that holds each element of a matrix.

A name is family.shape.type.operand, with a suffix where an instruction offers a choice: mma.m16n8k16.f16.d.f16.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module

from refsim.errors import RefsimError, unknown
from refsim.layouts.families.core import Fragment

__all__ = ["FAMILIES", "Fragment", "fragment", "fragments"]

# family -> the module of its fragments; a module is imported when one of its names is needed
_MODULES = {
    "mma": "mma",
    "wgmma": "wgmma",
    "ldmatrix": "ldmatrix",
    "stmatrix": "ldmatrix",
    "tcgen05": "tcgen05",
    "mfma": "mfma",
    "wmma": "wmma",
    "mma.sp": "sparse",
    "wgmma.sp": "sparse",
    "tcgen05.sp": "tensor_sparse",
}
FAMILIES = tuple(_MODULES)


def fragments(family: str | None = None) -> tuple[str, ...]:
    """Return the names of every fragment, or of one family of FAMILIES ("wgmma"), in table order.

    len(fragments("stmatrix")) is 9. Raises RefsimError `unknown-family`. Source: the fragment's.
    """
    if family is not None and family not in _MODULES:
        raise unknown("fragment family", family, list(FAMILIES))
    chosen = FAMILIES if family is None else (family,)
    return tuple(name for key in chosen for name in _builders(_MODULES[key]) if family_of(name) == key)


def family_of(name: str) -> str:
    """Return the family of a name: mma.sp for mma.sp.m16n8k32.f16.a, mma for mma.m16n8k16.f16.a."""
    words = name.split(".")
    return ".".join(words[: 2 if words[1:2] == ["sp"] else 1])


@cache
def fragment(name: str) -> Fragment:
    """Return the fragment of that name: fragment("mma.m16n8k16.bf16.a").coord(5, 3) is (9, 3).

    The opcode of an instruction with its operand (mma.sync.aligned.(...).a) is read, too, as are parts of a name that
    fit only one fragment. Raises RefsimError "illegal-fragment" with the broken rule for a combination that no
    instruction has, and "which-fragment" with the candidates for parts that fit several. Any other unknown name is an
    error with the three nearest. Source: the fragment's.
    """
    if not isinstance(name, str):
        raise RefsimError("wrong-type", f"a fragment is asked for by name, not by {name!r}")
    family = family_of(name)
    if family in _MODULES:
        build = _builders(_MODULES[family]).get(name)
        if build is not None:
            return build()
        refusal: RefsimError | None = import_module(f"{__name__}.{_MODULES[family]}").refusal(name)
        if refusal is not None:
            raise refusal
    if meant := meant_by(name):
        if len(meant) > 1:
            raise import_module(f"{__name__}.spelling").which(name, meant)
        return fragment(meant[0])
    raise unknown("fragment", name, list(fragments(family if family in _MODULES else None)))


def meant_by(name: str) -> tuple[str, ...]:
    """Return the fragments that an opcode, or parts of their names, may mean: meant_by("m16n8k16.bf16") has four."""
    from refsim.layouts.families.spelling import of_opcode, of_words

    return of_opcode(name, fragments()) or of_words(name, fragments())


@cache
def _builders(module: str) -> dict[str, Callable[[], Fragment]]:
    return dict(import_module(f"{__name__}.{module}").rows())
