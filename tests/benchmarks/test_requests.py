"""The page of object stores has the table of the last run of `python -m benchmarks.requests`."""

from __future__ import annotations

import json

from benchmarks.requests import BEGIN, DOCS, END, PAGE, RESULTS, docs_table, render


def test_the_pages_have_the_counts_of_the_last_run():
    first, last = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("first", "now"))
    table = DOCS.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert table == docs_table(first, last)
    assert PAGE.read_text() == render(first, last)
