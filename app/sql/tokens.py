"""Texts are split into Spark's tokens with their offsets; a cursor reads our own statements.

sqlglot's parser does not know our statements (`CREATE SOURCE`, `SUBSCRIBE`), and any parser that
builds a tree loses where things stand in the text. Tokens with offsets serve both: errors that show
the place, and texts that stay as they were written.

    for statement in statements_of(text): ...      the tokens of each, without the semicolons
    cursor.accept("IF", "NOT")   cursor.name("the source")

Invariants:
    `text[token.start : token.end + 1]` is the token as written. Words are compared without case.
    Every method of the cursor that fails raises `TextProblem` with the offset of the token that it
    met, or of the end of the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import Final

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from shardline.app.sql.problems import TextProblem, did_you_mean

__all__ = [
    "Cursor",
    "check_comments",
    "compact_text",
    "query_tokens",
    "quoted_names",
    "statements_of",
    "tokens_of",
    "word_of",
]

_STRINGS: Final = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_BOOLEANS: Final = frozenset({"TRUE", "FALSE"})
_SETS: Final = frozenset(
    {TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.ALL, TokenType.DISTINCT}
)
_BEFORE_QUERY: Final = frozenset(
    {TokenType.ALIAS, TokenType.FROM, TokenType.IN, TokenType.EXISTS, TokenType.COMMA, *_SETS}
)
_NAMED: Final = frozenset({TokenType.ALIAS, TokenType.DOT})
_WORDS: Final = frozenset({TokenType.SELECT, TokenType.FROM})
_LINE_COMMENT: Final = re.compile(r"--(?:\\\n|[^\r\n])*")
"""As in Spark's grammar: behind a backslash it goes on in the next line."""
_COMMENT_OPENS: Final = re.compile(r"/\*(?!\+)")
"""As in Spark's grammar: `/*+` opens a hint, and nothing inside of a comment."""


def tokens_of(text: str) -> list[Token]:
    """The tokens of `text`, without comments.

    Raises:
        TextProblem: A quoted text, name or comment does not end.
    """
    try:
        return Spark().tokenize(text)
    except (TokenError, IndexError) as error:
        opened = re.search(r"Missing (\S+) from \d+:(\d+)", str(error.__cause__ or error))
        if opened is None:
            start = max(text.rfind("/*"), 0)
            raise TextProblem(start, "a comment does not end", "close it with */") from None
        mark = opened[1]
        raise TextProblem(
            int(opened[2]), f"what {mark} opens here does not end", f"close it with {mark}"
        ) from None


def check_comments(text: str, tokens: Iterable[Token], begin: int = 0) -> None:
    """Refuse text that is a comment to sqlglot, and something else to Spark, or only a part of one.

    Spark would run another query than the one whose inputs are known here and whose text is kept.
    So it is for text that Spark gets, from `begin` to the end, and not for what stands around it.
    Nor is it for commands: sqlglot's tokens leave out most of what follows a word such as SHOW.

    Raises:
        TextProblem: There is such a comment.
    """
    end = begin
    for start, after in (*((token.start, token.end + 1) for token in tokens), (len(text), 0)):
        at = end
        while at < start:
            comment = _comment_end(text, at)
            if comment is None and text[at].isspace():
                at += 1
            elif comment is None or comment > start:
                raise TextProblem(
                    at,
                    "Spark reads a comment here otherwise than it looks",
                    "let no line of a comment end in a backslash, and write no /*+ in one",
                )
            else:
                at = comment
        end = max(end, after)


def _comment_end(text: str, start: int) -> int | None:
    """Offset behind the comment that Spark's lexer sees at `start`; None if it sees none."""
    line = _LINE_COMMENT.match(text, start)
    if line is not None:
        return line.end()
    if _COMMENT_OPENS.match(text, start) is None:
        return None
    depth, at = 1, start + 2
    while depth and at < len(text):
        opens = _COMMENT_OPENS.match(text, at) is not None
        closes = text.startswith("*/", at)
        depth += opens - closes
        at += 2 if opens or closes else 1
    return at


