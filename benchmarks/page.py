"""Open the views of `icefloe ui` on a table of 10,000 files and 1,000 snapshots in Chromium.

python -m benchmarks.page [--warm]

The table has metadata alone. Times are from the navigation to the first paint, and to the view
with its facts; each view is opened in a new server, which has read nothing of the table, unless
`--warm`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from icefloe.lake import open_catalog

NAME = "big.events"
# A view, and what is there when its facts are drawn.
VIEWS = {
    "life": ".life svg",
    "files": ".treemap button",
    "columns": ".overlap svg",
    "upkeep": ".upkeep",
    "details": ".facts",
}
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
_COLUMNS = 20
_MANIFESTS = 10
_DAY_MS = 86_400_000
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", action="store_true", help="one server for all views")
    warm = parser.parse_args().warm
    with tempfile.TemporaryDirectory() as folder:
        large_table(open_catalog(Path(folder) / "lake", None, {}), NAME)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            browser.new_page().goto("about:blank")
            print("view      first paint ms   facts ms")
            if warm:
                with served(folder) as address:
                    for view in [*VIEWS, *VIEWS]:
                        _report(browser.new_page(), address, view)
            else:
                for view in VIEWS:
                    with served(folder) as address:
                        _report(browser.new_page(), address, view)


def _report(page, address: str, view: str) -> None:
    page.goto(f"{address}#/table/{NAME}/{view}")
    page.wait_for_selector(VIEWS[view])
    drawn = page.evaluate("performance.now()")
    print(f"{view:10}{page.evaluate(FIRST_PAINT):14.0f}{drawn:11.0f}")
    page.close()


@contextmanager
def served(folder: str) -> Iterator[str]:
    """The address of the page of the lake in that folder."""
    command = [sys.executable, "-m", "icefloe", "ui", "--no-browser"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


# -------------------------------------------------------------------------------------------------
# The table


def large_table(catalog: Catalog, name: str, files: int = 10_000, snapshots: int = 1000) -> Table:
    """A table whose data files do not exist; its manifests have a thousand entries each."""
    fields = [
        NestedField(i + 1, f"c{i}", LongType() if i % 2 else StringType())
        for i in range(1, _COLUMNS + 1)
    ]
    schema = Schema(NestedField(1, "day", StringType()), *fields)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    table = catalog.create_table(name, schema, partition_spec=spec)
    share = files // _MANIFESTS
    for first in range(0, files, share):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as add:
            for number in range(first, first + share):
                add.append_data_file(_file(table, number, f"day {number * 365 // files:03d}"))
        table = catalog.load_table(name)
    return _with_history(catalog, table, snapshots)


def _file(table: Table, number: int, day: str) -> DataFile:
    ids = [field.field_id for field in table.schema().fields]
    width = 140 + number % 60
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/day={day}/{number:05d}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=1000 + number % 500,
        file_size_in_bytes=4_000_000 + 300_000 * (number * 7919 % 97) * (1 + number % 3),
        column_sizes=dict.fromkeys(ids, 150_000),
        value_counts=dict.fromkeys(ids, 1000),
        null_value_counts=dict.fromkeys(ids, 3),
        nan_value_counts={},
        lower_bounds={i: _bound(table, i, number * 100, day) for i in ids},
        upper_bounds={i: _bound(table, i, number * 100 + width * i, day) for i in ids},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )


def _bound(table: Table, field_id: int, value: int, day: str) -> bytes:
    kind = table.schema().find_type(field_id)
    if isinstance(kind, LongType):
        return to_bytes(kind, value)
    return to_bytes(kind, day if field_id == 1 else f"value {value:07d}")


def _with_history(catalog: Catalog, table: Table, snapshots: int) -> Table:
    """The last snapshot again and again, each with a summary of its own."""
    metadata = table.metadata
    last = metadata.snapshots[-1]
    start = int(time.time() * 1000) - snapshots * _DAY_MS // 5
    made = []
    for i in range(snapshots):
        deletes = i % 7 == 3
        rows = {"deleted-records": "900"} if deletes else {"added-records": str(2000 + i)}
        summary = Summary(
            Operation.DELETE if deletes else Operation.APPEND,
            **{
                **rows,
                "added-files-size": str(5_000_000 + i),
                "total-records": "12495000",
                "total-data-files": "10000",
                "total-delete-files": "0",
                "total-files-size": str(100_000_000 + i * 1_000_000),
                "icefloe.operation": "delete" if deletes else "append",
            },
        )
        made.append(
            Snapshot(
                snapshot_id=1_000_000 + i,
                parent_snapshot_id=999_999 + i if i else None,
                sequence_number=metadata.last_sequence_number,
                timestamp_ms=start + i * _DAY_MS // 5,
                manifest_list=last.manifest_list,
                summary=summary,
                schema_id=0,
            )
        )
    head = made[-1].snapshot_id
    main_branch = metadata.refs["main"].model_copy(update={"snapshot_id": head})
    changed = {
        "snapshots": made,
        "current_snapshot_id": head,
        "refs": {"main": main_branch},
        "snapshot_log": [],
    }
    location = f"{table.location()}/metadata/00099-history.metadata.json"
    output = table.io.new_output(location)
    ToOutputFile.table_metadata(metadata.model_copy(update=changed), output)
    catalog.drop_table(table.name())
    return catalog.register_table(table.name(), location)


if __name__ == "__main__":
    main()
