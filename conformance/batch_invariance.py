"""Whether kernels give a row the same words in every batch: our own and those of torch, on a real GPU, with the orders found.

`python conformance/batch_invariance.py OUT` on a machine with a GPU and torch writes OUT/batch_invariance.json, and the table
of it as OUT/batch_invariance.md; with `--page FILE.json` in the place of OUT the table alone is written anew. Sums are those of
`refsim.bringup.order`: an order counts only where computing in it gives every word.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from refsim import device
from refsim.bringup.order import OrderSubject, fingerprint, of_function, of_kernel, of_row_sums
from refsim.bundled import bundled
from refsim.cli.commands.order import facts
from refsim.errors import RefsimError
from refsim.testing import find_kernels

LINEAR_ROWS = (1, 2, 3, 4, 5, 8, 11, 16)
ROWS = (1, 2, 3, 4, 5, 8, 16, 17, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FEW = (16, 64, 512)
OURS = (
    ("linear_bindings.py", None, LINEAR_ROWS, 256, 1024),
    ("linear_fp8_bindings.py", "linear_fp8_weight_n64_s1", LINEAR_ROWS, 256, 512),
    ("linear_fp8_bindings.py", "linear_fp8_weight_n32_s8", LINEAR_ROWS, 256, 1024),
    ("gemm_1d2d.py", "chosen", ROWS, 512, 1024),
    ("gemm_1d2d_splits.py", "fastest", ROWS, 512, 2048),
    ("gemm_1d2d_splits.py", "in_2", ROWS, 128, 512),
    ("attention.py", None, (1, 2, 3, 8, 63, 64, 65, 128, 512), None, 512),
)


@dataclass(frozen=True)
class Library:
    """A call of torch: its name, how it multiplies, types, sizes."""

    name: str
    function: Callable[[Any, Any], Any]
    format: str
    rows: Sequence[int]
    n: int
    k: int
    layout: Any = "nt"
    a_is_free: bool = True
    sums_rows: bool = False

    def subject(self, torch_device: str) -> OrderSubject:
        asked = {"name": self.name, "k": self.k, "rows": self.rows, "torch_device": torch_device}
        if self.sums_rows:
            return of_row_sums(self.function, self.format, **asked)  # type: ignore[arg-type]
        both = self.format, self.format
        return of_function(self.function, *both, n=self.n, layout=self.layout, a_is_free=self.a_is_free, **asked)  # type: ignore[arg-type]


def of_attention() -> Iterator[Library]:
    """scaled_dot_product_attention where all weights are equal: the sum of V over the keys, divided by their number."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attended(backend: Any) -> Callable[[Any, Any], Any]:
        def multiply(weights: Any, v: Any) -> Any:
            q, k = (torch.zeros(1, 1, rows, v.shape[1], dtype=v.dtype, device=v.device) for rows in weights.shape)
            with sdpa_kernel([backend]):
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v.contiguous()[None, None])
            return o[0, 0] * weights.shape[1]

        return multiply

    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
    ):
        for keys in (512, 4096):
            words = f"torch attention, {backend.name.lower().removesuffix('_attention')}"
            yield Library(words, attended(backend), "bf16", ROWS, 64, keys, "nn", a_is_free=False)


def of_sums() -> Iterator[Library]:
    """torch.sum over rows, and the product with ones that a mean or a norm takes instead."""
    import torch

    for format in ("f32", "bf16"):
        for k in (512, 4096):
            yield Library("torch.sum", lambda x: x.sum(-1), format, ROWS, 1, k, sums_rows=True)
    yield Library("torch.mean", lambda x: x.mean(-1) * x.shape[1], "f32", ROWS, 1, 4096, sums_rows=True)
    yield Library("torch.cumsum", lambda x: torch.cumsum(x, -1)[:, -1], "f32", ROWS, 1, 512, sums_rows=True)


