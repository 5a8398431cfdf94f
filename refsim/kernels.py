"""The declaration of a kernel: its code, how to run it, the outputs it must write, and its accuracy contract."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, counted
from refsim.formats import ARRAY_TYPES, ELEMENTS, FORMATS, array_type, format_named
from refsim.integers import is_whole
from refsim.kernel_code import Compiler, KernelCode
from refsim.render.cards import Card, Facts, FieldsCard

__all__ = [
    "Bounded",
    "Buffer",
    "Kernel",
    "KernelCode",
    "KernelProduct",
    "Launcher",
    "Outputs",
    "Promise",
    "Struct",
    "Unordered",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from refsim.compare import NanPolicy
    from refsim.computations.engine import Computation
    from refsim.layouts import TensorMap
    from refsim.ptx import Extents

Outputs = Mapping[str, NDArray[Any]]
Expected = Mapping[str, "NDArray[Any] | Bounded | Unordered"]
Codes = NDArray[np.unsignedinteger[Any]]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WITHOUT_CODES = {row.name for row in ELEMENTS if row not in (*FORMATS, *ARRAY_TYPES)}


@dataclass(frozen=True, repr=False)
class KernelProduct(FieldsCard):
    """A product that a kernel computes: D (M, N) of A (M, K) and B (N, K), D[m, n] = the sum of A[m, k] B[n, k] over k.

    `problem(a, b)` turns codes (M, K) and (N, K) into a recipe of the kernel with scales of one and no other terms.
    `output` names the output that holds D: M*N codes of `d_format` in row-major order, or an array that `read(output,
    problem)` turns into such codes. `n`, `k` and `rows` (values of M) are the default shapes; the kernel must accept
    them. `a_is_free` is False where A can hold only ones, as the weights of attention do. KernelProduct(lambda a, b:
    MyGemm(a, b), "d", "bf16", "bf16", "bf16") computes 64 columns of 512 products. Raises RefsimError for unknown
    formats, and for sizes that are not positive whole numbers.
    """

    problem: Callable[[Codes, Codes], Any]
    output: str
    a_format: str
    b_format: str
    d_format: str
    n: int = 64
    k: int = 512
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    a_is_free: bool = True
    read: Callable[[NDArray[Any], Any], NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        for name in (self.a_format, self.b_format, self.d_format):
            format_named(name)
        if (
            not (is_whole(self.n, 1) and is_whole(self.k, 2))
            or not all(is_whole(m, 1) for m in self.rows)
            or not self.rows
        ):
            what = f"n = {self.n!r}, k = {self.k!r}, rows = {self.rows!r:.60}"
            raise RefsimError("bad-kernel", what, rule="n from 1, k from 2, at least one number of rows from 1")


@dataclass(frozen=True, repr=False)
class Bounded(FieldsCard):
    """The value of an output whose bits are not fixed: exact values, and how far each element may differ from its own.

    `value`: float64 in the shape of the output, computed exactly and not rounded to its format. `bound`: float64 >= 0,
    absolute, in the shape of `value` or broadcast to it, derived for these operands. An element agrees if its decoded
    value lies within its bound (`refsim.compare.within_bound`). Bounded([1.0], 2.0**-8) accepts the bf16 codes 0x3f7f
    to 0x3f80. Raises RefsimError for values that are not numbers, and for a bound that is negative or NaN.
    """

    value: NDArray[np.float64]
    bound: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Convert both fields to float64 arrays of one shape; raise RefsimError if that is impossible."""
        for name in ("value", "bound"):
            given = getattr(self, name)
            try:
                if np.iscomplexobj(given):
                    raise TypeError("complex numbers are in no order")
                object.__setattr__(self, name, np.asarray(given, np.float64))
            except (TypeError, ValueError) as error:
                raise RefsimError("bad-bound", f"{name} holds {type(given).__name__}, not numbers: {error}") from error
        if not (self.bound >= 0).all():
            wrong = self.bound[~(self.bound >= 0)].reshape(-1)[0]
            rule = "a bound is absolute: from 0 to infinity, no NaN"
            raise RefsimError("bad-bound", f"a bound of {wrong}", rule=rule)
        try:
            object.__setattr__(self, "bound", np.broadcast_to(self.bound, self.value.shape))
        except ValueError as error:
            what = f"bounds of shape {self.bound.shape} for values of shape {self.value.shape}"
            raise RefsimError("bad-shape", what) from error


