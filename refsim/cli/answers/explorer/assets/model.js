"use strict";
// The meaning of the tables of the page. refsim wrote every fact; this script only applies them.

const TABLES = JSON.parse(document.getElementById("tables").textContent);
const byName = (rows, key = "name") => new Map(rows.map((row) => [row[key], row]));
const ELEMENTS = byName(TABLES.elements);
const SWIZZLES = byName(TABLES.memory.swizzles);
const DESCRIPTORS = byName(TABLES.descriptors, "kind");
const SCALES = byName(TABLES.scales);
const FRAGMENTS = new Map();
for (const row of TABLES.fragments.rows) FRAGMENTS.set(row[0], row);

// ---- numbers: a code is an unsigned integer, a BigInt where the type has more bits than an exact number

const isWide = (element) => element.bits > 53;
const codeOfNumber = (element, number) => (isWide(element) ? BigInt(number) : Number(number));
const limitOf = (element) => (isWide(element) ? 1n << BigInt(element.bits) : 2 ** element.bits);
for (const element of TABLES.elements) {
  for (const run of element.kinds) run.splice(0, 2, ...run.slice(0, 2).map((code) => codeOfNumber(element, code)));
  if (element.one !== undefined) element.one = codeOfNumber(element, element.one);
}

function kindOf(element, code) {
  const bare = isWide(element) ? code : Math.floor(code / 2 ** element.padding);
  const run = element.kinds.find(([, last]) => bare <= last);
  return { kind: run[2], special: run[3] };
}

// The parts of a code as numbers: mantissas of 52 bits are exact
function partsOf(element, code) {
  if (isWide(element)) {
    const width = BigInt(element.mantissa);
    const field = Number((code >> width) & ((1n << BigInt(element.exponent)) - 1n));
    return { negative: code >> BigInt(element.bits - 1) === 1n, field, rest: Number(code & ((1n << width) - 1n)) };
  }
  const bare = Math.floor(code / 2 ** element.padding);
  const limit = 2 ** (element.exponent + element.mantissa);
  const magnitude = bare % limit;
  return {
    negative: element.signed && Math.floor(bare / limit) === 1, magnitude, limit,
    field: Math.floor(magnitude / 2 ** element.mantissa), rest: magnitude % 2 ** element.mantissa,
  };
}

// {value, kind, power, significand}: value = significand x 2^power where it is finite and no integer of quanta
function decode(element, code) {
  const { kind, special } = kindOf(element, code);
  if (special) return { kind, value: { nan: NaN, inf: Infinity, "-inf": -Infinity }[special] };
  const { negative, magnitude, limit, field, rest } = partsOf(element, code);
  if (element.twosComplement) return { kind, value: (magnitude - (negative ? limit : 0)) * element.quantum };
  const isWhole = field > 0 || element.binadesFromZero;
  const power = (isWhole ? field : 1) - element.bias;
  const significand = rest / 2 ** element.mantissa + (isWhole ? 1 : 0);
  const size = significand * 2 ** power;
  return { kind, value: negative ? -size : size, power, significand: negative ? -significand : significand };
}

function spelled(value) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return Object.is(value, -0) ? "-0" : String(value);
}

function hex(code, bits) {
  return "0x" + code.toString(16).padStart(Math.ceil(bits / 4), "0");
}

// [[field, its bits as digits], ...] from the top bit down
function fieldsOf(element, code) {
  const digits = code.toString(2).padStart(element.bits, "0");
  if (element.twosComplement) return [["integer", digits]];
  const widths = [["sign", element.signed ? 1 : 0], ["exponent", element.exponent], ["mantissa", element.mantissa], ["padding", element.padding]];
  let at = 0;
  return widths.filter(([, width]) => width).map(([name, width]) => [name, digits.slice(at, (at += width))]);
}

// ---- fragments: a place is a thread and one of its values; row and col are sums of a term for each of the two

