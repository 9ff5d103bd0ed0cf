"""Requests to the object store and to the REST catalog, by statement and kind.

    python -m benchmarks.requests

The servers and the proxy that counts are those of the tests (`make test-s3`), the statements those
of `tests/support/store_statements.py`. Counts do not depend on the machine. What a run counted is
in `results/requests/`; `requests.md` and a table of `docs/object_stores.md` compare the last run
with the first one that is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import icefloe  # noqa: E402
from benchmarks.machine import commit_of  # noqa: E402
from benchmarks.summary import to_text  # noqa: E402
from support.http_proxy import Proxy, rest_kind, running_proxy, s3_kind  # noqa: E402
from support.rest_server import running_rest_server  # noqa: E402
from support.s3_server import S3Server, running_s3  # noqa: E402
from support.store_statements import STATEMENTS, Checked  # noqa: E402

RESULTS = HERE / "results" / "requests"
PAGE = HERE / "requests.md"
DOCS = HERE.parent / "docs" / "object_stores.md"
BEGIN, END = (
    "<!-- `python -m benchmarks.requests` writes the lines from here -->",
    "<!-- to here -->",
)
MODES = ("copy-on-write", "merge-on-read")
CATALOGS = ("SQLite", "REST")
# What requests cost, and what they wait for, differs between these groups.
GROUPS = {
    "GET": ("GET", "list parts"),
    "HEAD": ("HEAD",),
    "LIST": ("LIST", "list uploads"),
    "write": ("PUT", "create upload", "upload part", "complete upload", "abort upload"),
    "delete": ("DELETE", "DELETE many"),
}
Counts = dict[str, dict[str, int]]  # of one statement: "S3" and "REST", by kind


@contextmanager
def running_servers() -> Iterator[tuple[str, dict[str, dict[str, Any]], Proxy, Proxy]]:
    """The S3 server, what `connect` needs for each catalog, and the proxies before the servers."""
    with TemporaryDirectory(prefix="icefloe-requests-") as made:
        folder = Path(made)
        with (
            running_s3(folder / "s3") as server,
            running_proxy(server.port) as s3,
            running_rest_server(folder / "rest", server, "s3://lake/rest") as rest,
            running_proxy(int(rest.uri.rpartition(":")[2]), of_s3=False) as catalog,
        ):
            server.make_bucket("lake")
            catalogs = _catalogs(folder, server.through(s3.port), catalog)
            yield server.kind, catalogs, s3, catalog


def _catalogs(folder: Path, store: S3Server, catalog: Proxy) -> dict[str, dict[str, Any]]:
    uris = {name: f"sqlite:///{folder / name}.db" for name in ("catalog", "inline")}
    return {
        "SQLite": {"uri": uris["catalog"], "warehouse": "s3://lake/sqlite"} | store.properties,
        "REST": {"type": "rest", "uri": catalog.uri, "inline_uri": uris["inline"]}
        | store.properties,
    }


def count(lake: icefloe.Lake, mode: str, s3: Proxy, catalog: Proxy) -> dict[str, Counts]:
    """Run the statements on one table; the requests of each."""
    checked = Checked(lake, f"requests.{mode.replace('-', '_')}", mode)
    counts = {}
    for name, statement in STATEMENTS.items():
        with s3.counting(s3_kind) as of_s3, catalog.counting(rest_kind) as of_rest:
            statement(checked)
        counts[name] = {"S3": dict(sorted(of_s3.items())), "REST": dict(sorted(of_rest.items()))}
    checked.check()  # only now: what was read is in caches
    return counts


def run() -> tuple[str, dict[str, dict[str, Counts]]]:
    """The S3 server, and the requests of every statement with each catalog in each mode."""
    found = {}
    with running_servers() as (server, catalogs, s3, catalog):
        for name in CATALOGS:
            with icefloe.connect(**catalogs[name]) as lake:
                for mode in MODES:
                    found[f"{name}, {mode}"] = count(lake, mode, s3, catalog)
    return server, found


# -------------------------------------------------------------------------------------------------
# The page


def grouped(kinds: Mapping[str, int]) -> Counter[str]:
    """Requests of S3 by group."""
    group_of = {operation: group for group, names in GROUPS.items() for operation in names}
    found: Counter[str] = Counter()
    for kind, number in kinds.items():
        operation = max((o for o in group_of if kind.startswith(o)), key=len)
        found[group_of[operation]] += number
    return found


def render(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The page: a table for each catalog and mode."""
    lines = [
        "# Requests per statement",
        "",
        "Requests to the object store and to the REST catalog, counted by a proxy while"
        " `python -m benchmarks.requests` ran the statements of"
        " `tests/support/store_statements.py` on a table with four partitions and few rows."
        f" First: commit {first['commit']}. Now: commit {last['commit']}, S3 server"
        f" {last['server']}.",
    ]
    for title, statements in last["counts"].items():
        lines += ["", f"## {title}", ""]
        columns = ["statement", "S3 first", "S3 now", *GROUPS, "REST first", "REST now"]
        lines += ["| " + " | ".join(columns) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
        total = Counter[str]()
        for name, counts in statements.items():
            before = first["counts"].get(title, {}).get(name, {"S3": {}, "REST": {}})
            groups = grouped(counts["S3"])
            cells = {
                "S3 first": sum(before["S3"].values()),
                "S3 now": sum(counts["S3"].values()),
                **{group: groups[group] for group in GROUPS},
                "REST first": sum(before["REST"].values()),
                "REST now": sum(counts["REST"].values()),
            }
            total.update(cells)
            lines.append(f"| {name} | " + " | ".join(map(str, cells.values())) + " |")
        lines.append("| **all** | " + " | ".join(str(total[c]) for c in columns[1:]) + " |")
    return "\n".join([*lines, ""])


def docs_table(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Requests to S3 of each statement, before and after, with a SQL catalog."""
    titles = [f"SQLite, {mode}" for mode in MODES]
    lines = [f"| statement | {' | '.join(MODES)} |", "|---|--:|--:|"]
    totals = [[0, 0] for _ in titles]
    for name in last["counts"][titles[0]]:
        cells = []
        for title, total in zip(titles, totals, strict=True):
            pair = [sum(run["counts"][title][name]["S3"].values()) for run in (first, last)]
            total[:] = [one + more for one, more in zip(total, pair, strict=True)]
            cells.append(f"{pair[0]} → {pair[1]}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ends = (f"**{before} → {now}**" for before, now in totals)
    return "\n".join([*lines, f"| **all** | {' | '.join(ends)} |"])


def with_table(page: str, table: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.requests", description=__doc__)
    parser.add_argument("--name", default="now", help="the name of the result")
    parser.add_argument("--render", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = RESULTS / f"{arguments.name}.json"
    if not arguments.render:
        server, counts = run()
        found = {"commit": commit_of(HERE.parent), "server": server, "counts": counts}
        result.write_text(to_text(found))
    first = RESULTS / "first.json"
    read = [json.loads((path if path.exists() else result).read_text()) for path in (first, result)]
    PAGE.write_text(render(*read))
    DOCS.write_text(with_table(DOCS.read_text(), docs_table(*read)))


if __name__ == "__main__":
    main()
