"""The page of `refsim explore` in Chromium: what it computes is what the model says, and hands and ears can use it."""

import json
import random
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from refsim import pack
from refsim.cli.answers.explorer.page import page as written
from refsim.errors import RefsimError
from refsim.formats import ELEMENTS, F64, FORMATS, format_named
from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, descriptor
from refsim.layouts.families import fragment, fragments
from refsim.layouts.holders import bits_of, warp_lanes
from refsim.layouts.swizzles import SWIZZLES
from refsim.layouts.tiles import tile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = [
    *(["Playwright is not installed (pip install 'refsim[dev]')"] if find_spec("playwright") is None else []),
    *(["there is no Chromium on this machine"] if CHROMIUM is None else []),
]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=" and ".join(ABSENT) or "everything is here")
LANDMARKS = (0, 1, 0x80, 0x7BFF, 0x7C00, 0x7F80, 0x7FFF, 0x8000, 0xFF80)  # of 8 and 16 bits, then of 32
LANDMARKS += (0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x80000000, 0xFF800000)
# One of each family, ragged ones with holes, elements of 1 to 64 bits, tensor memory, and a drawn handful.
FRAGMENTS = (
    "mma.m16n8k16.bf16.a", "mma.m8n8k4.f16.a", "mma.m16n8k256.b1.b", "mma.m16n8k16.f64.d", "wgmma.m64n128k32.e4m3.d",
    "wgmma.m64n24k16.f16.d.f16", "ldmatrix.m8n8.x4.b16.trans", "stmatrix.m8n8.x2.b16", "tcgen05.n40.1x.sfb",
    "tcgen05.n248.2x.sfb.id2", "tcgen05.m64n8.1sm.d", "tcgen05.ld.16x128b.x2", "mfma.32x32x64.f8f6f4.a",
    "wmma.m16n16k16.f16.a", "mma.m16n8k64.mxf4.2x.sfa", "mma.sp.m16n8k32.s8.meta", "tcgen05.sp.m64k32.f16.1sm.meta",
    *random.Random(15).sample(fragments(), 12),
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(written(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def opened(browser, file):
    """open(hash, colours, width): a page of its own; at the end none of them has said a word on its console."""
    contexts, said = [], []

    def open_page(choice="", colours="light", width=1440):
        context = browser.new_context(color_scheme=colours, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        page.goto(f"{file}#{choice}")
        page.wait_for_function("window.explorer !== undefined")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture(scope="module")
def model(opened):
    """ask(script, argument): what the functions of the page return; NaN and infinities as text."""
    page = opened()

    def ask(script, argument=None):
        return json.loads(page.evaluate(f"async (given) => JSON.stringify(({script})(given))", argument))

    return ask


def numbers(found):
    return np.array([float(each) for each in found])


@pytest.mark.parametrize("row", [row for row in ELEMENTS if row is not F64], ids=str)
def test_values_of_codes_are_the_models(model, row):
    draw = random.Random(row.name)
    landmarks = [code for code in (*LANDMARKS, row.code_limit - 1) if code < row.code_limit]
    codes = (
        list(range(row.code_limit)) if row.code_bits <= 8 else landmarks + draw.choices(range(row.code_limit), k=5000)
    )
    found = numbers(
        model(
            "({name, codes}) => codes.map((code) => explorer.spelled(explorer.decode(explorer.ELEMENTS.get(name), code).value))",
            {"name": row.name, "codes": codes},
        )
    )
    wanted = np.array([float(row.value(code)) for code in codes])
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    sure = ~np.isnan(wanted)
    assert np.array_equal(found[sure].view(np.uint64), wanted[sure].view(np.uint64))


def test_a_value_is_its_significand_times_its_power(model):
    script = """() => explorer.TABLES.elements.map((row) => Array.from({length: Math.min(2 ** row.bits, 4096)}, (_, code) =>
        explorer.decode(row, code)).every(({value, power, significand}) =>
        power === undefined || Object.is(significand * 2 ** power, value)))"""
    assert all(model(script))


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
    ],
)
def test_tiles_lie_where_the_model_puts_them_or_are_refused_with_it(model, name, pattern):
    script = """({name, pattern}) => { const held = explorer.fragment(name);
        const found = explorer.tileOf(held, explorer.SWIZZLES.get(pattern)); if (found.refusal) return null; const bytes = [];
        for (let row = 0; row < held.rows; row++) for (let col = 0; col < held.cols; col++) bytes.push(found.address(row, col));
        return {bytes, banks: bytes.map(explorer.bankOf)}; }"""
    found = model(script, {"name": name, "pattern": pattern.name})
    each = fragment(name)
    try:
        wanted = tile("K", pattern, each.element_bits // 8, each.shape)
    except RefsimError:
        assert found is None
        return
    bytes_of = wanted.address(*np.ogrid[: each.shape[0], : each.shape[1]])
    assert found["bytes"] == bytes_of.ravel().tolist()
    assert found["banks"] == (bytes_of // 4 % 32).ravel().tolist()


@pytest.mark.parametrize("kind", [row.kind for row in DESCRIPTORS if isinstance(row, Descriptor)])
def test_words_say_what_the_model_reads_in_them(model, kind):
    row = descriptor(kind)
    draw = random.Random(kind)
    words = [0, (1 << row.bits) - 1, *(draw.getrandbits(row.bits) & draw.getrandbits(row.bits) for _ in range(120))]
    words += [1 << bit for bit in range(row.bits)]
    script = """({kind, words}) => words.map((word) => {
        const found = explorer.explain(explorer.DESCRIPTORS.get(kind), BigInt(word));
        return {said: found.readings.map(({field, stored, value}) => [field.bits, field.name, stored, value, field.meaning]),
            problems: found.problems}; })"""
    for word, found in zip(words, model(script, {"kind": kind, "words": [hex(each) for each in words]}), strict=True):
        wanted = row.explain(word)
        assert found["said"] == [
            [each.bits, each.name, each.stored, each.value, each.meaning] for each in wanted.readings
        ]
        assert found["problems"] == list(wanted.problems)


READ = """({text, name}) => { try { return explorer.readDump(text, explorer.ELEMENTS.get(name)).codes; }
    catch (problem) { if (problem instanceof explorer.DumpError) return problem.message; throw problem; } }"""


@pytest.mark.parametrize("row", FORMATS, ids=str)
def test_packed_bytes_are_read_as_the_codes_that_were_packed(model, row):
    draw = np.random.default_rng(5)
    codes = draw.integers(0, row.code_limit, 48, np.uint32).astype(row.code_dtype)
    content = pack(codes, row).tobytes()
    lines = [content[at : at + 16] for at in range(0, len(content), 16)]
    xxd = "\n".join(f"{16 * at:08x}: {line.hex(' ', 2)}  {'.' * len(line)}" for at, line in enumerate(lines))
    dump = "\n".join(
        f"{16 * at:08x}  {line[:8].hex(' ')}  {line[8:].hex(' ')}  |{'a0' * 8}|" for at, line in enumerate(lines)
    )
    words = " ".join(
        f"0x{int(word):08x}" for word in np.frombuffer(content.ljust(-(-len(content) // 4) * 4, b"\0"), "<u4")
    )
    lists = f"array({codes.tolist()}, dtype=uint8)"
    for text in (content.hex(" "), content.hex(), xxd, dump, lists):
        assert model(READ, {"text": text, "name": row.name}) == codes.tolist(), text
    read = model(READ, {"text": f"0x7f00 <buf+16>:\t{words}", "name": row.name})
    assert read[: len(codes)] == codes.tolist()


@pytest.mark.parametrize("row", FORMATS, ids=str)
def test_a_list_of_values_is_read_as_their_codes(model, row):
    draw = random.Random(row.name)
    codes = [draw.randrange(row.code_limit) >> row.padding_bits << row.padding_bits for _ in range(40)]
    codes = [code for code in codes if not np.isnan(row.value(code))]
    values = [float(row.value(code)) for code in codes]
    text = f"[{', '.join(map(repr, values))}, 0.5]"
    found = model(READ, {"text": text, "name": row.name})
    assert [row.value(code) for code in found[:-1]] == values


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "e4m3", "nothing to read yet"),
        ("00 01\n0g", "e4m3", "line 2: 0g is no hexadecimal word"),
        ("7e0", "e4m3", "line 1: 7e0 is no whole number of bytes"),
        ("7e 01 02", "bf16", "3 bytes are no whole number of bf16 codes"),
        ("0x80", "ue4m3", "line 1: 0x80 is no code of ue4m3, which has 7 bits"),
        ("[1.3]", "e4m3", "1.3 is no value of e4m3: refsim encode -t e4m3 rounds"),
        ("[nan]", "e2m1", "nan is no value of e2m1: refsim encode -t e2m1 rounds"),
        ("[1, ..., 2]", "e4m3", "the list is shortened by ...: print all of it"),
        ("[]", "e4m3", "the list is empty"),
    ],
)
def test_a_dump_that_cannot_be_read_says_where(model, text, name, says):
    assert model(READ, {"text": text, "name": name}) == says


def panel(page, view):
    return page.locator(f"#{view}-panel").inner_text()


def test_the_element_under_the_pointer_says_who_holds_it_and_what_it_is(opened):
    page = opened("fragment=mma.m16n8k16.bf16.a")
    page.mouse.move(*page.evaluate("explorer.views.fragment.grid.centre(9, 3)"))
    each = fragment("mma.m16n8k16.bf16.a")
    thread, value = each.holder(9, 3)
    byte = int(tile("K", "32B", 2, each.shape).address(9, 3))
    text = panel(page, "fragment")
    assert text.startswith("row 9, col 3\n")
    for fact in (f"{thread} (warp 0, lane {thread})", str(value), "1, bits 16..31", f"{byte} (", str(byte // 4 % 32)):
        assert fact in text
    code = page.evaluate("explorer.views.fragment.codeAt(9, 3)")
    assert f"0x{code:04x}" in text
    assert str(int(format_named("bf16").value(code))) in text


def test_keys_move_over_elements_and_are_heard(opened):
    page = opened("fragment=wgmma.m64n128k32.e4m3.d")
    grid = page.locator("#fragment-grid")
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "PageDown", "End"):
        page.keyboard.press(key)
    heard = page.locator("#spoken").inner_text()
    thread, value = fragment("wgmma.m64n128k32.e4m3.d").holder(9, 127)
    assert heard.startswith(f"row 9, col 127: thread {thread} (warp 0, lane {thread}), value no. {value}")
    page.keyboard.press("Control+Home")
    assert panel(page, "fragment").startswith("row 0, col 0")
    assert grid.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"


def test_tab_reaches_every_view_and_every_grid_in_order(opened):
    page = opened()
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    controls = ["family", "name", "element", "memory", "codes", "view", "colour", "grid"]
    assert reached[:10] == ["tab-fragment", "theme", *(f"fragment-{each}" for each in controls)]
    page.locator("#tab-fragment").focus()
    for view in ("format", "swizzle", "descriptor", "dump", "fragment"):
        page.keyboard.press("ArrowRight")
        assert page.locator(f"#{view}").is_visible()
        assert page.evaluate("document.activeElement.id") == f"tab-{view}"


def test_a_pasted_dump_is_laid_over_a_fragment(opened):
    page = opened("dump")
    each = fragment("mma.m16n8k16.bf16.a")
    codes = np.arange(256, dtype=np.uint16).reshape(16, 16) + 0x3F80
    memory = np.zeros(256, np.uint16)
    memory[tile("K", "32B", 2, (16, 16)).address(*np.ogrid[:16, :16]) // 2] = codes
    held = codes[each.elements]
    for order, content in (("row", codes), ("holder", held), ("memory", memory)):
        page.locator("#tab-dump").click()
        page.locator("#dump-text").fill(content.tobytes().hex(" ", 4))
        page.locator("#tab-fragment").click()
        page.locator("#fragment-codes").select_option(order)
        found = page.evaluate("Array.from({length: 256}, (_, at) => explorer.views.fragment.codeAt(at >> 4, at % 16))")
        assert found == codes.ravel().tolist(), order
    page.locator("#tab-dump").click()
    page.locator("#dump-text").fill("80 3f")
    page.locator("#tab-fragment").click()
    assert "the dump has 1 codes, 256 are held" in page.locator("#fragment-says").inner_text()


def test_a_pasted_descriptor_is_decoded_and_its_bits_turn(opened):
    page = opened("descriptor=tcgen05-smem")
    page.locator("#descriptor-word").fill("0x4000004000000040")
    wanted = descriptor("tcgen05-smem").explain(0x4000004000000040)
    assert page.locator("#descriptor-problems li").all_inner_texts() == list(wanted.problems)
    cells = [row.split("\t") for row in page.locator("#descriptor-fields tr").all_inner_texts()]
    assert [(name, value) for _, name, _, value, _ in cells] == [
        (each.name, str(each.value)) for each in wanted.readings
    ]
    page.locator("[data-bit='46']").focus()
    page.keyboard.press("Space")
    assert page.locator("#descriptor-word").input_value() == "0x4000404000000040"
    assert "legal" in page.locator("#descriptor-says").inner_text()
    page.keyboard.press("ArrowLeft")
    assert "bit 47 is 0, version" in page.locator("#spoken").inner_text()
    page.locator("#descriptor-word").fill("0x14000004000000040")
    assert "is no word of 64 bits" in page.locator("#descriptor-says").inner_text()


def test_names_and_codes_that_there_are_not_are_said_and_nothing_changes(opened):
    page = opened("fragment=mma.m16n8k16.bf16.a")
    page.locator("#fragment-name").fill("m16n8k16.bf17")
    page.locator("#fragment-name").press("Enter")
    assert "no fragment is called m16n8k16.bf17" in page.locator("#fragment-says").inner_text()
    assert page.evaluate("explorer.views.fragment.held.name") == "mma.m16n8k16.bf16.a"
    page.locator("#tab-format").click()
    page.locator("#format-code").fill("0x100")
    page.locator("#format-code").press("Enter")
    assert "0x100 is no code of e4m3" in page.locator("#format-says").inner_text()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
def test_every_view_in_both_themes_fits_its_window(opened, colours, width):
    page = opened("swizzle=128B", colours, width)
    assert page.evaluate("document.documentElement.dataset.theme") == colours
    for view in ("fragment", "format", "swizzle", "descriptor", "dump"):
        page.locator(f"#tab-{view}").click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(1 if colours == "dark" else 2):
        page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_ink_is_read_on_every_colour(opened):
    """WCAG asks for a contrast of 4.5: ink on each of the 32 colours, in both themes."""
    script = """() => { const light = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
          .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
          .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
        const ink = light(getComputedStyle(document.documentElement).getPropertyValue("--ink").trim());
        return explorer.TABLES.palette[document.documentElement.dataset.theme].map(light)
          .map((paper) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)); }"""
    for colours in ("light", "dark"):
        assert min(opened("", colours).evaluate(script)) > 4.5
