"""The matrix instructions that layouts.cu probes, as rows, and the CUDA text of one Op per row.

`text()` is what the recorder writes to layouts_forms.inc before it compiles layouts.cu.
"""

from dataclasses import dataclass

# type: (bits of an element, the pattern of 1)
TYPES = {
    "f64": (64, 0x3FF0000000000000), "tf32": (32, 0x3F800000), "f16": (16, 0x3C00), "bf16": (16, 0x3F80),
    "e4m3": (8, 0x38), "e5m2": (8, 0x3C), "s8": (8, 1), "u8": (8, 1), "s4": (4, 1), "u4": (4, 1), "b1": (1, 1),
    "f32": (32, 0x3F800000), "s32": (32, 1),
}  # fmt: skip
MMA = (
    ("m8n8k4", ("f64",), ("f64",)),
    ("m8n8k16", ("s8", "u8"), ("s32",)),
    ("m8n8k32", ("s4", "u4"), ("s32",)),
    ("m8n8k128", ("b1",), ("s32",)),
    ("m16n8k4", ("tf32",), ("f32",)),
    ("m16n8k4", ("f64",), ("f64",)),
    ("m16n8k8", ("f16",), ("f32", "f16")),
    ("m16n8k8", ("bf16", "tf32"), ("f32",)),
    ("m16n8k8", ("f64",), ("f64",)),
    ("m16n8k16", ("f16",), ("f32", "f16")),
    ("m16n8k16", ("bf16",), ("f32",)),
    ("m16n8k16", ("s8", "u8"), ("s32",)),
    ("m16n8k16", ("e4m3", "e5m2"), ("f32", "f16")),
    ("m16n8k16", ("f64",), ("f64",)),
    ("m16n8k32", ("s8", "u8", "s4", "u4"), ("s32",)),
    ("m16n8k32", ("e4m3", "e5m2"), ("f32", "f16")),
    ("m16n8k64", ("s4", "u4"), ("s32",)),
    ("m16n8k128", ("b1",), ("s32",)),
    ("m16n8k256", ("b1",), ("s32",)),
)
VOLTA = "m8n8k4"
MAJORS = (("row", "col"), ("col", "row"))
WGMMA_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
EVERY = tuple(range(8, 257, 8))
FEW, SOME = (8, 16, 24, 32, 64, 96, 128, 192, 256), (8, 64, 256)
# type, accumulator, N: A from registers, B from shared memory
FED = (
    ("f16", "f32", EVERY),
    ("f16", "f16", SOME),
    ("bf16", "f32", EVERY),
    ("tf32", "f32", EVERY),
    ("e4m3", "f32", FEW),
    ("e4m3", "f16", SOME),
    ("e5m2", "f32", SOME),
    ("s8", "s32", FEW),
    ("u8", "s32", SOME),
    ("b1", "s32", (8,)),
)
# type, accumulator, N, major of A, major of B: both from shared memory
SHARED = (
    ("f16", "f32", 16, "K", "K"),
    ("f16", "f32", 128, "MN", "MN"),
    ("f16", "f32", 128, "K", "MN"),
    ("bf16", "f32", 128, "MN", "MN"),
    ("tf32", "f32", 16, "K", "K"),
    ("e4m3", "f32", 16, "K", "K"),
    ("s8", "s32", 16, "K", "K"),
)


