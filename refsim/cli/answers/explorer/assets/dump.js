// A pasted dump as codes: bytes, words or a list, as debuggers, xxd and NumPy print them.

class DumpError extends Error {}

// {codes, note}: the codes of an element type in a text. Throws DumpError with the line that cannot be read.
function readDump(text, element) {
  const list = text.match(/\[[\s\S]*\]/);
  if (list) return readList(list[0], text, element);
  const words = wordsOf(text);
  if (!words.length) throw new DumpError("nothing to read yet");
  const digits = Math.ceil(element.bits / 4);
  if (words.every(({ word }) => /^0x/i.test(word) && word.length - 2 <= digits))
    return { codes: words.map(({ word, line }) => checked(Number(word), element, word, line)), note: "one code a word" };
  const codes = codesOfBytes(words.flatMap(bytesOf), element);
  return { codes, note: /^0x/i.test(words[0].word) ? "words, lowest byte first" : "bytes as they stand" };
}

// The words of xxd, hexdump -C, a debugger's x/8xw or plain text, without addresses and columns of characters
function wordsOf(text) {
  const lines = text.split("\n");
  const isHexdump = lines.some((line) => /^[0-9a-f]{8} {2}[0-9a-f]{2} /i.test(line));
  return lines.flatMap((line, at) => {
    const behind = line.replace(/^\s*(0x)?[0-9a-f]{4,16}(\s*<[^>]*>)?:\s*/i, "");
    const bare = behind !== line ? behind.split(/ {2,}/)[0] : isHexdump ? line.slice(8).replace(/\|.*$/, "") : line;
    return bare.split(/[\s,;]+/).filter((word) => word).map((word) => ({ word, line: at + 1 }));
  });
}

// 0x0102 is a number, its lowest byte is first in memory; 0102 without 0x is bytes in the order of the text
function bytesOf({ word, line }) {
  const isNumber = /^0x/i.test(word);
  const bare = isNumber ? word.slice(2) : word;
  if (!/^[0-9a-f]+$/i.test(bare)) throw new DumpError(`line ${line}: ${word.slice(0, 20)} is no hexadecimal word`);
  if (bare.length % 2) throw new DumpError(`line ${line}: ${word.slice(0, 20)} is no whole number of bytes`);
  const bytes = bare.match(/../g).map((pair) => parseInt(pair, 16));
  return isNumber ? bytes.reverse() : bytes;
}

function readList(list, text, element) {
  const words = list.replace(/[[\]()]/g, " ").split(/[\s,]+/).filter((word) => word);
  const isValues = words.some((word) => /[.n]|e[-+]?\d/i.test(word) && !/^0x/i.test(word)) || /dtype=float/.test(text);
  if (words.some((word) => word === "...")) throw new DumpError("the list is shortened by ...: print all of it");
  const codes = words.map((word) => {
    const number = { nan: NaN, inf: Infinity, "+inf": Infinity, "-inf": -Infinity }[word.toLowerCase()] ?? Number(word);
    if (Number.isNaN(number) && word.toLowerCase() !== "nan") throw new DumpError(`${word.slice(0, 20)} is no number`);
    return isValues ? codeOf(element, number, word) : checked(number, element, word);
  });
  if (!codes.length) throw new DumpError("the list is empty");
  return { codes, note: isValues ? "values, each exactly one of the format" : "codes" };
}

function checked(code, element, word, line) {
  const place = line ? `line ${line}: ` : "";
  if (!Number.isInteger(code)) throw new DumpError(`${place}${word.slice(0, 20)} is no code`);
  const unsigned = code < 0 && element.signed && element.kinds[0][2] === "integer" ? code + 2 ** element.bits : code;
  if (unsigned < 0 || unsigned >= 2 ** element.bits)
    throw new DumpError(`${place}${word.slice(0, 20)} is no code of ${element.name}, which has ${element.bits} bits`);
  return unsigned;
}

// Codes of one after the other from the lowest bit of the first byte up
function codesOfBytes(bytes, element) {
  const width = element.bits === 7 ? 8 : element.bits;
  if ((bytes.length * 8) % width) throw new DumpError(`${bytes.length} bytes are no whole number of ${element.name} codes`);
  const codes = [];
  for (let bit = 0; bit < bytes.length * 8; bit += width) {
    let code = 0;
    for (let at = 0; at < width; at++)
      if (bytes[(bit + at) >> 3] & (1 << ((bit + at) & 7))) code += 2 ** at;
    codes.push(checked(code, element, hex(code, width)));
  }
  return codes;
}

// The code of a value that the format has; a value between two is refused, for rounding is asked of `refsim encode`
function codeOf(element, value, word) {
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
  if (Object.is(value, -0)) return codeOf(element, 0, word);
  throw new DumpError(`${word.slice(0, 20)} is no value of ${element.name}: refsim encode -t ${element.name} rounds`);
}

// Runs of codes, padding left out, along which values rise or fall; a NaN is a run of its own
function monotone(element) {
  const half = 2 ** (element.exponent + element.mantissa);
  const runs = [];
  for (const [first, last, , special] of element.kinds) {
    const before = runs.at(-1);
    if (special === "nan") runs.push([first, first, true]);
    else if (before && !before[2] && before[1] + 1 === first && first !== half) before[1] = last;
    else runs.push([first, last, false]);
  }
  return runs.flatMap(([first, last]) => (first < half && last >= half ? [[first, half - 1], [half, last]] : [[first, last]]));
}
