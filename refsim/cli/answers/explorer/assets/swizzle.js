// A swizzle: the bytes in each chunk of shared memory; a line is 128 bytes, one word of every bank.

const LINE_BYTES = TABLES.memory.banks * TABLES.memory.bankBytes;

class SwizzleView {
  constructor() {
    this.grid = new Grid($("swizzle-grid"), (row, col) => this.show(row, col));
    options($("swizzle-pattern"), TABLES.memory.swizzles.map((row) => row.name), "128B");
    $("swizzle-pattern").addEventListener("change", (event) => this.pick(event.target.value));
    $("swizzle-colour").addEventListener("change", () => this.draw());
    $("swizzle-byte").addEventListener("change", (event) => this.go(event.target.value.trim()));
    this.draw();
  }

  pick(name) {
    if (SWIZZLES.has(name)) $("swizzle-pattern").value = name;
    this.draw();
    if (SWIZZLES.has(name)) chosen("swizzle", name);
    else $("swizzle-says").replaceChildren(made("span", `no swizzle is called ${name.slice(0, 30)}`, "bad"));
  }

  // Goes to the swizzled place of a byte, or of chunk c in row r ("r, c"); a row has as many bytes as the swizzle spans
  go(text) {
    const [, row, chunk] = text.match(/^\D*(\d+)\D+(\d+)\D*$/) && !/^0x/i.test(text) ? text.match(/^\D*(\d+)\D+(\d+)\D*$/) : [];
    const { span } = this.pattern;
    const isPair = row !== undefined && !/[-.]/.test(text);
    const byte = isPair ? Number(row) * span + Number(chunk) * this.pattern.chunk : Number(text || NaN);
    const isGood = Number.isInteger(byte) && byte >= 0 && byte < 2 ** 40 && (!isPair || Number(chunk) * this.pattern.chunk < span);
    $("swizzle-byte").setAttribute("aria-invalid", String(!isGood));
    this.say();
    if (!isGood) {
      $("swizzle-says").append(made("span", ` · ${text.slice(0, 30) || "nothing"} is neither a byte address nor a row and a chunk from 0 to ${span / this.pattern.chunk - 1}`, "bad"));
      return;
    }
    const moved = swizzled(this.pattern, byte);
    const within = moved % (LINE_BYTES * this.lines);
    this.grid.move(Math.floor(within / LINE_BYTES), Math.floor((within % LINE_BYTES) / this.chunk));
    const banks = isPair ? `banks ${bankOf(moved)}..${bankOf(moved + this.pattern.chunk - 1)}` : `bank ${bankOf(moved)}`;
    $("swizzle-says").append(made("b", ` · ${isPair ? `row ${row}, chunk ${chunk}, ` : ""}byte ${byte} (${hex(byte, 16)}) lies at ${moved} (${hex(moved, 16)}), ${banks}`));
  }

  named(row, col) {
    return ["byte", String(this.before(row, col))];
  }

  draw() {
    const pattern = (this.pattern = SWIZZLES.get($("swizzle-pattern").value));
    this.chunk = Math.min(16, pattern.chunk);
    this.lines = Math.max(8, pattern.repeat / LINE_BYTES);
    const by = $("swizzle-colour").value;
    const before = (row, col) => swizzled(pattern, row * LINE_BYTES + col * this.chunk);
    this.before = before;
    const colours = {
      column: (row, col) => ((before(row, col) % LINE_BYTES) / this.chunk) * 4 + 1,
      line: (row, col) => Math.floor(before(row, col) / LINE_BYTES) * 4 + 1,
      bank: (row, col) => bankOf(col * this.chunk),
    };
    this.grid.fill({
      rows: this.lines, cols: LINE_BYTES / this.chunk, label: `chunks of swizzle ${pattern.name}`, wide: 76, always: true,
      texts: (row, col) => [hex(before(row, col), 12), `c${(before(row, col) % LINE_BYTES) / this.chunk}`],
      colour: colours[by],
      mates: (row, col) => {
        const column = before(row, col) % LINE_BYTES;
        return (other, across) => before(other, across) % LINE_BYTES === column;
      },
      rowName: (row) => hex(row * LINE_BYTES, 12),
    });
    legend($("swizzle-legend"), { column: "column before the swizzle", line: "line before the swizzle", bank: "first bank" }[by],
      by === "bank" ? TABLES.memory.banks : Array.from({ length: 8 }, (_, at) => [String(at), at * 4 + 1]));
    this.say();
  }

  say() {
    const { pattern } = this;
    const moves = pattern.bits ? `<${pattern.bits},${pattern.base},${pattern.shift}>: swaps chunks of ${pattern.chunk} bytes within ${pattern.span} bytes; the pattern repeats every ${pattern.repeat} bytes` : "moves no byte";
    $("swizzle-says").replaceChildren(made("b", moves), ` · evidence: ${pattern.evidence} · ${pattern.source}`);
  }

  show(row, col) {
    const at = row * LINE_BYTES + col * this.chunk;
    const before = this.before(row, col);
    const banks = `${bankOf(at)}..${bankOf(at + this.chunk - 1)}`;
    tell($("swizzle-panel"), `bytes ${at}..${at + this.chunk - 1}`, [
      ["line", String(row)], ["chunk", String(col)], ["bank", banks], null,
      ["original bytes", `${before}..${before + this.chunk - 1}`], ["original address", hex(before, 16)],
      ["original line", String(Math.floor(before / LINE_BYTES))], ["original column", String((before % LINE_BYTES) / this.chunk)],
    ]);
  }
}
