"""Print, as JSON, what Triton says of shared layouts and of bank conflicts; a program, since Triton aborts on misuse.

"tiles": offset bases of NVMMAShared layouts. "accesses": the bases of a register and a shared layout, and the conflicts
that Triton counts for moving one into the other.
"""

import json
from itertools import product
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language._semantic import GluonSemantic

SHAPE = (64, 128)
REGISTERS = [
    *(
        gl.BlockedLayout([1, values], [32 // lanes, lanes], [4, 1], [1, 0])
        for values, lanes in ((1, 32), (1, 8), (4, 8), (8, 4), (16, 8), (2, 4))
    ),
    *(gl.BlockedLayout([values, 1], [8, 4], [4, 1], [0, 1]) for values in (1, 4)),
    gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]),
]
found: dict[str, list[dict[str, Any]]] = {"tiles": [], "accesses": []}


def fits(span: int, element_bytes: int, transposed: bool, shape: tuple[int, int]) -> bool:
    return (shape[0] if transposed else shape[1]) * element_bytes >= span


def ask(semantic: Any, *_: Any) -> int:
    """Stands in for gl.bank_conflicts, the one place where a builder with a module is at hand."""
    builder = semantic.builder
    for span, size, transposed, shape in product((32, 64, 128), (1, 2, 4), (False, True), ((64, 128), (128, 256))):
        if fits(span, size, transposed, shape):
            shared = gl.NVMMASharedLayout(span, 8 * size, 2, transposed)._to_ir(builder)
            bases = builder.to_linear_layout(shared, list(shape)).offset_bases
            found["tiles"].append(
                {"span": span, "bytes": size, "transposed": transposed, "shape": shape, "bases": bases}
            )
    for size in (1, 2, 4):
        shareds: list[Any] = [
            gl.NVMMASharedLayout(span, 8 * size, 2, transposed)
            for span, transposed in product((32, 64, 128), (False, True))
            if fits(span, size, transposed, SHAPE)
        ]
        shareds += [gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), gl.SwizzledSharedLayout(8, 1, 8, [1, 0])]
        for register, shared in product(REGISTERS, shareds):
            held, kept = register._to_ir(builder), shared._to_ir(builder)
            lanes = builder.to_linear_layout(held, list(SHAPE))
            found["accesses"].append(
                {
                    "bytes": size,
                    "register_bases": lanes.reg_bases,
                    "lane_bases": lanes.lane_bases,
                    "shared_bases": builder.to_linear_layout(kept, list(SHAPE)).offset_bases,
                    "conflicts": builder.get_shared_bank_conflicts(held, kept, list(SHAPE), 8 * size),
                }
            )
    return 0


@gluon.jit
def kernel():  # type: ignore[no-untyped-def]
    conflicts: gl.constexpr = gl.bank_conflicts(0, 0)  # noqa: F841


GluonSemantic.bank_conflicts = ask
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
options = backend.parse_options({"num_warps": 4})
context = ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
source = GluonASTSource(fn=kernel, signature={}, constexprs={}, attrs={})
source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
print(json.dumps(found))