@dataclass(frozen=True, repr=False)
class Unordered(FieldsCard):
    """The value of an output whose elements may stand in any order within a group: equal as a multiset, bit for bit.

    The order is free along `axis`. Each index of the axes before it is a group of its own; what lies on the axes after
    it moves as a whole: Unordered(x, 1) of (T, K) frees the order in each row, Unordered(x, 0) that of whole rows.
    `groups` are offsets along the axis, from 0 to its length: [0, 3, 3, 8] makes three groups, one of them empty.
    Outputs with the same `together` are permuted alike. Raises RefsimError for an axis or offsets that do not fit.
    """

    value: NDArray[Any]
    axis: int = 0
    groups: Any = None
    together: str = ""

    def __post_init__(self) -> None:
        """Convert `groups` to int64 offsets."""
        if not isinstance(self.value, np.ndarray) or not is_whole(self.axis, -self.value.ndim, self.value.ndim - 1):
            what = f"axis {self.axis!r} of {getattr(self.value, 'shape', type(self.value).__name__)}"
            raise RefsimError("bad-promise", what, "Unordered(...)", "the value is an array that has the axis")
        object.__setattr__(self, "axis", self.axis % self.value.ndim)
        length = self.value.shape[self.axis]
        offsets = np.asarray([0, length] if self.groups is None else self.groups)
        is_ascending = (
            offsets.ndim == 1 and offsets.dtype.kind in "iu" and (np.diff(offsets.astype(np.int64)) >= 0).all()
        )
        if not is_ascending or offsets.size < 2 or (offsets[0], offsets[-1]) != (0, length):
            rule = f"groups are ascending whole offsets, from 0 to {length}"
            raise RefsimError("bad-promise", f"groups are {self.groups!r:.60}", "Unordered(...)", rule)
        object.__setattr__(self, "groups", offsets.astype(np.int64))


