"""How one value, one row and one result are written."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from icefloe import DmlResult
from icefloe.cli.output import Format, Output, result_line, size
from icefloe.cli.records import Records, cell_text, csv_field, json_text

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "as_json", "in_cell", "in_csv"),
    [
        (True, "true", "true", "true"),
        (7, "7", "7", "7"),
        (0.5, "0.5", "0.5", "0.5"),
        (float("nan"), '"NaN"', "NaN", "NaN"),
        (float("-inf"), '"-Infinity"', "-Infinity", "-Infinity"),
        (Decimal("1E+3"), '"1000"', "1000", "1000"),
        (Decimal("0.10"), '"0.10"', "0.10", "0.10"),
        (date(2026, 1, 2), '"2026-01-02"', "2026-01-02", "2026-01-02"),
        (MOMENT, '"2026-01-02T03:04:05+00:00"', "2026-01-02 03:04:05+00:00", "2026-01-02T03:04:05+00:00"),
        (b"\x00ab", '"AGFi"', "X'006162'", "AGFi"),
        ([1, None], "[1, null]", "[1, null]", '"[1, null]"'),
        ({"a": {date(2026, 1, 2): b"a"}}, '{"a": {"2026-01-02": "YQ=="}}', '{"a": {"2026-01-02": "YQ=="}}', '"{""a"": {""2026-01-02"": ""YQ==""}}"'),
        ("", '""', "", '""'),
        ('say "hi", ø', '"say \\"hi\\", ø"', 'say "hi", ø', '"say ""hi"", ø"'),
        ("a\nb", '"a\\nb"', "a\nb", '"a\nb"'),
        ("\x1b[31mred\t", '"\\u001b[31mred\\t"', "\\x1b[31mred\\x09", "\x1b[31mred\t"),
    ],
)  # fmt: skip
def test_values_in_each_format(value, as_json, in_cell, in_csv):
    assert json_text(value) == as_json
    assert cell_text(value) == in_cell
    assert csv_field(value) == in_csv


ROWS = Records(("id", "name"), (True, False), [(1, "a,b"), (20, None), (3, "")])


def test_csv_distinguishes_null_from_an_empty_text(capsys):
    Output(Format.CSV).records(ROWS)
    assert capsys.readouterr().out == 'id,name\r\n1,"a,b"\r\n20,\r\n3,""\r\n'


def test_json_is_one_object_a_line(capsys):
    Output(Format.JSON, limit=2).records(ROWS)
    assert capsys.readouterr().out == '{"id": 1, "name": "a,b"}\n{"id": 20, "name": null}\n'


def test_columns_of_one_name_have_different_keys_in_json(capsys):
    Output(Format.JSON).records(Records(("id", "id", "id_2"), (True,) * 3, [(1, 2, 3)]))
    assert json.loads(capsys.readouterr().out) == {"id": 1, "id_2": 2, "id_2_2": 3}


def test_a_table_in_a_pipe_is_plain_and_not_cut(capsys):
    Output(Format.TABLE).records(
        Records(("id", "text"), (True, False), [(1, "x" * 300), (20, None)])
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["|", "id", "|", "text", "|"]
    assert lines[3] == f"|  1 | {'x' * 300} |"
    assert lines[4].split() == ["|", "20", "|", "NULL", "|"]
    assert lines[-1] == "2 rows"


def test_a_table_says_that_there_are_more_rows(capsys):
    Output(Format.TABLE, limit=2).records(ROWS)
    assert "2 rows shown, there are more: use --limit N" in capsys.readouterr().out


def test_a_text_of_many_lines_is_no_table(capsys):
    Output(Format.TABLE).records(Records(("plan",), (False,), [("Update\n  one file",)]))
    assert capsys.readouterr().out == "Update\n  one file\n"


RESULT = DmlResult(
    "merge",
    mode="merge-on-read",
    snapshot_id=123,
    rows_inserted=3,
    rows_updated=2000,
    rows_deleted=1,
    data_files_added=1,
    delete_files_added=2,
    data_files_removed=1,
    files_scanned=2,
    files_skipped=6,
    bytes_written=1_234_567,
    duration_s=0.94,
    clauses=(1, 2000, 3),
)


def test_a_result_is_one_line_for_people(capsys):
    Output(Format.TABLE).result(RESULT)
    assert capsys.readouterr().out == (
        "merge: 3 inserted, 2,000 updated, 1 deleted in 0.9 s; 2 of 8 files read; 1 data file and "
        "2 delete files added, 1 data file removed; 1.2 MB written; snapshot 123\n"
    )


def test_a_result_without_change():
    assert result_line(DmlResult("delete", duration_s=0.01)) == "delete: nothing to change in 0.0 s"


def test_a_result_for_programs_has_every_field(capsys):
    Output(Format.JSON).result(RESULT)
    found = json.loads(capsys.readouterr().out)
    assert (found["operation"], found["rows_updated"], found["clauses"]) == (
        "merge",
        2000,
        [1, 2000, 3],
    )
    Output(Format.CSV).result(RESULT)
    header, row = capsys.readouterr().out.splitlines()
    assert header == (
        "operation,mode,snapshot_id,rows_inserted,rows_updated,rows_deleted,rows_copied,"
        "data_files_added,data_files_removed,delete_files_added,delete_files_removed,files_scanned,"
        "files_skipped,bytes_written,dpp_applied,dpp_partition_count,attempts,duration_s,"
        "bytes_copied,bytes_encoded,row_groups_copied,clauses"
    )
    assert row.startswith("merge,merge-on-read,123,3,")


def test_sizes():
    assert [size(n) for n in (0, 999, 1000, 2_500_000, 3e13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "30.0 TB",
    ]
