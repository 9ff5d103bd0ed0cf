"""Parsed statements: names, and slices of the user's text for everything that Spark reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from icefloe.redaction import masked_repr
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Then, When

Name: TypeAlias = tuple[str, ...]


@masked_repr
@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the text and its position in the whole text."""

    text: SqlText
    start: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Ctes:
    """The WITH before a statement."""

    text: Slice  # WITH and the definitions
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """SELECT, VALUES, TABLE: run by Spark."""

    text: Slice


class InsertKind(StrEnum):
    """Which existing rows an INSERT replaces."""

    INTO = "INSERT INTO"
    OVERWRITE = "INSERT OVERWRITE"
    REPLACE_WHERE = "INSERT INTO … REPLACE WHERE"
    REPLACE_USING = "INSERT INTO … REPLACE USING"


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT: rows of a query, matched by position unless `by_name`."""

    kind: InsertKind
    table: Name
    query: Slice
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    partition: tuple[tuple[str, Slice], ...] | None = None
    predicate: Slice | None = None
    using: tuple[str, ...] = ()

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        return [self.predicate] if self.predicate is not None else []


@dataclass(frozen=True, slots=True)
class UpdateTable:
    """UPDATE: new values by column."""

    table: Name
    alias: str | None
    assignments: tuple[tuple[Name, Slice], ...]
    where: Slice | None

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        values = [value for _, value in self.assignments]
        return [*values, self.where] if self.where is not None else values


@dataclass(frozen=True, slots=True)
class DeleteFrom:
    """DELETE."""

    table: Name
    alias: str | None
    where: Slice | None

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        return [self.where] if self.where is not None else []


@dataclass(frozen=True, slots=True)
class Clause:
    """WHEN … THEN …; `assignments` are None for `*`."""

    when: When
    condition: Slice | None
    then: Then
    assignments: tuple[tuple[Name, Slice], ...] | None = ()


@dataclass(frozen=True, slots=True)
class MergeInto:
    """MERGE; the source is the text between USING and ON."""

    table: Name
    alias: str | None
    source: Slice
    source_name: Name  # the alias, or the table name if it has none
    on: Slice
    clauses: tuple[Clause, ...]
    evolves_schema: bool

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        values = [value for clause in self.clauses for _, value in clause.assignments or ()]
        conditions = [clause.condition for clause in self.clauses if clause.condition is not None]
        return [self.on, *conditions, *values]


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE."""

    table: Name

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        return []


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE: compaction of the files that may contain rows of the condition."""

    table: Name
    where: Slice | None

    def expressions(self) -> list[Slice]:
        """The slices that are expressions."""
        return [self.where] if self.where is not None else []


Dml: TypeAlias = Insert | UpdateTable | DeleteFrom | MergeInto | Truncate | Optimize


@dataclass(frozen=True, slots=True)
class WithDml:
    """A DML statement with the WITH before it."""

    statement: Dml
    ctes: Ctes | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN of a query or of DML; `how` is FORMATTED and the like, for queries."""

    statement: Query | WithDml
    how: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE, with columns or from a query."""

    table: Name
    columns: Slice | None
    query: Slice | None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """CREATE NAMESPACE."""

    name: Name
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropTable:
    """DROP TABLE."""

    table: Name
    if_exists: bool
    purge: bool


@dataclass(frozen=True, slots=True)
class SetProperties:
    """ALTER TABLE … SET TBLPROPERTIES."""

    table: Name
    properties: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ALTER TABLE … ADD COLUMNS: names with Spark's types."""

    table: Name
    columns: tuple[tuple[Name, str], ...]


@dataclass(frozen=True, slots=True)
class DropColumns:
    """ALTER TABLE … DROP COLUMNS."""

    table: Name
    columns: tuple[Name, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """ALTER TABLE … RENAME COLUMN."""

    table: Name
    old: Name
    new: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    """ALTER TABLE … RENAME TO."""

    table: Name
    new: Name


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX."""

    name: str
    table: Name
    kind: str
    columns: tuple[str, ...]
    params: dict[str, object] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX."""

    name: str
    table: Name
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE TABLE."""

    table: Name
    extended: bool


@dataclass(frozen=True, slots=True)
class ShowTables:
    """SHOW TABLES."""

    namespace: Name | None
    like: str | None


@dataclass(frozen=True, slots=True)
class ShowNamespaces:
    """SHOW NAMESPACES."""

    like: str | None


@dataclass(frozen=True, slots=True)
class ShowCreateTable:
    """SHOW CREATE TABLE."""

    table: Name


@dataclass(frozen=True, slots=True)
class ShowProperties:
    """SHOW TBLPROPERTIES."""

    table: Name


@dataclass(frozen=True, slots=True)
class ShowIndexes:
    """SHOW INDEXES."""

    table: Name


Ddl: TypeAlias = (
    CreateTable
    | CreateNamespace
    | DropTable
    | SetProperties
    | AddColumns
    | DropColumns
    | RenameColumn
    | RenameTable
    | CreateIndex
    | DropIndex
)
Show: TypeAlias = (
    Describe | ShowTables | ShowNamespaces | ShowCreateTable | ShowProperties | ShowIndexes
)
Parsed: TypeAlias = Query | WithDml | Explain | Ddl | Show