@dataclass(frozen=True)
class Promise:
    """The accuracy contract of a kernel: how far outputs may differ from the oracle's. Default: `Promise.BITWISE`.

    `nan` is the NaN policy of `refsim.compare.bits`. `within_ulps` > 0 and `is_bounded` need the derivation of the
    bound in `because`.
    """

    nan: "NanPolicy" = "bitwise"
    within_ulps: int = 0
    because: str = ""
    is_bounded: bool = False
    is_set: bool = False
    axis: int | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.within_ulps):
            raise RefsimError("bad-bound", f"within_ulps is a whole number from 0, not {self.within_ulps!r}")
        if not isinstance(self.nan, str):
            raise RefsimError("bad-promise", f"nan is the name of a NaN policy, not {self.nan!r:.40}")

    BITWISE: ClassVar["Promise"]
    BITWISE_EXCEPT_NAN_PAYLOAD: ClassVar["Promise"]

    @staticmethod
    def WITHIN(bound: int, because: str) -> "Promise":  # noqa: N802 (reads as a constant, like BITWISE)
        """Allow `bound` ulp of difference in each element: WITHIN(2, because="div.full.f32 has 2 ulp (PTX ISA)")."""
        if not is_whole(bound, 1):
            help = "Promise.BOUNDED(because=...) takes a bound for each element, from the oracle"
            raise RefsimError("bad-bound", f"a bound is a whole number of ulp from 1, not {bound!r}", help=help)
        if not isinstance(because, str) or not because.strip():
            raise RefsimError("bad-promise", f"the bound of {bound} ulp has no derivation", help="give because=")
        return Promise("any-payload", bound, because)

    @staticmethod
    def BOUNDED(because: str) -> "Promise":  # noqa: N802 (reads as a constant, like BITWISE)
        """Allow each element the absolute bound that the oracle returns for it in `Bounded(value, bound)`.

        An output that the oracle returns as a plain array is still compared bit for bit.
        """
        if not isinstance(because, str) or not because.strip():
            raise RefsimError("bad-promise", "the bounds have no derivation", help="give because=")
        return Promise(because=because, is_bounded=True)

    @staticmethod
    def SET(axis: int | None = None, because: str = "") -> "Promise":  # noqa: N802 (reads as a constant, like BITWISE)
        """Allow any order of the elements along `axis` of every output, or where the oracle returns `Unordered(value)`.

        Without `axis`, an array of the oracle is compared bit for bit. With `because`, an output may also be `Bounded`.
        """
        if not (axis is None or is_whole(axis, -64, 63)) or not isinstance(because, str):
            raise RefsimError("bad-promise", f"axis is a whole number, not {axis!r:.40}; because is a text")
        return Promise(because=because, is_bounded=bool(because.strip()), is_set=True, axis=axis)

    @property
    def is_bitwise(self) -> bool:
        """Return whether outputs are compared bit for bit, without a bound."""
        return not (self.within_ulps or self.is_bounded)

    def __str__(self) -> str:
        if self.is_set:
            where = "where the oracle frees it" if self.axis is None else f"along axis {self.axis}"
            bounds = f", or within the bounds of the oracle: {self.because}" if self.is_bounded else ""
            return f"bitwise, in any order {where}{bounds}"
        if self.is_bounded:
            return f"within the bounds of the oracle: {self.because}"
        if self.within_ulps:
            return f"within {self.within_ulps} ulp: {self.because}"
        return "bitwise" if self.nan == "bitwise" else "bitwise except the payload of a NaN"


Promise.BITWISE = Promise()
Promise.BITWISE_EXCEPT_NAN_PAYLOAD = Promise(nan="any-payload")


@dataclass(frozen=True)
class Buffer:
    """Device memory: `count` elements of `dtype` from the byte `address` on."""

    name: str
    address: int
    count: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Struct:
    """An argument that is a struct: its bytes, and the alignment of its C type.

    `Struct(raw, 64)` of 128 bytes is a tensor map. A structured NumPy scalar of an aligned dtype is an argument too:
    `np.array((1, 2.0), np.dtype([("n", np.int32), ("x", np.float64)], align=True))[()]` has 16 bytes, aligned to 8.
    """

    raw: bytes
    align: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or not is_whole(self.align):
            what = f"{self.raw!r:.40} aligned to {self.align!r:.40}"
            raise RefsimError("bad-argument", what, rule="a struct is bytes, its alignment a whole number")
        if self.align < 1 or self.align & (self.align - 1) or len(self.raw) % self.align or not self.raw:
            rule = "an alignment is a power of two, and the size of a C type is a multiple of it, from 1"
            raise RefsimError("bad-argument", f"{len(self.raw)} bytes aligned to {self.align}", rule=rule)

    def __bytes__(self) -> bytes:
        return self.raw


@dataclass(frozen=True)
class Findings:
    """The observations of a device during one launcher's launches; a field is empty if the device does not observe it.

    `inexact`: arithmetic on the data path whose bits are not fixed. `assumed`: arithmetic whose bits are taken from
    another target and are unverified on this target. `notes`: observations that make no kernel wrong, such as an unused
    read of uninitialized memory. `conflicts`: instructions that took more passes over the banks than they needed.
    `owner_of(buffer, index)`: the "block" and "thread" that wrote an element, its "address" and, if known, the
    statement ("by"); there is no "block" for an element that no thread wrote. `reached`: the branches, guards of stores
    and addresses that depend on inexact bits; None if they were not followed. `changed_variables`: module variables
    that differ from their loaded values (on a real GPU: may differ), which the next run of the module reads. `opcodes`:
    the instructions that ran, on a real GPU all instructions of the launched entries; empty if unknown. `waived`: the
    finding that each waiver allowed, "" for a waiver that should have allowed one. `unordered`: accesses that only
    convergence of a warp orders, in launches that are not `warp_synchronous`. `printed`: the lines that threads printed.
    """

    inexact: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    owner_of: Callable[[Buffer, int], Mapping[str, object]] | None = None
    reached: tuple[str, ...] | None = None
    changed_variables: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    opcodes: frozenset[str] = frozenset()
    waived: Mapping[str, str] = field(default_factory=dict)
    unordered: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()


