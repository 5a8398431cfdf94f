"""Kernels of CuTe DSL, and structs by value: the bytes of their parameters, and launches on the simulated GPU."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refsim import device
from refsim.errors import RefsimError
from refsim.kernels import Buffer, Struct
from refsim.testing.adapters import CuteKernel, from_cute, parameter_dtype, struct

# y[t, 0] = x[t, 0] * s for t < n, with x (pointer, two extents, stride of 64 bits) and y (pointer alone)
PTX = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry kernel_cutlass_scale_0(.param .align 8 .b8 a[24], .param .u64 b, .param .u32 n, .param .f32 s)
{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
    ld.param.b64 %d1, [a]; ld.param.b64 %d2, [a+16]; ld.param.v2.b32 {%r6, %r7}, [a+8];
    ld.param.b64 %d3, [b]; ld.param.b32 %r1, [n]; ld.param.f32 %r2, [s];
    mov.u32 %r3, %tid.x; setp.ge.s32 %p, %r3, %r1; @%p ret;
    cvt.u64.u32 %d4, %r3; mul.lo.u64 %d5, %d4, %d2; shl.b64 %d5, %d5, 2; add.u64 %d5, %d1, %d5;
    ld.global.b32 %r4, [%d5]; mul.f32 %r5, %r4, %r2; shl.b64 %d4, %d4, 2; add.u64 %d4, %d3, %d4;
    st.global.b32 [%d4], %r5; ret;
}
.visible .entry kernel_cutlass_other_1() { ret; }
"""
ENTRY = "kernel_cutlass_scale_0"


def compiled(ptx: object = PTX) -> CuteKernel:
    return from_cute(SimpleNamespace(__ptx__=ptx))


def test_a_compiled_function_runs_with_its_tensors() -> None:
    kernel = compiled(PTX.encode() + b"\0")
    assert kernel.entry == ENTRY
    assert kernel.parameters == {ENTRY: ((24, 8), (8, 8), (4, 4), (4, 4)), "kernel_cutlass_other_1": ()}
    x = np.arange(40, dtype=np.float32)
    for strided in ((10, 4, np.int64(4)), (np.int32(10), 4, np.int64(4))):
        with device.open("sim").loaded(kernel.ptx, "scale") as launcher:
            a = launcher.upload(x, name="a")
            b = launcher.output(10, np.float32, name="b")
            kernel.launch(launcher, 1, 32, (a, *strided), b, 10, 2.0, entry="scale")
            kernel.launch(launcher, 1, 32, entry="other")
            assert launcher.read(b).tolist() == (2 * x[::4]).tolist()


def test_a_struct_of_pointers_is_built_from_the_loads_of_the_ptx_or_from_a_layout() -> None:
    kind = parameter_dtype(PTX, ENTRY, 0)
    assert kind.names == ("at_0", "at_8", "at_12", "at_16")
    assert [kind[name].str for name in kind.names] == ["<u8", "<u4", "<u4", "<u8"]
    with device.open("sim").loaded(PTX, "scale") as launcher:
        a = launcher.upload(np.arange(40, dtype=np.float32), name="a")
        given = struct(kind, at_0=a, at_8=10, at_12=4, at_16=4)

        class Tensor(ctypes.Structure):
            _fields_ = (("x", ctypes.c_void_p), ("shape", ctypes.c_int * 2), ("stride", ctypes.c_int64))

        layout = np.dtype([("x", "u8"), ("shape", "i4", (2,)), ("stride", "i8")], align=True)
        assert (
            given == struct(Tensor, x=a, shape=[10, 4], stride=4) == struct(layout, {"x": a}, shape=(10, 4), stride=4)
        )
        assert given == Struct(np.array([a.address, 10 | 4 << 32, 4], np.uint64).tobytes(), 8)
        b = launcher.output(10, np.float32, name="b")
        launcher.launch(ENTRY, 1, 32, [given, b, np.int32(10), np.float32(3)])
        assert launcher.read(b).tolist() == np.arange(0, 120, 12).tolist()


