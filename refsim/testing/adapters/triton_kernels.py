"""Triton: the PTX of a jit function, the launch parameters in its metadata, tensor descriptors, and known defects.

A finding that matches a defect belongs to the compiler, not to the kernel. An entry says up to which version the defect
exists, and which change fixed it. Functions of Gluon place fences and shared-memory stores themselves, so such findings
are theirs. Host code passes a descriptor as a tensor map or as numbers.
"""

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from refsim.errors import RefsimError, counted, missing_extra
from refsim.integers import is_whole
from refsim.kernels import Buffer, Launcher
from refsim.layouts import tensor_map
from refsim.layouts.tma import DATA_TYPES, NAN_REQUEST, SWIZZLE_MODES, ZEROS
from refsim.ptx import Extents
from refsim.ptx.findings.table import CompilerDefect, defect_of
from refsim.ptx.machine.launch_rules import extents
from refsim.ptx.text.parser import signatures
from refsim.render.cards import FieldsCard
from refsim.sources import LLVM, PTX, TRITON

_ASYNC_READS = r"wgmma\.mma_async|tcgen05\.(mma|cp)"
# fmt: off
COPIES_UNFENCED = CompilerDefect(
    "copies-unfenced", (3, 7, 1), "missing-proxy-fence", _ASYNC_READS, r"wrote there by cp\.async\.c[ag]",
    "Triton before 3.7.1 leaves out the proxy fence between cp.async and the products that read what it brought: not a mistake "
    "of this kernel",
    TRITON["pull requests 9610 and 10537"],
)
LANES_DISAGREE = CompilerDefect(
    "lanes-disagree", None, "race", r"st\.shared", r"by the same instruction",
    "Triton, up to 3.9, lets all lanes of a warp store the result of a reduction to one place, also where their bits differ as a "
    "product is fused into the first sum: not a mistake of this kernel, but on hardware any of them may win. "
    "enable_fp_fusion=False makes them agree",
    TRITON["issues 7264 and 11614"],
    is_open=True,
)
TRITON_DEFECTS = (
    COPIES_UNFENCED,
    LANES_DISAGREE,
    CompilerDefect(
        "map-copied-unsynchronised", (3, 9), "race", r"tensormap\.cp_fenceproxy", r"by tensormap\.replace\S* .*wrote",
        "Triton before 3.9 leaves out bar.warp.sync between the thread that makes a tensor map and the warp that copies it: not "
        "a mistake of this kernel",
        TRITON["pull request 11480"],
    ),
    CompilerDefect(
        "barriers-not-ended", (3, 8), "barrier-misuse", r"mbarrier\.init", "an object that is live",
        "Triton before 3.8 never ends the barriers of specialised warps, and makes others in their place: not a mistake of this "
        "kernel",
        TRITON["pull request 9592"],
    ),
    CompilerDefect(
        "commit-by-shared-address", (3, 7), "barrier-misuse", r"tcgen05\.commit", "an mbarrier object in global memory",
        "Triton before 3.7 gives tcgen05.commit a shared address where a generic one is meant: not a mistake of this kernel",
        TRITON["TCGen5CommitOp, as its PTX has it"],
    ),
    CompilerDefect(
        "weak-load-before-cas", (3, 8), "race", r"atom\S*\.cas", r"by ld\.global\.b\d+ at .*reads",
        "the LLVM of Triton before 3.8 begins the loop that makes an atomic of compare-and-swap with a weak load: not a "
        "mistake of this kernel",
        LLVM["pull request 188361"],
    ),
    CompilerDefect(
        "registers-copied-behind-the-fence", None, "unfenced-register", r"wgmma\.mma_async",
        r"which mov\.b\d+ at .*(wrote|read), and no wgmma\.fence",
        "the LLVM of Triton, up to 3.9, copies registers of a wgmma after its fence, for which ptxas injects another (C7519): "
        "not a mistake of this kernel",
        PTX["wgmma.fence"],
    ),
)
# fmt: on
_OF_FUNCTIONS = (COPIES_UNFENCED, LANES_DISAGREE)
"""Defects that functions of Gluon can only have themselves."""


def known_defects(version: str, *, is_gluon: bool = False) -> tuple[CompilerDefect, ...]:
    """Return the defects of a Triton version: known_defects("3.6.0") has seven entries, known_defects("3.9.0") two."""
    number = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return tuple(row for row in TRITON_DEFECTS if row.is_of(number) and not (is_gluon and row in _OF_FUNCTIONS))