def of_torch() -> Iterator[Library]:
    """torch.matmul by type and layout, torch._scaled_mm by scaling, accumulation and result."""
    import torch

    def matmul(*, tf32: bool = False) -> Callable[[Any, Any], Any]:
        def multiply(a: Any, b: Any) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return torch.matmul(a, b)

        return multiply

    def scaled(out: Any, *, fast: bool, rowwise: bool) -> Callable[[Any, Any], Any]:
        def multiply(a: Any, b: Any) -> Any:
            heights = (len(a), b.shape[1]) if rowwise else (1, 1)
            of_a = torch.ones((heights[0], 1) if rowwise else (), dtype=torch.float32, device=a.device)
            of_b = torch.ones((1, heights[1]) if rowwise else (), dtype=torch.float32, device=a.device)
            return torch._scaled_mm(a, b, of_a, of_b, out_dtype=out, use_fast_accum=fast)

        return multiply

    for format in ("bf16", "f16"):
        yield Library("torch.matmul", matmul(), format, ROWS, 256, 512)
        yield Library("torch.matmul", matmul(), format, ROWS, 1024, 4096)
    yield Library("torch.matmul, B by rows", matmul(), "bf16", ROWS, 512, 2048, "nn")
    yield Library("torch.matmul", matmul(), "f32", ROWS, 256, 512)
    yield Library("torch.matmul", matmul(), "f32", ROWS, 512, 2048)
    yield Library("torch.matmul, tf32", matmul(tf32=True), "tf32", ROWS, 256, 512)
    yield Library("torch.matmul, tf32", matmul(tf32=True), "tf32", ROWS, 512, 2048)
    for out in (torch.bfloat16, torch.float32):
        for fast in (True, False):
            words = f"torch._scaled_mm, {'fast' if fast else 'slow'} accumulation"
            yield Library(words, scaled(out, fast=fast, rowwise=False), "e4m3", ROWS, 256, 1024)
    yield Library(
        "torch._scaled_mm, fast accumulation", scaled(torch.float32, fast=True, rowwise=False), "e4m3", FEW, 64, 8192
    )
    for fast in (True, False):
        words = f"torch._scaled_mm by rows, {'fast' if fast else 'slow'} accumulation"
        yield Library(words, scaled(torch.bfloat16, fast=fast, rowwise=True), "e4m3", ROWS, 256, 1024)


def of_scales() -> Iterator[Library]:
    """torch._scaled_mm with scales that are powers of two, of each row and column: taken off again, words are those of ones."""
    import torch

    def multiply(a: Any, b: Any) -> Any:
        of_a, of_b = (2.0 ** (torch.arange(n, device=a.device) * 5 % 13 - 6) for n in (len(a), b.shape[1]))
        scales = of_a[:, None].float().contiguous(), of_b[None].float().contiguous()
        scaled = torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16, use_fast_accum=True)
        return (scaled / of_a[:, None] / of_b).bfloat16()

    def per_tensor(a: Any, b: Any) -> Any:
        of_a, of_b = (torch.tensor(each, device=a.device) for each in (2.0**-5, 2.0**3))
        return torch._scaled_mm(a, b, of_a, of_b, out_dtype=torch.float32, use_fast_accum=True) * 4

    yield Library("torch._scaled_mm by rows, scales of each row", multiply, "e4m3", ROWS, 256, 1024)
    yield Library("torch._scaled_mm, scales 2^-5 and 2^3", per_tensor, "e4m3", ROWS, 256, 1024)


def subjects(card: device.Device) -> Iterator[tuple[str, Callable[[], OrderSubject]]]:
    """Every subject by its name; made when it is its turn, as a library may refuse a shape."""
    for file, product, rows, n, k in OURS:
        for kernel in find_kernels([bundled(f"gpu/{file}")]):
            for name in kernel.products:
                if (product is None and "x" not in name) or name == product:
                    label = f"{kernel.name}, {name}"
                    yield (
                        label,
                        lambda kernel=kernel, name=name, n=n, k=k, rows=rows: of_kernel(  # type: ignore[misc]
                            kernel, card, name, n=n, k=k, rows=rows
                        ),
                    )
    for each in (*of_torch(), *of_scales(), *of_attention(), *of_sums()):
        yield each.name, partial(each.subject, "cpu" if card.is_simulated else "cuda")


def measured(number: int, given: argparse.Namespace, until: float) -> dict[str, Any] | None:
    """What was found of one subject; where no time is left it says so, None where its name was not asked for."""
    card = device.open(given.device)
    label, make = list(subjects(card))[number]
    if re.search(given.only, label) is None:
        return None
    started = time.time()
    if started > until:
        return {"subject": label, "error": "no time was left"}
    try:
        found = {**facts(fingerprint(make(), seeds=range(given.seeds))), "subject": label}
    except RefsimError as error:
        found = {"subject": label, "error": str(error)}
    print(f"{time.time() - started:6.1f} s  {label}: {_verdict(found)}", flush=True)
    for order in found.get("orders", ()):
        del order["tree"]  # `lines` say it; a tree of 8192 products is a page by itself
    return found


