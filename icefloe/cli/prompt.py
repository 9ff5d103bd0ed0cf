"""What Tab offers at the prompt: keywords, tables of the lake, columns of the tables named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer
from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import SQLAlchemyError

from icefloe.cli.facts import facts, tables
from icefloe.cli.output import describe, stdout
from icefloe.cli.shell import Shell
from icefloe.cli.worker import history_file
from icefloe.errors import IcefloeError
from icefloe.lake import Lake
from icefloe.sql.cursor import is_complete

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
        named = [
            t
            for t in self._table_names()
            if {t.lower(), _without_default_namespace(t.lower())} & words
        ]
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


def _without_default_namespace(table: str) -> str:
    """A table of the default namespace may be named without it."""
    return table.removeprefix("default.")


# -------------------------------------------------------------------------------------------------
# The prompt: statements over several lines, kept between sessions, completed with Tab.

PROMPT = "icefloe> "
_MORE = "    ...> "
_LEAVE = {"\\q", "quit", "exit"}
_HELP = """\
A statement ends with a semicolon and may have several lines.
  \\d          the tables          \\d TABLE    one table
  \\?, help    this text           \\q, quit    leave (Ctrl-D too)
Tab completes keywords, tables and columns; the arrow keys go through earlier statements;
Ctrl-C stops a statement that runs, or clears what was typed."""


def prompt(shell: Shell, guarded: Callable[[Callable[[], None]], object]) -> None:
    """Read and run statements until the user leaves; `guarded` runs one and tells its error."""
    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=_MORE,
        lexer=PygmentsLexer(SqlLexer),
        completer=SqlCompleter(shell.lake),
        complete_in_thread=True,
        complete_while_typing=False,
        history=_history(),
        key_bindings=_keys(),
    )
    while True:
        try:
            text = session.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if (command := _without_semicolon(text)) in _LEAVE:
            return
        guarded(partial(_answer, shell, command, text))


def _answer(shell: Shell, command: str, text: str) -> None:
    if command in {"\\?", "help"}:
        stdout().print(_HELP)
    elif command == "\\d":
        shell.output.records(tables(shell.lake))
    elif command.startswith("\\d "):
        table = shell.lake.table(command.removeprefix("\\d").strip())
        describe(facts(table.name, table.iceberg), shell.output)
    else:
        shell.run(text)


def _without_semicolon(text: str) -> str:
    """A command of the prompt; it needs no semicolon, and may have one."""
    return text.strip().removesuffix(";").rstrip()


def _is_command(text: str) -> bool:
    bare = _without_semicolon(text)
    return not bare or bare.startswith("\\") or bare in {*_LEAVE, "help"}


def _history() -> History:
    file = history_file()
    return FileHistory(str(file)) if file else InMemoryHistory()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus("DEFAULT_BUFFER") & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Run what is complete, else go on in a new line."""
        buffer = event.current_buffer
        if is_complete(buffer.text) or _is_command(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys
