"""The prompt of `icefloe sql`: statements of several lines, a history, completion with Tab."""

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

from icefloe.cli.facts import tables
from icefloe.cli.output import stdout, write_table_facts
from icefloe.cli.shell import Shell
from icefloe.cli.worker import history_file
from icefloe.errors import IcefloeError
from icefloe.inspection.facts import table_facts
from icefloe.lake import Lake
from icefloe.sql.cursor import is_complete

PROMPT = "icefloe> "
_CONTINUATION = "    ...> "
_EXIT_COMMANDS = {"\\q", "quit", "exit"}
_HELP = """\
A statement ends with a semicolon and may have several lines.
  \\d          list the tables     \\d TABLE    show one table
  \\?, help    show this help      \\q, quit    exit (also Ctrl-D)
Tab completes keywords, tables and columns. The arrow keys show earlier statements.
Ctrl-C cancels the running statement, or clears the input."""


def prompt(shell: Shell, run: Callable[[Callable[[], None]], object]) -> None:
    """Read and run statements until the user exits; `run` runs one and reports its error."""
    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=_CONTINUATION,
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
        if (command := _without_semicolon(text)) in _EXIT_COMMANDS:
            return
        run(partial(_handle, shell, command, text))


def _handle(shell: Shell, command: str, text: str) -> None:
    if command in {"\\?", "help"}:
        stdout().print(_HELP)
    elif command == "\\d":
        shell.output.records(tables(shell.lake))
    elif command.startswith("\\d "):
        table = shell.lake.table(command.removeprefix("\\d").strip())
        write_table_facts(table_facts(table.name, table.iceberg), shell.output)
    else:
        shell.run(text)


def _without_semicolon(text: str) -> str:
    """The text of a prompt command, which may end with a semicolon."""
    return text.strip().removesuffix(";").rstrip()


def _is_command(text: str) -> bool:
    bare = _without_semicolon(text)
    return not bare or bare.startswith("\\") or bare in {*_EXIT_COMMANDS, "help"}


def _history() -> History:
    file = history_file()
    return FileHistory(str(file)) if file else InMemoryHistory()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus("DEFAULT_BUFFER") & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Run the input if it is complete, otherwise start a new line."""
        buffer = event.current_buffer
        if is_complete(buffer.text) or _is_command(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


# -------------------------------------------------------------------------------------------------
# Completion with Tab

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
_CACHE_S = 5.0  # how long names from the catalog are reused


class SqlCompleter(Completer):
    """Completes keywords, tables of the lake, and columns of the tables in the text."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._columns: dict[str, tuple[float, list[str]]] = {}
        self._tables: tuple[float, list[str]] = (-_CACHE_S, [])

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """Offer names that start with the word at the cursor."""
        match = _WORD.search(document.text_before_cursor)
        word = match[0] if match else ""
        before = document.text_before_cursor[: len(document.text_before_cursor) - len(word)]
        if before.lstrip().startswith("\\") or _BEFORE_TABLE.search(before):
            candidates = self._table_names()
        else:
            keywords = KEYWORDS if word[:1].isupper() or not word else [k.lower() for k in KEYWORDS]
            candidates = [*self._mentioned_columns(document.text), *keywords, *self._table_names()]
        yield from (
            Completion(name, start_position=-len(word))
            for name in dict.fromkeys(candidates)
            if name.lower().startswith(word.lower()) and name != word
        )

    def _table_names(self) -> list[str]:
        read_at, names = self._tables
        if monotonic() - read_at > _CACHE_S:
            names = _names_or_none(self._lake.tables)
            self._tables = (monotonic(), names)
        return names

    def _mentioned_columns(self, text: str) -> list[str]:
        """Columns of every table that the text mentions."""
        words = {word.lower() for word in _NAME.findall(text)}
        mentioned = [
            table
            for table in self._table_names()
            if {table.lower(), _without_default_namespace(table.lower())} & words
        ]
        return [column for table in mentioned for column in self._columns_of(table)]

    def _columns_of(self, table: str) -> list[str]:
        read_at, names = self._columns.get(table, (-_CACHE_S, []))
        if monotonic() - read_at > _CACHE_S:
            names = _names_or_none(lambda: self._lake.load(table).schema().column_names)
            self._columns[table] = (monotonic(), names)
        return names


def _names_or_none(read: Callable[[], Iterable[str]]) -> list[str]:
    """Names from the catalog; no names if it fails, because the statement reports the error."""
    try:
        return list(read())
    except (IcefloeError, OSError, RESTError, SQLAlchemyError):
        return []


def _without_default_namespace(table: str) -> str:
    """A statement may name a table of the default namespace without the namespace."""
    return table.removeprefix("default.")
