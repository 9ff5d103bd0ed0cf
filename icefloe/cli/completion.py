"""What Tab offers at the prompt: keywords, tables of the lake, columns of the tables named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import SQLAlchemyError

from icefloe.errors import IcefloeError
from icefloe.lake import Lake

_WORDS = (
    "ADD ALTER AND AS ASC BETWEEN BY CASE CAST COLUMN CREATE CROSS DELETE DESC DESCRIBE "
    "DISTINCT DROP ELSE END EVOLUTION EXISTS EXPLAIN FALSE FROM FULL GROUP HAVING IF IN INNER "
    "INSERT INTO IS JOIN LEFT LIKE LIMIT MATCHED MERGE NOT NULL OF ON OPTIMIZE OR ORDER OUTER "
    "OVERWRITE PARTITIONED RENAME REPLACE RIGHT SCHEMA SELECT SET SHOW SOURCE TABLE TABLES "
    "TBLPROPERTIES THEN TIMESTAMP TO TRUE TRUNCATE UNION UPDATE USING VALUES VERSION WHEN "
    "WHERE WITH "
)
KEYWORDS = _WORDS.split()
_WORD = re.compile(r"[\w.`]*$")
_NAME = re.compile(r"[\w.]+")
_BEFORE_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|USING|DESCRIBE|OVERWRITE)\s+$", re.I)
_FRESH_S = 5.0  # names are asked of the catalog no more often than that


class SqlCompleter(Completer):
    """Completes by what stands before the cursor and by the tables that the text names."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._columns: dict[str, tuple[float, list[str]]] = {}
        self._tables: tuple[float, list[str]] = (-_FRESH_S, [])

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """Offer what begins with the word at the cursor."""
        found = _WORD.search(document.text_before_cursor)
        word = found[0] if found else ""
        before = document.text_before_cursor[: len(document.text_before_cursor) - len(word)]
        if before.lstrip().startswith("\\") or _BEFORE_TABLE.search(before):
            offered = self._table_names()
        else:
            keywords = KEYWORDS if word[:1].isupper() or not word else [k.lower() for k in KEYWORDS]
            offered = [*self._named_columns(document.text), *keywords, *self._table_names()]
        yield from (
            Completion(name, start_position=-len(word))
            for name in dict.fromkeys(offered)
            if name.lower().startswith(word.lower()) and name != word
        )

    def _table_names(self) -> list[str]:
        asked, known = self._tables
        if monotonic() - asked > _FRESH_S:
            known = self._asked(self._lake.tables)
            self._tables = (monotonic(), known)
        return known

    def _named_columns(self, text: str) -> list[str]:
        """Columns of every table that the text names."""
        words = {word.lower() for word in _NAME.findall(text)}
        named = [t for t in self._table_names() if {t.lower(), _bare(t.lower())} & words]
        return [column for table in named for column in self._columns_of(table)]

    def _columns_of(self, table: str) -> list[str]:
        asked, known = self._columns.get(table, (-_FRESH_S, []))
        if monotonic() - asked > _FRESH_S:
            known = self._asked(lambda: self._lake.load(table).schema().column_names)
            self._columns[table] = (monotonic(), known)
        return known

    def _asked(self, ask: Callable[[], Iterable[str]]) -> list[str]:
        """What the catalog answers; a catalog that fails offers nothing, and tells at the query."""
        try:
            return list(ask())
        except (IcefloeError, OSError, RESTError, SQLAlchemyError):
            return []


def _bare(table: str) -> str:
    """A table of the default namespace may be named without it."""
    return table.removeprefix("default.")
