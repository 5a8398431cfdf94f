"""Entries by the names that people write: C++ names, template arguments, and what c++filt makes of the same names."""

import shutil
import subprocess

import pytest

from refsim.errors import RefsimError
from refsim.ptx.text.source_names import NAMES_MARK, entry_named, spelled, template_arguments

ENTRIES = (
    "cc",
    "_Z5plainPi",
    "_Z1kILi4EEvPf",
    "_Z1kILin5EEvPf",
    "_Z5scaleIfLb1EL4Mode1EEvPT_f",
    "_Z5scaleI13__nv_bfloat16Lb0EL4Mode0EEvPT_f",
    "_ZN4deep4packINS_1SEJLi1ELi2EEEEvPT_",
    "_Z1gIN4deep1WIjEEEvPT_",
    "_Z1gIPKfEvPT_",
    "_Z1gIhEvPT_",
    "_Z5twicePf",
    "_Z5twicePd",
    "_ZN4deep5twiceEPx",
    "_ZN12_GLOBAL__N_16hiddenEPf",
)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("cc", "cc"),
        ("plain", "_Z5plainPi"),
        ("_Z5plainPi", "_Z5plainPi"),
        ("plain(int *)", "_Z5plainPi"),
        ("k<4>", "_Z1kILi4EEvPf"),
        ("k< 4u >", "_Z1kILi4EEvPf"),
        ("k<-5>", "_Z1kILin5EEvPf"),
        ("scale<float>", "_Z5scaleIfLb1EL4Mode1EEvPT_f"),
        ("scale<float, true>", "_Z5scaleIfLb1EL4Mode1EEvPT_f"),
        ("scale<nv_bfloat16, 0, 0>", "_Z5scaleI13__nv_bfloat16Lb0EL4Mode0EEvPT_f"),
        ("pack", "_ZN4deep4packINS_1SEJLi1ELi2EEEEvPT_"),
        ("deep::pack", "_ZN4deep4packINS_1SEJLi1ELi2EEEEvPT_"),
        ("g<deep::W<unsigned int> >", "_Z1gIN4deep1WIjEEEvPT_"),
        ("g<const float *>", "_Z1gIPKfEvPT_"),
        ("g<uint8_t>", "_Z1gIhEvPT_"),
        ("hidden", "_ZN12_GLOBAL__N_16hiddenEPf"),
        ("deep::twice", "_ZN4deep5twiceEPx"),
    ],
)
def test_a_name_means_one_entry(name: str, entry: str) -> None:
    assert entry_named(name, ENTRIES) == entry


def test_a_name_of_several_entries_lists_them() -> None:
    with pytest.raises(RefsimError) as caught:
        entry_named("k", ENTRIES)
    assert caught.value.code == "ambiguous-name"
    assert "k<4> (_Z1kILi4EEvPf)" in caught.value.what
    assert "k<-5> (_Z1kILin5EEvPf)" in caught.value.what
    with pytest.raises(RefsimError, match="'twice' is 3 entries"):
        entry_named("twice", ENTRIES)


@pytest.mark.parametrize(
    "name", ["missing", "k<7>", "scale<half>", "plai", "deep::k<4>", "", "<", "k<", ">", "k<4"[:1] + "<<<"]
)
def test_what_no_entry_is_called_is_unknown(name: str) -> None:
    with pytest.raises(RefsimError) as caught:
        entry_named(name, ENTRIES)
    assert caught.value.code in ("unknown-entry", "ambiguous-name")
    if name == "k<7>":
        assert "Kernel(entries=('k<7>',))" in caught.value.help
        assert "k<4>" in caught.value.help


def test_a_template_that_nobody_instantiated_has_a_way_out() -> None:
    """A mangled name, as a profiler prints it, is no way to ask: a compiler instantiates by the name of C++."""
    with pytest.raises(RefsimError, match="unknown-entry") as caught:
        entry_named("_Z1tILi4EEvPf", ["_Z5plainPfi"])
    assert "asked for: t<4>, or Kernel(entries=('t<4>',)); one of " in caught.value.help
    with pytest.raises(RefsimError, match="unknown-entry") as caught:
        entry_named("t", [])
    assert caught.value.help.endswith("by its arguments: t<4>, as C++ writes them")


def test_what_the_compiler_says_of_a_name_comes_first() -> None:
    text = f"{NAMES_MARK}scale<float, true, Mode::B> = _Z5scaleIfLb1EL4Mode1EEvPT_f\n{NAMES_MARK}gone<1> = _Zgone\n"
    assert entry_named("scale<float,true,Mode::B>", ENTRIES, text) == "_Z5scaleIfLb1EL4Mode1EEvPT_f"
    with pytest.raises(RefsimError, match="unknown-entry"):
        entry_named("gone<1>", ENTRIES, text)


def test_entries_are_spelled_as_cxxfilt_spells_them() -> None:
    if (program := shutil.which("c++filt")) is None:
        pytest.skip("c++filt is not installed: nothing to compare with")
    names = [name for name in ENTRIES if "I" in name and "GLOBAL" not in name and "NS_" not in name]
    said = subprocess.run([program, *names], capture_output=True, text=True, check=True).stdout.splitlines()
    for name, line in zip(names, said, strict=True):
        want = line.removeprefix("void ").partition("(")[0] if "(Mode)" not in line else ""
        plain = line.removeprefix("void ").replace("(Mode)", "").replace(">(", "> (").rpartition(" (")[0]
        assert spelled(name).replace(" ", "") == (want or plain).replace(" ", "")


@pytest.mark.parametrize(
    "name", ["_Z", "_Z1kI", "_Z1kIL", "_Z1kILi", "_Z1kIJJJJ", "_Z1k" + "I" * 50, "_Z1kI" + "P" * 5000, "_Z1kIS_E"]
)
def test_damaged_names_end(name: str) -> None:
    assert all(isinstance(part, str) for part in template_arguments(name))
    spelled(name)
