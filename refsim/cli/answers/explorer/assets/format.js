// A number format: 256 codes at a time, each with its value and its kind.

const CODES_SHOWN = 256;
const KINDS = [...new Set(TABLES.elements.flatMap((row) => row.kinds.map(([, , kind]) => kind)))];

// A separate hue for each of eight kinds, then these hues in another shade
function kindColour(kind) {
  const at = KINDS.indexOf(kind);
  return ((at * 12) % 32) + [1, 3, 2, 0][Math.floor(at / 8) % 4];
}

class FormatView {
  constructor() {
    this.grid = new Grid($("format-grid"), (row, col) => this.show(row, col));
    options($("format-element"), TABLES.elements.map((row) => row.name), "e4m3");
    $("format-element").addEventListener("change", () => this.pick($("format-element").value));
    $("format-code").addEventListener("change", (event) => this.go(event.target.value.trim()));
    $("format-value").addEventListener("change", (event) => this.find(event.target.value.trim()));
    this.pick("e4m3");
  }

  // Another format shows the current code if it has one
  pick(asked) {
    const wanted = asked.toLowerCase();
    const element = TABLES.elements.find((row) => row.name === wanted || row.aliases.includes(wanted));
    if (!element) return this.complain(`no format is called ${asked.slice(0, 30)}`);
    const before = this.element && this.codeAt(...this.grid.at);
    this.element = element;
    $("format-element").value = element.name;
    const code = before !== undefined && before < limitOf(element) ? codeOfNumber(element, before) : codeOfNumber(element, 0);
    this.look(code);
    chosen("format", element.name);
    if (code) touch("format", "code", hex(code, element.bits));
  }

  complain(problem) {
    $("format-says").replaceChildren(made("span", problem, "bad"));
  }

  // Goes to the code of an exact value
  find(text) {
    let problem = "";
    try {
      this.look(readDump(text, this.element, "values").codes[0]);
    } catch (found) {
      if (!(found instanceof DumpError)) throw found;
      problem = found.message;
    }
    $("format-value").setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem) this.complain(problem);
  }

  // Goes to a code. Wide formats show only the 256 codes around it.
  go(text) {
    const isGood = /^(0x[0-9a-f]{1,16}|0b[01]{1,64}|\d{1,20})$/i.test(text) && BigInt(text) < BigInt(limitOf(this.element));
    $("format-code").setAttribute("aria-invalid", String(!isGood));
    const last = codeOfNumber(this.element, BigInt(limitOf(this.element)) - 1n);
    if (!isGood) return this.complain(`${text.slice(0, 30) || "nothing"} is no code of ${this.element.name}: 0 to ${hex(last, this.element.bits)}`);
    this.look(codeOfNumber(this.element, BigInt(text)));
  }

  look(code) {
    const within = Number(code % codeOfNumber(this.element, CODES_SHOWN));
    this.first = code - codeOfNumber(this.element, within);
    this.grid.at = [Math.floor(within / this.cols()), within % this.cols()];
    this.draw();
    this.grid.move(...this.grid.at);
  }

  cols() {
    return Math.min(16, 2 ** Math.ceil(this.element.bits / 2));
  }

  draw() {
    const { element, first } = this;
    const shown = Math.min(CODES_SHOWN, Number(limitOf(element)));
    const cols = this.cols();
    const codeAt = (row, col) => first + codeOfNumber(element, row * cols + col);
    this.codeAt = codeAt;
    this.grid.fill({
      rows: shown / cols, cols, label: `codes of ${element.name}`, wide: 52, lines: 1, always: true,
      texts: (row, col) => [short(decode(element, codeAt(row, col)).value)],
      colour: (row, col) => kindColour(decode(element, codeAt(row, col)).kind),
      rowName: (row) => hex(codeAt(row, 0), element.bits),
      colName: (col) => "+" + col.toString(16),
    });
    const kinds = new Set();
    for (let at = 0; at < shown; at++) kinds.add(kindOf(element, codeAt(0, at)).kind);
    legend($("format-legend"), "", [...kinds].map((kind) => [kind, kindColour(kind)]));
    const span = limitOf(element) > shown ? ` · codes ${hex(first, element.bits)} to ${hex(codeAt(0, shown - 1), element.bits)}: enter a code to see its neighbors` : "";
    const fields = element.twosComplement ? "" : `sign ${element.signed ? 1 : 0}, exponent ${element.exponent}, mantissa ${element.mantissa}, bias ${element.bias} · `;
    $("format-says").replaceChildren(made("b", `${element.bits} bits`), element.aliases.length ? ` · also called ${element.aliases.join(", ")}` : "", ` · ${fields}${element.about} · ${element.source}${span}`);
  }

  named(row, col) {
    return ["code", hex(this.codeAt(row, col), this.element.bits)];
  }

  // The value of a code in other formats of this width
  elsewhere(code) {
    const others = TABLES.elements.filter((row) => row !== this.element && row.bits === this.element.bits);
    return others.map((row) => [row.name, spelled(decode(row, code).value)]);
  }

  show(row, col) {
    const code = this.codeAt(row, col);
    $("format-code").value = hex(code, this.element.bits);
    $("format-code").setAttribute("aria-invalid", "false");
    tell($("format-panel"), `${this.element.name} ${hex(code, this.element.bits)}`, [...codeFacts(this.element, code), null, ...this.elsewhere(code)]);
  }
}
