// A scale layout: the place of the scale of each row and block in memory, with padding.

const LINE_SCALES = 16; // scales in a line of the memory view

class ScalesView {
  constructor(pasted) {
    this.pasted = pasted;
    this.grid = new Grid($("scales-grid"), (row, col) => this.show(row, col));
    options($("scales-layout"), [...SCALES.keys()], [...SCALES.keys()][0]);
    $("scales-layout").addEventListener("change", (event) => this.pick(event.target.value));
    $("scales-at").addEventListener("change", (event) => this.go(event.target.value.trim()));
    for (const id of ["element", "rows", "blocks", "codes", "view"]) $(`scales-${id}`).addEventListener("change", () => this.draw());
    this.pick($("scales-layout").value);
  }

  pick(name) {
    const layout = SCALES.get(name);
    if (!layout) {
      $("scales-says").replaceChildren(made("span", `no scale layout is called ${name.slice(0, 30)}`, "bad"));
      return;
    }
    this.layout = layout;
    $("scales-layout").value = name;
    [$("scales-rows").value, $("scales-blocks").value] = layout.tile.map((extent) => (extent < 4 ? 4 : extent));
    const fitting = TABLES.elements.filter(({ bits }) => Math.ceil(bits / 8) === layout.elementBytes && bits > 6);
    options($("scales-element"), fitting.map((row) => row.name), fitting.find((row) => row.binadesFromZero)?.name ?? fitting[0].name);
    options($("scales-codes"), [["count", "example"], ["memory", "dump of memory"], ["row", "dump, row by row"]], $("scales-codes").value);
    this.draw();
    chosen("scales", name);
  }

  refresh() {
    this.draw();
  }

  named(row, col) {
    const at = this.elementAt(row, col);
    return ["at", at ? at.join(",") : ""];
  }

  draw() {
    const { layout } = this;
    this.element = ELEMENTS.get($("scales-element").value);
    const [rows, blocks] = [this.extent("rows"), this.extent("blocks")];
    const found = !rows || !blocks ? { refusal: "rows and blocks must be positive whole numbers" } : scalesOf(layout, rows, blocks);
    $("scales-grid").parentElement.parentElement.hidden = Boolean(found.refusal);
    if (found.refusal) {
      $("scales-says").replaceChildren(made("span", found.refusal, "bad"));
      return;
    }
    Object.assign(this, { rows, blocks, placed: found, ...this.read(rows, blocks) });
    const isMatrix = $("scales-view").value === "matrix";
    const [tall, broad] = found.padded;
    const elementAt = (row, col) => (isMatrix ? [row, col] : row * LINE_SCALES + col < tall * broad ? found.at(row * LINE_SCALES + col) : null);
    this.elementAt = elementAt;
    const isPad = ([row, block]) => row >= rows || block >= blocks;
    const step = layout.elementBytes;
    this.grid.fill({
      rows: isMatrix ? tall : Math.ceil((tall * broad) / LINE_SCALES), cols: isMatrix ? broad : Math.min(LINE_SCALES, tall * broad),
      label: isMatrix ? `scales in ${layout.name}` : `memory of ${layout.name}`, wide: isMatrix ? 76 : 52, always: true,
      texts: (row, col) => {
        const at = elementAt(row, col);
        if (!at) return [""];
        const code = this.codeAt(...at);
        return [isMatrix ? `byte ${found.place(...at) * step}` : at.join(","), isPad(at) ? "pad" : code === undefined ? "" : short(decode(this.element, code).value)];
      },
      colour: (row, col) => {
        const at = elementAt(row, col);
        return !at || isPad(at) ? null : (Math.floor(at[0] / 32) * 4 + (at[1] % 4)) % 32;
      },
      rowName: isMatrix ? undefined : (row) => row * LINE_SCALES * step,
    });
    this.say();
  }

  extent(name) {
    const text = $(`scales-${name}`).value.trim();
    const isGood = /^\d{1,6}$/.test(text) && Number(text) > 0;
    $(`scales-${name}`).setAttribute("aria-invalid", String(!isGood));
    return isGood ? Number(text) : 0;
  }