Padding = Literal["zero", "nan"]
_OF_DRIVER = {8: 10, 9: 8, 10: 9}
"""The driver's number of an element type, by Triton's number (the one of tensormap.replace), where the two differ."""
_TF32 = "tfloat32"
_MOST_EXTENT, _MOST_STRIDE = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, repr=False)
class TritonDescriptor(FieldsCard):
    """A tensor in a Buffer, like Triton's TensorDescriptor of a PyTorch tensor: TritonDescriptor(x, (heads, 64, 32)).

    `shape` and `strides` (dense if left out) count elements, outermost first; the innermost stride is 1. `padding` is
    the value of a box outside the tensor. The block belongs to the signature: "tensordesc<fp16[1,64,32]>". Raises
    RefsimError bad-descriptor. Source: Triton, tools/tensor_descriptor.py and the launcher of its NVIDIA backend.
    """

    base: Buffer
    shape: Sequence[int]
    strides: Sequence[int] | None = None
    padding: Padding = "zero"
    round_f32_to_tf32: bool = False

    def __post_init__(self) -> None:
        """Raise RefsimError bad-descriptor for a field of a wrong type or range."""
        if not isinstance(self.base, Buffer):
            what = f"base {self.base!r:.40}"
            raise RefsimError("bad-descriptor", what, help="a buffer that upload or output returned")
        if not _are_whole(self.shape, 1, _MOST_EXTENT) or not _are_whole(self.steps, 0, _MOST_STRIDE):
            raise self._misfit()
        if not 1 <= len(self.shape) <= 5 or len(self.steps) != len(self.shape) or self.steps[-1] != 1:
            raise self._misfit()
        if not isinstance(self.padding, str) or self.padding not in get_args(Padding):
            raise RefsimError("bad-descriptor", f"padding {self.padding!r:.40}", rule=f"one of {get_args(Padding)}")
        if not isinstance(self.round_f32_to_tf32, bool):
            what = f"round_f32_to_tf32 {self.round_f32_to_tf32!r:.40}"
            raise RefsimError("bad-descriptor", what, rule="True or False")

    def _misfit(self) -> RefsimError:
        rule = "1 to 5 extents from 1 to 2^31 - 1, as many strides in elements, the last of them 1"
        return RefsimError("bad-descriptor", f"shape {self.shape!r:.60} with strides {self.strides!r:.60}", rule=rule)

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the strides in elements, dense if none were given."""
        if self.strides is None:
            return tuple(prod(map(int, self.shape[axis + 1 :])) for axis in range(len(self.shape)))
        if not _are_whole(self.strides, 0, _MOST_STRIDE):
            raise self._misfit()
        return tuple(map(int, self.strides))


def _are_whole(values: object, least: int, most: int) -> bool:
    """Return whether `values` is a list of whole numbers from `least` to `most`."""
    is_list = isinstance(values, Sequence) or (isinstance(values, np.ndarray) and values.ndim == 1)
    return is_list and all(is_whole(value, least, most) for value in values)  # type: ignore[attr-defined]


def is_descriptor(kind: str) -> bool:
    """Return whether a Triton type is a tensor descriptor: tensordesc<fp16[64,32]>."""
    return kind.startswith("tensordesc")


def parameter_count(kind: str, is_mapped: bool) -> int:
    """Return how many parameters an argument becomes; a descriptor is a map, or base and flags, extents and strides."""
    if not is_descriptor(kind):
        return 1
    rank = kind.partition("[")[2].partition("]")[0].count(",") + 1
    return 1 + 2 * rank if is_mapped else 3 + 4 * rank


def descriptor_values(kind: str, argument: Any, said: Mapping[str, Any] | None) -> list[Any]:
    """Return the parameters of a descriptor: a tensor map if Triton `said` how, else address, extents and strides.

    Extents and strides follow once more, for the kernel's own arithmetic.
    """
    if not isinstance(argument, TritonDescriptor):
        what = f"{type(argument).__name__} for {kind}"
        raise RefsimError("bad-descriptor", what, help="give TritonDescriptor(buffer, shape)")
    extents, steps = [np.int32(extent) for extent in argument.shape], [np.int64(step) for step in argument.steps]
    if said is not None:
        return [_mapped(kind, argument, said), *extents, *steps]
    flags = [np.bool_(argument.padding == "nan"), np.bool_(argument.round_f32_to_tf32)]
    return [argument.base, *map(np.int64, argument.shape), *steps, *flags, *extents, *steps]


def _mapped(kind: str, argument: TritonDescriptor, said: Mapping[str, Any]) -> Any:
    """Return the tensor map of a descriptor, by Triton's metadata `said`."""
    box = said["block_size"]
    if said.get("is_im2col") or len(box) != len(argument.shape):
        what = "boxes of im2col" if said.get("is_im2col") else f"a tensor of {len(argument.shape)} dimensions"
        raise RefsimError("bad-argument", f"{what} for {kind}")
    number = _OF_DRIVER.get(said["elem_type"], said["elem_type"])
    element = _TF32 if argument.round_f32_to_tf32 else next(row.name for row in DATA_TYPES if row.code == number)
    *outer, inner = map(int, argument.shape)
    return tensor_map(
        element,
        (inner * 2 if said["fp4_padded"] else inner, *reversed(outer)),
        tuple(reversed(box)),
        strides=tuple(said["elem_size"] * step for step in reversed(argument.steps[:-1])),
        address=argument.base.address,
        swizzle=SWIZZLE_MODES[said["swizzle"]],
        l2_promotion="128B",
        oob_fill=NAN_REQUEST if argument.padding == "nan" else ZEROS,
    )