@dataclass(frozen=True)
class Form:
    """One instruction: `kind` is mma, wgmma (A from registers) or wgmma-shared; `majors` as its PTX or operands say."""

    kind: str
    shape: tuple[int, int, int]
    type: str
    accumulator: str
    majors: tuple[str, str]

    @property
    def name(self) -> str:
        """mma.m16n8k16.f16.f32, wgmma.m64n24k16.f16.f32, wgmma.m64n16k16.f16.f32.K.K, mma.m8n8k4.f16.f32.row.col."""
        m, n, k = self.shape
        suffix = f".{'.'.join(self.majors)}" if self.kind == "wgmma-shared" or self.is_volta else ""
        return f"{self.kind.partition('-')[0]}.m{m}n{n}k{k}.{self.type}.{self.accumulator}{suffix}"

    @property
    def entry(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_volta(self) -> bool:
        """The shape of four products, whose A is 32 x 4 and whose B is 4 x 32."""
        return (self.kind, self.shape, self.type) == ("mma", (8, 8, 4), "f16")

    @property
    def threads(self) -> int:
        return 32 if self.kind == "mma" else 128

    @property
    def values(self) -> tuple[int, int, int]:
        """Values of A, B and D that one thread holds, were each in registers."""
        m, n, k = self.shape
        return tuple((4 if self.is_volta else 1) * area // self.threads for area in (m * k, k * n, m * n))

    @property
    def opcode(self) -> str:
        m, n, k = self.shape
        popc = ".and.popc" if self.type == "b1" else ""
        types = f"{self.accumulator}.{self.type}.{self.type}"
        if self.kind != "mma":
            return f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{types}{popc}"
        majors = ".".join(self.majors)
        return f"mma.sync.aligned.m{m}n{n}k{k}.{majors}.{types}.{self.accumulator}{popc}"


def forms() -> list[Form]:
    """Every row, in the order of the tables."""
    found = []
    for accumulator in ("f32", "f16"):
        found += [Form("mma", (8, 8, 4), "f16", accumulator, majors) for majors in MAJORS]
    for shape, types, accumulators in MMA:
        sizes = tuple(int(part) for part in shape[1:].replace("n", " ").replace("k", " ").split())
        found += [Form("mma", sizes, type, acc, ("row", "col")) for type in types for acc in accumulators]
    for type, accumulator, columns in FED:
        found += [Form("wgmma", (64, n, WGMMA_K[type]), type, accumulator, ("K", "K")) for n in columns]
    for type, accumulator, n, major_a, major_b in SHARED:
        found.append(Form("wgmma-shared", (64, n, WGMMA_K[type]), type, accumulator, (major_a, major_b)))
    return found


def text() -> str:
    """The Op and the entries of every row."""
    return "\n".join(_op(form) + _entries(form) for form in forms())


def _braces(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{number}" for number in range(first, first + count)) + "}"


def _registers(form: Form) -> tuple[int, int, int]:
    bits, accumulator_bits = TYPES[form.type][0], TYPES[form.accumulator][0]
    a, b, d = form.values
    per, d_per = max(1, 32 // bits), max(1, 32 // accumulator_bits)
    return a // per, b // per, d // d_per


def _op(form: Form) -> str:
    bits, one = TYPES[form.type]
    accumulator_bits, accumulator_one = TYPES[form.accumulator]
    wide = "u64" if bits == 64 else "u32"
    a, b, d = form.values
    a_registers, b_registers, d_registers = _registers(form)
    run = _mma_body(form) if form.kind == "mma" else _wgmma_body(form)
    return f"""struct op_{form.entry} {{
    using Word = {wide};
    static constexpr u32 THREADS = {form.threads}, BITS = {bits}, ACCUMULATOR_BITS = {accumulator_bits};
    static constexpr u32 A_VALUES = {a}, B_VALUES = {b}, D_VALUES = {d};
    static constexpr u32 A_REGISTERS = {a_registers}, B_REGISTERS = {b_registers}, D_REGISTERS = {d_registers};
    static constexpr u64 ONE = {one:#x}ull, ACCUMULATOR_ONE = {accumulator_one:#x}ull;
    static constexpr bool INTEGER = {str(form.accumulator == "s32").lower()};
{run}}};
"""


def _operands(constraint: str, register: str, count: int) -> str:
    return ", ".join(f'"{constraint}"({register}[{number}])' for number in range(count))


def _mma_body(form: Form) -> str:
    a, b, d = _registers(form)
    letter = "l" if form.type == "f64" else "r"
    arguments = f"{_braces(0, d)}, {_braces(d, a)}, {_braces(d + a, b)}, {_braces(0, d)}"
    return f"""    static __device__ void run(Word (&d)[{d}], const Word (&a)[{a}], const Word (&b)[{b}]) {{
        asm volatile("{form.opcode} {arguments};"
            : {_operands("+" + letter, "d", d)} : {_operands(letter, "a", a)}, {_operands(letter, "b", b)});
    }}
"""


def _wgmma_body(form: Form) -> str:
    a, _, d = _registers(form)
    fed = form.kind == "wgmma"
    first_a, count = d, a if fed else 1
    operand_a = _braces(first_a, count) if fed else f"%{first_a}"
    scales = "" if form.accumulator == "s32" else ", 1, 1"
    if form.type in ("f16", "bf16"):
        transposed = [int(major == "MN") for major in form.majors]
        scales += "".join(f", {flag}" for flag in (transposed[1:] if fed else transposed))
    inputs = _operands("r", "a", a) if fed else '"l"(a)'
    given = f"const Word (&a)[{a}]" if fed else "u64 a"
    return f"""    static __device__ void run(Word (&d)[{d}], {given}, u64 b) {{
        asm volatile("wgmma.fence.sync.aligned;\\n\\t"
            "{form.opcode} {_braces(0, d)}, {operand_a}, %{first_a + count}, 1{scales};\\n\\t"
            "wgmma.commit_group.sync.aligned;\\n\\twgmma.wait_group.sync.aligned 0;"
            : {_operands("+r", "d", d)} : {inputs}, "l"(b) : "memory");
    }}
"""


def _entries(form: Form) -> str:
    if form.kind == "mma":
        return f"MMA({form.entry})\n"
    return f"{'WGMMA_FED' if form.kind == 'wgmma' else 'WGMMA_SHARED'}({form.entry})\n"