class Launcher(Protocol):
    """The interface through which a kernel runs: on a simulated GPU, on a real GPU, or in a third-party library."""

    @property
    def target(self) -> str:
        """Return the architecture that the kernel was compiled for: sm_90a."""

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Copy an array to the device, between guard bands and `misalign_bytes` past its alignment; return its buffer.

        A kernel that writes the buffer faults unless it is `writable`.
        """

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """Allocate `count` elements of poison between guard bands and return their buffer."""

    def launch(
        self,
        entry: str,
        grid: "Extents",
        block: "Extents",
        args: Sequence[Any],
        shared_bytes: int = 0,
        *,
        cluster: "Extents | None" = None,
        cooperative: bool = False,
        programmatic: bool = False,
        warp_synchronous: bool = False,
    ) -> None:
        """Run an entry to its end; `args` are Buffers, Structs, tensor maps and NumPy scalars as wide as the .param.

        grid, block, cluster: a number or up to three, x first. Without `cluster` the entry's own directive holds.
        cooperative: all blocks are resident at once and may meet at a grid barrier; otherwise the launch is refused.
        programmatic (programmatic stream serialization, from sm_90 on): the launch may begin before the previous launch
        has ended. It begins when all blocks of the previous launch have executed griddepcontrol.launch_dependents or
        exited. After griddepcontrol.wait the previous launch is complete. warp_synchronous: the author relies on lanes
        that meet at a shuffle or a vote to see each other's stores; the finding ordered-by-convergence is a warning.
        """

    def encode(self, tensor_map: "TensorMap") -> Struct:
        """Return the 128 bytes of a tensor map on this device; `launch` accepts the map itself.

        Raises RefsimError bad-tensor-map if the tensor does not lie within one buffer of the launcher.
        """

    def call(self, *args: Any) -> None:
        """Run the function of `Kernel(call=...)`: Buffers become device arrays (`__cuda_array_interface__`, DLPack).

        Raises RefsimError bad-kernel if the kernel is not a Python function.
        """

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return the current contents of a buffer, one-dimensional, in its dtype."""

    def findings(self) -> Findings:
        """Return what was observed during all launches so far; Findings() on devices that observe nothing."""