def test_structs_hold_structs_arrays_of_pointers_and_zeros_between() -> None:
    inner = np.dtype([("flag", "u1"), ("at", "u8", (2,))], align=True)
    outer = np.dtype([("one", inner), ("n", "i2")], align=True)
    x = Buffer("x", 0x1122334455667788, 4, np.dtype("f4"))
    made = struct(outer, one={"flag": 7, "at": [x, 0]}, n=-2)
    assert made.align == 8
    assert made.raw == (bytes([7, *[0] * 7]) + x.address.to_bytes(8, "little") + bytes(8) + b"\xfe\xff" + bytes(6))


def by_value(body: str) -> str:
    """Return an entry with one struct of 192 bytes whose fields the body loads."""
    return f""".version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 p[192])
{{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .b128 %x; .reg .pred %q;
    {body}
    ret;
}}
.visible .entry other(.param .b64 p) {{ .reg .b64 %d<9>; ld.param.b64 %d1, [p]; ret; }}
"""


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ("mov.b64 %d2, p; add.s64 %d1, %d2, 16; ld.param.u64 %d3, [%d1+-16]; ld.param.f32 %r1, [%d1];", "0<u8 16<f4"),
        (
            "cvta.param.u64 %d1, p; add.s64 %d2, %d1, 8; add.s64 %d2, %d1, 8; ld.v2.u32 {%r1, %r2}, [%d2+4];",
            "12<u4 16<u4",
        ),
        ("mov.b64 %d1, p+160; ld.param.b128 %x, [%d1];", "160<u8 168<u8"),
        ("mov.u64 %d1, p; @%q ld.param.u8 %r1, [%d1+191];", "191|u1"),
        (
            "mov.b64 %d1, p; add.s64 %d2, %d1, 64; ld.param.u32 %r1, [p]; prefetch.tensormap [%d2];"
            "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d2, {%r3}], [%r4];",
            "0<u4 64|V128",
        ),
    ],
)
def test_fields_at_addresses_in_registers_are_found(body: str, fields: str) -> None:
    kind = parameter_dtype(by_value(body), "k", 0)
    assert " ".join(f"{name.removeprefix('at_')}{kind[name].str}" for name in kind.names or ()) == fields


@pytest.mark.parametrize(
    "body",
    [
        "mov.b64 %d1, p; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2; ld.param.u32 %r2, [%d3];",
        "mov.b64 %d1, p; L: ld.param.u32 %r2, [%d1]; add.s64 %d1, %d1, 4; setp.eq.u32 %q, %r2, 0; @%q bra L;",
        "ld.param.u64 %d1, [p]; mov.b64 %d2, p; selp.b64 %d3, %d1, %d2, %q; ld.b64 %d1, [%d3];",
        "mov.b64 %d1, p; ld.param.u32 %r1, [%d1]; mov.b64 %d1, 5;",
        ".local .b64 l; cvta.param.u64 %d1, p; st.local.b64 [l], %d1;",
        "mov.u32 %r1, %tid.x; ld.param.u8 %r2, p[%r1];",
        "cvta.param.u64 %d1, p; atom.add.u32 %r1, [%d1], 1;",
    ],
)
def test_an_address_that_varies_or_leaves_the_kernel_is_an_error(body: str) -> None:
    with pytest.raises(RefsimError, match="no constant is the address in p that") as caught:
        parameter_dtype(by_value(body), "k", 0)
    assert caught.value.code == "bad-argument"


def test_a_tensor_map_within_a_struct_is_its_bytes() -> None:
    kind = np.dtype([("map", "V128"), ("n", "i4"), ("_", "V60")])
    made = struct(kind, map=Struct(bytes(range(128)), 64), n=3, _=bytes(60))
    assert made.raw == bytes([*range(128), 3]) + bytes(63)
    with pytest.raises(RefsimError, match="4 bytes in a field of type"):
        struct(kind, map=b"1234", n=3, _=bytes(60))


X = Buffer("x", 1 << 40, 4, np.dtype("f4"))
PLAIN = np.dtype([("x", "u8"), ("n", "i4")], align=True)


