// The fragment: the holder of each element, its place in shared memory, and its value.

const COLOURS = {
  thread: { of: (place) => place.lane % 32, says: (held) => (held.isByThread ? "lane" : `${held.units[0]} mod 32`), count: 32 },
  warp: { of: (place) => place.warp * 4, says: () => "warp" },
  register: { of: (place) => place.register % 32, says: () => "register mod 32", count: 32 },
  value: { of: (place, held) => place.value % 32, says: (held) => `${held.units[1]} mod 32`, count: 32 },
  bank: { says: () => "bank of the first byte", count: TABLES.memory.banks },
};

class FragmentView {
  constructor(pasted) {
    this.pasted = pasted;
    this.grid = new Grid($("fragment-grid"), (row, col) => this.show(row, col));
    const families = [...new Set([...FRAGMENTS.keys()].map(familyOf))];
    options($("fragment-family"), families, "mma");
    $("fragment-at").addEventListener("change", (event) => this.go(event.target.value.trim()));
    $("fragment-family").addEventListener("change", (event) => this.pick([...FRAGMENTS.keys()].find((name) => familyOf(name) === event.target.value)));
    $("fragment-name").addEventListener("change", (event) => this.pick(event.target.value.trim()));
    for (const id of ["element", "memory", "codes", "view", "colour"]) $(`fragment-${id}`).addEventListener("change", () => this.refresh());
    this.pick("mma.m16n8k16.bf16.a");
  }

  // Chooses a fragment by name. An unknown name is reported and changes nothing.
  pick(asked) {
    const words = asked.toLowerCase().split(/[\s.,_]+/).filter((word) => word);
    const fitting = fragment(asked) ? [] : [...FRAGMENTS.keys()].filter((each) => words.length && words.every((word) => each.split(".").includes(word)));
    const name = fitting.length === 1 ? fitting[0] : asked;
    const held = fragment(name);
    const field = $("fragment-name");
    field.setAttribute("aria-invalid", String(!held));
    if (!held) {
      const near = [...fitting, ...[...FRAGMENTS.keys()].filter((each) => words.length && words.every((word) => each.includes(word)))].slice(0, 4);
      $("fragment-says").replaceChildren(made("span", `no fragment is called ${name}${near.length ? `; nearest: ${near.join(", ")}` : ""}`, "bad"));
      return;
    }
    this.held = held;
    field.value = name;
    $("fragment-family").value = familyOf(name);
    $("fragment-names").replaceChildren(...[...FRAGMENTS.keys()].filter((each) => familyOf(each) === familyOf(name)).map((each) => new Option(each)));
    const elements = TABLES.elements.filter(({ bits }) => bits <= held.elementBits && bits * 2 > held.elementBits);
    options($("fragment-element"), elements.length ? elements.map((row) => row.name) : [["", "no format of this width"]], held.element);
    const tiles = TABLES.memory.swizzles.filter((row) => !tileOf(held, row).refusal).map((row) => row.name);
    options($("fragment-memory"), tiles.length ? tiles : [["", "no tile of this shape"]], tiles.at(-1));
    const colours = ["thread", ...(held.isByThread ? ["warp", "register"] : []), "value", ...(tiles.length ? ["bank"] : [])];
    options($("fragment-colour"), colours.map((each) => [each, { thread: held.units[0], value: held.units[1] }[each] ?? each]), "thread");
    this.refresh();
    chosen("fragment", name);
  }

  // Goes to an element by "row, col", or by its thread and value, "t5 v3"
  go(text) {
    const { held } = this;
    const [first, second] = (text.match(/\d+/g) ?? []).map(Number);
    const isHolder = /^[a-z]+\s*\d+\W+[a-z]+\s*\d+$/i.test(text) && !/^r(ow)?\s*\d/i.test(text);
    const isGood = /^\D*\d+\D+\d+\D*$/.test(text) && !/[-.]/.test(text);
    const at = !isGood ? null : isHolder ? (first < held.threads && second < held.values ? coord(held, first, second) : null) :
      first < held.rows && second < held.cols && holders(held)[first * held.cols + second].length ? [first, second] : null;
    $("fragment-at").setAttribute("aria-invalid", String(!at));
    if (!at) {
      this.say(`${text.slice(0, 30) || "nothing"} is no element: enter row, col from 0,0 to ${held.rows - 1},${held.cols - 1}, or t0 v0 to t${held.threads - 1} v${held.values - 1}`);
      return;
    }
    this.say();
    if ($("fragment-view").value === "matrix") return this.grid.move(...at);
    const place = isHolder ? first * held.values + second : holders(held)[at[0] * held.cols + at[1]][0];
    this.grid.move(Math.floor(place / held.values), place % held.values);
  }

  refresh() {
    const { held } = this;
    this.element = ELEMENTS.get($("fragment-element").value);
    const pattern = SWIZZLES.get($("fragment-memory").value);
    this.tile = pattern && tileOf(held, pattern);
    const orders = [["count", "example"], ["row", "dump, row by row"], ["holder", `dump, ${held.units[0]} by ${held.units[0]}`]];
    if (this.tile) orders.push(["memory", "dump of shared memory"]);
    options($("fragment-codes"), orders, $("fragment-codes").value || "count");
    this.read();
    this.draw();
  }

  // The codes of the elements: from the dump, or example codes by element number
  read() {
    const { held } = this;
    [this.codes, this.problem] = [null, ""];
    if ($("fragment-codes").value === "count" || !this.element) return;
    try {
      this.codes = readDump(this.pasted.text, this.element, this.pasted.reading).codes;
      const wanted = $("fragment-codes").value === "holder" ? held.threads * held.values : held.rows * held.cols;
      if (this.codes.length !== wanted) this.problem = `codes in the dump: ${this.codes.length}, needed: ${wanted}`;
    } catch (problem) {
      if (!(problem instanceof DumpError)) throw problem;
      this.problem = problem.message;
      this.codes = [];
    }
  }