  // {codes, problem}: the codes of the pasted dump, and why they do not fit
  read(rows, blocks) {
    if ($("scales-codes").value === "count") return { codes: null, problem: "" };
    try {
      const { codes } = readDump(this.pasted.text, this.element, this.pasted.reading);
      const { padded } = scalesOf(this.layout, rows, blocks);
      const wanted = $("scales-codes").value === "row" ? rows * blocks : padded[0] * padded[1];
      return { codes, problem: codes.length === wanted ? "" : `codes in the dump: ${codes.length}, needed: ${wanted}` };
    } catch (problem) {
      if (!(problem instanceof DumpError)) throw problem;
      return { codes: [], problem: problem.message };
    }
  }

  // The code of a scale; undefined where the dump has none
  codeAt(row, block) {
    if (!this.codes) return exampleScale(this.element, row * this.blocks + block);
    return $("scales-codes").value === "memory" ? this.codes[this.placed.place(row, block)] : block < this.blocks ? this.codes[row * this.blocks + block] : undefined;
  }

  // Goes to "row, block", or to the scale at a byte
  go(text) {
    const pair = /^0x/i.test(text) ? null : text.match(/^\D*(\d+)\D+(\d+)\D*$/);
    const [tall, broad] = this.placed.padded;
    const byte = /^(0x[0-9a-f]+|\d+)$/i.test(text) ? Number(text) : NaN;
    const size = tall * broad * this.layout.elementBytes;
    const at = pair && !/[-.]/.test(text) ? [Number(pair[1]), Number(pair[2])] : byte < size ? this.placed.at(Math.floor(byte / this.layout.elementBytes)) : null;
    const isGood = at && at[0] < tall && at[1] < broad;
    $("scales-at").setAttribute("aria-invalid", String(!isGood));
    if (!isGood) return this.say(`${text.slice(0, 30) || "nothing"} is neither a row and block of ${tall} x ${broad} nor a byte address below ${size}`);
    this.say();
    const index = this.placed.place(...at);
    this.grid.move(...($("scales-view").value === "matrix" ? at : [Math.floor(index / LINE_SCALES), index % LINE_SCALES]));
  }

  say(problem = this.problem) {
    const { layout, rows, blocks, placed } = this;
    const size = placed.padded[0] * placed.padded[1] * layout.elementBytes;
    const parts = [made("b", `${rows} × ${blocks}, padded to ${placed.padded.join(" × ")}: ${size} bytes`), ` · ${layout.summary}`];
    parts.push(`${layout.chips ? ` · read by ${layout.chips}` : ""} · evidence: ${layout.evidence} · ${layout.source}`);
    if (problem) parts.push(made("span", ` · ${problem}`, "bad"));
    $("scales-says").replaceChildren(...parts);
  }

  show(row, col) {
    const at = this.elementAt(row, col);
    if (!at) return tell($("scales-panel"), "after the end", [["scale", "none"]]);
    const [tall, broad] = this.layout.tile;
    const byte = this.placed.place(...at) * this.layout.elementBytes;
    const tile = `${Math.floor(at[0] / tall)}, ${Math.floor(at[1] / broad)}`;
    const isPad = at[0] >= this.rows || at[1] >= this.blocks;
    const code = this.codeAt(...at);
    tell($("scales-panel"), `row ${at[0]}, block ${at[1]}`, [
      ["byte", `${byte} (${hex(byte, 16)})`], ["word", `${Math.floor(byte / 4)}, byte ${byte % 4}`], ["tile", tile], ...(isPad ? [["padding", "holds no scale"]] : []),
      ...(code === undefined ? [] : [null, ...codeFacts(this.element, code)]),
    ]);
  }
}

// Example scales without a dump: 2^-7 to 2^7 in turn, integers from 0 up
function exampleScale(element, at) {
  if (element.twosComplement) return at % limitOf(element);
  return element.one + ((at % 15) - 7) * 2 ** (element.mantissa + element.padding);
}
