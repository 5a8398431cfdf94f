"""A position in a list of tokens: take, expect and skip."""

from refsim.ptx.text.lexer import Token, malformed


class Cursor:
    """What a recursive descent needs of its tokens; every disappointment is `malformed-ptx` with its line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise malformed("the text ends in the middle of a statement", token.line)
        self.at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        token = self.tokens[self.at]
        if token.text in texts and token.kind not in ("string", "end"):
            self.at += 1
            return token.text
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise malformed(f"expected {text!r}, found {self.token.text or 'the end of the text'!r}", self.token.line)

    def word(self) -> str:
        token = self.take()
        if token.kind != "word":
            raise malformed(f"expected a name, found {token.text!r}", token.line)
        return token.text

    def skip_statement(self) -> None:
        while self.take().text != ";":
            pass

    def skip_group(self, opening: str, closing: str) -> None:
        """Skip to the mark that closes the one which stands here."""
        self.expect(opening)
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "mark":
                depth += (token.text == opening) - (token.text == closing)