  // The code of an element, undefined where the dump has none
  codeAt(row, col) {
    const { held } = this;
    if (!this.element) return undefined;
    const at = row * held.cols + col;
    if (!this.codes) return exampleCode(this.element, at);
    const order = $("fragment-codes").value;
    if (order === "row") return this.codes[at];
    return this.codes[order === "holder" ? holders(held)[at][0] : (this.tile.address(row, col) * 8 + this.tile.bit(col)) / this.tile.bits];
  }

  // The name of a cell in the address: a control and its content
  named(row, col) {
    return ["at", $("fragment-view").value === "matrix" ? `${row},${col}` : `t${row} v${col}`];
  }

  draw() {
    const { held, grid } = this;
    const by = $("fragment-colour").value;
    const isMatrix = $("fragment-view").value === "matrix";
    const elementAt = (row, col) => (isMatrix ? [row, col] : coord(held, row, col));
    const placeAt = (row, col) => placeOf(held, isMatrix ? holders(held)[row * held.cols + col][0] : row * held.values + col);
    const rule = COLOURS[by];
    this.elementAt = elementAt;
    grid.fill({
      rows: isMatrix ? held.rows : held.threads,
      cols: isMatrix ? held.cols : held.values,
      label: isMatrix ? `elements of ${held.name}` : `${held.units[0]}s of ${held.name}`,
      wide: 46,
      texts: (row, col) => {
        const at = elementAt(row, col);
        if (!at) return [""];
        const place = placeAt(row, col);
        const code = this.codeAt(...at);
        const name = isMatrix ? `${held.isByThread ? "t" : ""}${place.thread}:${place.value}` : `${at[0]},${at[1]}`;
        return [name, code === undefined ? "" : short(decode(this.element, code).value)];
      },
      colour: (row, col) => {
        const at = elementAt(row, col);
        if (!at) return null;
        return by === "bank" ? bankOf(this.tile.address(...at)) : rule.of(placeAt(row, col), held);
      },
      mates: (row, col) => {
        if (!elementAt(row, col)) return () => false;
        const { thread } = placeAt(row, col);
        if (!isMatrix) return () => false;
        return (other, across) => placeAt(other, across).thread === thread;
      },
    });
    const warps = Math.ceil(held.threads / held.lanes);
    legend($("fragment-legend"), rule.says(held), rule.count ?? Array.from({ length: warps }, (_, at) => [String(at), at * 4]));
    this.say();
  }

  say(problem = this.problem) {
    const { held } = this;
    const copies = holders(held)[0].length;
    const shape = `${held.rows} × ${held.cols} over ${held.threads} ${held.units[0]}s of ${held.values} ${held.units[1]}s`;
    const parts = [made("b", shape), ` · since ${held.since} · evidence: ${held.evidence} · ${held.source}`];
    if (copies > 1) parts.push(` · each element has ${copies} holders; the first is shown`);
    if (problem) parts.push(made("span", ` · ${problem}`, "bad"));
    $("fragment-says").replaceChildren(...parts);
  }

  show(row, col) {
    const { held } = this;
    const at = this.elementAt(row, col);
    if (!at) return tell($("fragment-panel"), `${held.units[0]} ${row}, ${held.units[1]} ${col}`, [["element", "none"]]);
    const places = holders(held)[at[0] * held.cols + at[1]];
    const isMatrix = $("fragment-view").value === "matrix";
    const place = placeOf(held, isMatrix ? places[0] : row * held.values + col);
    const facts = held.isByThread
      ? [["thread", `${place.thread} (warp ${place.warp}, lane ${place.lane})`], ["value no.", String(place.value)],
        ["register", `${place.register}, ${place.low === place.high ? `bit ${place.low}` : `bits ${place.low}..${place.high}`}`]]
      : [[held.units[0], String(place.thread)], [held.units[1], String(place.value)]];
    if (places.length > 1) facts.push(["copies", String(places.length)]);
    if (this.tile) {
      const byte = this.tile.address(...at);
      facts.push(null, ["byte", `${byte} (${hex(byte, 16)})`], ...(this.tile.bits < 8 ? [["bits", `from ${this.tile.bit(at[1])}`]] : []), ["bank", String(bankOf(byte))]);
    }
    const code = this.codeAt(...at);
    if (code !== undefined) facts.push(null, ...codeFacts(this.element, code));
    tell($("fragment-panel"), `row ${at[0]}, col ${at[1]}`, facts);
  }
}

// Example codes without a dump: from 1 up in eighths of a binade, from 0 up for integers
function exampleCode(element, at) {
  const isInteger = element.twosComplement;
  if (isWide(element)) return (element.one + (BigInt(at) << BigInt(element.mantissa - 3))) % limitOf(element);
  const step = isInteger ? 1 : 2 ** Math.max(0, element.mantissa + element.padding - 3);
  return ((isInteger ? 0 : element.one) + at * step) % 2 ** element.bits;
}

const familyOf = (name) => name.split(".").slice(0, name.split(".")[1] === "sp" ? 2 : 1).join(".");
const short = (value) => {
  const text = spelled(value);
  if (text.length <= 7) return text;
  return Math.abs(value) < 0.01 || Math.abs(value) >= 1e6 ? value.toExponential(2).replace("e+", "e") : String(Number(value.toPrecision(3)));
};
