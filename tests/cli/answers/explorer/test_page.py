"""What the page of `refsim explore` computes in Chromium is what the model says, and dumps are read as what they are."""

import random
from functools import partial

import numpy as np
import pytest

from refsim import pack
from refsim.errors import RefsimError
from refsim.formats import ELEMENTS, F64, FORMATS
from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, descriptor
from refsim.layouts.families import fragment, fragments
from refsim.layouts.holders import bits_of, warp_lanes
from refsim.layouts.scales import SCALE_LAYOUTS, scale_layout
from refsim.layouts.swizzles import SWIZZLES
from refsim.layouts.tiles import tile

LANDMARKS = (0, 1, 0x80, 0x7BFF, 0x7C00, 0x7F80, 0x7FFF, 0x8000, 0xFF80)  # of 8 and 16 bits, then of 32
LANDMARKS += (0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x80000000, 0xFF800000)
LANDMARKS += tuple(part << 32 for part in (0x3FF00000, 0x7FEFFFFF, 0x7FF00000, 0x7FF80000, 0x80000000, 0xFFF00000))
# One of each family, ragged ones with holes, elements of 1 to 64 bits, tensor memory, and a drawn handful.
FRAGMENTS = (
    "mma.m16n8k16.bf16.a",
    "mma.m8n8k4.f16.a",
    "mma.m16n8k256.b1.b",
    "mma.m16n8k16.f64.d",
    "wgmma.m64n128k32.e4m3.d",
    "ldmatrix.m8n8.x4.b16.trans",
    "stmatrix.m8n8.x2.b16",
    "tcgen05.n40.1x.sfb",
    "tcgen05.n248.2x.sfb.id2",
    "tcgen05.ld.16x128b.x2",
    "mfma.32x32x64.f8f6f4.a",
    "wmma.m16n16k16.f16.a",
    "mma.m16n8k64.mxf4.2x.sfa",
    "mma.sp.m16n8k32.s8.meta",
    "tcgen05.sp.m64k32.f16.1sm.meta",
    *random.Random(15).sample(fragments(), 4),
)


def numbers(found):
    return np.array([float(each) for each in found])


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_values_of_codes_are_the_models(model, row):
    draw = random.Random(row.name)
    landmarks = [code for code in (*LANDMARKS, row.code_limit - 1) if code < row.code_limit]
    codes = (
        list(range(row.code_limit))
        if row.code_bits <= 8
        else [*landmarks, *(draw.randrange(row.code_limit) for _ in range(1500))]
    )
    script = """({name, codes}) => { const element = explorer.ELEMENTS.get(name);
        const made = typeof element.one === "bigint" ? BigInt : Number;
        return codes.map((code) => explorer.spelled(explorer.decode(element, made(code)).value)); }"""
    found = numbers(model(script, {"name": row.name, "codes": [str(code) for code in codes]}))
    if row is F64:
        wanted = np.array(codes, np.uint64).view(np.float64)
    else:
        wanted = np.array([float(row.value(code)) for code in codes])
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    sure = ~np.isnan(wanted)
    assert np.array_equal(found[sure].view(np.uint64), wanted[sure].view(np.uint64))


def test_a_value_is_its_significand_times_its_power(model):
    script = """() => explorer.TABLES.elements.map((row) => Array.from({length: Math.min(2 ** row.bits, 512)}, (_, code) =>
        explorer.decode(row, typeof row.one === "bigint" ? row.one + BigInt(code) : code)).every(({value, power, significand}) =>
        power === undefined || Object.is(significand * 2 ** power, value)))"""
    assert all(model(script))


def test_every_place_of_every_fragment_holds_the_element_that_the_model_says(model):
    """Elements are numbered by row and col from 1, 0 for none, each place has an odd weight of its own, modulo 2^32."""
    script = """(names) => names.map((name) => { const held = explorer.fragment(name); let [sum, at] = [0, 0];
        for (let thread = 0; thread < held.threads; thread++) for (let value = 0; value < held.values; value++) {
            const found = explorer.coord(held, thread, value);
            const number = found ? found[0] * held.cols + found[1] + 1 : 0;
            sum = (sum + Math.imul(number, Math.imul(at++, 0x9E3779B1) | 1)) >>> 0; }
        return sum; })"""
    names = list(fragments())
    assert len(names) > 1700
    differing = [
        name for name, sum_ in zip(names, model(script, names), strict=True) if sum_ != weighted(fragment(name))
    ]
    assert differing == []


def weighted(each):
    rows, cols = each.elements
    held = np.where(rows < 0, 0, rows * each.shape[1] + cols + 1).ravel().astype(np.uint32)
    weights = np.arange(held.size, dtype=np.uint32) * np.uint32(0x9E3779B1) | np.uint32(1)
    return int((held * weights).sum(dtype=np.uint32))


