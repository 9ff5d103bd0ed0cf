"""The database tables of the inline tier, and the database column of each field.

Every Iceberg table has one rows table, `icefloe_inline_<id>`, with one column per field id. Values
are BIGINT or bytes, nothing else, and the encodings keep Spark's order (see `encode`), so SQLite
and PostgreSQL compare them alike. Names and values of users appear in no identifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import sqlalchemy as sa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from icefloe.errors import UnsupportedTableError

Value: TypeAlias = int | bytes | None  # of a column in the database
ColumnValues: TypeAlias = Sequence[Value] | pa.Array  # arrays are of int64 or large_binary

# Of these tables: an earlier one gets the tables that it lacks, a later one is refused.
FORMAT = 3
_MAX_COLUMNS = 1500  # PostgreSQL has 1,600 columns per table, dropped ones included

INTEGER = "i"
DATE = "a"
MICROSECONDS = "t"
NANOSECONDS = "u"
FLOAT = "f"
DECIMAL = "d"
STRING = "s"
BINARY = "b"
NESTED = "n"
KINDS_OF_INTEGERS = frozenset({INTEGER, DATE, MICROSECONDS, NANOSECONDS, FLOAT})
# The kinds that a field may have had before its type was promoted. Other promotions keep the kind.
EARLIER_KINDS: Mapping[str, tuple[str, ...]] = {
    MICROSECONDS: (DATE,),
    NANOSECONDS: (DATE,),
    STRING: (BINARY,),
    BINARY: (STRING,),
}

_KINDS: Mapping[type[IcebergType], str] = {
    BooleanType: INTEGER,
    IntegerType: INTEGER,
    LongType: INTEGER,
    DateType: DATE,
    TimeType: MICROSECONDS,
    TimestampType: MICROSECONDS,
    TimestamptzType: MICROSECONDS,
    TimestampNanoType: NANOSECONDS,
    TimestamptzNanoType: NANOSECONDS,
    FloatType: FLOAT,
    DoubleType: FLOAT,
    DecimalType: DECIMAL,
    StringType: STRING,
    BinaryType: BINARY,
    FixedType: BINARY,
    UUIDType: BINARY,
    StructType: NESTED,
    ListType: NESTED,
    MapType: NESTED,
}


@dataclass(frozen=True, slots=True, order=True)
class InlineColumn:
    """The database column of a field: its name has the field's id and the kind of its values."""

    field_id: int
    kind: str

    @property
    def name(self) -> str:
        """The name in the database, such as `c7_i`."""
        return f"c{self.field_id}_{self.kind}"

    @property
    def is_integer(self) -> bool:
        """Whether the values are BIGINT; others are bytes."""
        return self.kind in KINDS_OF_INTEGERS

    @classmethod
    def of_name(cls, name: str) -> InlineColumn:
        """The column of a name in the database."""
        field_id, _, kind = name.removeprefix("c").partition("_")
        return cls(int(field_id), kind)


def inline_columns(schema: Schema) -> tuple[InlineColumn, ...]:
    """The columns of the top-level fields, in the order of the schema.

    A field of type `unknown` has no column: it has no value but NULL.

    Raises:
        UnsupportedTableError: A field has a type that the inline tier cannot store.
    """
    for field in schema.fields:
        _check_storable(field.field_type, field.name)
    columns = tuple(
        InlineColumn(field.field_id, _KINDS[type(field.field_type)])
        for field in schema.fields
        if not isinstance(field.field_type, UnknownType)
    )
    if not 0 < len(columns) <= _MAX_COLUMNS:
        raise UnsupportedTableError(
            f"The table has {len(columns)} columns; the inline tier supports 1 to {_MAX_COLUMNS}. "
            "Use append() instead of insert()."
        )
    return columns


def kind_of(kind: IcebergType) -> str:
    """The kind of the values of a type that `inline_columns` accepts, `unknown` excepted."""
    return _KINDS[type(kind)]


def _check_storable(kind: IcebergType, path: str) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check_storable(field.field_type, f"{path}.{field.name}")
        case ListType():
            _check_storable(kind.element_type, f"{path}.element")
        case MapType():
            _check_storable(kind.key_type, f"{path}.key")
            _check_storable(kind.value_type, f"{path}.value")
        case UnknownType():
            return
        case _ if type(kind) not in _KINDS:
            raise UnsupportedTableError(
                f"Column {path!r} has the type {kind}, which the inline tier cannot store. "
                "Use append() instead of insert()."
            )


# -------------------------------------------------------------------------------------------------
# Tables