const opened = new Map();
function fragment(name) {
  if (opened.has(name)) return opened.get(name);
  const row = FRAGMENTS.get(name);
  if (!row) return null;
  const { columns, sequences, words } = TABLES.fragments;
  const found = Object.fromEntries(columns.map((column, at) => [column, row[at]]));
  for (const key of ["threadRow", "threadCol", "valueRow", "valueCol"]) found[key] = sequences[found[key]];
  for (const key of ["units", "element", "since", "evidence", "source"]) found[key] = words[found[key]];
  found.isByThread = found.units[0] === "thread";
  found.lanes = found.since.startsWith("gfx") ? 64 : 32;
  opened.set(name, found);
  return found;
}

// [row, col] of a place, null where it holds no element
function coord(held, thread, value) {
  const [down, across] = [held.threadRow[thread], held.threadCol[thread]];
  const [addedDown, addedAcross] = [held.valueRow[value], held.valueCol[value]];
  if (down === null || addedDown === null) return null;
  const [row, col] = [down + addedDown, across + addedAcross];
  return row < held.rows && col < held.cols ? [row, col] : null;
}

// Per element (row * cols + col) the places (thread * values + value) that hold it, in order of threads
function holders(held) {
  if (held.holders) return held.holders;
  held.holders = Array.from({ length: held.rows * held.cols }, () => []);
  for (let thread = 0; thread < held.threads; thread++)
    for (let value = 0; value < held.values; value++) {
      const at = coord(held, thread, value);
      if (at) held.holders[at[0] * held.cols + at[1]].push(thread * held.values + value);
    }
  return held.holders;
}

function placeOf(held, place) {
  const [thread, value] = [Math.floor(place / held.values), place % held.values];
  const low = (value % held.perRegister) * held.slotBits + held.elementShift;
  return {
    thread, value, warp: Math.floor(thread / held.lanes), lane: thread % held.lanes,
    register: Math.floor(value / held.perRegister), low, high: low + held.elementBits - 1,
  };
}

// ---- shared memory

function swizzled(pattern, address) {
  const chunk = 2 ** pattern.base;
  const mask = (1 << pattern.bits) - 1;
  const from = Math.floor(address / (chunk * 2 ** pattern.shift)) & mask;
  return address - (address % (chunk * 2 ** pattern.bits)) + (address % chunk) +
    (((Math.floor(address / chunk) & mask) ^ from) * chunk);
}

// The tile whose rows are the fragment's rows: {address(row, col), bit(col), bytes}, or {refusal}. Elements of less than a
// byte lie packed, the first in the lowest bits; a swizzle moves whole chunks, so that wider elements lie as their bytes do.
function tileOf(held, pattern) {
  const bits = held.elementBits;
  if (!Number.isInteger(Math.log2(bits)) || bits !== held.slotBits) return { refusal: `elements of ${bits} bits in slots of ${held.slotBits} bits have no tile` };
  if (pattern.refusal) return { refusal: pattern.refusal };
  const [down, across] = [pattern.atomRows, (pattern.span * 8) / bits];
  if (held.rows % down || held.cols % across)
    return { refusal: `atoms of ${down} x ${across} do not divide ${held.rows} x ${held.cols} elements` };
  const atom = pattern.span * pattern.atomRows;
  const next = atom * (held.rows / down);
  return {
    bits,
    address: (row, col) => swizzled(pattern, Math.floor(row / down) * atom + Math.floor(col / across) * next +
      (row % down) * pattern.span + Math.floor(((col % across) * bits) / 8)),
    bit: (col) => (col * bits) % 8,
  };
}

// ---- scale layouts: {padded, place(row, block), at(place)}, or {refusal}

const MOST_SCALES = 2 ** 18;

