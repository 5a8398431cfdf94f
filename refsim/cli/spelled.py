"""Numbers on a command line: few ASCII digits, and nothing else that int and float of Python take."""

import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}|0[xX][0-9a-fA-F]{1,64}(?:_[0-9a-fA-F]+)*|0[bB][01]{1,64}(?:_[01]+)*)")
LONGEST_WORD = 80


def number_in(word: str) -> int | None:
    """Return the whole number that a word spells, or None: decimal (42, at most 40 digits), 0x2a or 0b101010.

    int() also takes digits of other scripts and 4_2, and raises ValueError beyond 4,300 digits. Here only patterns may
    hold underscores (0b0010_1010), and blanks around the word are refused. number_in("007") is 7.
    """
    if len(word) > LONGEST_WORD or not _NUMBER.fullmatch(word):
        return None
    return int(word, 0) if word.lstrip("+-")[1:2] in tuple("xXbB") else int(word)


def count_in(word: str) -> int | None:
    """Return the number that decimal digits spell, as "42"; None for any other word ("-1", "0x2a", a superscript 2)."""
    return number_in(word) if word.isdecimal() else None


def real_in(word: str) -> float:
    """Return the float that an ASCII word spells: 1.5, 1e-9, inf. Raises ValueError for other words, 1_0 too."""
    if not word.isascii() or "_" in word or len(word) > LONGEST_WORD or word.strip() != word:
        raise ValueError(word)
    return float(word)
