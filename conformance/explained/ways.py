"""The operands of a broken kernel's problem as a user has them: what `refsim explain-diff` is given beside two outputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import refsim
from refsim.causes import AttentionOperands, ProductOperands, QuantizedFrom, RowOperands
from refsim.formats import format_named
from refsim.oracles import fp8_quantize
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

LAYOUTS = load_kernel_file(bundled_kernels("group_quantize_bindings.py")).LAYOUTS

Asked = tuple[Any, Any, dict[str, Any]]
"""An output, the right one, and the arguments of `explain_diff` beside them."""
Ways = Callable[[Any, str, Any, Any, Any], Asked]
"""What is asked of a problem, the name of an output, its codes and the right ones, and every output by its name so."""
Pairs = dict[str, tuple[Any, Any]]


def gemm(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    a, b, sa, sb = problem.operands
    return got, want, {"operands": ProductOperands(a=a, b=b, a_format="e4m3", b_format="e4m3", a_scale=sa, b_scale=sb)}


def linear(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """bf16 operands; weights of FP8 as the bf16 that they stand for, C is the residual."""
    batch, columns, reduction = problem.batch, problem.output, problem.reduction
    x = problem.x.codes("bf16", batch, reduction)
    residual = None if problem.r is None else problem.r.codes("bf16", batch, columns)
    if hasattr(problem, "scales"):
        codes = problem.w.codes("e4m3", columns, reduction)
        scales = refsim.decode(problem.scales.codes("bf16", *problem.grid), "bf16")
        spread = np.repeat(np.repeat(scales, problem.wb_n, 0), problem.wb_k, 1)[:columns, :reduction]
        w = refsim.encode(refsim.decode(codes, "e4m3") * spread, "bf16")
    else:
        w = problem.w.codes("bf16", columns, reduction)
    c = None if residual is None else refsim.decode(residual, "bf16", dtype=np.float32)
    return (
        got,
        want,
        {"operands": ProductOperands(a=x, b=w, a_format="bf16", b_format="bf16", c=c, unit="mma.sync", k=16)},
    )


def blocks(target: str, problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Codes and scales in rows: what was shuffled for the kernel."""
    a, b, sa, sb = problem.operands
    row = problem.row
    given = ProductOperands(
        a=a,
        b=b,
        a_format=row.a,
        b_format=row.b,
        a_scale=sa,
        b_scale=sb,
        scale_format=row.stored.name,
        global_scale=problem.factor,
        target=target,
    )
    return got, want, {"operands": given}


def block_quantiser(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Codes with their scales, or scales alone; where scales lie, and S where it was given."""
    given = QuantizedFrom(
        x=problem.codes(),
        x_format=problem.wide,
        to=problem.format,
        recipe=problem.recipe,
        layout="nvidia_128x4",
        tensor_scale=problem.tensor_scale or None,
    )
    return got, want, {"quantized": _with_scales(given, output, beside)}


def group_quantiser(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    layout = LAYOUTS[problem.scale].name if problem.mn_major else None
    to = f"{problem.group_rows}x128"
    given = QuantizedFrom(x=problem.codes(), x_format=problem.format, to=to, layout=layout, eps=problem.eps)
    return got, want, {"quantized": _with_scales(given, output, beside)}


def _with_scales(given: QuantizedFrom, output: str, beside: Pairs) -> QuantizedFrom:
    if output != "q":
        return given
    scales, right = beside["scales"]
    return replace(given, scales=scales, want_scales=right)


def tensor(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """What one scale quantised; where the largest magnitude was given, what is rounded: x times its scale."""
    if output != "q":
        return got, want, {}
    if problem.amax_bits is None:
        given = QuantizedFrom(x=problem.x.codes()[None], x_format=problem.x.format, to="tensor", eps=problem.eps)
        return got[None], want[None], {"quantized": given}
    x = refsim.decode(problem.x.codes(), problem.x.format, dtype=np.float32)
    codes, eps = problem.x.codes(), np.float32(problem.eps)
    amax = fp8_quantize.amax(codes, problem.x.format) if problem.amax_bits is None else problem.amax_bits
    largest = max(np.uint32(amax).view(np.float32), eps)
    with np.errstate(all="ignore"):
        return got, want, {"values": x * np.float32(format_named(problem.to).max_value / largest)}


def experts(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """The rows of the expert in which most differs, and its own operands."""
    if output != "d":
        return got, want, {}
    a, b, sa, sb = problem.operands
    rows = np.flatnonzero(problem.counted)
    owners = rows // problem.m if problem.is_masked else problem.groups[rows]
    chosen = max(range(len(b)), key=lambda expert: int((got != want)[owners == expert].sum()))
    mine = owners == chosen
    left, scales = (each.reshape(-1, each.shape[-1])[rows[mine]] for each in (a, sa))
    operands = ProductOperands(
        a=left, b=b[chosen], a_format="e4m3", b_format="e4m3", a_scale=scales, b_scale=sb[chosen]
    )
    return got[mine], want[mine], {"operands": operands}


def rows(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Softmax, whose kernel takes its scale times log2(e), or RMSNorm with its weights and gate."""
    common = {"x": problem.codes(), "x_format": problem.wide}
    if hasattr(problem, "scale"):
        return got, want, {"operands": RowOperands(function="softmax", scale=problem.scale / np.log2(np.e), **common)}
    more = {"weight": problem.weights, "gate": problem.gates, "eps": problem.eps}
    return got, want, {"operands": RowOperands(function="rms_norm", **more, **common)}


def attention(problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Q, K and V with the mask, the scale, and a scale for each head where there are some."""
    q, k, v = problem.operands
    given = AttentionOperands(q=q, k=k, v=v, format=problem.type, causal=problem.causal, scale=problem.scale)
    if problem.factors is not None:
        of_q, of_k, of_v = problem.factors
        given = replace(given, q_scale=of_q, k_scale=of_k, v_scale=of_v)
    return got, want, {"operands": given}


def _given(kernel: Any, problem: Any) -> Any:
    """What a kernel of `conformance/field_bugs/scaled.py` read: its oracle is a method of what declares it."""
    return kernel.oracle.__self__.given(problem)


def multiplied(kernel: Any, problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Values and their scales."""
    x, scales = _given(kernel, problem)[:2]
    return got.reshape(x.shape), want.reshape(x.shape), {"values": x, "scales": scales}


def quantised_rows(kernel: Any, problem: Any, output: str, got: Any, want: Any, beside: Pairs) -> Asked:
    """Rows of 128 with a scale each."""
    given = QuantizedFrom(x=_given(kernel, problem)[0], to="1x128", eps=1e-12)
    return got, want, {"quantized": _with_scales(given, output, beside)}
