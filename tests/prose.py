"""A checker of plain English: long sentences, wide lines, private words, riddling openings and double negatives.

Prose is Markdown without code blocks, tables, link targets, comments and generated parts. A sentence ends at a full stop, a
question mark, an exclamation mark, or at the end of a paragraph or list item. A piece of inline code counts as one word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

LONGEST, MEAN, WIDTH = 40, 20, 120
"""Words of the longest sentence, the bound that the mean of a page stays under, columns of a line of prose."""

CODE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a piece of inline code: a word that no rule reads
_FENCE = re.compile(r"^( *)(```+|~~~+|:::+(?=\{toctree)).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"<!-- (?P<name>[\w -]+) -->\n(?:(?!<!-- ).)*?<!-- end of (?P=name) -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_BLANKED = re.compile(r"^ *(?:\||:::).*$", re.MULTILINE)  # tables, and the lines around an admonition, which is prose
_QUOTE = re.compile(r"^(?: *>)+ ?")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_HEADING = re.compile(r"^#+ +")
_SHORTENED = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|Fig|approx|resp)\.")
_ENDED = re.compile(r"(?<=[.?!…])[\"'”’)*_]*\s+(?=[\"'“‘(*_]*[A-Z0-9" + CODE + r"])")

PRIVATE = {
    r"\b(recorded|stored|differing|wrong|equal) words?\b|\bwords? (of|in) (the |an |its |every )?outputs?\b": "elements, results",
    r"\bsilicon\b": "hardware, GPU",
    r"\b(one|each|every|all|\d+|tried) (of the )?problems?\b|\bproblems? (tried|of a campaign|that fails?)\b": "test case",
    r"\bbehind (it|that|this|them|the (launch|wait|barrier|copy|last|first|fence|read|write|store|run))\b": "after",
    r"\bbeside\b": "in addition to, next to",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bapart from\b": "except",
    r"\b(is|are|was|were|be) (told|said)\b(?! apart)": "reported",
    r"\bnobody\b": "no thread, no one; uninitialized",
    r"\bsuspects?\b": "candidate cause",
    r"\bopen bits?\b": "unspecified bits",
    r"\bwitness(es)?\b": "independent check",
    r"\bpromis(e|es|ed)\b": "accuracy contract",
    r"\bclauses? (of|for) (an?|the|each|every) instructions?\b|\binstruction's clause\b": "instruction implementation",
    r"\bexhibits?\b": "known-bad kernel",
    r"\b(landed|flying|in the air)\b": "complete, in flight",
    r"\b(the house|house rules?|rooms?)\b": "package, module",
    r"\bstrangers?\b": "user",
    r"\bprove[sn]?\b|\bproof\b": "test, record",
    r"\bone that\b|\bwhat else\b|\bof those that\b|\bthose that\b": "repeat the noun",
    r"\bthe news\b|\bas far as\b": "say it plainly",
    r"\b(a|the|its|one|each|every|this) row of (a|the|its|this) (format|instruction|chip|conversion|target|profile)s?\b": "entry",
}
"""A pattern of ours, and the words of the field that say it. Public names stand in backticks, which no rule reads."""

OPENINGS = re.compile(r"^[\"'“‘(*_]*(Of|What|Who|Whose|Whom)\b")
NEGATIVES = (
    r"\bno(ne|thing|body)?\b(?: [^\s,;:]+){1,4} (?:not|never|nothing|nobody)\b",
    r"\b(not|never)\b(?: \S+){0,3} (?:nothing|nobody|none|without)\b",
    r"\bnot (un(?!t|less|i[qtvf]|der|sig)|in(?=(?:correct|exact|valid|visible|complete|finite)))\w+",
    r"\bneither\b(?: \S+){1,6} not\b",
    r"\bwithout (?:not|no|never)\b",
    r"\bno (?:more|less) do\b",
    r"\b(?:un(?=known|seen|used|wanted|written)|in(?=valid|exact))\w+ (?:is|are) not\b",
)


@dataclass(frozen=True)
class Flaw:
    """A rule that a text breaks: the text's name, the rule, and the words that break it."""

    page: str
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.page}: {self.rule}: {self.words}"


