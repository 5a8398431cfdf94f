"use strict";
// What the tables of the page mean. Every fact is a row that refsim wrote; here rows are only applied.

const TABLES = JSON.parse(document.getElementById("tables").textContent);
const byName = (rows, key = "name") => new Map(rows.map((row) => [row[key], row]));
const ELEMENTS = byName(TABLES.elements);
const SWIZZLES = byName(TABLES.memory.swizzles);
const DESCRIPTORS = byName(TABLES.descriptors, "kind");
const FRAGMENTS = new Map();
for (const row of TABLES.fragments.rows) FRAGMENTS.set(row[0], row);

// ---- numbers: a code is an unsigned integer of at most 32 bits

function kindOf(element, code) {
  const bare = Math.floor(code / 2 ** element.padding);
  const run = element.kinds.find(([, last]) => bare <= last);
  return { kind: run[2], special: run[3] };
}

// {value, kind, power, significand}: value = significand x 2^power where it is finite and no integer of quanta
function decode(element, code) {
  const { kind, special } = kindOf(element, code);
  const bare = Math.floor(code / 2 ** element.padding);
  const limit = 2 ** (element.exponent + element.mantissa);
  const magnitude = bare % limit;
  const negative = element.signed && Math.floor(bare / limit) === 1;
  if (special) return { kind, value: { nan: NaN, inf: Infinity, "-inf": -Infinity }[special] };
  if (element.twosComplement) return { kind, value: (magnitude - (negative ? limit : 0)) * element.quantum };
  const field = Math.floor(magnitude / 2 ** element.mantissa);
  const isWhole = field > 0 || element.binadesFromZero;
  const power = (isWhole ? field : 1) - element.bias;
  const significand = (magnitude % 2 ** element.mantissa) / 2 ** element.mantissa + (isWhole ? 1 : 0);
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

// ---- fragments: a place is a thread and a value of it; row and col are sums of what each of the two adds

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

// The tile whose rows are the fragment's rows: {address(row, col), bytes}, or {refusal}
function tileOf(held, pattern) {
  const size = held.elementBits / 8;
  if (![1, 2, 4].includes(size)) return { refusal: `elements of ${held.elementBits} bits have no tile` };
  if (pattern.refusal) return { refusal: pattern.refusal };
  const [down, across] = [pattern.atomRows, pattern.span / size];
  if (held.rows % down || held.cols % across)
    return { refusal: `${held.rows} x ${held.cols} elements are not filled by atoms of ${down} x ${across}` };
  const atom = pattern.span * pattern.atomRows;
  const next = atom * (held.rows / down);
  return {
    size,
    address: (row, col) => swizzled(pattern, Math.floor(row / down) * atom + Math.floor(col / across) * next +
      (row % down) * pattern.span + (col % across) * size),
  };
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

// {readings: [{field, stored, value}], problems}: what a word of that many bits says
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
  return { readings, problems: problems.filter((problem) => problem) };
}

function runsOf(mask) {
  return [...mask.toString(2).split("").reverse().join("").matchAll(/1+/g)].map((run) => [run.index, run[0].length]);
}
