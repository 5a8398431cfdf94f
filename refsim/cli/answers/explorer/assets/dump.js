// A pasted dump as codes: bytes, words or a list, as debuggers, xxd, hexdump, od, Python and NumPy print them.

class DumpError extends Error {}

// The ways to read a text: by its shape, or as the user chooses
const READINGS = {
  auto: "automatic",
  bytes: "hexadecimal bytes",
  low: "words, little-endian",
  high: "words, big-endian",
  codes: "one code per word",
  decimal: "decimal codes",
  values: "values",
};

const MOST_TEXT = 4e6; // characters
const FEWEST_PRINTED = 4; // digits after the point: PyTorch prints 4, NumPy prints 8
const MOST_NUMBER = 64; // characters of a printed number

// {codes, note}: the codes of an element type in a text. Throws DumpError with the line that cannot be read.
function readDump(text, element, reading = "auto") {
  if (text.length > MOST_TEXT) throw new DumpError(`the text has ${text.length} characters, and this page reads at most ${MOST_TEXT}: refsim decode reads files`);
  const found = tokensOf(text, reading);
  if (!found.words.length) throw new DumpError("paste a dump to read it");
  const how = reading === "auto" ? looksLike(found, element) : reading;
  const { words } = found;
  if (how === "values") return readValues(words, element);
  if (how === "decimal" && found.unit && found.unit !== containerOf(element)) {
    const bytes = words.flatMap((each) => bytesOfNumber(integerOf(each), found.unit / 8, each));
    return { codes: codesOfBytes(bytes, element), note: `numbers of ${found.unit} bits, little-endian` };
  }
  if (how === "decimal") return { codes: words.map((each) => checked(integerOf(each), element, each)), note: READINGS[how] };
  if (how === "codes") return { codes: words.map((each) => checked(hexOf(each), element, each)), note: READINGS[how] };
  const bytes = found.bytes ?? words.flatMap((each) => bytesOf(each, how));
  return { codes: codesOfBytes(bytes, element), note: found.bytes ? "bytes of a Python string" : how === "bytes" ? "bytes in order" : READINGS[how] };
}

const containerOf = (element) => [8, 16, 32, 64].find((width) => width >= element.bits);

// The reading of a text by its shape: brackets and braces, addresses, prefixes, commas, the digits of its words
function looksLike({ words, bytes, isList, isFloat, addressed, hasCommas }, element) {
  if (bytes || addressed === "bytes") return "bytes";
  const digits = words.map(({ word }) => word.replace(/^0x/i, "").length);
  if (words.every(({ word }) => /^0x/i.test(word))) {
    const isParts = [2, 4, 8].includes(digits[0]) && digits[0] * 4 < element.bits && digits.every((count) => count === digits[0]);
    return (digits.every((count) => count <= Math.ceil(element.bits / 4)) && !isParts) || digits.some((count) => count % 2) ? "codes" : "low";
  }
  if (addressed) return "low";
  const isNumbers = words.every(({ word }) => word.length <= MOST_NUMBER && NUMBER.test(word));
  if (isNumbers && words.some(({ word }) => /[.n]|^\d*e[-+]?\d/i.test(word) && !/^0x/i.test(word)) && (isList || words.some(({ word }) => /[.n]|e[-+]/i.test(word)))) return "values";
  if (isList) return isNumbers && isFloat ? "values" : "decimal";
  if (words.every(({ word }) => /^[-+]?\d+$/.test(word)) && (hasCommas || words.some(({ word }) => /^[-+]/.test(word) || word.length % 2))) return "decimal";
  return "bytes";
}

