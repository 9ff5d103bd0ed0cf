"""What notebooks show of results, plans, tables and lakes: HTML without colours of its own.

Text has the colour of the page and lines are half transparent, so light and dark themes work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

from icefloe.redaction import redacted

_MOST_VALUES = 20  # of a list in one cell, and of a plan's files
_LINE = "1px solid rgba(128,128,128,0.4)"
_STYLE = "border-collapse:collapse;background:transparent;color:inherit;margin:0.3em 0"
_CELL = f"border:{_LINE};padding:0.15em 0.6em;vertical-align:top"
_CAPTION = (
    "text-align:left;caption-side:top;white-space:nowrap;color:inherit;font-weight:bold;"
    "padding:0.2em 0"
)


@dataclass(frozen=True, slots=True)
class HtmlRows:
    """Rows of a table by column; a numeric column is aligned to the right."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[bool] = ()


def table_html(cells: HtmlRows, caption: str = "") -> str:
    """A table; every text is escaped, and secrets are masked."""
    sides = [
        "right" if column < len(cells.numeric) and cells.numeric[column] else "left"
        for column in range(len(cells.names))
    ]
    head = "".join(_cell("th", name, side) for name, side in zip(cells.names, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', v, side) for v, side in zip(row, sides, strict=True))}</tr>"
        for row in cells.rows
    )
    titled = _caption(caption)
    return (
        f'<table style="{_STYLE}">{titled}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def figures_html(caption: str, figures: Mapping[str, object]) -> str:
    """Names and values as a table of two columns."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};text-align:left;font-weight:normal">'
        f"{text_html(name)}</th>{_cell('td', value, 'left')}</tr>"
        for name, value in figures.items()
    )
    titled = _caption(caption)
    return f'<table style="{_STYLE}">{titled}<tbody>{rows}</tbody></table>'


def block_html(text: str) -> str:
    """Text of several lines, as it is."""
    style = "background:transparent;color:inherit;overflow-x:auto"
    return f'<pre style="{style}">{text_html(text)}</pre>'


def text_html(text: object) -> str:
    """A text between tags."""
    return escape(redacted(str(text)))


def _caption(text: str) -> str:
    return f'<caption style="{_CAPTION}">{text_html(text)}</caption>' if text else ""


def _cell(tag: str, value: object, side: str) -> str:
    style = f"{_CELL};text-align:{side}"
    if value is None:
        return f'<{tag} style="{style};opacity:0.6">NULL</{tag}>'
    return f'<{tag} style="{style}">{text_html(_value_text(value))}</{tag}>'


def _value_text(value: object) -> str:
    """A number with its thousands; of a long list the first values."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case Mapping():
            return _list_text(f"{key}: {item}" for key, item in value.items())
        case list() | tuple():
            return _list_text(map(str, value))
        case _:
            return str(value)


def _list_text(texts: Iterable[str]) -> str:
    every = list(texts)
    more = len(every) - _MOST_VALUES
    return ", ".join(every[:_MOST_VALUES]) + (f" … and {more:,} more" if more > 0 else "")


class ShownAsTable:
    """A dataclass of figures that notebooks show as a table, without those that are zero."""

    def _repr_html_(self) -> str:
        shown = {
            name: str(value) if name.endswith("_id") else value
            for name, value in self._figures().items()
            if value not in (None, 0, "", ())
        }
        return figures_html(type(self).__name__, shown)

    def _figures(self) -> Mapping[str, object]:
        every: Any = self
        return {one.name: getattr(self, one.name) for one in fields(every)}