def all_measured(given: argparse.Namespace, card: device.Device) -> Iterator[dict[str, Any]]:
    """Every subject as it is found, in several processes: most of the time goes into computing on the host."""
    count, until = len(list(subjects(card))), time.time() + given.seconds
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for done in as_completed(pool.submit(measured, number, given, until) for number in range(count)):
            if (found := done.result()) is not None:
                yield found


def page(record: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Batch invariance",
        "",
        f"Measured on {record['about']['device']}, torch {record['about']['torch']}, {record['seeds']} seeds:"
        " `python conformance/batch_invariance.py OUT`.",
        "",
        "A kernel is batch invariant where a row gives the same words at every M that was tried and at every place of the batch.",
        "Words explained: of all results, those that computing in the order found gives, bit for bit.",
        "",
        "| kernel | types | N, K | M | batch invariant | orders | words explained |",
        "|---|---|---|---|---|---:|---:|",
    ]
    lines += [_row(each) for each in record["subjects"]]
    for each in record["subjects"]:
        if "orders" in each:
            lines += ["", f"## {each['subject']}: {_types(each)}, N = {each['n']}, K = {each['k']}", "", *_orders(each)]
    return "\n".join(lines) + "\n"


def _types(each: dict[str, Any]) -> str:
    return f"{each['a_format']} x {each['b_format']} -> {each['d_format']}"


def _row(each: dict[str, Any]) -> str:
    if "error" in each:
        return f"| {each['subject']} | | | | not found out: {each['error'].splitlines()[0]} | | |"
    sizes = [str(size["m"]) for size in each["sizes"]]
    share = f"{each['explained']:,} of {each['words']:,}" + ("" if each["explained"] == each["words"] else " (not all)")
    return (
        f"| {each['subject']} | {_types(each)} | {each['n']}, {each['k']} | {', '.join(sizes)} | {_verdict(each)}"
        f" | {len(each['orders'])} | {share} |"
    )


def _verdict(each: dict[str, Any]) -> str:
    if "error" in each:
        return str(each["error"]).splitlines()[0]
    again = "" if each["repeatable"] else "; not repeatable"
    return ("yes" if each["batch_invariant"] else f"no, from M = {each['difference']['m']}") + again


def _orders(each: dict[str, Any]) -> list[str]:
    lines = []
    for number, order in enumerate(each["orders"], 1):
        here = [f"{size['m']}" for size in each["sizes"] if number in {part["order"] for part in size["orders"]}]
        gives = f"{order['equal']:,} of {order['words']:,} words where it was found"
        lines += [f"Order {number}, M = {', '.join(here)} ({gives}):", ""]
        lines += ["```", *order["lines"], "```", ""]
    lines += [f"M = {size['m']}: {size['why']}" for size in each["sizes"] if "why" in size]
    if (at := each["difference"]) is not None:
        words = f"{at['got']:#x}, at M = {each['sizes'][0]['m']} the same row gave {at['want']:#x}"
        lines += [f"The first word that differs: D[{at['row']}, {at['column']}] at M = {at['m']} is {words}."]
    return lines[:-1] if lines and not lines[-1] else lines


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("out", type=Path, help="a folder, or with --page the recorded JSON")
    asked.add_argument("--page", action="store_true", help="only write the table of a recording anew")
    asked.add_argument("--seconds", type=float, default=130, help="start no subject later than this")
    asked.add_argument("--device", default="cuda", help="cuda, or sim: then torch computes on the host")
    asked.add_argument("--only", default="", help="subjects whose names match this pattern")
    asked.add_argument("--jobs", type=int, default=1, help="processes")
    asked.add_argument("--seeds", type=int, default=2)
    given = asked.parse_args()
    if given.page:
        given.out.with_suffix(".md").write_text(page(json.loads(given.out.read_text("utf-8"))), "utf-8")
        return
    import torch

    card = device.open(given.device)
    about = {**card.describe(), "torch": torch.__version__, "cuda of torch": str(torch.version.cuda)}
    record: dict[str, Any] = {"device": card.name, "about": about, "seeds": given.seeds, "subjects": []}
    given.out.mkdir(parents=True, exist_ok=True)
    names = [label for label, _ in subjects(card)]
    for found in all_measured(given, card):
        record["subjects"] = sorted([*record["subjects"], found], key=lambda each: names.index(each["subject"]))
        (given.out / "batch_invariance.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        (given.out / "batch_invariance.md").write_text(page(record), "utf-8")


if __name__ == "__main__":
    main()