const NUMBER = /^[-+]?(0x[0-9a-f]+|(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|infinity)$/i;
const ADDRESS = /^\s*(0x)?[0-9a-f]{4,16}(\s*<[^>]*>)?:(\s+|$)/i;
const CANONICAL = /^[0-9a-f]{8,16} {2}[0-9a-f]{2}( |$)/i;

// {words: [{word, line}], bytes, isList, isFloat, unit, addressed, hasCommas}: without addresses, characters and brackets
function tokensOf(text, reading) {
  const lines = text.split(/\r?\n/);
  if (lines.some((line) => ADDRESS.test(line) || CANONICAL.test(line))) return tokensOfLines(lines);
  if (/^(\w+ ?= ?)?[(\w]*b['"]/.test(text.trimStart().slice(0, MOST_NUMBER)) && reading === "auto") {
    const bytes = [...text.matchAll(/\bb(['"])((?:\\[\s\S]|(?!\1)[^\\])*)\1/g)].flatMap(([, , inner]) => bytesOfString(inner));
    return { words: bytes, bytes };
  }
  const [first, last] = [text.search(/[[{(]/), Math.max(...["]", "}", ")"].map((end) => text.lastIndexOf(end)))];
  if (first < 0 || last < first) return tokensOfLines(lines);
  const bare = text.slice(first, last + 1).replace(/\b(dtype|device|size|shape)=[\w.:'"<>]*(\([^)]*\))?/g, " ").replace(/\b(array|tensor|tuple|list|float\d*|u?int\d*)\s*\(/g, " ");
  const before = text.slice(0, first).split("\n").length;
  const words = bare.split("\n").flatMap((line, at) => wordsOf(line.replace(/[[\](){}'"]/g, " "), at + before));
  if (/<repeats/.test(bare)) throw new DumpError("<repeats ...> abbreviates equal elements: set print repeats 0 in gdb");
  if (words.some(({ word }) => /^(\.\.\.|…)$/.test(word))) throw new DumpError("the list is abbreviated with ...: print all elements");
  if (!words.length) throw new DumpError("the list is empty");
  for (const each of words) each.word = each.word.replace(/(?<=[0-9a-f])(u|ul|ull|l|ll)$/i, "").replace(/(?<=\.\d*)f$/i, "");
  return { words, isList: true, isFloat: /dtype=(torch\.)?b?float/.test(text), unit: Number(text.match(/dtype=(?:torch\.|np\.|numpy\.)?['"]?u?int(8|16|32|64)\b/)?.[1] ?? 0) };
}

const wordsOf = (line, number) => line.split(/[\s,;]+/).filter((word) => word).map((word) => ({ word, line: number }));

// Lines of xxd, hexdump, od or a debugger begin with an address, and may end with characters
function tokensOfLines(lines) {
  const isCanonical = lines.some((line) => CANONICAL.test(line));
  const isPlain = !isCanonical && isOctalDump(lines);
  let addressed = isCanonical ? "bytes" : "";
  const words = lines.flatMap((line, at) => {
    if (/^\s*\*\s*$/.test(line)) throw new DumpError(`line ${at + 1}: * abbreviates equal lines: dump with -v`);
    if (isCanonical) return wordsOf(line.replace(/^[0-9a-f]{8,16}(\s|$)/i, "").replace(/\|.*$/, ""), at + 1);
    const rest = line.replace(ADDRESS, "");
    const found = wordsOf(rest === line ? line : rest.split(/ {2,}/)[0], at + 1).slice(isPlain ? 1 : 0);
    if (isPlain && found.length) addressed = found[0].word.length > 2 ? "words" : "bytes";
    return found;
  });
  return { words, addressed, hasCommas: lines.some((line) => line.includes(",")) };
}

// hexdump and od: rising addresses from 0, of six to eight digits, each followed by words of one width
function isOctalDump(lines) {
  const parts = lines.filter((line) => line.trim()).map((line) => line.trim().split(/\s+/));
  const addresses = parts.map(([address]) => address);
  const widths = new Set(parts.flatMap(([, ...words]) => words.map((word) => word.length)));
  return parts.length > 0 && /^0{6,8}$/.test(addresses[0]) && parts[0].length > 1 && widths.size === 1 && [2, 4, 8, 16].includes([...widths][0]) &&
    addresses.every((address, at) => /^[0-9a-f]+$/i.test(address) && address.length === addresses[0].length && (at === 0 || address > addresses[at - 1]));
}

const refuse = ({ word, line }, what) => new DumpError(`${line ? `line ${line}: ` : ""}${word.slice(0, 20)} is ${what}`);

// 0x0102 is a number, its lowest byte is first in memory; 0102 without 0x is bytes in the order of the text
function bytesOf(each, how) {
  const bare = each.word.replace(/^0x/i, "");
  if (!/^[0-9a-f]+$/i.test(bare)) throw refuse(each, "no hexadecimal word");
  if (bare.length % 2) throw refuse(each, "no whole number of bytes");
  if (bare.length === 2) return [parseInt(bare, 16)];
  const bytes = bare.match(/../g).map((pair) => parseInt(pair, 16));
  return how === "low" ? bytes.reverse() : bytes;
}

// The bytes of a Python string with its escapes
function bytesOfString(inner) {
  const named = { n: 10, r: 13, t: 9, a: 7, b: 8, f: 12, v: 11 };
  return [...inner.matchAll(/\\x([0-9a-f]{2})|\\([0-7]{1,3})|\\([\s\S])|([\s\S])/gi)].map(([, pair, octal, escaped, plain]) => {
    if (pair) return parseInt(pair, 16);
    if (octal) return parseInt(octal, 8) & 255;
    const code = escaped ? (named[escaped] ?? escaped.charCodeAt(0)) : plain.charCodeAt(0);
    if (code > 255) throw new DumpError(`${(escaped ?? plain)} is no byte`);
    return code;
  });
}

function hexOf(each) {
  const bare = each.word.replace(/^0x/i, "");
  if (!/^[0-9a-f]+$/i.test(bare)) throw refuse(each, "no hexadecimal word");
  return BigInt(`0x${bare}`);
}

function integerOf(each) {
  const bare = each.word.replace(/_/g, "");
  if (!/^[-+]?(0x[0-9a-f]+|\d+)$/i.test(bare)) throw refuse(each, "no code");
  const size = BigInt(bare.replace(/^[-+]/, ""));
  return bare.startsWith("-") ? -size : size;
}

// The bytes of an integer, two's complement, lowest first
function bytesOfNumber(number, count, each) {
  const limit = 1n << BigInt(8 * count);
  if (number >= limit || number < -(limit / 2n)) throw refuse(each, `no number of ${8 * count} bits`);
  return Array.from({ length: count }, (_, at) => Number((number >> BigInt(8 * at)) & 255n));
}

function numberOf(each) {
  const bare = each.word.toLowerCase().replace(/^\+/, "").replace(/_/g, "");
  const special = { nan: NaN, inf: Infinity, infinity: Infinity, "-inf": -Infinity, "-infinity": -Infinity, "-nan": NaN };
  const number = Object.hasOwn(special, bare) ? special[bare] : Number(bare);
  if (Number.isNaN(number) && !bare.endsWith("nan")) throw refuse(each, "no number");
  return number;
}

// The code, as the page holds it, of an integer in the text
function checked(integer, element, each) {
  const isInteger = element.kinds[0][2] === "integer";
  const code = integer < 0n && element.signed && isInteger && integer >= -(1n << BigInt(element.bits - 1)) ? integer + (1n << BigInt(element.bits)) : integer;
  if (code < 0n || code >= BigInt(limitOf(element))) throw refuse(each, `no code of ${element.name}, which has ${element.bits} bits`);
  return codeOfNumber(element, code);
}

// Consecutive codes, from the lowest bit of the first byte up
function codesOfBytes(bytes, element) {
  const width = element.bits === 7 ? 8 : element.bits;
  if ((bytes.length * 8) % width) throw new DumpError(`${bytes.length} bytes are no whole number of ${element.name} codes`);
  const codes = new Array((bytes.length * 8) / width);
  for (let at = 0; at < codes.length; at++) {
    const bit = at * width;
    let code = isWide(element) ? 0n : 0;
    if (width % 8 === 0) for (let byte = width / 8 - 1; byte >= 0; byte--) code = isWide(element) ? code * 256n + BigInt(bytes[bit / 8 + byte]) : code * 256 + bytes[bit / 8 + byte];
    else for (let each = 0; each < width; each++) if (bytes[(bit + each) >> 3] & (1 << ((bit + each) & 7))) code += 2 ** each;
    if (code >= limitOf(element)) throw refuse({ word: hex(code, width) }, `no code of ${element.name}, which has ${element.bits} bits`);
    codes[at] = code;
  }
  return codes;
}

// Printed values: a value with few digits is accepted where only one code prints so
function readValues(words, element) {
  let isCut = false;
  const codes = words.map((each) => {
    const value = numberOf(each);
    const code = codeOf(element, value);
    if (code !== null) return code;
    const near = element.bits <= 16 && Number.isFinite(value) && each.word.length <= MOST_NUMBER ? printedCodes(element, value, each.word) : [];
    if (near.length > 1) throw refuse(each, `${near.map((found) => hex(found, element.bits)).join(" or ")} of ${element.name}: print more digits`);
    if (!near.length) throw refuse(each, `no value of ${element.name}: refsim encode -t ${element.name} rounds it`);
    isCut = true;
    return near[0];
  });
  return { codes, note: isCut ? "values, some printed with few digits; each matches one code" : "values, all exact in the format" };
}

// The codes with values within half a unit of the last digit
function printedCodes(element, value, word) {
  const [, fraction = "", exponent = "0"] = word.match(/^[-+]?[\d_]*\.?(\d*)(?:e([-+]?\d+))?$/i) ?? [];
  if (fraction.length < FEWEST_PRINTED) return [];
  const room = 0.5001 * 10 ** (Number(exponent) - fraction.length);
  element.rising ??= Array.from({ length: limitOf(element) }, (_, code) => ({ code, value: decode(element, code).value }))
    .filter((each) => Number.isFinite(each.value) && !Object.is(each.value, -0)).sort((one, other) => one.value - other.value);
  let [low, high] = [0, element.rising.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (element.rising[middle].value < value - room) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (; low < element.rising.length && element.rising[low].value <= value + room && found.length < 3; low++) found.push(element.rising[low].code);
  return found;
}

// The code of a value, null for a value that the format does not have
function codeOf(element, value) {
  if (isWide(element)) {
    const room = new DataView(new ArrayBuffer(8));
    room.setFloat64(0, value);
    return room.getBigUint64(0);
  }
  const step = 2 ** element.padding;
  for (const [first, last] of monotone(element)) {
    let [low, high] = [first, last];
    const isRising = decode(element, first * step).value <= decode(element, last * step).value;
    while (low <= high) {
      const middle = Math.floor((low + high) / 2);
      const found = decode(element, middle * step).value;
      if (Object.is(found, value)) return middle * step;
      if (found < value === isRising) low = middle + 1;
      else high = middle - 1;
    }
  }
  return Object.is(value, -0) ? codeOf(element, 0) : null;
}

// Runs of codes without padding along which values rise or fall; a NaN is a separate run
function monotone(element) {
  if (element.runs) return element.runs;
  const half = 2 ** (element.exponent + element.mantissa);
  const runs = [];
  for (const [first, last, , special] of element.kinds) {
    const before = runs.at(-1);
    if (special === "nan") runs.push([first, first, true]);
    else if (before && !before[2] && before[1] + 1 === first && first !== half) before[1] = last;
    else runs.push([first, last, false]);
  }
  element.runs = runs.flatMap(([first, last]) => (first < half && last >= half ? [[first, half - 1], [half, last]] : [[first, last]]));
  return element.runs;
}