function scalesOf(layout, rows, blocks) {
  const [tall, broad] = layout.tile;
  const padded = [Math.ceil(rows / tall) * tall, Math.ceil(blocks / broad) * broad];
  if (!layout.pads && (padded[0] !== rows || padded[1] !== blocks)) return { refusal: `tiles of ${tall} x ${broad} do not divide ${rows} x ${blocks}, and this layout has no padding` };
  if (padded[0] * padded[1] > MOST_SCALES) return { refusal: `${padded[0]} x ${padded[1]} scales are too many: the page shows at most ${MOST_SCALES}` };
  const terms = [1, ...padded];
  const sum = (parts) => parts.reduce((total, part, at) => total + part * terms[at], 0);
  const [down, across] = [sum(layout.down), sum(layout.across)];
  const place = (row, block) => {
    const at = (row % tall) * broad + (block % broad);
    const within = layout.within.reduce((total, column, term) => total + column[at] * terms[layout.terms[term]], 0);
    return within + down * Math.floor(row / tall) + across * Math.floor(block / broad);
  };
  const elements = new Int32Array(padded[0] * padded[1]);
  for (let row = 0; row < padded[0]; row++)
    for (let block = 0; block < padded[1]; block++) elements[place(row, block)] = row * padded[1] + block;
  return { padded, place, at: (index) => [Math.floor(elements[index] / padded[1]), elements[index] % padded[1]] };
}

const bankOf = (address) => Math.floor(address / TABLES.memory.bankBytes) % TABLES.memory.banks;

// ---- descriptors: words are BigInt

function stored(field, word) {
  return Number((word >> BigInt(field.low)) & ((1n << BigInt(field.width)) - 1n));
}

function answerOf(rule, held) {
  while (rule && typeof rule === "object") rule = rule.cases[held[rule.field]];
  return rule;
}

// {readings: [{field, stored, value}], problems, remarks} of a descriptor word
function explain(descriptor, word) {
  const held = Object.fromEntries(descriptor.fields.map((field) => [field.name, stored(field, word)]));
  const readings = descriptor.fields.map((field) => ({
    field, stored: held[field.name],
    value: field.values ? field.values[held[field.name]] : held[field.name] * field.unit,
  }));
  const fields = byName(descriptor.fields);
  const problems = descriptor.order.map((name) => fields.get(name).complaints?.[held[name]]);
  for (const [low, width] of runsOf(word & BigInt(descriptor.reserved)))
    problems.push(`reserved ${width > 1 ? `bits ${low}..${low + width - 1}` : `bit ${low}`} must be 0`);
  problems.push(...descriptor.rules.map((rule) => answerOf(rule, held)));
  const values = Object.fromEntries(readings.map(({ field, value }) => [field.name, value]));
  return { readings, problems: problems.filter((problem) => problem), remarks: remarksOf(descriptor, values) };
}

const filled = (text, words) => text.replace(/\{(\w+)\}/g, (_, name) => words[name]);

// Remarks about legal values that are rarely intended
function remarksOf(descriptor, values) {
  const words = TABLES.remarks;
  const name = values.swizzle;
  if (!Object.hasOwn(descriptor.patterns, name)) return [];
  const [repeat, size] = descriptor.patterns[name];
  const offset = values.base_offset;
  const past = words.offsetBytes * offset;
  const into = (((values.start_address - past) % repeat) + repeat) % repeat;
  const isSwizzled = name !== "none";
  const said = [];
  if (isSwizzled && (past || into))
    said.push(filled(words.at + (past ? words.moved : words.unmoved), { start: `0x${values.start_address.toString(16)}`, into, repeat, name, past, offset }));
  const near = ["stride_byte_offset", "leading_byte_offset"].slice(0, isSwizzled ? 1 : 2).filter((field) => values[field] < size);
  if (near.length) said.push(near.map((field) => filled(words.near, { field, value: values[field], size })).join("; "));
  return said;
}

function runsOf(mask) {
  return [...mask.toString(2).split("").reverse().join("").matchAll(/1+/g)].map((run) => [run.index, run[0].length]);
}