class ComputedKind(ABC):
    """A kind of kernels for `Kernel(computes=...)`, as of `refsim.testing.kinds`; `is_product`: it multiplies A and B."""

    is_product = False

    @abstractmethod
    def outputs_of(self, kernel: "Kernel", formats: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the formats of the outputs that the kind computes. Raises RefsimError if there are not so many."""

    @abstractmethod
    def of_kernel(self, kernel: "Kernel", problem: Any, target: str) -> "Mapping[str, Computation | NDArray[Any]]":
        """Return what a kernel computes for a test case, by output."""


_ORDER_OF_STEPS = "`computes` says the order of its sums, and `refsim verify` tries other orders"
_CALLED = 'name the arguments: Kernel(name="k", oracle=, problem=, run=, outputs={"y": "bf16"}, recipe=, file="k.cu")'


@dataclass(frozen=True, repr=False)
class Kernel(Card):
    """The declaration of a kernel: `run` on a device must write what `oracle` returns, for every test case (`problem`).

    Code: one of `file` (CUDA, or PTX in a file called *.ptx), `source` (CUDA C++ as a text), `ptx` (a text) and `call`.

    - `name`: the name in verdicts and commands.
    - `oracle(problem)`: returns the expected outputs by name, `Bounded` or `Unordered` values if the promise allows it.
      It may be left out where `computes` is given.
    - `problem`: a Hypothesis strategy of recipes.
    - `run(launcher, problem)`: launches entries and returns the outputs by name. It must launch at least once.
    - `outputs`: the format name of each output (s32, u8, f64 too), "" for integers by their dtype; or a function of
      the test case.
    - `recipe`: the frozen dataclass of a test case. A replay case is parsed into it.
    - `corpus`: recipes that every campaign runs first.
    - `promise`: how closely outputs must agree with the oracle.
    - `file`: a CUDA file, or a PTX file (*.ptx).
    - `source`: CUDA C++ as a text.
    - `ptx`: PTX as a text.
    - `call`: a Python function over device arrays; it needs a real GPU.
    - `options`: flags for the compiler.
    - `include`: folders of headers.
    - `defines`: macros; each becomes -DNAME=VALUE.
    - `compiler`: "nvrtc" or "nvcc".
    - `entries`: the entries that may be launched; template arguments ("scale<float>") instantiate an entry.
    - `summary`: one line about the kernel.
    - `owner(problem, output, index)`: returns the (block, thread) that writes an element.
    - `suspects`: names of mistakes, each with a function that returns what a kernel with this mistake writes.
    - `per_target`: `oracle`, `suspects` and `definition` take the target after the test case.
    - `conflict_free`: prefixes of PTX opcodes ("ldmatrix") whose accesses must have no bank conflicts.
    - `definition(problem, output, index)`: returns the code of one element, `Bounded` or None, without the oracle's code;
      `refsim.testing.definitions` has some. refsim has one of declared products, and of its quantizers and row functions.
    - `without`: checks that a simulated GPU leaves out ("race"), and waivers of findings ("race@k.cu:120").
    - `any_order`: entries whose atomics may come in any order, ("*",) for all (default: all under `Promise.SET`). Their
      launches may write other bytes under another schedule; `run` and the oracle are compared under each schedule.
    - `host`: a `refsim.testing.adapters.HostLibrary` whose compiled functions make parameters for `run`.
    - `fresh_module`: load the module anew for each run, for a kernel that changes its variables.
    - `products`: the matrix products that `refsim order` may ask the kernel for.
    - `orderless`: why a kernel without sums has no order.
    - `computes(problem)`: returns what is computed, from which the oracle, the explanation of a failing test case and
      `orderless` follow: a computation, or one for each output by name, or arrays for outputs that are constant.
      `refsim.testing.steps` composes one of steps: `computes=steps.fused(steps.load("x"), ...)`. `refsim.testing.kinds`
      has usual ones: `computes=kinds.softmax("x")`. Of a product, `products` follows too.
    - `declared_in`: the file that a replay case names.
    """

    name: str
    oracle: Callable[..., Expected] | None
    problem: Any
    run: Callable[[Launcher, Any], Outputs]
    outputs: Mapping[str, str] | Callable[[Any], Mapping[str, str]]
    recipe: type
    corpus: tuple[Any, ...] = ()
    promise: Promise = Promise.BITWISE
    file: Path | None = None
    source: str | None = None
    ptx: str | None = None
    call: Callable[..., Any] | None = None
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    defines: Mapping[str, object] = field(default_factory=dict)
    compiler: Compiler = "nvrtc"
    entries: tuple[str, ...] = ()
    summary: str = ""
    owner: Callable[[Any, str, int], tuple[int, int]] | None = None
    suspects: Mapping[str, Callable[..., Outputs]] = field(default_factory=dict)
    per_target: bool = False
    conflict_free: tuple[str, ...] = ()
    definition: Callable[..., int | Bounded | None] | None = None
    fresh_module: bool = False
    products: Mapping[str, KernelProduct] = field(default_factory=dict)
    orderless: str = ""
    without: tuple[str, ...] = ()
    any_order: tuple[str, ...] = ()
    host: Any = None
    declared_in: Path | None = None
    computes: "Callable[..., Any] | ComputedKind | None" = None

    def __post_init__(self) -> None:
        """Raise RefsimError for a field of a wrong type, and for code that cannot belong to a kernel."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise RefsimError("bad-kernel", f"{self.name!r} is not a name", rule=f"a name is {NAME.pattern}")
        where = f"kernel {self.name}"
        if not isinstance(self.suspects, Mapping):
            what = f"suspects is a mapping of names to functions, not {self.suspects!r:.40}"
            raise RefsimError("bad-kernel", what, where=where)
        for label, given in self._functions().items():
            if not callable(given):
                raise RefsimError("wrong-type", f"{label} must be a function, not {given!r}", where=where, help=_CALLED)
        if self.problem is not None and not callable(getattr(self.problem, "map", None)):
            what = f"problem must be a Hypothesis strategy of recipes, not {self.problem!r:.60}"
            raise RefsimError("bad-recipe", what, where=where, help=_CALLED)
        if not isinstance(self.promise, Promise):
            raise RefsimError("bad-promise", f"promise must be a Promise, not {self.promise!r}", where=where)
        if not isinstance(self.recipe, type) or not is_dataclass(self.recipe):
            what = f"recipe must be a dataclass, not {self.recipe!r:.60}"
            raise RefsimError("bad-recipe", what, where=where, help=_CALLED)
        if not isinstance(self.corpus, Sequence):
            raise RefsimError("bad-kernel", f"corpus is a tuple of recipes, not {self.corpus!r:.40}", where=where)
        strangers = [problem for problem in self.corpus if not isinstance(problem, self.recipe)]
        if strangers:
            raise RefsimError("bad-kernel", f"{strangers[0]!r} is no {self.recipe.__name__}", where=where)
        if not callable(self.outputs):
            self._checked(self.outputs)
        self._follow_computes()
        try:
            self.code.required()
        except RefsimError as error:
            error.where = error.where or where
            raise

    def _follow_computes(self) -> None:
        """Set `orderless` where `computes` is no product. Raises RefsimError for outputs that a kind has not."""
        kind = self.computes if isinstance(self.computes, ComputedKind) else None
        if kind is not None and not callable(self.outputs):
            kind.outputs_of(self, self.outputs)
        is_product = kind is not None and kind.is_product
        if self.computes is not None and not (self.products or self.orderless or is_product):
            object.__setattr__(self, "orderless", _ORDER_OF_STEPS)

    def _functions(self) -> dict[str, object]:
        """Return the fields that must be functions, by the names that errors give them."""
        optional = {"definition": self.definition}
        optional |= {} if isinstance(self.computes, ComputedKind) else {"computes": self.computes}
        found: dict[str, object] = {"run": self.run} | {
            name: each for name, each in optional.items() if each is not None
        }
        if self.oracle is not None or self.computes is None:
            found = {"oracle": self.oracle} | found
        return found | {f"suspect {name!r}": oracle for name, oracle in self.suspects.items()}

    @property
    def code(self) -> KernelCode:
        """Return the code of the kernel, which a device compiles or loads."""
        given = {each.name: getattr(self, each.name) for each in fields(KernelCode)}
        return KernelCode(**given | {"any_order": self.any_order or (("*",) if self.promise.is_set else ())})

    @property
    def contract(self) -> str:
        """Return the accuracy contract as one line: the promise, and the entries of `any_order`."""
        free = ", ".join("all entries" if entry == "*" else entry for entry in self.any_order)
        return str(self.promise) + (f"; atomics of {free} in any order" if free else "")

    def expected(self, problem: Any, target: str) -> Expected:
        """Return the outputs that the oracle expects on a target, or that `computes` gives, by name."""
        if self.oracle is not None:
            return self.oracle(*self.asked(problem, target))
        found: dict[str, NDArray[Any]] = {}
        for name, given in self.computed(problem, target).items():
            arrays = {"": given} if isinstance(given, np.ndarray) else given.apart(given.codes(given.usual))
            found |= {part or name: array for part, array in arrays.items()}
        return found

    def computed(self, problem: Any, target: str) -> "Mapping[str, Computation | NDArray[Any]]":
        """Return what `computes` gives for a test case by output; a computation of several outputs has the key "".

        Raises RefsimError bad-kernel for anything else.
        """
        if isinstance(self.computes, ComputedKind):
            return self.computes.of_kernel(self, problem, target)
        given = self.computes(*self.asked(problem, target)) if self.computes is not None else {}
        names = list(self.output_formats(problem))
        parts = given if isinstance(given, Mapping) else {"" if hasattr(given, "names") else names[0]: given}
        for name, part in parts.items():
            if not isinstance(part, np.ndarray) and not hasattr(part, "apart"):
                what = f"computes returns {type(part).__name__} for {name or names[0]!r}"
                rule = "a computation, as of refsim.testing.steps.fused(...), an array, or a mapping of output names to them"
                raise RefsimError("bad-kernel", what, f"kernel {self.name}", rule, "a kind is called: kinds.softmax()")
        return parts

    def asked(self, problem: Any, target: str) -> tuple[Any, ...]:
        """Return the arguments of the oracle and of the suspects: (problem,), with `per_target` (problem, target)."""
        return (problem, target) if self.per_target else (problem,)

    def output_formats(self, problem: Any) -> Mapping[str, str]:
        """Return the format name of each output of a test case, "" for plain integers and float64."""
        return self._checked(self.outputs(problem)) if callable(self.outputs) else self.outputs

    def _checked(self, formats: Mapping[str, str]) -> Mapping[str, str]:
        """Return `formats`; raise RefsimError bad-kernel for an empty mapping or a name without codes."""
        where = f"outputs of kernel {self.name}"
        if not isinstance(formats, Mapping):
            what = f"outputs must be a mapping of names to formats, not {type(formats).__name__}"
            raise RefsimError("bad-kernel", what, where=where, help='outputs={"y": "bf16"}, or {"n": ""} for integers')
        if not formats:
            raise RefsimError("bad-kernel", "a kernel without outputs promises nothing", where=where)
        for name in formats.values():
            if not isinstance(name, str):
                raise RefsimError("bad-kernel", f"a format is given by its name, not {name!r}", where=where)
            if name in _WITHOUT_CODES:
                what = f"{name} is not a format of codes"
                way = 'outputs={"y": "s32"}, "u8", "f64", or "" for integers by their dtype'
                raise RefsimError("bad-kernel", what, where=where, help=way)
            try:
                array_type(name or "f32")
            except RefsimError as error:
                error.where = where
                raise
        return formats

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.promise}"

    def _facts(self) -> Facts:
        yield "summary", self.summary
        yield "entries", ", ".join(self.entries)
        yield "corpus", counted(len(self.corpus), "test case")
        yield "code", self.code.label
        yield "declared in", self.declared_in


def _naming_missing(make: Callable[..., None]) -> Callable[..., None]:
    """Return `Kernel.__init__` whose error for missing arguments names them and shows a declaration."""
    needed = [each.name for each in fields(Kernel) if each.default is each.default_factory is MISSING]

    @wraps(make)
    def init(self: Kernel, *values: Any, **named: Any) -> None:
        if len(values) < 2 and named.get("computes") is not None:
            named.setdefault("oracle", None)
        if missing := [name for name in needed[len(values) :] if name not in named]:
            raise RefsimError("bad-kernel", f"a Kernel needs {' and '.join(missing)}", "Kernel(...)", help=_CALLED)
        make(self, *values, **named)

    return init


Kernel.__init__ = _naming_missing(Kernel.__init__)  # type: ignore[method-assign]
