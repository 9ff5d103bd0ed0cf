"""`icefloe.write(df)`: Spark's writer spelling for appends, overwrites and REPLACE WHERE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icefloe.errors import StatementError
from icefloe.lake import Lake, last_opened
from icefloe.redaction import masked_repr
from icefloe.results import DmlResult

_REPLACE_WHERE = "replacewhere"
_MODES = {"append": "append", "overwrite": "overwrite", _REPLACE_WHERE: "replaceWhere"}


@masked_repr
@dataclass(frozen=True, slots=True)
class Writer:
    """Rows to be written into a table; nothing happens before `save()`."""

    _rows: object
    _lake: Lake | None = None
    _mode: str | None = None
    _options: Mapping[str, Any] = field(default_factory=dict)

    def mode(self, mode: str) -> Writer:
        """`"append"`, `"overwrite"` or `"replaceWhere"`, in any case."""
        if str(mode).lower() not in _MODES:
            raise StatementError(f"Unknown mode {mode!r}. Modes are: {', '.join(_MODES.values())}.")
        return replace(self, _mode=str(mode).lower())

    def option(self, name: str, value: Any) -> Writer:
        """The predicate `replaceWhere`, or an option of `replace_where` such as `scope`."""
        key = _REPLACE_WHERE if name.lower() == _REPLACE_WHERE else name
        return replace(self, _options={**self._options, key: value})

    def save(self, table: str) -> DmlResult:
        """Write the rows into an existing table."""
        lake = self._lake or last_opened()
        target = lake.table(table)
        options = dict(self._options)
        if _REPLACE_WHERE in options:  # even if None: replace_where refuses a missing predicate
            statement = target.replace_where(options.pop(_REPLACE_WHERE), self._rows)
            return statement.with_options(**_as_python(options)).execute()
        self._refuse_without_predicate(options)
        if self._mode == "append":
            return target.append(self._rows)
        return target.overwrite(self._rows)

    def _refuse_without_predicate(self, options: Mapping[str, Any]) -> None:
        if self._mode is None:
            raise StatementError(
                f"The writer has no mode. Add .mode() with {', '.join(_MODES.values())}."
            )
        if self._mode == _REPLACE_WHERE:
            raise StatementError(
                "Mode 'replaceWhere' has no predicate. Add .option('replaceWhere', predicate)."
            )
        if options:
            raise StatementError(f"Option {next(iter(options))!r} needs the option 'replaceWhere'.")


def write(rows: object, lake: Lake | None = None) -> Writer:
    """A writer of `rows` into a table of `lake`, by default the lake opened last.

    Examples:
        >>> rows = [{"id": 7, "region": "us", "n": 70}]
        >>> writer = icefloe.write(rows, lake=lake).mode("replaceWhere")
        >>> result = writer.option("replaceWhere", "region = 'us'").save("shop.orders")
        >>> result.rows_deleted, result.rows_inserted
        (2, 1)
    """
    return Writer(rows, lake)


def _as_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Option values as Spark users write them: flags and numbers may be strings."""
    return {name: _plain(name, value) for name, value in options.items()}


def _plain(name: str, value: Any) -> Any:
    if name == "check" and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    return int(value) if name == "retries" and str(value).isdecimal() else value
