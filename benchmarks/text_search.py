"""Full text search: build the sidecar of one data file of documents, and query it.

    python -m benchmarks.text_search --documents 1000000

    python -m benchmarks.text_search --documents 100000 --script han
    python -m benchmarks.text_search --table

The words are synthetic, of a vocabulary of 500,000 with the frequencies of Zipf's law. CPU seconds
are those of all threads of the process. A query opens the sidecar twice, for the statistics and for
the best 10 rows, as `table.search` does; with `--table` it is `table.search`, with the rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

import icefloe
from icefloe.tasks.bm25 import TextIndex, build_bm25
from icefloe.tasks.ranking import first_rows
from icefloe.tasks.sidecars import (
    IndexedFile,
    IndexToWrite,
    SidecarPlace,
    sidecar_path,
    write_sidecar,
)
from icefloe.tasks.text_search import TextQuery, TextSearch, best_rows, index_statistics

VOCABULARY = 500_000
REPETITIONS = 7
QUERIES = {  # ranks of the words
    "1 rare word": [100_000],
    "3 words": [50, 1_000, 20_000],
    "5 frequent words": [0, 1, 2, 3, 4],
}


def words(generator: np.random.Generator, script: str) -> pa.Array:
    """The vocabulary, the most frequent words first; of Chinese characters, shorter ones."""
    first, last, longest = {"latin": (97, 123, 13), "han": (0x4E00, 0x5600, 4)}[script]
    letters = generator.integers(first, last, (2 * VOCABULARY, longest), np.uint32)
    lengths = generator.integers(min(3, longest - 2), longest, 2 * VOCABULARY)
    spelled = (
        row[:n].tobytes().decode("utf-32-le") for row, n in zip(letters, lengths, strict=True)
    )
    return pa.array(dict.fromkeys(spelled))


def documents(count: int, tokens: int, vocabulary: pa.Array, seed: int) -> Iterator[pa.Array]:
    generator = np.random.default_rng(seed)
    size = min(VOCABULARY, len(vocabulary))
    shares = np.cumsum(1 / (np.arange(size) + 2.7) ** 1.05)
    for start in range(0, count, 50_000):
        rows = min(50_000, count - start)
        picked = np.searchsorted(shares, generator.random(rows * tokens) * shares[-1])
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * tokens)
        lists = pa.ListArray.from_arrays(offsets, vocabulary.take(pa.array(picked)))
        yield pc.binary_join(lists, " ")


def query_of(terms: Sequence[str]) -> TextQuery:
    return TextQuery(tuple(terms), (1,) * len(terms), frozenset(), frozenset())


def run_query(place: SidecarPlace, terms: Sequence[str]) -> int:
    """Both passes over the sidecar: statistics, then the best rows."""
    query = query_of(terms)
    with place.open() as sidecar:
        statistics = index_statistics(query, TextIndex.of(sidecar))
    with place.open() as sidecar:
        search = TextSearch(query, {}, statistics, limit=10)
        positions, scores = best_rows(search, TextIndex.of(sidecar), np.empty(0, np.int64))
    assert len(first_rows(-scores, 10)) == len(positions)
    return sum(statistics.frequencies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--script", choices=["latin", "han"], default="latin")
    given = parser.parse_args()
    vocabulary = words(np.random.default_rng(given.seed), given.script)
    texts = pa.chunked_array(list(documents(given.documents, given.tokens, vocabulary, given.seed)))
    queries = {
        name: vocabulary.take(pa.array(ranks)).to_pylist() for name, ranks in QUERIES.items()
    }
    with TemporaryDirectory() as folder:
        if given.table:
            measure_table(texts, queries, Path(folder))
            return
        place = build(texts, folder)
        for name, terms in queries.items():
            rows = run_query(place, terms)
            times = [
                _timed(lambda terms=terms: run_query(place, terms)) for _ in range(REPETITIONS)
            ]
            wall, cpu = min(times)[0], min(cpu for _, cpu in times)
            print(f"query of {name}, {rows:,} matches: {1000 * wall:.0f} ms, {1000 * cpu:.0f} CPU")


def measure_table(texts: pa.ChunkedArray, queries: dict[str, list[str]], folder: Path) -> None:
    """The same with a table of one file, through Spark."""
    rows = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "text": texts})
    pq.write_table(rows, folder / "texts.parquet")
    with icefloe.connect(folder / "lake") as lake:
        table = lake.create_table("documents", "id BIGINT, text STRING")
        table.append(lake.spark.read.parquet(str(folder / "texts.parquet")).coalesce(1))
        result = table.create_index("by_text", "bm25", "text")
        print(
            f"create_index: {result.rows:,} rows, {result.bytes:,} bytes, {result.duration_s:.1f} s"
        )
        for name, terms in {
            **queries,
            "a phrase": [f'"{" ".join(queries["3 words"][:2])}"'],
        }.items():
            found = [
                _timed(lambda terms=terms: table.search("by_text", " ".join(terms)).collect())
                for _ in range(REPETITIONS)
            ]
            print(f"search of {name}: {1000 * min(found)[0]:.0f} ms")


def build(texts: pa.ChunkedArray, folder: str) -> SidecarPlace:
    index = IndexToWrite(
        "benchmark", "by_text", "bm25", (1,), ("string",), {}, LocalFileSystem(), folder
    )
    location = f"{folder}/data.parquet"
    file = IndexedFile(LocalFileSystem(), location, location, 1, len(texts), {1: texts})
    started, wall = time.process_time(), time.perf_counter()
    write_sidecar(index, file, build_bm25(index, file))
    cpu, wall = time.process_time() - started, time.perf_counter() - wall
    size = Path(sidecar_path(folder, location)).stat().st_size
    print(
        f"{len(texts):,} documents, {texts.nbytes / 2**20:,.0f} MiB: built in {cpu:.1f} s CPU, "
        f"{wall:.1f} s; sidecar {size / 2**20:,.0f} MiB"
    )
    return SidecarPlace.of(index, location, 1, len(texts))


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
