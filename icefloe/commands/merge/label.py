"""The two sides of a MERGE, joined, with one action per row.

A labelled row has a file and a position when it represents a row of the table, and the number of
the clause that applies to it; its other columns are the row's new values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from icefloe.commands.merge.bind import BoundMerge
from icefloe.commands.merge.join import Join, JoinShape
from icefloe.commands.merge.keys import Value, is_identical
from icefloe.commands.merge.lookup import MergeLookup
from icefloe.commands.merge.source import ordinal_of
from icefloe.pruning.source_matcher import Interval, KeyValues
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.columns import quote, quote_path, quoted, selected
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.frames import frame_of
from icefloe.spark.session import reading_by_id
from icefloe.statements import Duplicates, Then, When

UNCHANGED = -1  # the action of a matched row that no clause changes
_MATCH = f"{columns.PREFIX}match"
_RANK = f"{columns.PREFIX}rank"
_SHARED = f"{columns.PREFIX}shared"
_INLINE = f"{columns.PREFIX}inline"
_MOST_RANGES = 8


@dataclass(frozen=True, slots=True)
class MergeJoin:
    """Joins and labels the rows of one MERGE."""

    scan: Scan
    source: DataFrame
    bound: BoundMerge
    join: Join
    duplicates: Duplicates
    keys: Sequence[KeyValues]  # ranges of the source's keys; filter the table's rows
    lookup: MergeLookup | None = None  # finds rows of the table by an index
    matches_inline: bool = False  # the source has a column for rows that match an inline row

    def rows(self, names: Sequence[str]) -> DataFrame:
        """Changed and new rows: file, position, action and the new values of `names`."""
        with translate_spark_errors():
            return self._labelled(names)

    def matches_any_at(self, positions: Mapping[str, BitMap64]) -> bool:
        """Whether the source matches a row at one of these positions, by file location."""
        with translate_spark_errors(), reading_by_id(self.scan.spark):
            files = [c for c in self.scan.candidates if c.path in positions]
            rows = self._named_target(self.scan.restrict_to(files).rows_at(positions))
            source = self.source.alias(self.bound.sides.source_alias)
            return not rows.join(source, self.bound.on, "left_semi").isEmpty()

    def inline_rows(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Inline rows with the source rows that match them, and the action of each pair.

        Rows that match nothing are there too if a clause may change them.
        """
        by_source = bool(self.bound.numbered(When.NOT_MATCHED_BY_SOURCE))
        shape = JoinShape.LEFT if by_source else JoinShape.INNER
        alone = replace(self, join=Join(shape, broadcast=True))
        target = alone._named_target(rows)
        source = self.source.alias(self.bound.sides.source_alias)
        if by_source:
            source = F.broadcast(source) if self.join.broadcast else source
            joined = target.join(source, self.bound.on, "left")
        else:
            joined = F.broadcast(target).join(source, self.bound.on)
        action = alone._action()
        if self.duplicates is Duplicates.FIRST:  # the others still match: they are not inserted
            joined = joined.withColumn(_RANK, _rank())
            action = F.when(F.col(_RANK) == 1, action)
        labelled = joined.withColumn(columns.ACTION, action)
        numbers = (columns.POS, columns.SOURCE_ROW, columns.ACTION)
        return selected(labelled, [*numbers, *map(alone._new_value, names)])

    def looking_up(self, lookup: MergeLookup, *, probes: bool) -> MergeJoin:
        """The same join, where an index finds rows of the table by the source's keys.

        They are few: without `probes` they are joined to the source once.
        """
        join = self.join
        if join.shape is JoinShape.PROBE and not probes:
            join = replace(join, shape=JoinShape.RIGHT, broadcast=False)
        return replace(self, lookup=lookup, join=join)

    def except_inline(self, source_rows: pa.Array) -> MergeJoin:
        """The same join, where source rows with these numbers are not inserted."""
        if not len(source_rows) or not self.bound.numbers(Then.INSERT):
            return self
        matched = pa.table({_INLINE: source_rows.cast(pa.int64())})
        rows = F.broadcast(frame_of(self.source.sparkSession, matched))
        same = F.col(columns.SOURCE_ROW) == F.col(_INLINE)
        return replace(self, source=self.source.join(rows, same, "left"), matches_inline=True)

    def _labelled(self, names: Sequence[str]) -> DataFrame:
        labelled = self._joined(names).withColumn(columns.ACTION, self._action())
        labelled = labelled.filter(F.col(columns.ACTION).isNotNull())
        file = self.scan.keys.expression if self._has_uris else columns.FILE
        new_values = map(self._new_value, names)
        rows = selected(labelled, [file, columns.POS, columns.ACTION, *new_values])
        # A source that fits a broadcast changes few rows: few files need no shuffle.
        return rows if self.join.tasks is None else rows.coalesce(self.join.tasks)

    @property
    def _has_uris(self) -> bool:
        """Whether joined rows still have the URIs of their files.

        A broadcast shuffles nothing: file keys are computed only for the rows that the join
        returns.
        """
        late = (JoinShape.INNER, JoinShape.LEFT, JoinShape.TARGET_ANTI)
        return self.join.broadcast and self.join.shape in late

    @property
    def reports_unchanged(self) -> bool:
        """Whether unchanged matched rows are reported too, so that every double match is found."""
        matched = [clause for _, clause in self.bound.numbered(When.MATCHED)]
        always = any(clause.condition is None for clause in matched)
        return bool(matched) and not always and self.duplicates is Duplicates.ERROR

    @property
    def _shared_keys(self) -> list[str]:
        """Source columns that are equal in all source rows which match the same row of the table.

        A source row that shares them with no other cannot be part of a double match, and need not
        be reported when it changes nothing. Counting needs the same shuffle as the join.
        """
        if self.join.broadcast or not self.reports_unchanged:
            return []
        return [k.source for k in self.bound.keys if is_identical(k, self.bound.sides)]

    def _joined(self, names: Sequence[str]) -> DataFrame:
        match self.join.shape:
            case JoinShape.PROBE:
                joined = self._probed(names)
            case JoinShape.NONE | JoinShape.SOURCE_ANTI:
                return self._unmatched_source()
            case JoinShape.TARGET_ANTI:
                unmatched = self._target(names).join(self._source(), self.bound.on, "left_anti")
                return unmatched.withColumn(columns.SOURCE_ROW, F.lit(None).cast("long"))
            case shape:
                how = {JoinShape.INNER: "inner", JoinShape.RIGHT: "right", JoinShape.LEFT: "left"}
                joined = self._target(names).join(
                    self._source(), self.bound.on, how.get(shape, "full_outer")
                )
        return self._first_only(joined) if self.duplicates is Duplicates.FIRST else joined

    def _probed(self, names: Sequence[str]) -> DataFrame:
        """Matches of the broadcast source, joined back to it by row number."""
        target = self._target(names)
        sides = self.bound.sides
        read = sides.present.names if self.lookup is None else self.lookup.columns_read(names)
        matches = target.join(self._source(), self.bound.on).selectExpr(
            *(quote_path(sides.target_alias, name) for name in read),
            self.scan.keys.expression,
            columns.POS,
            f"{columns.SOURCE_ROW} AS {_MATCH}",
        )
        source = self.source
        if self.join.tasks == 1:  # then only the matches are moved, to the task of the source
            matches, source = matches.repartition(1), source.coalesce(1)
        named = matches.alias(sides.target_alias)
        back = source.alias(sides.source_alias)
        return named.join(back, F.col(_MATCH) == F.col(columns.SOURCE_ROW), "right")

    def _unmatched_source(self) -> DataFrame:
        """Source rows to insert that match no row of the table."""
        insertable = self.source.alias(self.bound.sides.source_alias).filter(
            self._clause_number(When.NOT_MATCHED).isNotNull()
        )
        if self.join.shape is JoinShape.NONE:
            new = insertable
        elif self.join.broadcast:
            matched = self._target_alone().join(F.broadcast(insertable), self.bound.on)
            matched_rows = matched.select(F.col(columns.SOURCE_ROW).alias(_MATCH))
            new = insertable.join(
                matched_rows, F.col(columns.SOURCE_ROW) == F.col(_MATCH), "left_anti"
            )
        else:
            new = insertable.join(self._target_alone(), self.bound.on, "left_anti")
        return new.select(
            "*",
            F.lit(None).cast(self.scan.keys.type).alias(columns.FILE),
            F.lit(None).cast("long").alias(columns.POS),
        )

    def _target(self, names: Sequence[str]) -> DataFrame:
        """Rows of the table that may match, with file and position; `names` get new values."""
        rows = self.scan.rows() if self.lookup is None else self.lookup.rows(self.scan, names)
        return self._narrowed(
            rows if self.join.broadcast else self.scan.keys.in_place_of_uris(rows)
        )

    def _target_alone(self) -> DataFrame:
        """The same without file and position, where no row of the table is changed."""
        if self.lookup is not None:
            rows = self.lookup.rows(self.scan, ()).drop(columns.FILE, columns.POS)
            return self._narrowed(rows)
        return self._narrowed(self.scan.plain_rows())

    def _narrowed(self, rows: DataFrame) -> DataFrame:
        for key in self.keys:
            rows = rows.filter(self._within(key))
        return self._named_target(rows)

    def _named_target(self, rows: DataFrame) -> DataFrame:
        """Rows of the table under its alias, without the columns that the statement adds."""
        sides = self.bound.sides
        return rows.drop(*sides.added).alias(sides.target_alias)

    def _source(self) -> DataFrame:
        source = self.source
        if keys := self._shared_keys:
            same = Window.partitionBy(*map(quoted, keys))
            source = source.withColumn(_SHARED, F.count(F.lit(1)).over(same) > 1)
        named = source.alias(self.bound.sides.source_alias)
        return F.broadcast(named) if self.join.broadcast else named

    def _within(self, key: KeyValues) -> Column:
        """A filter for Spark's Parquet reader; it drops no row that could match."""
        name = quote(str(self.scan.state.schema.find_column_name(key.field_id)))
        ranges = [
            (_literal(low, key.type), _literal(high, key.type))
            for low, high in _fewer(key.intervals)
        ]
        if any(low is None or high is None for low, high in ranges):
            return F.lit(True)
        within = " OR ".join(f"{name} BETWEEN {low} AND {high}" for low, high in ranges)
        return F.expr(within or "false")

    def _action(self) -> Column:
        """The number of the first clause that applies; NULL where none does."""
        in_target = F.col(columns.POS).isNotNull()
        in_source = F.col(columns.SOURCE_ROW).isNotNull()
        if self.join.shape in (JoinShape.NONE, JoinShape.SOURCE_ANTI):
            return self._clause_number(When.NOT_MATCHED)
        if self.join.shape is JoinShape.INNER:
            return self._clause_number(When.MATCHED)
        return (
            F.when(in_target & in_source, self._clause_number(When.MATCHED))
            .when(in_source, self._clause_number(When.NOT_MATCHED))
            .otherwise(self._clause_number(When.NOT_MATCHED_BY_SOURCE))
        )

    def _clause_number(self, when: When) -> Column:
        number_of = F.lit(None).cast("int")
        if when is When.MATCHED and self.reports_unchanged:
            number_of = F.when(F.col(_SHARED), UNCHANGED) if self._shared_keys else F.lit(UNCHANGED)
        for number, clause in reversed(self.bound.numbered(when)):
            applies = F.lit(True) if clause.condition is None else clause.condition
            number_of = F.when(applies, F.lit(number)).otherwise(number_of)
        if when is When.NOT_MATCHED and self.matches_inline:
            return F.when(F.col(_INLINE).isNull(), number_of)
        return number_of

    def _first_only(self, joined: DataFrame) -> DataFrame:
        """Of several source rows that match one row of the table, the first."""
        return joined.withColumn(_RANK, _rank()).filter(F.col(_RANK) == 1)

    def _new_value(self, name: str) -> Value:
        """The new value of a column under its name; NULL in rows that are deleted."""
        own = self.bound.sides.target_value(name)
        inserts_only = self.join.shape in (JoinShape.NONE, JoinShape.SOURCE_ANTI)
        values = {
            number: clause.values.get(name, own)
            for number, clause in enumerate(self.bound.clauses)
            if clause.then is Then.INSERT or (clause.then is Then.UPDATE and not inserts_only)
        }
        if not values:
            return F.lit(None).cast(self.bound.sides.target[name].dataType).alias(name)
        texts = [value for value in values.values() if isinstance(value, str)]
        if len(texts) == len(values):
            return f"{_chosen(dict(zip(values, texts, strict=True)), own)} AS {quote(name)}"
        new_value = F.lit(None)
        for number, value in values.items():
            column = F.expr(value) if isinstance(value, str) else value
            new_value = F.when(F.col(columns.ACTION) == number, column).otherwise(new_value)
        return new_value.alias(name)


