from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform

from icefloe.errors import ColumnNotFoundError, StatementError, UnsupportedTableError
from icefloe.metadata.files import unpartitioned_specs
from icefloe.schema.partition_spec import parse_partition_by, parse_sort_by, partition_by_text

SCHEMA = Schema(
    ice.NestedField(1, "id", ice.LongType(), required=True),
    ice.NestedField(2, "Region", ice.StringType()),
    ice.NestedField(3, "ts", ice.TimestamptzType()),
    ice.NestedField(4, "day", ice.DateType()),
    ice.NestedField(5, "odd `name`", ice.StringType()),
    ice.NestedField(6, "p", ice.StructType(ice.NestedField(7, "x", ice.IntegerType()))),
    ice.NestedField(8, "tags", ice.ListType(9, ice.StringType(), element_required=False)),
    ice.NestedField(10, "price", ice.DoubleType()),
    ice.NestedField(11, "price_bucket", ice.IntegerType()),
    ice.NestedField(12, "id_trunc", ice.IntegerType()),
)


def described(spec: PartitionSpec) -> list[str]:
    return [f"{f.field_id} {f.name} {f.transform}({f.source_id})" for f in spec.fields]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ("Region", "Region identity(2)"),
        ("region", "Region identity(2)"),
        ("`region`", "Region identity(2)"),
        ("identity( Region )", "Region identity(2)"),
        ("bucket(16, id)", "id_bucket bucket[16](1)"),
        ("BUCKET ( id , 16 )", "id_bucket bucket[16](1)"),
        ("truncate(4, `Region`)", "Region_trunc truncate[4](2)"),
        ("years(ts)", "ts_year year(3)"),
        ("year(ts)", "ts_year year(3)"),
        ("months(day)", "day_month month(4)"),
        ("days(ts)", "ts_day day(3)"),
        ("Day(ts)", "ts_day day(3)"),
        ("date(ts)", "ts_day day(3)"),
        ("hours(ts)", "ts_hour hour(3)"),
        ("hour(ts)", "ts_hour hour(3)"),
        ("void(id)", "id_null void(1)"),
        ("day", "day identity(4)"),
        ("odd `name`", "odd `name` identity(5)"),
        ("bucket(2, `odd ``name```)", "odd `name`_bucket bucket[2](5)"),
        ("p.x", "p.x identity(7)"),
        ("bucket(4, `p` . `x`)", "p.x_bucket bucket[4](7)"),
    ],
)
def test_each_form_gives_its_field(item: str, field: str) -> None:
    assert described(parse_partition_by([item], SCHEMA)) == [f"1000 {field}"]


def test_one_string_may_hold_several_items() -> None:
    spec = parse_partition_by("region, bucket(16, id), `odd ``name```", SCHEMA)

    assert described(spec) == [
        "1000 Region identity(2)",
        "1001 id_bucket bucket[16](1)",
        "1002 odd `name` identity(5)",
    ]


