"""Everything that refsim reads from files, each with good files to begin from and a function that reads one."""

import io
import json
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refsim import files, ptx
from refsim.bringup.report import PASS, Case, Report, read_report
from refsim.bringup.state import State
from refsim.cli.answers import dumps
from refsim.cli.arguments import codes_in
from refsim.cli.commands import layout
from refsim.device import cache
from refsim.formats import E4M3, format_named
from refsim.kernels import Kernel
from refsim.layouts.families import fragment
from refsim.silicon import vectors
from refsim.testing.kernel_files import kernel_paths
from refsim.testing.recipes import Tensor
from refsim.testing.replay import load_case, write_case
from refsim.testing.verdicts import Verdict

Seeds = Callable[[Path], list[bytes]]
KERNEL = Kernel("copy", lambda p: {}, None, lambda launcher, p: {}, {"y": "bf16"}, recipe=Tensor, call=print)
LAYOUT = fragment("mma.m16n8k16.bf16.a")
FACTS = {"device": "fuzz"}
PTX_TEXTS = (
    """.version 8.0
.target sm_90a
.address_size 64
.global .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .entry add(.param .u64 x, .param .u32 n, .param .align 8 .b8 s[16])
{
    .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<2>; .reg .f32 %f<4>;
    .shared .align 16 .b8 tile[256];
    ld.param.u64 %d1, [x]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
    mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d1, %d3;
    ld.global.u32 %r3, [%d4]; add.s32 %r4, %r3, 7; st.global.u32 [%d4], %r4;
    cvt.rn.f32.u32 %f1, %r4; fma.rn.f32 %f2, %f1, 0f3F800000, 0f40000000;
    bar.sync 0;
DONE:
    ret;
}
""",
    """.version 7.8
.target sm_80
.address_size 64
.func (.param .b32 r) twice(.param .b32 a)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [a]; shl.b32 %r2, %r1, 1; st.param.b32 [r], %r2; ret;
}
.visible .entry k(.param .u64 p)
.maxntid 64, 1, 1
{
    .reg .b32 %r<9>; .reg .b64 %d<3>; .reg .b32 %m<9>;
    .loc 1 7 3
    ld.param.u64 %d1, [p];
    { .param .b32 in; .param .b32 out; st.param.b32 [in], 5; call (out), twice, (in); ld.param.b32 %r1, [out]; }
    shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%m1,%m2,%m3,%m4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%m1,%m2,%m3,%m4};
    vote.sync.ballot.b32 %r3, 1, -1;
    atom.global.add.u32 %r4, [%d1], %r2;
    st.global.v2.u32 [%d1+8], {%r3, %r4};
    ret;
}
.file 1 "k.cu"
""",
)
CHECKS = ptx.Checks(seconds=0.5)


@dataclass(frozen=True)
class Reader:
    """`name` is the file's, `seeds` makes good contents in an empty folder, `read` reads the file of a folder.

    `read` may return a text that says what is wrong with what it read; a RefsimError is as good as a value.
    """

    name: str
    seeds: Seeds
    read: Callable[[Path], object]


def _saved(suffix: str) -> Seeds:
    def seeds(folder: Path) -> list[bytes]:
        made = []
        tensors = {"a": ([[1, 2, 3, 4]], "e2m1"), "b": ([5, 6], "bf16"), "c": ([7], "ue4m3"), "d": ([], "f32")}
        for name in tensors if suffix in (".npy", ".bin") else [None]:
            chosen = {name: tensors[name]} if name else tensors
            path = folder / f"seed{suffix}"
            files.save_all(path, {key: (np.array(codes, np.uint32), row) for key, (codes, row) in chosen.items()})
            made.append(path.read_bytes())
        if suffix in (".npz", ".npy"):
            packed = io.BytesIO()
            if suffix == ".npz":
                np.savez_compressed(packed, x=np.zeros(1000, np.float16), y=np.uint8([1, 2]))
            else:
                np.save(packed, np.arange(12, dtype=">u2").reshape(3, 4).T)
            made.append(packed.getvalue())
        return made

    return seeds


