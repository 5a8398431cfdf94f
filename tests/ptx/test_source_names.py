"""Names of functions as a report shows them: what C++ called a mangled name, without types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.text.source_names import demangled

NAMES = {
    "_Z9block_sumPf": "block_sum",
    "_ZN6SquareC1Ef": "Square::Square",
    "_ZNK6Square4areaEv": "Square::area",
    "_ZN6SquareD1Ev": "Square::~Square",
    "_Z4axpyIfEvPT_S1_": "axpy",
    "_ZN2ns4tileILi4EfE4pushEi": "ns::tile::push",
    "_ZZ6kernelPfENKUlvE_clEv": "kernel::lambda::operator()",
    "_ZStplff": "std::operator+",
    "_ZL6helperf": "helper",
    "_ZN13__nv_bfloat16C2Ef": "__nv_bfloat16::__nv_bfloat16",
    "_ZplRK6__halfS1_": "operator+",
    "_ZN7cutlass5ArrayINS_6half_tELi8ELb0EEixEm": "cutlass::Array::operator[]",
    "_ZN12_GLOBAL__N_15innerEv": "inner",
    "_ZN34_INTERNAL_16409655_4_m_cu_cc33d08216__shfl_down_syncEjfji": "__shfl_down_sync",
    "_Z1fILin3EEvv": "f",
    "_ZNKSt5arrayIfLm4EE4sizeEv": "std::array::size",
    "main": "main",
    "": "",
}


@pytest.mark.parametrize("mangled", sorted(NAMES))
def test_a_name_is_what_it_was_called(mangled: str) -> None:
    assert demangled(mangled) == NAMES[mangled]


@given(st.text("ZNIEL123S_TC1D0Ulabcrk0", max_size=40))
def test_any_text_has_a_name(text: str) -> None:
    assert demangled("_Z" + text)


@pytest.mark.parametrize(
    "mangled", ["_Z" + "Z" * 100_000, "_Z" + "N" * 100_000, "_ZN1aI" + "I" * 100_000, "_Z99999999999a"]
)
def test_nothing_mangled_is_too_deep(mangled: str) -> None:
    assert demangled(mangled)
