// The page: tabs, theme, the pasted dump, and the choice kept in the address.

class DumpView {
  constructor() {
    this.grid = new Grid($("dump-grid"), (row, col) => this.show(row, col));
    options($("dump-element"), TABLES.elements.map((row) => row.name), "e4m3");
    $("dump-text").value = "00000000: 3840 4448 4a4c 4e50 7eff 0001 0780 b8c0";
    for (const [id, event] of [["element", "change"], ["columns", "change"], ["text", "input"]])
      $(`dump-${id}`).addEventListener(event, () => this.draw());
    this.draw();
  }

  draw() {
    this.text = $("dump-text").value;
    this.element = ELEMENTS.get($("dump-element").value);
    let problem = "";
    try {
      const { codes, note } = readDump(this.text, this.element);
      this.codes = codes;
      $("dump-says").replaceChildren(made("b", `${codes.length} codes of ${this.element.name}`), ` · ${note} · choose it under Fragment, Codes, to see who holds it`);
    } catch (found) {
      if (!(found instanceof DumpError)) throw found;
      problem = found.message;
      $("dump-says").replaceChildren(made("span", problem, "bad"));
    }
    $("dump-text").setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem) return;
    const cols = Math.min(Number($("dump-columns").value), this.codes.length);
    const at = (row, col) => row * cols + col;
    this.cols = cols;
    this.grid.fill({
      rows: Math.ceil(this.codes.length / cols), cols, label: "codes of the dump", wide: 56, always: true,
      texts: (row, col) => (at(row, col) < this.codes.length ? [short(decode(this.element, this.codes[at(row, col)]).value), hex(this.codes[at(row, col)], this.element.bits)] : [""]),
      colour: (row, col) => (at(row, col) < this.codes.length ? kindColour(decode(this.element, this.codes[at(row, col)]).kind) : null),
      rowName: (row) => row * cols,
    });
  }

  show(row, col) {
    const at = row * this.cols + col;
    if (at >= this.codes.length) return tell($("dump-panel"), `element ${at}`, [["element", "none"]]);
    const width = this.element.bits === 7 ? 8 : this.element.bits;
    const bit = at * width;
    const place = width < 8 ? [["bit", String(bit % 8)]] : [];
    tell($("dump-panel"), `element ${at}`, [["byte", String(Math.floor(bit / 8))], ...place, ["bank", String(bankOf(bit / 8))], null, ...codeFacts(this.element, this.codes[at])]);
  }
}

const dump = new DumpView();
const views = { fragment: new FragmentView(dump), format: new FormatView(), swizzle: new SwizzleView(), descriptor: new DescriptorView(), dump };
const tabs = [...document.querySelectorAll("[role=tab]")];

function open(tab) {
  for (const each of tabs) {
    const isChosen = each === tab;
    each.setAttribute("aria-selected", String(isChosen));
    each.tabIndex = isChosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !isChosen;
  }
  const view = views[tab.getAttribute("aria-controls")];
  if (view === views.fragment) view.refresh();
  view.grid?.layOut();
  shownView = tab.getAttribute("aria-controls");
  remember(shownView, remembered[shownView] ?? "");
}

tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const target = tabs[(next + tabs.length) % tabs.length];
    open(target);
    target.focus();
  });
});

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

function paint() {
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  $("theme").textContent = theme[0].toUpperCase() + theme.slice(1);
  $("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}`);
  for (const view of Object.values(views)) view.draw();
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  paint();
});
system.addEventListener("change", paint);
paint();
open(tabs.find((tab) => tab.getAttribute("aria-controls") in START) ?? tabs[0]);
window.explorer = { TABLES, ELEMENTS, SWIZZLES, DESCRIPTORS, decode, fieldsOf, fragment, coord, holders, placeOf, swizzled, tileOf, bankOf, explain, readDump, DumpError, spelled, views };
