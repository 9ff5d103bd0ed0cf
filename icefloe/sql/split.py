"""One text → its statements."""

from __future__ import annotations

from dataclasses import dataclass

from icefloe.spark.tokens import Kind, tokenize


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a text, without its semicolon and the comments around it."""

    text: str
    line: int  # where it starts, from 1
    start: int = 0  # the place in the whole text


def split_statements(text: str) -> list[Piece]:
    """The statements between semicolons that are outside of quotes and comments."""
    pieces: list[Piece] = []
    start = end = None
    for token in tokenize(text):
        if token.word == ";":
            if start is not None:
                pieces.append(_piece(text, start, end))
            start = None
        else:
            start, end = token.start if start is None else start, token.end
    if start is not None:
        pieces.append(_piece(text, start, end))
    return pieces


def is_complete(text: str) -> bool:
    """Whether the last statement ends with a semicolon, outside of quotes and comments."""
    tokens = tokenize(text)
    return bool(tokens) and tokens[-1].kind is not Kind.OPEN and tokens[-1].word == ";"


def _piece(text: str, start: int, end: int | None) -> Piece:
    return Piece(text[start:end], text.count("\n", 0, start) + 1, start)
