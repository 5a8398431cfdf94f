// A swizzle: what lies in each chunk of shared memory, 128 bytes (every bank once) a line.

const LINE_BYTES = TABLES.memory.banks * TABLES.memory.bankBytes;

class SwizzleView {
  constructor() {
    this.grid = new Grid($("swizzle-grid"), (row, col) => this.show(row, col));
    options($("swizzle-pattern"), TABLES.memory.swizzles.map((row) => row.name), START.swizzle ?? "128B");
    $("swizzle-pattern").addEventListener("change", () => {
      this.draw();
      remember("swizzle", this.pattern.name);
    });
    $("swizzle-colour").addEventListener("change", () => this.draw());
    $("swizzle-byte").addEventListener("change", (event) => this.go(event.target.value.trim()));
    this.draw();
  }

  // Goes to where the swizzle moves a byte
  go(text) {
    const byte = Number(text || NaN);
    const isGood = Number.isInteger(byte) && byte >= 0 && byte < 2 ** 40;
    $("swizzle-byte").setAttribute("aria-invalid", String(!isGood));
    if (!isGood) return;
    const moved = swizzled(this.pattern, byte);
    const within = moved % (LINE_BYTES * this.lines);
    this.grid.move(Math.floor(within / LINE_BYTES), Math.floor((within % LINE_BYTES) / this.chunk));
    $("swizzle-says").append(made("b", ` · byte ${byte} (${hex(byte, 16)}) lies at ${moved} (${hex(moved, 16)}), bank ${bankOf(moved)}`));
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
    const moves = pattern.bits ? `<${pattern.bits},${pattern.base},${pattern.shift}>: chunks of ${pattern.chunk} bytes change places within ${pattern.span}, every ${pattern.repeat} bytes again` : "every byte stays where it is";
    $("swizzle-says").replaceChildren(made("b", moves), ` · evidence: ${pattern.evidence} · ${pattern.source}`);
  }

  show(row, col) {
    const at = row * LINE_BYTES + col * this.chunk;
    const before = this.before(row, col);
    const banks = `${bankOf(at)}..${bankOf(at + this.chunk - 1)}`;
    tell($("swizzle-panel"), `bytes ${at}..${at + this.chunk - 1}`, [
      ["line", String(row)], ["chunk", String(col)], ["bank", banks], null,
      ["holds bytes", `${before}..${before + this.chunk - 1}`], ["from address", hex(before, 16)],
      ["from line", String(Math.floor(before / LINE_BYTES))], ["from column", String((before % LINE_BYTES) / this.chunk)],
    ]);
  }
}
