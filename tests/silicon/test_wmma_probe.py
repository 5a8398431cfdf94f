"""The probe of wmma: ptxas takes it, elements that loads read are all different, products are finite, the simulator runs it."""

import re
import subprocess
from pathlib import Path

import numpy as np

from refsim import ptx
from refsim.reference import assembler
from refsim.silicon import wmma_probe

FORMS = wmma_probe.forms()


def run(form: wmma_probe.WmmaForm) -> np.ndarray:
    out = np.zeros(wmma_probe.WARPS * wmma_probe.STRETCH, np.uint8)
    ptx.load(wmma_probe.module([form])).launch("form_0", (1,), (32 * wmma_probe.WARPS,), [form.inputs(), out])
    return out


def test_ptxas_takes_the_module(tmp_path: Path) -> None:
    text = tmp_path / "wmma.ptx"
    text.write_text(wmma_probe.ptx())
    command = [assembler.releases()[-1][1], "-arch", "sm_90a", str(text), "-o", str(tmp_path / "wmma.cubin")]
    subprocess.run(command, check=True)


def test_names_differ_and_every_kind_is_there() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)
    assert {form.kind for form in FORMS} == {"load", "store", "mma"}


def test_elements_of_a_stretch_are_all_different() -> None:
    for form in FORMS:
        if form.kind == "mma":
            continue
        warps = form.inputs().view(f"u{form.bits // 8}").reshape(wmma_probe.WARPS, -1).astype(np.uint64)
        numbers = warps[0] | warps[1] << np.uint64(8) if form.bits == 8 else warps[0]
        assert len(np.unique(numbers[:512])) == 512, form.name


def test_a_load_and_a_store_are_inverse_on_the_simulator() -> None:
    """What load.c finds in memory, store.d puts back: the registers of the one are the input of the other."""
    loads = {form.name: form for form in FORMS if ".load.c." in form.name}
    for form in FORMS:
        if form.kind == "store":
            registers = run(loads[form.name.replace("store.d", "load.c")])
            out = np.zeros_like(registers)
            ptx.load(wmma_probe.module([form])).launch("form_0", (1,), (32 * wmma_probe.WARPS,), [registers, out])
            elements = re.fullmatch(r"m(\d+)n(\d+)k\d+", form.name.split(".")[4])
            assert elements
            size = int(elements[1]) * int(elements[2]) * form.bits // 8
            stretch = (wmma_probe.WARPS, wmma_probe.STRETCH)
            source = loads[form.name.replace("store.d", "load.c")].inputs()
            assert np.array_equal(out.reshape(stretch)[:, :size], source.reshape(stretch)[:, :size])


def test_products_are_numbers() -> None:
    for form in FORMS:
        if form.kind == "mma" and form.name.split(".")[3] in ("f32", "f64"):
            out = run(form).view(np.float64 if form.bits == 64 else np.float32)
            assert np.isfinite(out).all(), form.name
            assert (out != 0).any()
