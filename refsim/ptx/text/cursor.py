"""A position in a list of tokens: take, expect and skip."""

from refsim.ptx.text.lexer import Token, malformed


class Cursor:
    """A position in tokens for a recursive descent; every mismatch is `malformed-ptx` with its line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        """Return the token at the position."""
        return self.tokens[self.at]

    def take(self) -> Token:
        """Return the token at the position and step over it; raise `malformed-ptx` at the end."""
        token = self.tokens[self.at]
        if token.kind == "end":
            raise malformed("the text ends in the middle of a statement", token.line)
        self.at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        """Step over the token if its text is one of these; return the text, else None."""
        token = self.tokens[self.at]
        if token.text in texts and token.kind not in ("string", "end"):
            self.at += 1
            return token.text
        return None

    def expect(self, text: str) -> None:
        """Step over the token, which must have this text."""
        if self.accept(text) is None:
            raise malformed(f"expected {text!r}, found {self.token.text or 'the end of the text'!r}", self.token.line)

    def word(self) -> str:
        """Return the text of a word and step over it; raise `malformed-ptx` for another token."""
        token = self.take()
        if token.kind != "word":
            raise malformed(f"expected a name, found {token.text!r}", token.line)
        return token.text

    def skip_statement(self) -> None:
        """Skip to after the next semicolon."""
        while self.take().text != ";":
            pass

    def skip_group(self, opening: str, closing: str) -> None:
        """Skip to after the mark that closes the group which begins here."""
        self.expect(opening)
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "mark":
                depth += (token.text == opening) - (token.text == closing)