@pytest.mark.parametrize("nothing", ["", [], ()])
def test_no_items_give_an_unpartitioned_spec(nothing: Sequence[str] | str) -> None:
    assert parse_partition_by(nothing, SCHEMA).is_unpartitioned()
    assert parse_sort_by(nothing, SCHEMA) == UNSORTED_SORT_ORDER


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["hours(day)"], "hour does not apply to column 'day' of type date"),
        (["truncate(4, ts)"], "truncate[4] does not apply to column 'ts' of type timestamptz"),
        (["bucket(4, price)"], "bucket[4] does not apply to column 'price' of type double"),
        (["p"], "identity does not apply to column 'p'"),
        (["tags.element"], "'tags.element' is inside a list or a map"),
        (["bucket(0, id)"], "0 is not between 1 and 2147483647"),
        (["truncate(-1, id)"], "-1 is not between 1"),
        (["bucket(2147483648, id)"], "2147483648 is not between 1"),
        (["bucket(id)"], "bucket takes a number and a column, as in bucket(16, id)"),
        (["bucket(id, ts)"], "bucket takes a number and a column"),
        (["bucket(1, 2)"], "bucket takes a number and a column"),
        (["years(1, ts)"], "years takes one column"),
        (["zorder(id)"], "zorder is not a transform. Use a column, bucket(n, column)"),
        (["bucket(16, id"], "'bucket(16, id': it is none of a column"),
        ([""], "'': it is none of"),
        (["region", "Region"], "'Region': 'region' already partitions by 'Region'"),
        (["days(ts)", "hours(ts)"], "'hours(ts)': 'days(ts)' already partitions by 'ts'"),
        (["bucket(4, id)", "bucket(8, id)"], "'bucket(8, id)': 'bucket(4, id)' already"),
        (["truncate(4, id)"], "would be named 'id_trunc', which is a column of the table"),
    ],
)
def test_what_cannot_partition_is_refused_by_item(items: list[str], message: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_partition_by(items, SCHEMA)

    assert message in str(caught.value)


@pytest.mark.parametrize("item", ["regoin", "bucket(16, regoin)", "`regoin`"])
def test_an_unknown_column_is_named_with_the_nearest(item: str) -> None:
    with pytest.raises(ColumnNotFoundError, match=r"'regoin' is not .* Did you mean 'Region'\?"):
        parse_partition_by(item, SCHEMA)


def test_the_text_of_a_spec_gives_the_spec_again() -> None:
    items = [
        "Region",
        "bucket(16, id)",
        "truncate(4, `odd ``name```)",
        "years(day)",
        "days(ts)",
        "p.x",
        "void(price)",
    ]
    spec = parse_partition_by(items, SCHEMA)

    assert partition_by_text(spec, SCHEMA) == items
    assert parse_partition_by(partition_by_text(spec, SCHEMA), SCHEMA) == spec


def test_the_text_of_a_field_without_source_has_its_name_and_unknown_transforms_are_refused() -> (
    None
):
    gone = PartitionSpec(PartitionField(99, 1000, VoidTransform(), "old"))
    unknown = PartitionSpec(PartitionField(1, 1000, UnknownTransform("zorder"), "z"))

    assert partition_by_text(gone, SCHEMA) == ["void(old)"]
    with pytest.raises(UnsupportedTableError, match="'z' uses the transform"):
        partition_by_text(unknown, SCHEMA)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ("ts", "3 ASC NULLS FIRST"),
        ("ts desc", "3 DESC NULLS LAST"),
        ("id ASC NULLS LAST", "1 ASC NULLS LAST"),
        ("id nulls last", "1 ASC NULLS LAST"),
        ("`odd ``name```  DESC  NULLS  FIRST", "5 DESC NULLS FIRST"),
        ("odd `name` DESC", "5 DESC NULLS LAST"),
        ("bucket(16, id) DESC", "bucket[16](1) DESC NULLS LAST"),
        ("days(ts)", "day(3) ASC NULLS FIRST"),
    ],
)
def test_each_sort_item_gives_its_field(item: str, field: str) -> None:
    order = parse_sort_by([item], SCHEMA)

    assert [str(found) for found in order.fields] == [field]
    assert order.order_id == 1


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["id DOWN"], "Cannot sort by 'id DOWN': it is none of"),
        (["id", "ID DESC"], "Cannot sort by 'ID DESC': 'id' already sorts by that"),
        (["p"], "Cannot sort by 'p': identity does not apply"),
        (["nope"], "Column 'nope' is not in the table"),
    ],
)
def test_what_cannot_sort_is_refused_by_item(items: list[str], message: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_sort_by(items, SCHEMA)

    assert message in str(caught.value)


def test_a_spec_of_void_fields_alone_is_none():
    """Iceberg's own rule: equality deletes under such a spec reach every file."""
    voided = PartitionField(1, 1000, VoidTransform(), "region")
    live = PartitionField(1, 1001, IdentityTransform(), "region_2")
    specs = {0: PartitionSpec(live), 1: PartitionSpec(voided), 2: PartitionSpec()}
    specs[3] = PartitionSpec(voided, live)

    assert unpartitioned_specs(SimpleNamespace(specs=lambda: specs)) == {1, 2}
