"""The code of a kernel: a file or a text in CUDA or PTX, or a Python function over device arrays."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from refsim.errors import Kind, RefsimError
from refsim.render.cards import Card, Facts

Compiler = Literal["nvrtc", "nvcc"]
COMPILERS: tuple[Compiler, ...] = ("nvrtc", "nvcc")
PTX_SUFFIX = ".ptx"
LONGEST_LINE = 100  # at a prompt


@dataclass(frozen=True, repr=False)
class KernelCode(Card):
    """One of `file`, `source` (CUDA C++), `ptx` (its text) and `call`, or none of them; a file called *.ptx is PTX.

    `options` go to the compiler unchanged, `include` are folders for headers, `defines` become -DNAME=VALUE (None:
    -DNAME); these three apply to CUDA only. `compiler` "nvcc" runs `nvcc -ptx`, for files that contain host code.
    `entries` with template arguments ("scale<float>") are instantiated. `without` names checks that a simulated GPU
    leaves out, and waivers of single findings ("race@kernel.cu:120"). `any_order` names entries, "*" for all, whose
    atomics may come in any order: launches of them write the bytes of one schedule. `host` is a HostLibrary whose
    functions make parameters.
    """

    file: Path | None = None
    source: str | None = None
    ptx: str | None = None
    call: Callable[..., Any] | None = None
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    defines: Mapping[str, object] = field(default_factory=dict)
    compiler: Compiler = "nvrtc"
    entries: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    any_order: tuple[str, ...] = ()
    host: Any = None

    def __post_init__(self) -> None:
        """Raise RefsimError bad-kernel for fields of a wrong type, and for fields that exclude each other."""
        ways = {"file": self.file, "source": self.source, "ptx": self.ptx, "call": self.call}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise _wrong(
                f"{' and '.join(given)} are given: give one", "a kernel's code is one of file, source, ptx and call"
            )
        if self.file is not None and not isinstance(self.file, str | PathLike):
            raise _wrong(f"file is {self.file!r:.40}", "file is a path; a text is source= or ptx=")
        for name, text in (("source", self.source), ("ptx", self.ptx)):
            if text is not None and (not isinstance(text, str) or not text.strip()):
                raise _wrong(f"{name} is {text!r:.40}", f"{name} is the text itself; a path is file=")
            if any("\ud800" <= char <= "\udfff" for char in text or ""):
                raise _wrong(f"{name} holds half of a surrogate pair", f"{name} is a text that UTF-8 can hold")
        if self.ptx is not None and "\n" not in self.ptx and ".version" not in self.ptx:
            raise _wrong(f"ptx is {self.ptx!r:.40}", "ptx is the text itself, with its .version; a path is file=")
        if self.call is not None and not callable(self.call):
            raise _wrong(f"call is {self.call!r:.40}", "call is a function of device arrays")
        if self.host is not None and not callable(getattr(self.host, "fill", None)):
            raise _wrong(f"host is {self.host!r:.40}", "host is a HostLibrary of refsim.testing.adapters")
        self._check_parts()
        if self.compiler not in COMPILERS:
            raise _wrong(f"compiler is {self.compiler!r}", f"compiler is one of {', '.join(COMPILERS)}")
        if self.is_ptx and (self.options or self.include or self.defines):
            raise _wrong("options, include or defines for PTX", "PTX is compiled already: they are of CUDA sources")

    def _check_parts(self) -> None:
        """Raise RefsimError bad-kernel unless the fields with several parts are sequences or a mapping."""
        for label in ("options", "include", "entries", "without", "any_order"):
            values = getattr(self, label)
            if isinstance(values, str | Path) or not isinstance(values, Sequence):
                raise _wrong(f"{label} is {values!r:.40}", f"{label} is a tuple, one part each")
            kind, parts = (str | PathLike, "paths") if label == "include" else (str, "strings")
            if not all(isinstance(value, kind) for value in values):
                raise _wrong(f"{label} is {values!r:.80}", f"{label} is a tuple of {parts}")
        if not isinstance(self.defines, Mapping):
            raise _wrong(f"defines is {self.defines!r:.40}", "defines is a mapping of names to values")
        if self.without:
            from refsim.ptx import Checks

            Checks(off=tuple(self.without))

    @property
    def named_entries(self) -> list[tuple[str, str]]:
        """Return the name of the field and the entry, for each entry that `entries` and `any_order` name."""
        return [(key, entry) for key in ("entries", "any_order") for entry in getattr(self, key) if entry != "*"]

    @property
    def is_ptx(self) -> bool:
        """Return whether the code is PTX: a text, or a file with the suffix .ptx."""
        return self.ptx is not None or (self.file is not None and Path(self.file).suffix == PTX_SUFFIX)

    @property
    def label(self) -> str:
        """Return the name of the code in verdicts: the file's name, or the kind of text with 12 digits of its hash."""
        if self.file is not None:
            return Path(self.file).name
        if self.call is not None:
            return f"call {self.function}"
        for kind, text in (("source", self.source), ("ptx", self.ptx)):
            if text is not None:
                return f"{kind} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        return ""

    @property
    def function(self) -> str:
        """Return the dotted name of the function or class of `call`, with its module if it has one."""
        name = getattr(self.call, "__qualname__", type(self.call).__name__)
        return f"{getattr(self.call, '__module__', '')}.{name}".lstrip(".")

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the compiler's arguments except the include folders: -DWIDTH=8 for `defines`, then the options."""
        defined = (f"-D{name}" if value is None else f"-D{name}={_c(value)}" for name, value in self.defines.items())
        return (*defined, *self.options)

    @property
    def instances(self) -> tuple[str, ...]:
        """Return the entries that the compiler must instantiate: names with template arguments."""
        return tuple(entry for entry in self.entries if "<" in entry)

    def _repr_summary(self) -> str:
        return " ".join((self.label or "none", *self.flags))[:LONGEST_LINE]

    def _facts(self) -> Facts:
        for name in ("file", "options", "include", "defines", "compiler", "entries"):
            if value := getattr(self, name):
                yield name, value

    def required(self) -> "KernelCode":
        """Return the code itself; raise RefsimError no-kernel-file if it is empty, because nothing could run."""
        if not self.label:
            what = "the kernel has no file that could be compiled"
            raise RefsimError("no-kernel-file", what, help="Kernel(file=...), or source=, ptx=, call=")
        return self


def code_of(given: KernelCode | Path | None) -> KernelCode:
    """Return the code for `given`; a path stands for the code in its file."""
    return given if isinstance(given, KernelCode) else KernelCode(file=given)


def needs_a_gpu(code: KernelCode) -> RefsimError:
    """Return the simulator's error for a Python function."""
    what = f"{code.function} is a Python function over device arrays, and the simulator executes PTX"
    rule = "Kernel(call=...) runs on a real GPU alone"
    help = "--device cuda, or give the PTX that the function launches: Kernel(ptx=...)"
    return RefsimError("needs-a-gpu", what, rule=rule, help=help, kind=Kind.INCONCLUSIVE)


def _c(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _wrong(what: str, rule: str) -> RefsimError:
    return RefsimError("bad-kernel", what, rule=rule)
