"""The page of `refsim explore` under hands and ears: pointer, keys, what is spoken, links, themes, narrow windows."""

import numpy as np
import pytest

from refsim.formats import format_named
from refsim.layouts.descriptors import descriptor
from refsim.layouts.families import fragment
from refsim.layouts.scales import scale_layout
from refsim.layouts.tiles import tile

VIEWS = ("fragment", "format", "swizzle", "scales", "descriptor", "dump")


def text_of(page, name):
    return page.evaluate("(name) => document.getElementById(name).innerText", name)


def panel(page, view):
    return text_of(page, f"{view}-panel")


def says(page, view):
    return text_of(page, f"{view}-says")


def to(page, view):
    page.evaluate("(view) => document.getElementById(`tab-${view}`).click()", view)


def give(page, control, text):
    """What typing and Enter, or choosing, sends: real keys are pressed where keys are the question."""
    page.evaluate(
        """([name, text]) => { const node = document.getElementById(name); node.value = text;
        for (const event of ["input", "change"]) node.dispatchEvent(new Event(event, {bubbles: true})); }""",
        [control, text],
    )


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
    page = opened("fragment=wgmma.m64n32k32.e4m3.d")
    grid = page.locator("#fragment-grid")
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "PageDown", "End"):
        page.keyboard.press(key)
    heard = text_of(page, "spoken")
    thread, value = fragment("wgmma.m64n32k32.e4m3.d").holder(9, 31)
    assert heard.startswith(f"row 9, col 31: thread {thread} (warp 0, lane {thread}), value no. {value}")
    page.keyboard.press("Control+Home")
    assert panel(page, "fragment").startswith("row 0, col 0")
    assert grid.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"


def test_tab_reaches_every_view_and_every_grid_in_order(opened):
    page = opened(anew=True)
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    controls = ["family", "name", "element", "memory", "codes", "view", "colour", "at", "grid"]
    assert reached[:11] == ["tab-fragment", "theme", *(f"fragment-{each}" for each in controls)]
    page.locator("#tab-fragment").focus()
    for view in (*VIEWS[1:], VIEWS[0]):
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
        to(page, "dump")
        give(page, "dump-text", content.tobytes().hex(" ", 4))
        to(page, "fragment")
        give(page, "fragment-codes", order)
        found = page.evaluate("Array.from({length: 256}, (_, at) => explorer.views.fragment.codeAt(at >> 4, at % 16))")
        assert found == codes.ravel().tolist(), order
    to(page, "dump")
    give(page, "dump-text", "80 3f")
    to(page, "fragment")
    assert "codes in the dump: 1, needed: 256" in says(page, "fragment")


def test_a_pasted_descriptor_is_decoded_and_its_bits_turn(opened):
    page = opened("descriptor=tcgen05-smem")
    give(page, "descriptor-word", "0x4000004000000040")
    wanted = descriptor("tcgen05-smem").explain(0x4000004000000040)
    assert page.locator("#descriptor-problems li").all_inner_texts() == list(wanted.problems)
    cells = [row.split("\t") for row in page.locator("#descriptor-fields tr").all_inner_texts()]
    assert [(name, value) for _, name, _, value, _ in cells] == [
        (each.name, str(each.value)) for each in wanted.readings
    ]
    page.locator("[data-bit='46']").focus()
    page.keyboard.press("Space")
    assert page.locator("#descriptor-word").input_value() == "0x4000404000000040"
    assert "legal" in says(page, "descriptor")
    page.keyboard.press("ArrowLeft")
    assert "bit 47 is 0, version" in text_of(page, "spoken")
    give(page, "descriptor-word", "0x14000004000000040")
    assert "is no word of 64 bits" in says(page, "descriptor")


def test_names_and_codes_that_there_are_not_are_said_and_nothing_changes(opened):
    page = opened("fragment=mma.m16n8k16.bf16.a")
    page.locator("#fragment-name").fill("m16n8k16.bf17")
    page.locator("#fragment-name").press("Enter")
    assert "no fragment is called m16n8k16.bf17" in says(page, "fragment")
    assert page.evaluate("explorer.views.fragment.held.name") == "mma.m16n8k16.bf16.a"
    to(page, "format")
    give(page, "format-code", "0x100")
    assert "0x100 is no code of e4m3" in says(page, "format")


@pytest.mark.parametrize(
    ("colours", "width"),
    [("dark", 380), pytest.param("light", 1280, marks=pytest.mark.ci("one theme and width is looked at in every run"))],
)
def test_every_view_in_both_themes_fits_its_window(opened, colours, width):
    page = opened("swizzle=128B", colours, width)
    assert page.evaluate("document.documentElement.dataset.theme") == colours
    for view in VIEWS:
        to(page, view)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        seen = page.evaluate(
            "(view) => document.getElementById(`tab-${view}`).getBoundingClientRect().right <= innerWidth", view
        )
        assert seen, view
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(1 if colours == "dark" else 2):
        page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    while text_of(page, "theme") != "Auto":
        page.evaluate("document.getElementById('theme').click()")


