"""Triton: the PTX of a jit function, and the launch parameters in its metadata."""

import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from refsim.errors import RefsimError, counted, missing_extra
from refsim.kernels import Buffer, Launcher
from refsim.ptx import Extents
from refsim.ptx.findings.table import defect_of
from refsim.ptx.machine.launch_rules import extents
from refsim.ptx.text.parser import signatures
from refsim.render.cards import FieldsCard
from refsim.testing.adapters.triton_defects import known_defects
from refsim.testing.adapters.triton_descriptors import descriptor_values, is_descriptor, parameter_count

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
