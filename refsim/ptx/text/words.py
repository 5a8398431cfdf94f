"""Tables of plain names, written as words of a text."""


def words_in(text: str) -> tuple[str, ...]:
    """Return the words of a text, in order."""
    return tuple(text.split())


def pairs_in(text: str) -> dict[str, str]:
    """Return the words of a text as a table: `add:+ sub:-` is {"add": "+", "sub": "-"}, and `add` alone {"add": ""}."""
    return {name: value for name, _, value in (word.partition(":") for word in text.split())}