def test_ink_is_read_on_every_colour(opened):
    """WCAG asks for a contrast of 4.5: ink on each of the 32 colours, in both themes."""
    page = opened()
    script = """() => { const light = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
          .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
          .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
        const ink = light(getComputedStyle(document.documentElement).getPropertyValue("--ink").trim());
        return explorer.TABLES.palette[document.documentElement.dataset.theme].map(light)
          .map((paper) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)); }"""
    for colours in ("light", "dark"):
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", colours)
        assert min(page.evaluate(script)) > 4.5
    page.evaluate("document.documentElement.dataset.theme = 'light'")


def test_a_place_is_gone_to_and_its_link_leads_there_again(opened):
    page = opened("fragment=mma.m16n8k16.bf16.a")
    give(page, "fragment-name", "m16n8k32 e4m3 B")
    give(page, "fragment-at", "13, 6")
    each = fragment("mma.m16n8k32.e4m3.b")
    thread, value = each.holder(13, 6)
    assert panel(page, "fragment").startswith(
        f"row 13, col 6\nthread\n{thread} (warp 0, lane {thread})\nvalue no.\n{value}\n"
    )
    give(page, "fragment-colour", "register")
    give(page, "fragment-view", "holder")
    link = page.evaluate("location.hash")
    assert link.startswith("#fragment=mma.m16n8k32.e4m3.b&")
    page = opened(link[1:], anew=True)
    assert panel(page, "fragment").startswith("row 13, col 6")
    assert page.locator("#fragment-colour").input_value() == "register"
    give(page, "fragment-at", f"t{thread} v{value + 1}")
    row, col = each.coord(thread, value + 1)
    assert panel(page, "fragment").startswith(f"row {row}, col {col}")
    give(page, "fragment-view", "matrix")
    give(page, "fragment-at", "t3 v5")
    assert panel(page, "fragment").startswith("row {}, col {}\n".format(*each.coord(3, 5)))
    give(page, "fragment-at", f"{row},{col}")
    for nowhere in ("32,0", "0,8", "-1,0", "t32 v0", "t0 v8", "", "x"):
        give(page, "fragment-at", nowhere)
        assert "is no element: enter row, col from 0,0 to 31,7, or t0 v0 to t31 v7" in says(page, "fragment")
        assert panel(page, "fragment").startswith(f"row {row}, col {col}")


def test_a_code_is_kept_from_format_to_format(opened):
    page = opened("format=e4m3fn&code=0x7f")
    text = panel(page, "format")
    assert text.startswith("e4m3 0x7f")
    others = {"e5m2": "nan", "e8m0": "1", "ue5m3": "1.875", "e4m3fnuz": "240", "mxint8": "1.984375", "s8": "127"}
    for name, value in others.items():
        assert f"\n{name}\n{value}" in text
    give(page, "format-element", "e4m3fnuz")
    assert panel(page, "format").startswith("e4m3fnuz 0x7f")
    assert page.evaluate("location.hash") == "#format=e4m3fnuz&code=0x7f"
    give(page, "format-value", "-0.5")
    assert panel(page, "format").startswith("e4m3fnuz 0xb8")
    give(page, "format-value", "0.3")
    assert "0.3 is no value of e4m3fnuz" in says(page, "format")
    page = opened("format=f64&code=0xfff0000000000001")
    assert panel(page, "format").startswith("f64 0xfff0000000000001")
    assert "nan" in panel(page, "format")


def test_a_row_and_chunk_are_found_behind_their_swizzle(opened):
    page = opened("swizzle=128B&byte=5,3")
    assert "row 5, chunk 3, byte 688 (0x02b0) lies at 736 (0x02e0), banks 24..27" in says(page, "swizzle")
    page.evaluate("location.hash = '#swizzle=32B&byte=5,1'")
    page.wait_for_function("document.getElementById('swizzle-pattern').value === '32B'")
    assert "row 5, chunk 1, byte 176 (0x00b0) lies at 160 (0x00a0), banks 8..11" in says(page, "swizzle")
    give(page, "swizzle-pattern", "128B")
    for nowhere in ("5,8", "-1", "1.5", "0x10000000000", "x"):
        give(page, "swizzle-byte", nowhere)
        assert "is neither a byte address nor a row and a chunk from 0 to 7" in says(page, "swizzle")