def _chosen(texts: Mapping[int, str], own: Value) -> str:
    """The value of a row's clause, where all are plain columns.

    One of the source can be read in every row; that of the table is another in rows to insert.
    """
    first = next(iter(texts.values()))
    if len({*texts.values()}) == 1 and not (isinstance(own, str) and own == first):
        return first
    cases = (f"WHEN {columns.ACTION} = {number} THEN {text}" for number, text in texts.items())
    return f"CASE {' '.join(cases)} END"


def _rank() -> Column:
    """The place of a source row among those that match the same row of the table."""
    unmatched = F.when(F.col(columns.POS).isNull(), F.col(columns.SOURCE_ROW))
    same = Window.partitionBy(columns.FILE, columns.POS, unmatched).orderBy(columns.SOURCE_ROW)
    return F.row_number().over(same)


def _fewer(intervals: Sequence[Interval]) -> list[Interval]:
    """At most a few ranges, separated by the widest gaps."""
    if not intervals:
        return []

    def gap(index: int) -> float:
        return ordinal_of(intervals[index][0]) - ordinal_of(intervals[index - 1][1])

    worth = (ordinal_of(intervals[-1][1]) - ordinal_of(intervals[0][0])) / 32
    gaps = [index for index in range(1, len(intervals)) if gap(index) > worth]
    widest = sorted(gaps, key=gap, reverse=True)[: _MOST_RANGES - 1]
    starts = [0, *sorted(widest)]
    ends = [*(start - 1 for start in starts[1:]), len(intervals) - 1]
    return [(intervals[a][0], intervals[b][1]) for a, b in zip(starts, ends, strict=True)]


def _literal(value: Any, kind: PrimitiveType) -> str | None:
    """A bound as Spark SQL; None for types that get no filter."""
    match kind:
        case IntegerType() | LongType():
            return f"{value}L"
        case StringType():
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        case DateType():
            return f"date_from_unix_date({value})"
        case TimestamptzType():
            return f"timestamp_micros({value})"
        case _:
            return None
