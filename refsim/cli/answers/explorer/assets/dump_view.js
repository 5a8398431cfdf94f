// The pasted dump: consecutive codes and values, also for the views that show a dump in a layout.

class DumpView {
  constructor() {
    this.grid = new Grid($("dump-grid"), (row, col) => this.show(row, col));
    options($("dump-element"), TABLES.elements.map((row) => row.name), "e4m3");
    options($("dump-reading"), Object.entries(READINGS), "auto");
    $("dump-text").value = "00000000: 3840 4448 4a4c 4e50 7eff 0001 0780 b8c0";
    for (const [id, event] of [["element", "change"], ["reading", "change"], ["columns", "change"], ["text", "input"]])
      $(`dump-${id}`).addEventListener(event, () => this.draw());
    this.draw();
  }

  pick(name) {
    if (ELEMENTS.has(name)) $("dump-element").value = name;
    this.draw();
  }

  draw() {
    this.text = $("dump-text").value;
    this.reading = $("dump-reading").value;
    this.element = ELEMENTS.get($("dump-element").value);
    let problem = "";
    try {
      const { codes, note } = readDump(this.text, this.element, this.reading);
      this.codes = codes;
      $("dump-says").replaceChildren(made("b", `${codes.length} codes of ${this.element.name}`), ` · ${note} · select the dump under Codes in Fragment or Scales to see the place of each code`);
    } catch (found) {
      if (!(found instanceof DumpError)) throw found;
      problem = found.message;
      $("dump-says").replaceChildren(made("span", problem, "bad"));
    }
    $("dump-text").setAttribute("aria-invalid", String(Boolean(problem)));
    $("dump-grid").parentElement.parentElement.hidden = Boolean(problem);
    if (problem) return;
    const cols = Math.min(Number($("dump-columns").value), this.codes.length);
    const at = (row, col) => row * cols + col;
    this.cols = cols;
    this.grid.fill({
      rows: Math.ceil(this.codes.length / cols), cols, label: "codes of the dump", wide: 52, always: true,
      texts: (row, col) => (at(row, col) < this.codes.length ? [short(decode(this.element, this.codes[at(row, col)]).value), hex(this.codes[at(row, col)], this.element.bits)] : [""]),
      colour: (row, col) => (at(row, col) < this.codes.length ? kindColour(decode(this.element, this.codes[at(row, col)]).kind) : null),
      rowName: (row) => row * cols,
    });
    chosen("dump", this.element.name, true);
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
