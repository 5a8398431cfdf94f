"""-k EXPR: selects kernels by name, as -k of pytest selects tests."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from refsim.errors import RefsimError

Chooser = Callable[[str], bool]

MOST_WORDS = 500
_WORD = re.compile(r"\s*(?:([()])|([A-Za-z0-9_.<>:+\-\[\]/]+))")


@dataclass
class _Reader:
    """The words of an expression, and how many are read. "or" binds less than "and", "and" less than "not"."""

    text: str
    words: list[str]
    at: int = 0

    @property
    def next(self) -> str:
        """Return the next word, "" at the end."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def taken(self, word: str) -> bool:
        """Read the next word if it is `word`, and return whether it was."""
        if self.next == word:
            self.at += 1
            return True
        return False

    def either(self) -> Chooser:
        """Read terms that "or" joins."""
        terms = [self.both()]
        while self.taken("or"):
            terms.append(self.both())
        return lambda name: any(term(name) for term in terms)

    def both(self) -> Chooser:
        """Read terms that "and" joins."""
        terms = [self.one()]
        while self.taken("and"):
            terms.append(self.one())
        return lambda name: all(term(name) for term in terms)

    def one(self) -> Chooser:
        """Read a name or an expression in parentheses, after any number of "not"."""
        turned = False
        while self.taken("not"):
            turned = not turned
        if self.taken("("):
            chosen = self.either()
            if not self.taken(")"):
                raise wrong(self.text, f"{self._found()} where ) is missing")
        elif self.next in ("", ")", "and", "or"):
            raise wrong(self.text, f"{self._found()} where a name is missing")
        else:
            chosen = _contains(self.next)
            self.at += 1
        return (lambda name: not chosen(name)) if turned else chosen

    def _found(self) -> str:
        return repr(self.next) if self.next else "the end"


def chooser(expression: str) -> Chooser:
    """Return a function that tests the name of a kernel: `fp8 and not (amax or linear)`. A word matches part of a
    name, in any case.

    Raises RefsimError bad-expression.
    """
    reader = _Reader(expression, _words(expression))
    chosen = reader.either()
    if reader.next:
        raise wrong(expression, f"{reader.next!r} where and, or, or the end is due")
    return chosen


def _words(expression: str) -> list[str]:
    words, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            raise wrong(expression, f"{text[at:].strip()[:1]!r} is part of no name")
        words.append(match[1] or match[2])
        at = match.end()
    if len(words) > MOST_WORDS:
        raise wrong(expression, f"{len(words)} words, at most {MOST_WORDS} are read")
    if words.count("(") > MOST_WORDS // 10:
        raise wrong(expression, f"{words.count('(')} parentheses, at most {MOST_WORDS // 10} are read")
    return words


def wrong(expression: str, what: str) -> RefsimError:
    """Return the error of an expression; `what` says what is wrong in it."""
    return RefsimError(
        "bad-expression",
        what,
        where=f"-k {expression if len(expression) <= 80 else expression[:77] + '...'}",
        rule="parts of kernel names, and, or, not, parentheses",
        help="-k 'fp8 and not (amax or dequantize)'",
    )


def _contains(word: str) -> Chooser:
    return lambda name: word.lower() in name.lower()
