// A descriptor: its word bit by bit, its fields, and what no hardware accepts in it.

class DescriptorView {
  constructor() {
    options($("descriptor-kind"), [...DESCRIPTORS.keys()], START.descriptor ?? "wgmma-smem");
    $("descriptor-kind").addEventListener("change", () => this.pick());
    $("descriptor-word").addEventListener("input", (event) => this.read(event.target.value));
    this.bits = $("descriptor-bits");
    this.bits.addEventListener("keydown", (event) => this.key(event));
    this.pick();
  }

  pick() {
    this.kind = DESCRIPTORS.get($("descriptor-kind").value);
    this.write(BigInt(this.kind.example));
    remember("descriptor", this.kind.kind);
  }

  write(word) {
    $("descriptor-word").value = "0x" + word.toString(16).padStart(this.kind.bits / 4, "0");
    this.read($("descriptor-word").value);
  }

  // Reads a pasted word; digits without 0x are hexadecimal, as debuggers print them
  read(text) {
    const bare = text.trim().replace(/^0x/i, "").replace(/[_'\s]|u?l{0,2}$/gi, "");
    const isBinary = /^0b[01]+$/i.test(text.trim());
    const isGood = isBinary || (/^[0-9a-f]+$/i.test(bare) && BigInt(`0x${bare}`) >> BigInt(this.kind.bits) === 0n);
    $("descriptor-word").setAttribute("aria-invalid", String(!isGood));
    if (!isGood) {
      $("descriptor-says").replaceChildren(made("span", `${text.slice(0, 40) || "nothing"} is no word of ${this.kind.bits} bits`, "bad"));
      return;
    }
    this.word = BigInt(isBinary ? text.trim() : `0x${bare}`);
    this.draw();
  }

  draw() {
    const { kind, word } = this;
    const { readings, problems } = explain(kind, word);
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
    const verdict = problems.length ? made("span", "no hardware takes it", "bad") : made("span", "legal", "good");
    $("descriptor-says").replaceChildren(made("b", kind.summary), " · ", verdict, ` · evidence: ${kind.evidence} · ${kind.source}`);
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
      this.write(this.word ^ (1n << BigInt(at)));
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
