"""Code objects of cuda.core: images that hold PTX, their kernels, and a linker that joins PTX."""

import itertools
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from refsim.errors import Kind, RefsimError
from refsim.ptx.machine.launch_rules import MAX_THREADS, ctas_per_sm
from refsim.ptx.text.words import pairs_in
from refsim.targets import target_named
from refsim_run.seams import always, names_in, refusing
from refsim_run.session import SimulatedModule, current, ptx_text

_HEADER = re.compile(r"^[ \t]*\.(version|target|address_size)\b.*$", re.MULTILINE)
_VERSION = re.compile(r"^([ \t]*\.version[ \t]+)(\d+)\.(\d+)", re.MULTILINE)
_FILE = re.compile(r"^([ \t]*\.file[ \t]+)(\d+)", re.MULTILINE)
_LOC = re.compile(r"(\.loc[ \t]+|inlined_at[ \t]+)(\d+)")
_DEBUG = re.compile(r"^[ \t]*\.section[ \t]+\.debug\w*[ \t\r\n]*\{.*?^[ \t]*\}", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(
    r"^[ \t]*((?:\.(?:visible|weak|extern|common)[ \t]+)?)\.(?:entry|func|global|const|shared)\b"
    r"(?:[ \t]*\((?:[^()]*)\))?(?:[ \t]+\.(?:align[ \t]+\d+|\w+))*[ \t]+([\w$%]+)",
    re.MULTILINE,
)
GRID_FUNCTIONS = """
#include <cooperative_groups.h>
extern "C" __device__ unsigned long long cudaCGGetIntrinsicHandle(enum cudaCGScope scope) {
    return (unsigned long long)cooperative_groups::details::get_grid_workspace();
}
extern "C" __device__ cudaError_t cudaCGSynchronize(unsigned long long handle, unsigned flags) {
    cooperative_groups::this_grid().sync();
    return cudaSuccess;
}
"""
"""The device runtime's functions for groups of a grid, written with CUDA's own headers."""
_FILES = 1000
"""Source file numbers are per module: the numbers of module n begin at n times this one."""


def joined(texts: Sequence[str]) -> str:
    """Return one PTX text of several, with the lines of the parts one after another.

    A private name that another module has too is renamed. RefsimError `compile-error` for a visible name defined twice.
    """
    shown: set[str] = set()
    found, taken = [], set[str]()
    for number, whole in enumerate(texts):
        text = whole
        own = {name: linkage.strip(" \t.") for linkage, name in _DEFINED.findall(text)}
        for name in sorted(shown & {name for name, linkage in own.items() if linkage == "visible"}):
            raise RefsimError(
                "compile-error", f"{name} is defined by two modules", rule="a visible name has one definition"
            )
        for name in taken & {name for name, linkage in own.items() if not linkage}:
            text = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", f"{name}_of_module_{number}", text)
        shown |= {name for name, linkage in own.items() if linkage == "visible"}
        taken |= set(own)
        found.append(_renumbered(_without_debug(text), number) if number else text)
    newest = max(
        (tuple(map(int, each.group(2, 3))) for text in texts for each in _VERSION.finditer(text)), default=(0, 0)
    )
    return _VERSION.sub(lambda each: f"{each[1]}{newest[0]}.{newest[1]}", "\n".join(found))


def needs_grid_functions(texts: Sequence[str]) -> bool:
    """Return whether modules call the device runtime's functions for groups of a grid."""
    return any("cudaCGGetIntrinsicHandle" in text or "cudaCGSynchronize" in text for text in texts)


def _without_debug(text: str) -> str:
    """Return a text without its header and debug sections; line numbers stay."""
    for pattern in (_DEBUG, _HEADER):
        text = pattern.sub(lambda each: "\n" * each[0].count("\n"), text)
    return text


def _renumbered(text: str, number: int) -> str:
    for pattern in (_FILE, _LOC):
        text = pattern.sub(lambda each: f"{each[1]}{int(each[2]) + number * _FILES}", text)
    return text


CUDA_CORE = "cuda.core"


class KernelAttributes:
    """The attributes of a kernel; the number of registers is None, as only ptxas knows it."""

    num_regs = None
    const_size_bytes = 0
    max_threads_per_block = MAX_THREADS

    def __init__(self, module: SimulatedModule, entry: str) -> None:
        placed = module.placed(entry)
        self.shared_size_bytes, self.local_size_bytes = placed.shared_bytes, placed.local_bytes


class CoreKernel:
    """An entry that cuda.core launches."""

    by_handle: ClassVar[WeakValueDictionary[int, "CoreKernel"]] = WeakValueDictionary()

    def __init__(self, module: SimulatedModule, name: str) -> None:
        self.module, self.entry = module, module.entry(name)
        self.handle = id(self)
        CoreKernel.by_handle[self.handle] = self

    def ctas_per_sm(self, threads: int, shared_bytes: int) -> int:
        """Return how many blocks an SM holds at once; `shared_bytes` per block add to the kernel's own."""
        registers = self.module.registers(self.entry)
        if registers is None:
            raise current().unsupported("occupancy of a kernel", "ptxas is not installed, which counts registers")
        shared = self.attributes.shared_size_bytes + shared_bytes
        return ctas_per_sm(current().limits, threads, shared, registers)

    @cached_property
    def attributes(self) -> KernelAttributes:
        return KernelAttributes(self.module, self.entry)


class Image:
    """An ObjectCode that holds PTX; code of other kinds is refused when it is used."""

    by_handle: ClassVar[dict[int, "Image"]] = {}
    _handles: ClassVar[Any] = itertools.count(1)

    def __init__(self, kind: str, code: Any, name: str = "", source: str = "") -> None:
        self.code_type, self.code, self.name, self.source = kind, code, name, source

    @cached_property
    def loaded(self) -> SimulatedModule:
        return current().load(self.code, CUDA_CORE, self.source)

    @cached_property
    def handle(self) -> int:
        """Return a number for the image, and load the module on the first call."""
        number = int(next(Image._handles))
        Image.by_handle[number] = self
        _ = self.loaded
        return number

    __getattr__ = refusing("cuda.core.ObjectCode")

    def get_kernel(self, name: Any) -> CoreKernel:
        return CoreKernel(self.loaded, name.decode() if isinstance(name, bytes) else name)

    def __reduce__(self) -> Any:
        return Image, (self.code_type, self.code, self.name, self.source)


def _maker(kind: str) -> Any:
    def make(code: Any, *, name: str = "", symbol_mapping: Any = None) -> Image:
        return Image(kind, code, name)

    return staticmethod(make)


for _kind in ("ptx", "cubin", "ltoir", "fatbin", "object", "library"):
    setattr(Image, f"from_{_kind}", _maker(_kind))


class LinkerOptions:
    """The options of a link: architecture and line information; no other option changes what PTX means."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    @property
    def flags(self) -> list[str]:
        """Return nvJitLink's flags that make PTX of LTO-IR."""
        lines = ["-lineinfo"] if self.options.get("lineinfo") else []
        return [f"-arch={self.options.get('arch') or current().target}", "-lto", "-ptx", *lines]


class Linker:
    """Links PTX images, or LTO-IR by nvJitLink; the device runtime's library is part of the simulated GPU."""

    def __init__(self, *images: Image, options: LinkerOptions | None = None) -> None:
        self.images, self.options = images, options or LinkerOptions()

    def link(self, target_type: str) -> Image:
        """Return one PTX image of images that are all PTX or all LTO-IR; anything else is refused."""
        given = [each for each in self.images if each.code_type != "library"]
        kinds = {each.code_type for each in given}
        if kinds == {"ltoir"}:
            return Image("ptx", linked([each.code for each in given], self.options.flags), given[0].name)
        if kinds != {"ptx"}:
            what = ", ".join(each.code_type for each in given)
            raise current().unsupported("cuda.core.Linker", f"of {what}: PTX alone, or LTO-IR alone")
        texts = [ptx_text(each.code) for each in given]
        if needs_grid_functions(texts):
            texts.append(current().compiled(GRID_FUNCTIONS, ("--relocatable-device-code=true",)))
        return Image("ptx", (joined(texts) if len(texts) > 1 else texts[0]).encode(), given[0].name)

    get_info_log = get_error_log = always("")

    close = always()


_FLAGS = {
    name: f"--{flag or name.replace('_', '-')}"
    for name, flag in pairs_in("""
        debug:device-debug define_macro device_as_default_execution_space diag_suppress extra_device_vectorization
        fma:fmad ftz include_path max_register_count:maxrregcount pre_include prec_div prec_sqrt
        relocatable_device_code restrict std undefine_macro use_fast_math:use_fast_math
    """).items()
}
"""Options of cuda.core as NVRTC's flags."""
_WITH_A_VALUE = {"fma", "ftz", "prec_div", "prec_sqrt", "relocatable_device_code"}
"""Flags that are written =true or =false; any other boolean flag is left out where it is false."""
_NO_MATTER = names_in("""
    arch lineinfo link_time_optimization name time no_cache split_compile disable_warnings ptxas_options
""")


class ProgramOptions:
    """The options of a compilation. Each is a flag of NVRTC or has no effect on PTX; others are refused by name."""

    def __init__(self, **options: Any) -> None:
        self.options = {name: value for name, value in options.items() if value is not None}
        for name in self.options:
            if name not in _FLAGS and name not in _NO_MATTER:
                raise current().unsupported(f"cuda.core.ProgramOptions of {name}")

    @property
    def arch(self) -> str:
        """Return the target to compile for, by default sm_90 for a run on sm_90a, as Device().arch reports."""
        plain = f"sm_{target_named(current().target).number}"
        return str(self.options.get("arch", plain)).replace("compute_", "sm_")

    @property
    def flags(self) -> Sequence[str]:
        """Return the options as NVRTC's flags."""
        found = []
        for name, flag in _FLAGS.items():
            for value in _listed(self.options.get(name)):
                if isinstance(value, bool):
                    found += [f"{flag}={str(value).lower()}"] if name in _WITH_A_VALUE else [flag] if value else []
                else:
                    found.append(f"{flag}={'='.join(value) if isinstance(value, tuple) else value}")
        return found


class CoreProgram:
    """CUDA C++ source that NVRTC compiles."""

    def __init__(self, code: Any, code_type: str, options: ProgramOptions | None = None) -> None:
        self.code = (code.decode() if isinstance(code, bytes) else code) or "// nothing"
        self.options = options or ProgramOptions()
        if code_type != "c++":
            raise current().unsupported(f"cuda.core.Program of {code_type}")

    def compile(self, target_type: str, name_expressions: Any = (), logs: Any = None) -> Image:
        """Return an image of PTX, or of LTO-IR; RuntimeError with NVRTC's log, other targets are refused."""
        if target_type == "ltoir":
            std = [] if "std" in self.options.options else ["--std=c++17"]
            arch = self.options.options.get("arch") or current().target
            return Image("ltoir", lto_ir(self.code, [f"-arch={arch}", "-dlto", *self.options.flags, *std]))
        if target_type not in ("ptx", "cubin"):
            raise current().unsupported(f"cuda.core.Program.compile to {target_type}", "only PTX is executed")
        try:
            names = tuple(each.decode() if isinstance(each, bytes) else str(each) for each in name_expressions)
            text = current().compiled(self.code, tuple(self.options.flags), self.options.arch, entries=names)
        except RefsimError as error:
            if error.kind is Kind.MISSING:
                raise
            raise RuntimeError(str(error)) from error
        return Image("ptx", text.encode(), source=self.code)

    close = always()


def lto_ir(source: str, flags: Sequence[str]) -> bytes:
    """Return the LTO-IR of CUDA C++ by NVRTC; RuntimeError with NVRTC's log."""
    from cuda.bindings import nvrtc

    def done(call: Any, *args: Any) -> Any:
        status, *found = call(*args)
        if int(status):
            raise RuntimeError(f"{call.__name__}: {status.name}\n{log()}")
        return found[0] if found else None

    def log() -> str:
        text = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.rstrip(b"\0").decode(errors="replace")

    program = done(nvrtc.nvrtcCreateProgram, source.encode(), b"program.cu", 0, [], [])
    done(nvrtc.nvrtcCompileProgram, program, len(flags), [each.encode() for each in flags])
    code = bytearray(done(nvrtc.nvrtcGetLTOIRSize, program))
    done(nvrtc.nvrtcGetLTOIR, program, code)
    done(nvrtc.nvrtcDestroyProgram, program)
    return bytes(code)


def linked(parts: Sequence[bytes], flags: Sequence[str]) -> bytes:
    """Return the PTX of LTO-IR by nvJitLink, which needs no GPU; RefsimError `compile-error` with its log."""
    from cuda.bindings import nvjitlink

    handle = nvjitlink.create(len(flags), list(flags))
    try:
        for number, part in enumerate(parts):
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, part, len(part), f"part {number}")
        nvjitlink.complete(handle)
        text = bytearray(nvjitlink.get_linked_ptx_size(handle))
        nvjitlink.get_linked_ptx(handle, text)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise RefsimError(
            "compile-error", f"nvJitLink: {error}", help=log.rstrip(b"\0").decode(errors="replace")
        ) from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(text)


def _listed(value: Any) -> list[Any]:
    """Return an option's value as a list, empty for None; a tuple is one macro with its value."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]