def _loaded(suffix: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        row = "e4m3" if suffix == ".bin" else None
        for stored in files.load_all(path, row).values():
            if stored.codes.size and int(stored.codes.max()) >= stored.format.code_limit:
                return f"{stored.key} holds a code that {stored.format} does not have"
        return None

    return read


def _launched(path: Path) -> None:
    program = ptx.load(path, None)
    for name, parameters in program.entries.items():
        if sum(parameter.size for parameter in parameters) > 1 << 16:
            continue
        arguments = [
            np.zeros(64 if each.size == 8 else each.size, "u4" if each.size == 8 else "u1") for each in parameters
        ]
        program.launch(name, (1,), (33,), arguments, checks=CHECKS)


def _cases(folder: Path) -> list[bytes]:
    problems = (Tensor(3, "bf16", "ties"), Tensor(1, "e4m3"))
    return [write_case(folder, KERNEL, each, {"name": "fake"}, "3 differ").read_bytes() for each in problems]


def _replayed(path: Path) -> None:
    problem = load_case(path, KERNEL)[1]
    if problem.n > 1 << 22:
        return
    problem.codes()


def _unlike(path: Path) -> None:
    """Without a kernel: the file that the case names is looked for, and outside this folder refused."""
    load_case(path)


def _case_records() -> tuple[Case, ...]:
    return (Case("numerics", "a", PASS, words=4), Case("numerics", "b", "differs", words=9, differing=2, note="x"))


def _states(folder: Path) -> list[bytes]:
    state = State(folder, FACTS, {"numerics": "f"})
    for case in _case_records():
        state.keep(case)
    return [state.path.read_bytes()]


def _state(path: Path) -> object:
    state = State(path.parent, FACTS, {"numerics": "f"})
    if state.path != path:
        path.rename(state.path)
        state = State(path.parent, FACTS, {"numerics": "f"})
        state.path.rename(path)
    return None if len(state) <= 2 else "more cases than were kept"


def _reports(folder: Path) -> list[bytes]:
    return [json.dumps(Report(FACTS, _case_records(), True, None).to_json()).encode()]


def _projects(folder: Path) -> list[bytes]:
    return [
        b'[project]\nname = "x"\n[tool.refsim]\nkernels = ["a.py", "b/c.py"]\n',
        b"[tool]\nrefsim = {kernels = []}\n[[tool.other]]\nx = 1979-05-27T07:32:00Z\ny = 1e9\n",
    ]


def _entries(folder: Path) -> list[bytes]:
    import hashlib

    return [hashlib.sha256(text.encode()).digest() + text.encode() for text in PTX_TEXTS]


def _entry(path: Path) -> object:
    content = cache.read_entry("ptx", "fade")
    return None if content is None or content.decode() in PTX_TEXTS else "a damaged entry was believed"


def _verdicts(folder: Path) -> list[bytes]:
    made = Verdict("copy", "fail", {"name": "sim"}, "quick", cases=3, elements=9, finding="3 differ", replay="x.json")
    return [json.dumps(made.to_json()).encode()]


def _verdict(path: Path) -> None:
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    if isinstance(record, dict):
        Verdict.from_json(record)


def _sidecars(folder: Path) -> list[bytes]:
    return [json.dumps({"recordings": {"a": {"arrays": {"digests": "a0", "result": "a1"}, "opcode": "x"}}}).encode()]


def _recordings(folder: Path) -> list[bytes]:
    packed = io.BytesIO()
    np.savez(packed, a0=np.arange(9, dtype=np.uint64), a1=np.arange(9, dtype=np.uint32))
    return [packed.getvalue()]


def _streams(folder: Path) -> list[bytes]:
    return [lzma.compress(each) for each in _recordings(folder)]


def _vectors(path: Path) -> None:
    partner, seed = ("x.npz", _recordings) if path.suffix == ".json" else ("x.json", _sidecars)
    (path.parent / partner).write_bytes(seed(path.parent)[0])
    vectors.recordings("x")


def _maps(folder: Path) -> list[bytes]:
    packed = io.BytesIO()
    rows, cols = LAYOUT.elements
    np.save(packed, rows * LAYOUT.shape[1] + cols)
    return [packed.getvalue()]


def _tables(folder: Path) -> list[bytes]:
    rows, cols = LAYOUT.elements
    lines = [f"{t},{v},{rows[t, v]},{cols[t, v]}" for t in range(4) for v in range(LAYOUT.values)]
    return [("thread,value,row,col\n" + "\n".join(lines) + "\n").encode()]


def _dumped(path: Path) -> None:
    dumps.read(path, format_named("bf16"), None, LAYOUT.name, None, "K")


READERS = (
    Reader("x.npy", _saved(".npy"), _loaded(".npy")),
    Reader("x.npz", _saved(".npz"), _loaded(".npz")),
    Reader("x.safetensors", _saved(".safetensors"), _loaded(".safetensors")),
    Reader("x.bin", _saved(".bin"), _loaded(".bin")),
    Reader("x.ptx", lambda folder: [text.encode() for text in PTX_TEXTS], _launched),
    Reader("case.json", _cases, _replayed),
    Reader("other.json", _cases, _unlike),
    Reader("state.json", _states, _state),
    Reader("report.json", _reports, read_report),
    Reader("pyproject.toml", _projects, lambda path: kernel_paths(path.parent)),
    Reader("refsim/ptx/fade", _entries, _entry),
    Reader("verdict.json", _verdicts, _verdict),
    Reader("x.json", _sidecars, _vectors),
    Reader("recorded/x.npz", _recordings, _vectors),
    Reader("streams/x.npz.xz", _streams, _vectors),
    Reader("map.npy", _maps, lambda path: layout.against(LAYOUT, path)),
    Reader("map.csv", _tables, lambda path: layout.against(LAYOUT, path)),
    Reader("dump.bin", lambda folder: [bytes(512), bytes(range(256)) * 2], _dumped),
    Reader("codes.txt", lambda folder: [b"0x7e 0x10\n 0b101 7\n", b"1 2 3"], lambda path: codes_in([str(path)], E4M3)),
)


def set_up(folder: Path) -> None:
    """The user cache and the recordings lie in this folder from here on; nothing of the user is read or written."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    kinds = (folder, folder / "recorded", folder / "streams")
    vectors.vectors_folder = lambda device="h200": next(kind for kind in kinds if (kind / "x.json").is_file())
    os.chdir(folder)