def test_numbers_that_a_field_keeps_are_taken():
    layout = np.dtype([("n", "u4"), ("at", "i1", 2), ("x", "f4"), ("is", "?")])
    made = struct(layout, n=np.int32(-1), at=[1.0, np.uint8(2)], x=0.1, **{"is": True})
    assert made.raw == b"\xff\xff\xff\xff\x01\x02" + np.float32(0.1).tobytes() + b"\x01"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("bad-argument", lambda: struct(PLAIN, x=X)),
        ("unknown-name", lambda: struct(PLAIN, x=X, n=1, m=2)),
        ("bad-argument", lambda: struct(PLAIN, x=X, n=1 << 40)),
        ("bad-argument", lambda: struct(PLAIN, x=X, n=X)),
        ("bad-argument", lambda: struct(PLAIN, x=X, n=1.5)),
        ("bad-argument", lambda: struct(PLAIN, x=X, n=np.float32(1.5))),
        ("bad-argument", lambda: struct(PLAIN, x=X, n=np.int64(1 << 40))),
        ("bad-argument", lambda: struct([("at", "u1", 2)], at=[1, 2.5])),
        ("bad-argument", lambda: struct([("is", "?")], **{"is": 2})),
        ("bad-argument", lambda: struct([("x", "O")], x=1)),
        ("bad-argument", lambda: struct([("one", [("x", "O")])], one={"x": 1})),
        ("bad-argument", lambda: struct(PLAIN, x="y", n=1)),
        ("bad-argument", lambda: struct(np.float32, x=X)),
        ("bad-argument", lambda: struct("no dtype", x=X)),
        ("unknown-entry", lambda: parameter_dtype(PTX, "none", 0)),
        ("bad-argument", lambda: parameter_dtype(PTX, ENTRY, 4)),
        ("compile-error", lambda: compiled(None)),
        ("compile-error", lambda: compiled(".version 9.0\n.target sm_90a\n.address_size 64\n")),
        ("unknown-target", lambda: from_cute(len, target="hopper")),
        ("bad-argument", lambda: compiled().launch(None, 1, 32, X, entry="scale")),
        ("unknown-entry", lambda: compiled().launch(None, 1, 32, X, entry="none")),
        ("unknown-entry", lambda: compiled().launch(None, 1, 32, X, entry="kernel")),
        ("bad-argument", lambda: compiled().launch(None, 1, 32, X, X, 1, 2.0)),
        ("bad-argument", lambda: compiled().launch(None, 1, 32, (X, 1, 2, 3, np.int64(4)), X, 1, 2.0)),
        ("bad-argument", lambda: compiled().launch(None, 1, 32, ("x",), X, 1, 2.0)),
        ("bad-argument", lambda: compiled().launch(None, 1, 32, X, "x", 1, 2.0)),
    ],
)
def test_what_does_not_fit_is_one_clear_error(code: str, call: Any) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_a_missing_cute_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cutlass.cute", None)
    with pytest.raises(RefsimError, match="nvidia-cutlass-dsl") as caught:
        from_cute(len)
    assert caught.value.code == "missing-extra"


def test_cute_compiles_and_runs() -> None:
    cutlass = pytest.importorskip("cutlass", reason="CuTe DSL is not installed: pip install 'nvidia-cutlass-dsl[cu13]'")
    cute = pytest.importorskip("cutlass.cute", reason="CuTe DSL is not installed")
    runtime = pytest.importorskip("cutlass.cute.runtime", reason="CuTe DSL is not installed")

    @cute.kernel  # type: ignore[untyped-decorator]
    def double(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32) -> None:
        at, _, _ = cute.arch.thread_idx()
        if at < n:
            y[at] = x[at] + x[at]

    @cute.jit  # type: ignore[untyped-decorator]
    def host(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32) -> None:
        double(x, y, n).launch(grid=[1, 1, 1], block=[32, 1, 1])

    tensors = [runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),)) for _ in "xy"]
    kernel = from_cute(host, *tensors, cutlass.Int32(5))
    with device.open("sim").loaded(kernel.ptx, "double") as launcher:
        x = launcher.upload(np.arange(5, dtype=np.float32), name="x")
        y = launcher.output(5, np.float32, name="y")
        kernel.launch(launcher, 1, 32, (x, 5), (y, 5), 5)
        assert launcher.read(y).tolist() == [0, 2, 4, 6, 8]