SCALARS = {
    "i1": np.bool_,
    "u1": np.bool_,
    **{f"i{bits}": np.dtype(f"i{bits // 8}").type for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"u{bits // 8}").type for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": np.dtype(f"f{bits // 8}").type for bits in (16, 32, 64)},
}
"""Triton's scalar types as NumPy types; a bf16 is given as a NumPy scalar of ml_dtypes."""
_SCRATCH = ("global_scratch", "profile_scratch")
_ALIGNED = 16


@dataclass(frozen=True, repr=False)
class TritonKernel(FieldsCard):
    """A function compiled by Triton: `Kernel(ptx=k.ptx, ...)`, and `k.launch(launcher, grid, x, y, n)` in its run.

    - `ptx`: the PTX that Triton made.
    - `entry`: the name of the entry.
    - `parameters`: the types of the arguments in order, without constants.
    - `threads`, `shared_bytes`, `ctas`: threads and dynamic shared memory of a block, and blocks of a cluster.
    - `cooperative`: all blocks must be resident.
    - `scratch`: (bytes per program, alignment) of each hidden parameter after the arguments.
    - `version`: the version of Triton.
    - `aligned`: the positions of arguments that must be multiples of 16.
    - `descriptors`: Triton's metadata of each tensor map; empty for targets without tensor maps.
    - `programmatic`: it was compiled with launch_pdl.
    - `is_gluon`: it is a function of Gluon.
    """

    ptx: str
    entry: str
    parameters: tuple[str, ...]
    threads: int
    shared_bytes: int
    ctas: int
    cooperative: bool
    scratch: tuple[tuple[int, int], ...]
    version: str
    aligned: tuple[int, ...] = ()
    descriptors: tuple[Mapping[str, Any], ...] = ()
    programmatic: bool = False
    is_gluon: bool = False

    def launch(self, launcher: Launcher, grid: Extents, *args: Any) -> None:
        """Run `grid` programs; numbers are converted to the signature's types, None is a null pointer.

        A descriptor is a `TritonDescriptor` over a Buffer.
        """
        if len(args) != len(self.parameters):
            what = f"{self.entry} takes {counted(len(self.parameters), 'argument')}, given: {len(args)}"
            rule = f"in order: {', '.join(self.parameters)}; constants are left out"
            raise RefsimError("bad-argument", what, rule=rule)
        for place in self.aligned:
            self._check_aligned(place, args[place])
        said = iter(self.descriptors)
        values = [
            each for kind, given in zip(self.parameters, args, strict=True) for each in _values(kind, given, said)
        ]
        first, second, third = extents("grid", grid)
        blocks = (first * self.ctas, second, third)
        hidden = [self._scratch(launcher, place, prod(blocks)) for place in range(len(self.scratch))]
        try:
            launcher.launch(self.entry, blocks, self.threads, [*values, *hidden], self.shared_bytes, **self._options())
        except RefsimError as error:
            raise self._with_its_cause(error) from error

    def _with_its_cause(self, error: RefsimError) -> RefsimError:
        """Return the error, with the known defect of this Triton version if it matches one."""
        opcode, _, _ = error.where.partition(" at ")
        defect = defect_of(error, opcode, known_defects(self.version, is_gluon=self.is_gluon))
        return error if defect is None else defect.named(error)

    def _check_aligned(self, place: int, argument: Any) -> None:
        """Raise RefsimError bad-argument unless an argument is a multiple of 16, which the code relies on."""
        number = argument.address if isinstance(argument, Buffer) else argument
        if number is not None and int(number) % _ALIGNED:
            what = f"argument {place} of {self.entry} is {number}, no multiple of {_ALIGNED}"
            rule = "it was compiled with aligned=, for multiples alone"
            raise RefsimError("bad-argument", what, rule=rule, help="leave its name out of aligned=")

    def _options(self) -> dict[str, Any]:
        asked = {"cooperative": self.cooperative, "programmatic": self.programmatic}
        clustered = {"cluster": self.ctas} if self.ctas > 1 else {}
        return {**clustered, **{name: True for name, is_asked in asked.items() if is_asked}}

    def _scratch(self, launcher: Launcher, place: int, blocks: int) -> Buffer | np.uint64:
        """Return a zeroed buffer for a hidden parameter of `blocks` programs; a null pointer if it needs no bytes."""
        size, align = self.scratch[place]
        if not size:
            return np.uint64(0)
        fresh = np.zeros(size * blocks, np.uint8)
        buffer = launcher.upload(fresh, name=f"{self.entry} {_SCRATCH[place]}", writable=True)
        if buffer.address % align:
            raise RefsimError("bad-argument", f"{buffer.name} lies at {buffer.address:#x}, aligned to {align}")
        return buffer


def from_triton(
    jit_function: Any,
    signature: Mapping[str, str] | Sequence[str],
    constexprs: Mapping[str, Any],
    target: str,
    *,
    aligned: Sequence[str] = (),
    **options: Any,
) -> TritonKernel:
    """Compile a `@triton.jit` or `@gluon.jit` function without a GPU: from_triton(f, {"x": "*fp32"}, {"N": 64}, "sm_89").

    `signature` gives the types of the arguments by name (or in order), without constants; a tensor descriptor is
    "tensordesc<fp16[64,32]>", with the block that the kernel loads. `aligned` names arguments that are multiples of 16,
    which vector accesses need. `options` are launch options: num_warps, num_ctas, launch_pdl, ... Raises RefsimError:
    `missing-extra` if Triton is not installed (exit 4), `compile-error` with its message. Source: Triton,
    triton.compile and the launcher of its NVIDIA backend.
    """
    try:
        triton = importlib.import_module("triton")
        compiler, backends = (importlib.import_module(f"triton.{name}.compiler") for name in ("compiler", "backends"))
    except ImportError as missing:
        raise missing_extra(f"triton is not installed: {missing}", "pip install triton") from missing
    types = _types(jit_function, signature, constexprs)
    source = _source_class(jit_function, compiler)(
        jit_function,
        signature={name: types.get(name, "constexpr") for name in jit_function.arg_names},
        constexprs=dict(constexprs),
        attrs={(jit_function.arg_names.index(name),): [["tt.divisibility", _ALIGNED]] for name in aligned},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = compiler.compile(source, target=backends.GPUTarget("cuda", _capability(target), 32), options=options)
        except Exception as error:
            what = f"Triton raised {type(error).__name__}: {error}"
            raise RefsimError("compile-error", what, f"{jit_function.__name__} for {target}") from error
    said, text, entry = made.metadata, made.asm["ptx"], made.metadata.name
    descriptors = tuple(getattr(said, "tensordesc_meta", None) or ())
    own = sum(parameter_count(kind, bool(descriptors)) for kind in types.values())
    hidden = len(signatures(text).functions[entry].parameters) - own
    return TritonKernel(
        text,
        entry,
        tuple(types.values()),
        32 * said.num_warps,
        said.shared,
        said.num_ctas,
        bool(said.launch_cooperative_grid),
        tuple((getattr(said, f"{name}_size"), getattr(said, f"{name}_align")) for name in _SCRATCH[:hidden]),
        triton.__version__,
        tuple(place for place, name in enumerate(types) if name in aligned),
        descriptors,
        bool(getattr(said, "launch_pdl", False)),
        is_gluon=_is_gluon(jit_function),
    )


def _source_class(jit_function: Any, compiler: Any) -> Any:
    """Return the class that Triton compiles a function with: Gluon has its own."""
    if not _is_gluon(jit_function):
        return compiler.ASTSource
    return importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource


def _is_gluon(jit_function: Any) -> bool:
    return bool(getattr(jit_function, "is_gluon", bool)())


def _types(
    jit_function: Any, signature: Mapping[str, str] | Sequence[str], constexprs: Mapping[str, Any]
) -> dict[str, str]:
    """Return the types of the arguments in order, by name; raise RefsimError bad-kernel if they do not fit."""
    names = [name for name in jit_function.arg_names if name not in constexprs]
    given = dict(signature) if isinstance(signature, Mapping) else dict(zip(names, signature, strict=False))
    types = {name: given[name] for name in names if name in given}
    if list(types) != names:
        raise RefsimError("bad-kernel", f"{jit_function.__name__} takes {names}, the signature has {list(given)}")
    return types


def _capability(target: str) -> int:
    number = re.fullmatch(r"sm_(\d+)[af]?", target)
    if number is None:
        raise RefsimError("unknown-target", f"{target!r} is not a target", help="write sm_89")
    return int(number[1])


def _values(kind: str, argument: Any, said: Iterator[Mapping[str, Any]]) -> list[Any]:
    """Return the launch parameters of an argument."""
    if is_descriptor(kind):
        return descriptor_values(kind, argument, next(said, None))
    return [_value(kind, argument)]


def _value(kind: str, argument: Any) -> Any:
    if argument is None:
        return np.uint64(0)
    scalar = SCALARS.get(kind)
    return argument if scalar is None or isinstance(argument, Buffer | np.generic) else scalar(argument)
