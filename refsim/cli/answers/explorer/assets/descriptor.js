// A descriptor: its word bit by bit, its fields, and values that no hardware accepts.

class DescriptorView {
  constructor() {
    options($("descriptor-kind"), [...DESCRIPTORS.keys()], "wgmma-smem");
    $("descriptor-kind").addEventListener("change", (event) => this.pick(event.target.value));
    $("descriptor-word").addEventListener("input", (event) => {
      this.isPasted = true;
      this.read(event.target.value);
    });
    this.bits = $("descriptor-bits");
    this.bits.addEventListener("keydown", (event) => this.key(event));
    this.pick("wgmma-smem");
  }

  // Another kind of equal width reads the current word
  pick(name) {
    const kind = DESCRIPTORS.get(name);
    if (!kind) {
      $("descriptor-says").replaceChildren(made("span", `no descriptor is called ${name.slice(0, 30)}`, "bad"));
      return;
    }
    const isSame = this.isPasted && this.kind.bits === kind.bits;
    this.kind = kind;
    $("descriptor-kind").value = name;
    this.isPasted = isSame;
    this.write(isSame ? this.word : BigInt(kind.example));
    chosen("descriptor", name);
    if (isSame) touch("descriptor", "word", $("descriptor-word").value);
  }

  write(word) {
    $("descriptor-word").value = "0x" + word.toString(16).padStart(this.kind.bits / 4, "0");
    this.read($("descriptor-word").value);
  }

  // Reads a pasted word, or the two registers that hold a word. Any other text changes nothing.
  read(text) {
    const found = wordOf(text, this.kind.bits);
    $("descriptor-word").setAttribute("aria-invalid", String(!found));
    if (!found) {
      $("descriptor-says").replaceChildren(made("span", `${text.slice(0, 40) || "nothing"} is no word of ${this.kind.bits} bits`, "bad"));
      return;
    }
    this.word = found.word;
    this.note = found.note;
    this.draw();
  }

  draw() {
    const { kind, word } = this;
    const { readings, problems, remarks } = explain(kind, word);
    const owner = Array(kind.bits).fill(null);
    readings.forEach(({ field }, at) => owner.fill(at, field.low, field.low + field.width));
    const focused = document.activeElement?.dataset?.bit;
    this.bits.replaceChildren(...Array.from({ length: kind.bits }, (_, from) => this.bit(kind.bits - 1 - from, owner, readings)));
    if (focused !== undefined) this.bits.querySelector(`[data-bit="${focused}"]`)?.focus();
    $("descriptor-fields").replaceChildren(...readings.map(({ field, stored: number, value }, at) => {
      const swatch = made("i");
      swatch.style.background = colourOf(at * 4 + 1);
      const row = made("tr", [made("td", [swatch, field.bits]), made("td", field.name), made("td", String(number), "right"), made("td", String(value)), made("td", field.meaning)]);
      row.dataset.field = at;
      row.addEventListener("pointerenter", () => this.light(at));
      row.addEventListener("pointerleave", () => this.light(null));
      return row;
    }));
    $("descriptor-problems").replaceChildren(...problems.map((problem) => made("li", problem)));
    $("descriptor-remarks").replaceChildren(...remarks.map((remark) => made("li", remark)));
    const others = [...DESCRIPTORS.values()].filter((each) => each !== kind && each.bits === kind.bits && !explain(each, word).problems.length);
    const also = others.length ? `also legal as ${others.map((each) => each.kind).join(", ")}` : "";
    const verdict = problems.length ? made("span", "no hardware accepts it", "bad") : made("span", "legal", "good");
    $("descriptor-says").replaceChildren(made("b", kind.summary), " · ", verdict, [this.note, also].map((part) => (part ? ` · ${part}` : "")).join(""), ` · evidence: ${kind.evidence} · ${kind.source}`);
  }

  bit(at, owner, readings) {
    const isSet = (this.word >> BigInt(at)) & 1n;
    const node = made("button", [String(isSet), made("small", at % 4 === 0 ? String(at) : "\u00a0")]);
    const field = owner[at] === null ? null : readings[owner[at]];
    node.dataset.bit = at;
    node.dataset.field = owner[at];
    node.tabIndex = at === (this.at ?? this.kind.bits - 1) ? 0 : -1;
    node.setAttribute("aria-pressed", String(isSet === 1n));
    node.setAttribute("aria-label", `bit ${at}, ${field ? field.field.name : "reserved"}`);
    if (field) node.style.background = colourOf(owner[at] * 4 + 1);
    node.addEventListener("pointerenter", () => this.light(owner[at]));
    node.addEventListener("pointerleave", () => this.light(null));
    node.addEventListener("focus", () => {
      this.at = at;
      this.light(owner[at]);
      const said = field ? `${field.field.name} ${field.value}: ${field.field.meaning}` : "reserved";
      spoken.textContent = `bit ${at} is ${isSet}, ${said}`;
    });
    node.addEventListener("click", () => {
      this.at = at;
      this.isPasted = true;
      this.write(this.word ^ (1n << BigInt(at)));
      touch("descriptor", "word", $("descriptor-word").value);
    });
    return node;
  }

  light(field) {
    for (const node of document.querySelectorAll("#descriptor [data-field]"))
      node.classList.toggle("lit", field !== null && node.dataset.field === String(field));
  }

  key(event) {
    const step = { ArrowLeft: 1, ArrowRight: -1, ArrowUp: 32, ArrowDown: -32 }[event.key];
    const at = Number(event.target.dataset.bit) + step;
    const node = step && this.bits.querySelector(`[data-bit="${at}"]`);
    if (!node) return;
    event.preventDefault();
    for (const each of this.bits.children) each.tabIndex = each === node ? 0 : -1;
    node.focus();
  }
}

// {word, note} of a text, null where it holds none of that many bits. Digits without 0x are hexadecimal, as debuggers print
// them, unless they are too many for it; two words with 0x are registers, the lower one first.
function wordOf(text, bits) {
  const bare = text.trim();
  const parts = bare.split(/[\s,:]+/);
  const fits = (word, note = "") => (word >> BigInt(bits) === 0n ? { word, note } : null);
  if (parts.length === 2 && parts.every((part) => /^0x[0-9a-f]{1,8}$/i.test(part)) && bits === 64)
    return fits(BigInt(parts[0]) | (BigInt(parts[1]) << 32n), "two 32-bit words, the lower first");
  const digits = bare.replace(/^0x/i, "").replace(/[_'\s]/g, "").replace(/u?l{0,2}$/i, "");
  if (/^0b[01]+$/i.test(bare)) return fits(BigInt(bare));
  if (!/^[0-9a-f]{1,64}$/i.test(digits)) return null;
  const isBare = !/^0x/i.test(bare);
  const word = BigInt(`0x${digits}`);
  if (!isBare || !/^\d+$/.test(digits)) return fits(word);
  return fits(word, digits.length > 1 ? `read as hexadecimal; the decimal number would be 0x${BigInt(digits).toString(16)}` : "") ?? fits(BigInt(digits), "read as a decimal number");
}
