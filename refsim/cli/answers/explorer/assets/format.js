// A number format: 256 codes at a time, each with its value and its kind.

const CODES_SHOWN = 256;
const KINDS = [...new Set(TABLES.elements.flatMap((row) => row.kinds.map(([, , kind]) => kind)))];

// A hue of its own for each of eight kinds, then the same hues in another shade
function kindColour(kind) {
  const at = KINDS.indexOf(kind);
  return ((at * 12) % 32) + [1, 3, 2, 0][Math.floor(at / 8) % 4];
}

class FormatView {
  constructor() {
    this.grid = new Grid($("format-grid"), (row, col) => this.show(row, col));
    options($("format-element"), TABLES.elements.map((row) => row.name), START.format ?? "e4m3");
    $("format-element").addEventListener("change", () => this.pick());
    $("format-code").addEventListener("change", (event) => this.go(event.target.value.trim()));
    this.pick();
  }

  pick() {
    this.element = ELEMENTS.get($("format-element").value);
    this.first = 0;
    this.grid.at = [0, 0];
    this.draw();
    remember("format", this.element.name);
  }

  // Goes to a code; several formats have more of them than fit, and then the 256 around it are shown
  go(text) {
    const code = Number(text || NaN);
    const isGood = Number.isInteger(code) && code >= 0 && code < 2 ** this.element.bits;
    $("format-code").setAttribute("aria-invalid", String(!isGood));
    if (!isGood) {
      $("format-says").replaceChildren(made("span", `${text} is no code of ${this.element.name}: 0 to ${hex(2 ** this.element.bits - 1, this.element.bits)}`, "bad"));
      return;
    }
    this.first = code - (code % CODES_SHOWN);
    this.grid.at = [Math.floor((code - this.first) / this.cols()), (code - this.first) % this.cols()];
    this.draw();
  }

  cols() {
    return Math.min(16, 2 ** Math.ceil(this.element.bits / 2));
  }

  draw() {
    const { element, first } = this;
    const shown = Math.min(CODES_SHOWN, 2 ** element.bits);
    const cols = this.cols();
    const codeAt = (row, col) => first + row * cols + col;
    this.codeAt = codeAt;
    this.grid.fill({
      rows: shown / cols, cols, label: `codes of ${element.name}`, wide: 58, lines: 1, always: true,
      texts: (row, col) => [short(decode(element, codeAt(row, col)).value)],
      colour: (row, col) => kindColour(decode(element, codeAt(row, col)).kind),
      rowName: (row) => hex(codeAt(row, 0), element.bits),
      colName: (col) => "+" + col.toString(16),
    });
    const kinds = new Set();
    for (let code = first; code < first + shown; code++) kinds.add(kindOf(element, code).kind);
    legend($("format-legend"), "", [...kinds].map((kind) => [kind, kindColour(kind)]));
    const span = 2 ** element.bits > shown ? ` · codes ${hex(first, element.bits)} to ${hex(first + shown - 1, element.bits)}: give a code to see those around it` : "";
    const fields = element.twosComplement ? "" : `sign ${element.signed ? 1 : 0}, exponent ${element.exponent}, mantissa ${element.mantissa}, bias ${element.bias} · `;
    $("format-says").replaceChildren(made("b", `${element.bits} bits`), ` · ${fields}${element.about} · ${element.source}${span}`);
  }

  show(row, col) {
    const code = this.codeAt(row, col);
    $("format-code").value = hex(code, this.element.bits);
    $("format-code").setAttribute("aria-invalid", "false");
    tell($("format-panel"), `${this.element.name} ${hex(code, this.element.bits)}`, codeFacts(this.element, code));
  }
}
