"""Literals in predicates of REPLACE WHERE: compared by type, exactly, or refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from icefloe.errors import InvalidPredicateError, StatementError, UnsupportedOperatorError
from support.tables import rows


@pytest.mark.requirement("R06")
def test_decimals_of_many_digits_are_compared_exactly(table_of):
    """Python's own decimals round to 28 digits."""
    base = 1234567890123456789012345678123456780
    table = table_of(
        "x DECIMAL(38, 0), v INT",
        [{"x": Decimal(base + 1), "v": 1}, {"x": Decimal(base + 7), "v": 7}],
        partition_by=("truncate(10, x)",),
    )
    for cut in (f"x <= {base + 5}", f"x = {base + 3}", f"x > {base + 5}"):
        with pytest.raises(InvalidPredicateError):
            table.replace_where(cut, []).execute()
    assert len(rows(table)) == 2

    assert table.replace_where(f"x BETWEEN {base} AND {base + 9}", []).execute().rows_deleted == 2


@pytest.mark.requirement("R17")
def test_a_number_is_compared_with_a_text_only_for_equality(table_of):
    """`'09' <> 9` is true of texts and false of numbers."""
    table = table_of(
        "s STRING, v INT", [{"s": s, "v": 1} for s in ("9", "09", "10")], partition_by=("s",)
    )
    for text in ("s <> 9", "NOT s = 9", "s NOT IN (9)", "NOT (s = '1' OR s = 9)"):
        with pytest.raises(StatementError, match="'s'"):
            table.replace_where(text, []).execute()

    assert table.replace_where("s = 9", []).execute().rows_deleted == 1
    assert rows(table) == [("09", 1), ("10", 1)]


@pytest.mark.requirement("R16")
def test_decimal_suffixes_and_maps_are_refused_by_name(table_of):
    table = table_of(
        "d INT, s STRING, m MAP<STRING, INT>",
        [{"d": 1, "s": "a", "m": None}],
        partition_by=("d", "s"),
    )
    for text in ("d = 1BD", "s = 'a' OR d = 0BD"):
        with pytest.raises((UnsupportedOperatorError, StatementError)):
            table.replace_where(text, []).execute()
    with pytest.raises(StatementError, match="'m'"):
        table.replace_using(["m"], [{"d": 1, "s": "a", "m": None}]).execute()
    assert len(rows(table)) == 1