def test_a_dump_of_scales_lies_where_the_layout_puts_it(opened):
    layout, shape = scale_layout("nvidia_128x4"), (100, 3)
    codes = np.arange(300, dtype=np.uint16).astype(np.uint8).reshape(shape) % 200
    content = layout.shuffle(codes, fill=255).tobytes()
    page = opened("dump")
    give(page, "dump-text", content.hex())
    to(page, "scales")
    for name, text in (("rows", "100"), ("blocks", "3")):
        give(page, f"scales-{name}", text)
    script = "Array.from({length: 300}, (_, at) => explorer.views.scales.codeAt(Math.floor(at / 3), at % 3))"
    give(page, "scales-codes", "memory")
    assert page.evaluate(script) == codes.ravel().tolist()
    give(page, "scales-at", "33,2")
    assert panel(page, "scales").startswith(f"row 33, block 2\nbyte\n{layout.offset(33, 2, shape)} (")
    link = page.evaluate("location.hash")
    give(page, "dump-text", "38")
    page = opened(link[1:])
    assert page.evaluate(script) == codes.ravel().tolist()
    give(page, "scales-view", "memory")
    give(page, "scales-at", "532")
    assert panel(page, "scales").startswith("row 33, block 2") is False
    give(page, "scales-at", str(layout.offset(33, 3, shape)))
    assert "padding\nholds no scale" in panel(page, "scales")
    to(page, "dump")
    give(page, "dump-text", codes.tobytes()[:32].hex())
    to(page, "scales")
    assert "codes in the dump: 32, needed: 512" in says(page, "scales")
    for rows in ("0", "x", "999999"):
        give(page, "scales-rows", rows)
        assert page.locator("#scales-says .bad").count() == 1


def test_remarks_and_other_kinds_stand_beside_a_legal_word(opened):
    page = opened("descriptor=wgmma-smem&word=0x4000000000000041")
    wanted = descriptor("wgmma-smem").explain(0x4000000000000041)
    assert len(wanted.notes) == 2
    assert page.locator("#descriptor-remarks li").all_inner_texts() == list(wanted.notes)
    give(page, "descriptor-word", "0x4000404000000040")
    assert "also legal as tcgen05-smem" in says(page, "descriptor")
    give(page, "descriptor-kind", "tcgen05-smem")
    assert page.locator("#descriptor-word").input_value() == "0x4000404000000040"
    assert page.evaluate("location.hash") == "#descriptor=tcgen05-smem&word=0x4000404000000040"


@pytest.mark.parametrize(
    ("link", "view", "words"),
    [
        ("%", "fragment", "16 × 16 over"),
        ("fragment=%E0%A4%A", "fragment", "no fragment is called %E0%A4%A"),
        ("fragment=<img src=x onerror=alert(1)>", "fragment", "no fragment is called <img src=x onerror=alert(1)>"),
        ("__proto__=x&constructor=y", "fragment", " over "),
        ("format=nonsense", "format", "no format is called nonsense"),
        ("swizzle=<script>alert(1)</script>", "swizzle", "no swizzle is called <script>alert(1)</script>"),
        ("scales=x", "scales", "no scale layout is called x"),
        ("descriptor=constructor", "descriptor", "no descriptor is called constructor"),
        ("dump=e4m3&text=<b>1</b>", "dump", "line 1: <b>1</b> is no hexadecimal word"),
        ("fragment=mma.m16n8k16.bf16.a&at=99,99&colour=none&grid=1&says=2", "fragment", "99,99 is no element"),
    ],
)
def test_a_link_that_says_nothing_sensible_opens_the_page_and_says_so(opened, link, view, words):
    page = opened(link, anew=link == "%")
    assert page.locator("[role=tab][aria-selected=true]").get_attribute("aria-controls") == view
    assert words in says(page, view)
    assert page.locator("main img, main script, main b:text-is('1')").count() == 0


def test_another_link_is_followed_without_a_new_page(opened):
    page = opened("format=e5m2")
    page.evaluate("location.hash = '#descriptor=tcgen05-instr.i8'")
    page.wait_for_function("!document.getElementById('descriptor').hidden")
    assert page.locator("#descriptor-kind").input_value() == "tcgen05-instr.i8"


def test_a_paste_too_long_for_an_address_is_read_and_left_out_of_it(opened):
    page = opened("dump")
    page.evaluate("""() => { const text = document.getElementById("dump-text"); text.value = "38 ".repeat(20000);
        text.dispatchEvent(new Event("input", {bubbles: true})); }""")
    assert "20000 codes of e4m3" in says(page, "dump")
    assert len(page.evaluate("location.hash")) < 100
    assert page.locator("#address-note").is_visible()


def test_every_control_has_a_name_and_paper_has_no_controls(opened):
    page = opened()
    unnamed = """() => [...document.querySelectorAll("button, input, select, textarea, [tabindex='0']")]
        .filter((each) => !each.getAttribute("aria-label") && !each.textContent.trim() && !each.labels?.[0]?.textContent.trim())
        .map((each) => each.id)"""
    assert page.evaluate(unnamed) == []
    page.emulate_media(media="print")
    assert not page.locator(".controls").first.is_visible()
    assert page.locator("#fragment-panel").is_visible()
    page.emulate_media(media="screen")
