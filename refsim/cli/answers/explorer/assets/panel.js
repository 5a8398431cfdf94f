// The facts about one element: a panel next to a grid, and a sentence for screen readers.

const $ = (id) => document.getElementById(id);
const spoken = $("spoken");

function made(tag, content = "", name = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...[content].flat());
  return node;
}

// facts: [label, content] pairs, null for a line between groups; content is text or a node
function tell(panel, heading, facts) {
  const list = made("dl");
  for (const fact of facts) {
    if (!fact) list.append(made("hr"));
    else list.append(made("dt", fact[0]), made("dd", fact[1], fact[0] === "value" ? "value" : ""));
  }
  panel.replaceChildren(made("h2", heading), list);
  if (!panel.closest("[hidden]")) {
    const words = facts.filter((fact) => fact && fact[0] !== "fields").map(([label, content]) => `${label} ${content.textContent ?? content}`);
    spoken.textContent = `${heading}: ${words.join(", ")}`;
  }
}

// The facts about a code: [label, content] pairs
function codeFacts(element, code) {
  const found = decode(element, code);
  const digits = made("span", fieldsOf(element, code).map(([name, bits]) => {
    const part = made("span", bits);
    part.title = name;
    return part;
  }), "digits");
  const facts = [["code", hex(code, element.bits)], ["fields", digits], ["value", spelled(found.value)]];
  if (found.power !== undefined && found.value) facts.push(["equals", `${found.significand} × 2^${found.power}`]);
  return [...facts, ["kind", found.kind]];
}

function options(select, rows, chosen) {
  select.replaceChildren(...rows.map((row) => {
    const [value, text] = Array.isArray(row) ? row : [row, row];
    return new Option(text, value, false, value === chosen);
  }));
  if (!rows.some((row) => (Array.isArray(row) ? row[0] : row) === chosen) && rows.length) select.selectedIndex = 0;
}

// parts: [name, color number] pairs as swatches; a single number of colors is a ramp from 0
function legend(host, title, parts) {
  const swatch = (colour) => {
    const node = made("i");
    node.style.background = colour === null ? "var(--hole)" : colourOf(colour);
    return node;
  };
  if (typeof parts === "number") {
    const ramp = made("span", Array.from({ length: parts }, (_, at) => swatch(at)), "ramp");
    host.replaceChildren(made("span", title), made("span", ["0", ramp, String(parts - 1)]));
  } else host.replaceChildren(...(title ? [made("span", title)] : []), ...parts.map(([name, colour]) => made("span", [swatch(colour), name])));
}