@pytest.mark.parametrize("name", FRAGMENTS)
def test_places_hold_the_elements_that_the_model_says(model, name):
    script = """(name) => { const held = explorer.fragment(name); const found = [];
        for (let thread = 0; thread < held.threads; thread++) for (let value = 0; value < held.values; value++) {
            const at = explorer.coord(held, thread, value); found.push(at ? at[0] * held.cols + at[1] : -1); }
        return {found, holders: explorer.holders(held), last: explorer.placeOf(held, held.threads * held.values - 1)}; }"""
    answer = model(script, name)
    each = fragment(name)
    rows, cols = each.elements
    assert answer["found"] == np.where(rows < 0, -1, rows * each.shape[1] + cols).ravel().tolist()
    threads, values = each.holders(*np.ogrid[: each.shape[0], : each.shape[1]])
    assert answer["holders"] == (threads * each.values + values).reshape(-1, each.copies).tolist()
    last = answer["last"]
    assert [last["low"], last["high"]] == list(bits_of(each, each.values - 1))
    assert last["register"] == (each.values - 1) // each.per_register
    assert (last["warp"], last["lane"]) == divmod(each.threads - 1, warp_lanes(each))


@pytest.mark.parametrize("pattern", SWIZZLES, ids=str)
def test_swizzles_move_bytes_as_the_model_does(model, pattern):
    addresses = [*range(4096), *random.Random(3).sample(range(1 << 40), 500)]
    script = (
        """({name, addresses}) => addresses.map((address) => explorer.swizzled(explorer.SWIZZLES.get(name), address))"""
    )
    assert model(script, {"name": pattern.name, "addresses": addresses}) == pattern(addresses).tolist()