METADATA = sa.MetaData()
SEQUENCE = sa.Sequence("icefloe_inline_seq", data_type=sa.BigInteger, metadata=METADATA)
# SQLite numbers rows by itself only in a column that is declared INTEGER.
_NUMBERED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# One row. `seq` counts changes on SQLite; PostgreSQL has a sequence, which takes no lock.
STORE = sa.Table(
    "icefloe_inline_store",
    METADATA,
    sa.Column("store_id", sa.Text, primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
)
# Namespace and name are for messages and clean-up: a table is known by its catalog and uuid.
TABLE = sa.Table(
    "icefloe_inline_table",
    METADATA,
    sa.Column("id", _NUMBERED, sa.Identity(), primary_key=True),
    sa.Column("catalog_name", sa.Text, nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("columns", sa.Text, nullable=False),
    sa.Column("next_row_id", sa.BigInteger),
    sa.Column("block_end", sa.BigInteger),
    sa.UniqueConstraint("catalog_name", "table_uuid"),
    sqlite_autoincrement=True,
)
FILE = sa.Table(
    "icefloe_inline_file",
    METADATA,
    sa.Column("id", _NUMBERED, sa.Identity(), primary_key=True),
    sa.Column("table_id", sa.BigInteger, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.UniqueConstraint("table_id", "path"),
    sqlite_autoincrement=True,
)
DELETE = sa.Table(
    "icefloe_inline_delete",
    METADATA,
    sa.Column("file_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("pos", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
)
# What is known of all deletes of a table: the change that added or removed some last, how many
# there are, since when there are any, and a snapshot in which all of their files were live.
DELETED = sa.Table(
    "icefloe_inline_deleted",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("since", sa.BigInteger),
    sa.Column("snapshot_id", sa.BigInteger),
)
# Deletes of files that left the table since the last flush: they hold again where a rollback brings
# a file back.
FORMER = sa.Table(
    "icefloe_inline_former_delete",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("pos", sa.BigInteger, primary_key=True, autoincrement=False),
)
# The key is a digest: keys of users may be longer than an index entry can be.
KEY = sa.Table(
    "icefloe_inline_key",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
)
LEASE = sa.Table(
    "icefloe_inline_lease",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
)
INTENT = sa.Table(
    "icefloe_inline_intent",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("cut", sa.BigInteger, nullable=False),
    sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("started", sa.BigInteger, nullable=False),
)
# The last change whose rows are in files, in case the table's property of that is removed, and how
# many intents there have been.
FLUSHED = sa.Table(
    "icefloe_inline_flushed",
    METADATA,
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("through", sa.BigInteger, nullable=False),
    sa.Column("intents", sa.BigInteger, nullable=False),
)
# Tables whose rows belong to an Iceberg table, by `table_id`.
BY_TABLE = (DELETED, FORMER, KEY, LEASE, INTENT, FLUSHED)

# PyIceberg's own table: the pointer to the metadata of each Iceberg table.
POINTERS = sa.table(
    "iceberg_tables",
    sa.column("catalog_name", sa.Text),
    sa.column("table_namespace", sa.Text),
    sa.column("table_name", sa.Text),
    sa.column("metadata_location", sa.Text),
    sa.column("previous_metadata_location", sa.Text),
)


@dataclass(frozen=True, slots=True)
class InlineTable:
    """An Iceberg table in the store, as its registry row had it when it was read."""

    id: int
    catalog_name: str
    table_uuid: str
    namespace: str
    name: str
    columns: tuple[InlineColumn, ...]

    @property
    def rows(self) -> sa.Table:
        """The table of its rows."""
        return rows_table(self.id, self.columns)

    @property
    def full_name(self) -> str:
        """Namespace and name, for messages."""
        return f"{self.namespace}.{self.name}"


@lru_cache(maxsize=1000)
def rows_table(table_id: int, columns: tuple[InlineColumn, ...]) -> sa.Table:
    """The rows of an Iceberg table; `(row_id, seq)` identifies one version of a row.

    Row ids are never reused. `seq` is the number of the change that wrote this version, `at` the
    time of the database, in milliseconds, when the row was inserted.
    """
    return sa.Table(
        f"icefloe_inline_{table_id}",
        sa.MetaData(),
        sa.Column("row_id", _NUMBERED, sa.Identity(), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        *(sa.Column(column.name, database_type(column)) for column in columns),
        sqlite_autoincrement=True,
    )


def database_type(column: InlineColumn) -> sa.types.TypeEngine[int] | sa.types.TypeEngine[bytes]:
    """The type of a column in the database."""
    return sa.BigInteger() if column.is_integer else sa.LargeBinary()