def query_tokens(text: str) -> list[Token]:
    """The tokens of a query for sqlglot's parser, retyped where Spark reads them differently.

    `window(…)` is a function, `TABLE x` reads like `FROM x`, and a name after AS or a dot may be
    `select` or `from`.

    Raises:
        TextProblem: A quoted text, name or comment does not end.
    """
    tokens = tokens_of(text)
    kinds = [_kind(tokens, place) for place in range(len(tokens))]
    return [
        token if kind is token.token_type else _retyped(token, kind)
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def _kind(tokens: Sequence[Token], place: int) -> TokenType:
    """The type of the token at `place` for Spark."""
    kind = tokens[place].token_type
    before = tokens[place - 1].token_type if place else None
    after = tokens[place + 1].token_type if place + 1 < len(tokens) else None
    if kind is TokenType.WINDOW and after is TokenType.L_PAREN:
        return TokenType.VAR
    if kind in _WORDS and before in _NAMED:
        return TokenType.VAR
    if kind is TokenType.TABLE and after is not TokenType.L_PAREN:
        outside = dropwhile(
            lambda one: one.token_type is TokenType.L_PAREN, reversed(tokens[:place])
        )
        opened = next((one.token_type in _BEFORE_QUERY for one in outside), True)
        if before is None or before in _SETS or (before is TokenType.L_PAREN and opened):
            return TokenType.FROM
    return kind


def _retyped(token: Token, kind: TokenType) -> Token:
    return Token(kind, token.text, token.line, token.col, token.start, token.end, token.comments)


def statements_of(text: str) -> Iterator[list[Token]]:
    """The tokens of each statement of `text`; empty statements are left out."""
    statement: list[Token] = []
    for token in tokens_of(text):
        if token.token_type is not TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield statement
            statement = []
    if statement:
        yield statement


def compact_text(text: str) -> str:
    """`text` without comments, and with one space where there were comments or white space.

    Texts that differ in layout only have the same compact text, so that a view is not made anew
    when its file is formatted. Hints (`/*+ … */`) stay.

    Raises:
        TextProblem: A quoted text, name or comment does not end, or Spark reads a comment
            otherwise.
    """
    tokens = tokens_of(text)
    check_comments(text, tokens)
    pieces: list[str] = []
    end = 0
    for token in tokens:
        if token.start < end:
            continue  # `1L` is three tokens to sqlglot, a cast: all of them stand at one place
        pieces += [" " if token.start > end and pieces else "", text[token.start : token.end + 1]]
        end = token.end + 1
    return "".join(pieces)


def quoted_names(text: str) -> set[str]:
    """All names in backticks."""
    return {t.text for t in tokens_of(text) if t.token_type is TokenType.IDENTIFIER}


def word_of(token: Token, text: str) -> str:
    """The token in upper case if it is an unquoted word, else ""."""
    written = text[token.start : token.end + 1]
    return written.upper() if re.fullmatch(r"[^\W\d]\w*", written) else ""


class Cursor:
    """Steps over the tokens of one statement.

    Attributes:
        text: The text that the tokens' offsets refer to.
    """

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        assert tokens, "a statement has a token"
        self.text = text
        self._tokens = tokens
        self._index = 0

    @property
    def is_done(self) -> bool:
        """True if there is no token left."""
        return self._index >= len(self._tokens)

    @property
    def offset(self) -> int:
        """Offset of the next token; the end of the statement if there is none."""
        return self._tokens[-1].end + 1 if self.is_done else self._tokens[self._index].start

    @property
    def end(self) -> int:
        """Offset of the statement's end, exclusive."""
        return self._tokens[-1].end + 1

    @property
    def word(self) -> str:
        """The next token in upper case if it is an unquoted word, else ""."""
        return "" if self.is_done else word_of(self._tokens[self._index], self.text)

    @property
    def written(self) -> str:
        """The next token as written, in quotes, for messages."""
        if self.is_done:
            return "the end of the statement"
        token = self._tokens[self._index]
        return f"'{self.text[token.start : token.end + 1]}'"

    def wrong(self, message: str, hint: str = "") -> TextProblem:
        """A problem at the next token."""
        return TextProblem(self.offset, message, hint)

    def skip(self) -> None:
        """Step over one token."""
        self._index += 1

    def accept(self, *words: str) -> bool:
        """Step over `words`, in upper case, if they are next; else False."""
        ahead = self._tokens[self._index : self._index + len(words)]
        if tuple(word_of(token, self.text) for token in ahead) != words:
            return False
        self._index += len(words)
        return True

    def expect(self, words: str, form: str) -> None:
        """Step over `words`, in upper case; a hint shows `form`, the statement as it should be."""
        for word in words.split():
            if not self.accept(word):
                raise self.wrong(f"expected {words}, found {self.written}", f"write {form}")

    def one_of(self, what: str, known: Iterable[str]) -> str:
        """Step over one of the `known` words, all in upper case, and return it."""
        known = tuple(known)
        if self.word not in known:
            raise self.wrong(f"{self.written} is no {what}", did_you_mean(self.word, known))
        word = self.word
        self.skip()
        return word

    def symbol(self, kind: TokenType) -> bool:
        """Step over a token of this kind if it is next; else False."""
        if self.is_done or self._tokens[self._index].token_type is not kind:
            return False
        self._index += 1
        return True

    def open(self, what: str) -> None:
        """Step over an opening parenthesis."""
        if not self.symbol(TokenType.L_PAREN):
            raise self.wrong(f"expected ( after {what}, found {self.written}", f"write {what} (…)")

    def name(self, what: str) -> str:
        """Step over a name and return it as written, without its backticks."""
        if not self.is_done:
            token = self._tokens[self._index]
            if token.token_type is TokenType.IDENTIFIER or word_of(token, self.text):
                self._index += 1
                return token.text
        raise self.wrong(
            f"expected the name of {what}, found {self.written}",
            "a name that is no plain word stands in `backticks`",
        )

    def string(self, what: str) -> str:
        """Step over a string literal; adjacent ones are one, a doubled quote is a quote (Spark)."""
        text = self._one_string(what)
        while self._is_at_string():
            text += self._one_string(what)
        return text

    def _is_at_string(self) -> bool:
        return not self.is_done and self._tokens[self._index].token_type in _STRINGS

    def _one_string(self, what: str) -> str:
        """Step over one string literal; to sqlglot one with a doubled quote is several tokens."""
        if not self._is_at_string():
            raise self.wrong(f"expected {what}, found {self.written}", "write it in 'quotes'")
        before = self._tokens[self._index]
        text = before.text
        self._index += 1
        while self._is_at_string():
            token = self._tokens[self._index]
            mark = self.text[token.start]
            if token.start != before.end + 1 or self.text[before.end] != mark:
                break
            text, before = text + mark + token.text, token
            self._index += 1
        return text

    def literal(self, what: str) -> str:
        """Step over a literal and return its text: a string, a number with its sign, a boolean."""
        sign = "-" if self.symbol(TokenType.DASH) else ""
        if not self.is_done and not sign:
            if self.word in _BOOLEANS:
                word = self.word.lower()
                self.skip()
                return word
            if self._tokens[self._index].token_type in _STRINGS:
                return self.string(what)
        if not self.is_done and self._tokens[self._index].token_type is TokenType.NUMBER:
            token = self._tokens[self._index]
            self._index += 1
            return sign + self.text[token.start : token.end + 1]
        raise self.wrong(f"expected {what}, found {self.written}", "write it in 'quotes'")

    def dotted(self, what: str) -> str:
        """Step over a key such as `kafka.bootstrap.servers`, quoted or not, and return it."""
        if self._is_at_string():
            # One alone: what stands beside a key in quotes is its value.
            return self._one_string(what)
        parts = [self.name(what)]
        while self.symbol(TokenType.DOT):
            parts.append(self.name(what))
        return ".".join(parts)

    def enclosed(self, what: str) -> tuple[int, int]:
        """Step over a parenthesis; returns the offsets of the text inside of it, which Spark gets.

        The text begins with its first token, so it is "" if there is none.
        """
        opened = self.offset
        self.open(what)
        start, depth, first = self.offset, 1, self._index
        while not self.is_done:
            token = self._tokens[self._index]
            depth += (token.token_type is TokenType.L_PAREN) - (
                token.token_type is TokenType.R_PAREN
            )
            self._index += 1
            if depth == 0:
                inside = self._tokens[first : self._index - 1]
                check_comments(self.text[: token.start], inside, start)
                return start, token.start
        raise TextProblem(opened, f"the ( of {what} is never closed", "close it with )")