@pytest.mark.parametrize("pattern", SWIZZLES, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "mma.m16n8k16.bf16.a",
        "wgmma.m64n128k32.e4m3.d",
        "wgmma.m64n64k32.e4m3.a",
        "mma.m8n8k4.f16.b",
        "mma.m16n8k64.e2m1.a",
        "mma.m16n8k256.b1.a",
        "mma.m16n8k16.f64.a",
        "mma.m16n8k32.e2m3.a",
        "mma.m16n8k32.e2m1.a",
    ],
)
def test_tiles_lie_where_the_model_puts_them_or_are_refused_with_it(model, name, pattern):
    script = """({name, pattern}) => { const held = explorer.fragment(name);
        const found = explorer.tileOf(held, explorer.SWIZZLES.get(pattern)); if (found.refusal) return null; const bytes = [];
        for (let row = 0; row < held.rows; row++) for (let col = 0; col < held.cols; col++) bytes.push(found.address(row, col));
        return {bytes, banks: bytes.map(explorer.bankOf), bits: Array.from({length: held.cols}, (_, col) => found.bit(col))}; }"""
    found = model(script, {"name": name, "pattern": pattern.name})
    each = fragment(name)
    rows, cols = each.shape
    bits = np.arange(cols) * each.element_bits
    try:
        if each.element_bits in (8, 16, 32):
            wanted = tile("K", pattern, each.element_bits // 8, each.shape)
            bytes_of = wanted.address(*np.ogrid[:rows, :cols])
        else:  # as the bytes that they are packed in
            wanted = tile("K", pattern, 1, (rows, cols * each.element_bits // 8))
            bytes_of = wanted.address(np.arange(rows)[:, None], bits[None] // 8)
    except RefsimError:
        assert found is None
        return
    if each.element_bits != each.slot_bits:  # their containers in shared memory have other bytes between
        assert found is None
        return
    assert found["bytes"] == bytes_of.ravel().tolist()
    assert found["banks"] == (bytes_of // 4 % 32).ravel().tolist()
    assert found["bits"] == (bits % 8).tolist()


@pytest.mark.parametrize("shape", [(128, 8), (300, 13), (256, 16)], ids=str)
def test_scales_lie_where_the_model_puts_them_or_are_refused_with_it(model, shape):
    script = """({rows, blocks}) => [...explorer.SCALES.values()].map((layout) => {
        const found = explorer.scalesOf(layout, rows, blocks);
        if (found.refusal) return null; const [tall, broad] = found.padded; const places = [];
        for (let row = 0; row < tall; row++) for (let block = 0; block < broad; block++) places.push(found.place(row, block));
        const back = places.every((at, index) => found.at(at)[0] * broad + found.at(at)[1] === index);
        return {padded: found.padded, places, back}; })"""
    answers = model(script, dict(zip(("rows", "blocks"), shape, strict=True)))
    for layout, found in zip(SCALE_LAYOUTS, answers, strict=True):
        try:
            padded = layout.padded(shape)
        except RefsimError:
            assert found is None
            continue
        assert tuple(found["padded"]) == padded
        offsets = layout.offset(*np.ogrid[: padded[0], : padded[1]], shape) // layout.element_bytes
        assert found["places"] == offsets.ravel().tolist(), layout.name
        assert found["back"]


@pytest.mark.parametrize("kind", [row.kind for row in DESCRIPTORS if isinstance(row, Descriptor)])
def test_words_say_what_the_model_reads_in_them(model, kind):
    row = descriptor(kind)
    draw = random.Random(kind)
    words = [0, (1 << row.bits) - 1, *(draw.getrandbits(row.bits) & draw.getrandbits(row.bits) for _ in range(120))]
    words += [1 << bit for bit in range(row.bits)]
    words += [0x4000004000000040 | start | offset << 49 for start in (0, 1, 63, 64, 16383) for offset in (0, 1, 7)][
        : 15 * (row.bits == 64)
    ]
    script = """({kind, words}) => words.map((word) => {
        const found = explorer.explain(explorer.DESCRIPTORS.get(kind), BigInt(word));
        return {said: found.readings.map(({field, stored, value}) => [field.bits, field.name, stored, value, field.meaning]),
            problems: found.problems, remarks: found.remarks}; })"""
    remarks = 0
    for word, found in zip(words, model(script, {"kind": kind, "words": [hex(each) for each in words]}), strict=True):
        wanted = row.explain(word)
        assert found["said"] == [
            [each.bits, each.name, each.stored, each.value, each.meaning] for each in wanted.readings
        ]
        assert found["problems"] == list(wanted.problems)
        assert found["remarks"] == list(wanted.notes), hex(word)
        remarks += len(wanted.notes)
    assert bool(remarks) == bool(row.remarks)


READ = """({text, name, reading}) => {
    try { return explorer.readDump(text, explorer.ELEMENTS.get(name), reading).codes.map(String); }
    catch (problem) { if (problem instanceof explorer.DumpError) return problem.message; throw problem; } }"""


def read(model, text, name, reading="auto"):
    """The codes of a text, or what is wrong with it."""
    found = model(READ, {"text": text, "name": name, "reading": reading})
    return found if isinstance(found, str) else [int(each) for each in found]


def rows_of(content, line):
    """Each 16 bytes in a line, as line(address, bytes) writes it."""
    return "\n".join(line(at, content[at : at + 16]) for at in range(0, len(content), 16))


@pytest.mark.parametrize("row", FORMATS, ids=str)
def test_packed_bytes_are_read_as_the_codes_that_were_packed(model, row):
    draw = np.random.default_rng(5)
    codes = draw.integers(0, row.code_limit, 64, np.uint32).astype(row.code_dtype)
    content = pack(codes, row).tobytes()
    low = [f"{int(word):08x}" for word in np.frombuffer(content, "<u4")]
    texts = [
        content.hex(" "),
        content.hex(),
        rows_of(content, lambda at, line: f"{at:08x}: {line.hex(' ', 2)}  {'[]' * (len(line) // 2)}"),
        rows_of(content, lambda at, line: f"{at:08x}  {line[:8].hex(' ')}  {line[8:].hex(' ')}  |{'b0' * 8}|"),
        rows_of(content, lambda at, line: f"{at:07o} {line.hex(' ')}") + f"\n{len(content):07o}",
        rows_of(
            content, lambda at, line: f"{at:07x} " + " ".join(f"{word:04x}" for word in np.frombuffer(line, "<u2"))
        ),
        "0x7f00 <buf+16>:\t" + " ".join("0x" + word for word in low),
        f"x = bytes({content!r})",
        f"array({codes.tolist()}, dtype={row.code_dtype})",
        f"tensor({codes.tolist()})",
        f"array({list(content)}, dtype=uint8)" if row.code_bits > 8 else str(codes.tolist())[1:-1],
        "{" + ", ".join(f"0x{code:0{-(-row.code_bits // 4)}x}u" for code in codes.tolist()) + "}",
    ]
    for text in texts:
        assert read(model, text, row.name) == codes.tolist(), text
    assert read(model, " ".join(low), row.name, "low") == codes.tolist()
    high = " ".join("0x" + content[at : at + 4].hex() for at in range(0, len(content), 4))
    assert read(model, high, row.name, "high") == codes.tolist()


def test_doubles_are_read_whole(model):
    values = np.array([1.5, -0.0, 5e-324, 1e308, np.inf, 0.1])
    codes = values.view(np.uint64).tolist()
    texts = (
        values.tobytes().hex(" "),
        str(values.tolist()),
        " ".join(map(hex, codes)),
        f"array({codes}, dtype=uint64)",
    )
    for text in texts:
        assert read(model, text, "f64") == codes, text


@pytest.mark.parametrize("row", FORMATS, ids=str)
def test_a_list_of_values_is_read_as_their_codes(model, row):
    draw = random.Random(row.name)
    codes = [draw.randrange(row.code_limit) >> row.padding_bits << row.padding_bits for _ in range(40)]
    codes = [code for code in codes if not np.isnan(row.value(code))]
    values = [float(row.value(code)) for code in codes]
    found = read(model, f"[{', '.join(map(repr, values))}, 0.5]", row.name)
    assert [row.value(code) for code in found[:-1]] == values


@pytest.mark.parametrize(
    ("text", "name", "codes"),
    [
        ("tensor([1.0000, 0.0020, nan], device='cuda:0', dtype=torch.float8_e4m3fn)", "e4m3", [0x38, 1, 0x7F]),
        ("[1.9531e-03 -4.4800e+02]", "e4m3", [1, 0xFE]),
        ("0x80 0x3f", "bf16", [0x3F80]),
        ("0x3f80, 0x4000", "bf16", [0x3F80, 0x4000]),
        ("-1, -128, 5", "s8", [255, 128, 5]),
        ("['0x38', '0x7f']", "e4m3", [0x38, 0x7F]),
        ("b'8@\\x7e\\n\\0'", "e4m3", [0x38, 0x40, 0x7E, 10, 0]),
        ("38 40", "e4m3", [0x38, 0x40]),
        ("1.5 -2.0", "e4m3", [0x3C, 0xC0]),
    ],
)
def test_what_people_paste_is_what_it_looks_like(model, text, name, codes):
    assert read(model, text, name) == codes


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "e4m3", "paste a dump to read it"),
        ("00 01\n0g", "e4m3", "line 2: 0g is no hexadecimal word"),
        ("7e0", "e4m3", "line 1: 7e0 is no whole number of bytes"),
        ("7e 01 02", "bf16", "3 bytes are no whole number of bf16 codes"),
        ("0x80", "ue4m3", "line 1: 0x80 is no code of ue4m3, which has 7 bits"),
        ("0x100", "e4m3", "line 1: 0x100 is no code of e4m3, which has 8 bits"),
        ("[1.3]", "e4m3", "line 1: 1.3 is no value of e4m3: refsim encode -t e4m3 rounds it"),
        ("[-1]", "e4m3", "line 1: -1 is no code of e4m3, which has 8 bits"),
        ("-129, 0", "s8", "line 1: -129 is no code of s8, which has 8 bits"),
        ("[nan]", "e2m1", "line 1: nan is no value of e2m1: refsim encode -t e2m1 rounds it"),
        ("[1e999]", "e4m3", "line 1: 1e999 is no value of e4m3: refsim encode -t e4m3 rounds it"),
        ("[0.0020]", "bf16", "line 1: 0.0020 is 0x3b00 or 0x3b01 or 0x3b02 of bf16: print more digits"),
        ("[1, ..., 2]", "e4m3", "the list is abbreviated with ...: print all elements"),
        ("{0x38 <repeats 9 times>}", "e4m3", "<repeats ...> abbreviates equal elements: set print repeats 0 in gdb"),
        (f"{'00 ' * 15}00\n*\n0000020", "e4m3", "line 2: * abbreviates equal lines: dump with -v"),
        ("[]", "e4m3", "the list is empty"),
        ("[" * 60_000 + "]", "e4m3", "the list is empty"),
        ("[" * 60_000, "e4m3", "line 1: [[[[[[[[[[[[[[[[[[[[ is no hexadecimal word"),
        ("1" * 60_001 + "x", "e4m3", "line 1: 11111111111111111111 is no hexadecimal word"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_dump_that_cannot_be_read_says_where(model, text, name, says):
    assert read(model, text, name) == says


WORD = (
    "({text, bits}) => { const found = explorer.wordOf(text, bits); return found && [String(found.word), found.note]; }"
)


def test_words_are_read_as_debuggers_and_people_print_them(model):
    ask = partial(model, WORD)
    word = 0x4000004000000040
    for text in (
        "0x4000004000000040",
        "4000004000000040",
        "0x00000040 0x40000040",
        "0x4000_0040_0000_0040ull",
        bin(word),
    ):
        assert ask({"text": text, "bits": 64})[0] == str(word), text
    assert ask({"text": str(word), "bits": 64}) == [str(word), "read as a decimal number"]
    assert ask({"text": "64", "bits": 32}) == [str(0x64), "read as hexadecimal; the decimal number would be 0x40"]
    for text in ("", "0x", "g", "-1", "0x1_0000_0000", "1e5z", "0x1 0x2"):
        assert ask({"text": text, "bits": 32}) is None, text


def test_a_scale_of_a_known_place(model):
    script = """() => explorer.scalesOf(explorer.SCALES.get("nvidia_128x4"), 128, 8).place(33, 5)"""
    assert model(script) == 533 == int(scale_layout("nvidia_128x4").offset(33, 5, (128, 8)))
