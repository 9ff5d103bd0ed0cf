"""The prompt: statements over several lines, kept between sessions, completed with Tab."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import completion_is_selected, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from icefloe.cli.completion import SqlCompleter
from icefloe.cli.described import describe
from icefloe.cli.facts import facts, tables
from icefloe.cli.output import stdout
from icefloe.cli.places import history_file
from icefloe.cli.shell import Shell
from icefloe.sql.cursor import is_complete

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
        if (command := _bare(text)) in _LEAVE:
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


def _bare(text: str) -> str:
    """A command of the prompt; it needs no semicolon, and may have one."""
    return text.strip().removesuffix(";").rstrip()


def _is_command(text: str) -> bool:
    bare = _bare(text)
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