def without_code(text: str) -> str:
    """Return Markdown with everything blanked that is no prose; lines keep their places."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    for pattern in (_GENERATED, _FENCE, _COMMENT, _BLANKED):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def plain(text: str) -> str:
    """Return text without link targets; inline code becomes one mark."""
    text = re.sub(r"``.+?``|`[^`]+`", CODE, text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"<https?:[^>]*>|https?:\S+", CODE, text)


def paragraphs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each paragraph and list item of Markdown as one line, headings too; the flag says which are headings."""
    held: list[str] = []
    for line in [*(_QUOTE.sub("", line) for line in without_code(text).split("\n")), ""]:
        heading = _HEADING.match(line)
        if held and (not line.strip() or heading or _ITEM.match(line)):
            yield " ".join(held), False
            held = []
        if heading:
            yield plain(_HEADING.sub("", line)), True
        elif line.strip():
            held.append(_ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of Markdown; headings are none."""
    for paragraph, is_heading in paragraphs(text):
        if not is_heading:
            shown = _SHORTENED.sub(r"\1", plain(paragraph))
            yield from (each.strip() for each in _ENDED.split(shown) if re.search(rf"[\w{CODE}]", each))


def count(sentence: str) -> int:
    """Return the number of words: pieces between blanks that hold a letter, a digit or code."""
    return len(re.findall(rf"[^\s]*[\w{CODE}][^\s]*", sentence))


def flaws(page: str, text: str, *, width: int = WIDTH) -> Iterator[Flaw]:
    """Yield every rule that a page of Markdown breaks."""
    for line in without_code(text).split("\n"):
        if len(line) > width and not re.search(r"\]\([^)]*$|https?:", line[:width]):
            yield Flaw(page, f"a line of {len(line)} columns", line[:60])
    lengths = []
    for heading in (words for words, is_heading in paragraphs(text) if is_heading):
        yield from private_words(page, heading)
    for sentence in sentences(text):
        lengths.append(count(sentence))
        yield from flaws_of_sentence(page, sentence)
    if lengths and mean(lengths) >= MEAN:
        yield Flaw(page, f"a mean of {mean(lengths):.1f} words a sentence", "")


def flaws_of_sentence(page: str, sentence: str) -> Iterator[Flaw]:
    """Yield every rule that one sentence breaks."""
    shown = sentence.replace(CODE, "``")
    if count(sentence) > LONGEST:
        yield Flaw(page, f"{count(sentence)} words", shown)
    if OPENINGS.match(sentence) and not sentence.rstrip("\"')*_ ").endswith("?"):
        yield Flaw(page, f'begins with "{sentence.split(maxsplit=1)[0]}" and is no question', shown)
    yield from private_words(page, sentence)
    for pattern in NEGATIVES:
        if found := re.search(pattern, unmarked(re.sub(r"n['’]t\b", " not", sentence)), re.IGNORECASE):
            yield Flaw(page, f'"{found[0]}" is a double negative', shown)


def unmarked(text: str) -> str:
    """Return text without the asterisks of emphasis, with one blank between two words."""
    return " ".join(text.replace("*", "").split())


def private_words(page: str, text: str) -> Iterator[Flaw]:
    """Yield the words of ours in a sentence or heading; the glossary may explain them in bold."""
    unquoted = re.sub(r"\*\*[^*]+\*\*", "", text) if page.endswith("glossary.md") else text
    for pattern, better in PRIVATE.items():
        if found := re.search(pattern, unmarked(unquoted), re.IGNORECASE):
            yield Flaw(page, f'"{found[0]}": {better}', text.replace(CODE, "``"))


def figures(text: str) -> tuple[int, int, float, int]:
    """Return words, sentences, the mean length of a sentence and the longest one of a page's prose."""
    lengths = [count(each) for each in sentences(text)]
    return sum(lengths), len(lengths), mean(lengths) if lengths else 0.0, max(lengths, default=0)


def main() -> None:
    """Print the figures and flaws of the files that the command line names."""
    import sys
    from pathlib import Path

    for name in sys.argv[1:]:
        text = Path(name).read_text("utf-8")
        words, many, average, longest = figures(text)
        print(f"{name}: {words} words of prose, {many} sentences, mean {average:.1f}, longest {longest}")
        for flaw in flaws(name, text):
            print(f"  {flaw.rule}: {flaw.words}")


if __name__ == "__main__":
    main()
