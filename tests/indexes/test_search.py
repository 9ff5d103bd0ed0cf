"""`table.search`: compared with models, however rows are spread and whatever was deleted."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icefloe import Lake, Table
from icefloe.commands.search import text
from icefloe.errors import IndexNotFoundError, StatementError
from icefloe.tasks.sidecars import DamagedSidecarError
from support.foreign_files import equality_delete, publish
from support.tables import data_files
from support.text_model import TextModel, model_tokens

TableOf = Callable[..., Table]
SCHEMA = "id BIGINT, region STRING, text STRING"
WORDS = ["pink", "house", "sea", "大学", "校園", "by", "the", "naïve", "wave", "red"]
QUERIES = [
    ("pink 大学 absent", {}),
    ("+sea pink -house", {"must": ["sea"], "must_not": ["house"]}),
    ('"by the" naïve', {"must": ["by", "the"], "phrases": [["by", "the"]]}),
]


def texts(count: int, seed: int = 1) -> list[dict[str, Any]]:
    choose = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    rows = []
    for number in range(count):
        size = choose.randrange(1, 40)
        text = " ".join(choose.choices(WORDS, weights, k=size)) if number % 19 else None
        rows.append({"id": number, "region": "eu" if number % 3 else "us", "text": text})
    return rows


def found(table: Table, query: Any, limit: int = 1000, **options: Any) -> list[tuple[Any, ...]]:
    rows = table.search("by_text", query, limit=limit, **options)
    return [tuple(row) for row in rows.select("id", "_score").collect()]


def words_of(query: str) -> list[str]:
    return model_tokens(" ".join(word for word in query.split() if not word.startswith("-")))


def assert_as_model(table: Table, model: TextModel, limit: int = 1000) -> None:
    for query, parts in QUERIES:
        scores = model.scores(words_of(query), **parts)
        hits = found(table, query, limit)
        assert hits == [(number, pytest.approx(scores[number])) for number, _ in hits]
        best = sorted(scores.values(), reverse=True)[:limit]
        assert [score for _, score in hits] == pytest.approx(best)


def sidecars(table: Table) -> list[Path]:
    folder = Path(urlparse(table.location).path) / "_icefloe" / "index"
    return sorted(path for path in folder.rglob("*") if path.is_file())


# -------------------------------------------------------------------------------------------------
# Full text


@pytest.mark.slow
def test_titles_in_two_languages(table_of: TableOf) -> None:
    titles = [
        "A pink house by the sea, where the waves are long and the evenings longer",
        "The quick brown fox jumps over the lazy dog",
        "Pink, pink flowers",
        "Nothing of interest",
        "北京大学是一所很好的大学，校园历史悠久",
        "大学生上大学",
        "今天天气很好",
    ]
    rows = [{"id": i, "title": f"title{i}", "text": t} for i, t in enumerate(titles, 1)]
    table = table_of("id BIGINT, title STRING, `text` STRING", rows)
    table.create_index("by_text", "bm25", "text")

    def best(query: str, limit: int = 2) -> list[str]:
        return [row["title"] for row in table.search("by_text", query, limit=limit).collect()]

    assert best("pink") == ["title3", "title1"]
    assert best("大学") == ["title6", "title5"]
    assert best('"brown fox"') == ["title2"]
    assert best('"fox brown"') == []
    assert best("天气 -明天") == ["title7"]
    top = table.search("BY_TEXT", "pink", limit=1)
    assert top.columns == ["id", "title", "text", "_score"]
    [row] = top.collect()
    model = TextModel(dict(enumerate(titles))).scores(["pink"])
    assert row["_score"] == pytest.approx(model[2])

    table.delete().where("id = 3").execute()
    table.append([{"id": 8, "title": "title8", "text": "pink elephants"}])
    assert best("pink") == ["title8", "title1"]


@pytest.mark.parametrize(
    "layout",
    [
        "half",
        pytest.param("seven", marks=pytest.mark.slow),
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("inline", marks=pytest.mark.slow),
    ],
)
def test_scores_are_the_same_however_rows_are_spread(
    spark: SparkSession, table_of: TableOf, partition_by: tuple[str, ...], layout: str
) -> None:
    rows = texts(120)
    frame = spark.createDataFrame(rows, SCHEMA)
    one = table_of(SCHEMA)
    one.append(frame.coalesce(1))
    one.create_index("by_text", "bm25", "text")
    assert_as_model(one, TextModel({row["id"]: row["text"] for row in rows}))

    properties = {"icefloe.inline.enabled": "true"} if layout == "inline" else {}
    other = table_of(SCHEMA, partition_by=partition_by, properties=properties)
    in_files = 50 if layout == "inline" else 120
    other.append(spark.createDataFrame(rows[:in_files], SCHEMA).repartition(7, "id"))
    other.create_index("by_text", "bm25", "text")
    for path in sidecars(other)[:: {"half": 2, "none": 1}.get(layout, 100)]:
        path.unlink()
    if layout == "inline":
        other.insert(rows[50:])

    for query, _ in QUERIES:
        expected, hits = found(one, query), found(other, query)
        assert [score for _, score in hits] == [score for _, score in expected]
        assert dict(hits) == dict(expected)
        assert expected == sorted(expected, key=lambda hit: -hit[1])
    assert [s for _, s in found(other, "pink", 3)] == [s for _, s in found(one, "pink", 3)]


def test_deleted_rows_are_not_found_and_count(
    lake: Lake, table_of: TableOf, mode: str, partition_by: tuple[str, ...]
) -> None:
    rows = texts(90)
    properties = {"icefloe.inline.enabled": "true", "icefloe.inline.deletes": "false"}
    table = table_of(SCHEMA, rows[:60], mode=mode, partition_by=partition_by, properties=properties)
    table.create_index("by_text", "bm25", "text")
    table.append(rows[60:])
    table.delete().where("id % 7 = 0").execute()
    gone = {number for number in range(90) if number % 7 == 0}
    if mode == "copy-on-write":  # the files were rewritten: nothing of those rows is left
        rows = [row for row in rows if row["id"] not in gone]
    assert_as_model(table, TextModel({r["id"]: r["text"] for r in rows}, frozenset(gone)), limit=5)

    table.set_properties({"icefloe.inline.deletes": "true"})
    best = [number for number, _ in found(table, "pink 大学 absent", limit=3)]
    table.delete().where(f"id IN ({best[0]}, {best[1]})").execute()
    gone |= set(best[:2])
    if mode == "copy-on-write":
        rows = [row for row in rows if row["id"] not in gone]
    model = TextModel({row["id"]: row["text"] for row in rows}, frozenset(gone))
    assert_as_model(table, model)
    assert found(table, "pink 大学 absent", limit=1)[0][0] == best[2]


@pytest.mark.slow
def test_rows_that_another_engine_deleted_by_value(lake: Lake, table_of: TableOf) -> None:
    rows = texts(60)
    table = table_of(SCHEMA, rows[:40])
    table.create_index("by_text", "bm25", "text")
    table.append(rows[40:])
    gone = [number for number, _ in found(table, "pink 大学 absent", limit=4)]
    publish(lake, table, deletes=[equality_delete(table, [{"id": number} for number in gone])])
    model = TextModel({row["id"]: row["text"] for row in rows}, frozenset(gone))
    assert_as_model(table, model, limit=7)


@pytest.mark.slow
def test_damaged_sidecars_cost_no_row(table_of: TableOf, caplog: pytest.LogCaptureFixture) -> None:
    rows = texts(60)
    table = table_of(SCHEMA, rows)
    table.create_index("by_text", "bm25", "text")
    model = TextModel({row["id"]: row["text"] for row in rows})
    [path] = sidecars(table)
    original = path.read_bytes()
    batch = original.index(b"ARROW1", 6) - 1 if b"ARROW1" in original[6:-6] else None
    in_postings = _last_body_byte(original)
    for at in (len(original) // 3, in_postings, None, batch):
        changed = bytearray(original)
        if at is None:
            changed = changed[: len(changed) // 2]
        else:
            changed[at] ^= 0xFF
        path.write_bytes(changed)
        with caplog.at_level(logging.WARNING, "icefloe"):
            caplog.clear()
            assert_as_model(table, model)
        assert "A sidecar of" in caplog.text


@pytest.mark.slow
def test_a_sidecar_that_cannot_be_read_for_a_while(
    table_of: TableOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phrase may take several rounds: a file that tasks search is not searched in a later one."""
    table = table_of(SCHEMA, [{"id": i, "region": "us", "text": "sea by"} for i in range(200)])
    table.append([{"id": 1000, "region": "us", "text": "by the sea, and by sea"}])
    table.create_index("by_text", "bm25", "text")
    assert [number for number, _ in found(table, '"by sea"', limit=5)] == [1000]
    last = max(data_files(table), key=lambda live: live.sequence_number)
    opened, open_sidecar = [], text.open_sidecar

    def fail_once(state: Any, definition: Any, live: Any) -> Any:
        opened.append(live.path)
        if live.path == last.path and opened.count(live.path) == 2:
            raise DamagedSidecarError("a request was lost")
        return open_sidecar(state, definition, live)

    monkeypatch.setattr(text, "open_sidecar", fail_once)
    assert [number for number, _ in found(table, '"by sea"', limit=5)] == [1000]
    assert len(opened) - opened.count(last.path) > opened.count(last.path) == 2


def _last_body_byte(content: bytes) -> int:
    """A byte of the last record batch, as Arrow's reader places it."""
    reader = pa.ipc.open_file(pa.BufferReader(content))
    body = reader.get_batch(reader.num_record_batches - 1).column(0).buffers()[1].to_pybytes()
    return content.index(body[:40]) + 1


def test_stems_and_stop_words(table_of: TableOf) -> None:
    pytest.importorskip("snowballstemmer")
    rows = [
        {"id": 1, "region": "eu", "text": "She runs to the sea"},
        {"id": 2, "region": "eu", "text": "running to a sea"},
        {"id": 3, "region": "eu", "text": "the run"},
    ]
    table = table_of(SCHEMA, rows)
    table.create_index("by_text", "bm25", "text", stem="english", stop_words=["the", "a", "to"])
    assert {number for number, _ in found(table, "RUN")} == {1, 2, 3}
    assert {number for number, _ in found(table, '"ran by" "run the sea" running')} == set()
    assert {number for number, _ in found(table, '"run the sea"')} == {1, 2}
    with pytest.raises(StatementError, match="no word to search for"):
        found(table, "the")


def test_writes_index_the_files_that_they_add(table_of: TableOf, mode: str) -> None:
    table = table_of(SCHEMA, mode=mode)
    table.create_index("by_text", "bm25", "text", on_write=True)
    table.append(texts(30))
    assert len(sidecars(table)) == 1
    table.update().set("text", "'a purple cow'").where("id = 7").execute()
    assert len(sidecars(table)) == 2
    assert [number for number, _ in found(table, '"purple cow"')] == [7]
    [index] = table.indexes().collect()
    assert (index["files"], index["files_covered"]) == (len(data_files(table)),) * 2


def test_refused_searches(table_of: TableOf) -> None:
    table = table_of(SCHEMA, texts(3))
    table.create_index("by_text", "bm25", "text")
    table.create_index("by_id", "btree", "id")
    with pytest.raises(IndexNotFoundError, match=r"no index 'nope'.*by_id, by_text"):
        table.search("nope", "pink")
    with pytest.raises(StatementError, match=r"by_id.*kind btree.*use scan\(where=\.\.\.\)"):
        table.search("by_id", "pink")
    for limit in (0, -1, True, 1.5, None):
        with pytest.raises(StatementError, match=f"Invalid limit {limit}.*integer >= 1"):
            table.search("by_text", "pink", limit=limit)
    with pytest.raises(StatementError, match="no word to search for"):
        table.search("by_text", " ")
    with pytest.raises(StatementError, match="column 'id' has type long"):
        table.create_index("x", "bm25", "id")
    with pytest.raises(StatementError, match="has one column, not 2"):
        table.create_index("x", "bm25", ["text", "region"])
    table.add_column("_score", "DOUBLE")
    with pytest.raises(StatementError, match="has a column '_score'"):
        table.search("by_text", "pink")


def test_an_empty_table_and_a_column_that_files_lack(table_of: TableOf) -> None:
    table = table_of("id BIGINT")
    table.append([{"id": 1}])
    table.add_column("text", "STRING")
    table.create_index("by_text", "bm25", "text")
    assert found(table, "pink") == []
    table.append([{"id": 2, "text": "pink"}])
    assert [number for number, _ in found(table, "pink")] == [2]
    table.truncate()
    assert found(table, "pink") == []


# -------------------------------------------------------------------------------------------------
# Vectors


def nearest(table: Table, query: Any, limit: int = 10, **options: Any) -> list[tuple[Any, ...]]:
    rows = table.search("by_vec", query, limit=limit, **options)
    return [tuple(row) for row in rows.select("id", "_distance").collect()]


@pytest.mark.parametrize("element", ["FLOAT", "DOUBLE"])
def test_the_nearest_vectors(table_of: TableOf, element: str) -> None:
    pytest.importorskip("usearch")
    rows = [{"id": i, "vec": [10.0 * i + 2] * 3} for i in range(1, 4)]
    table = table_of(f"id BIGINT, vec ARRAY<{element}>", rows[:1], rows[1:])
    table.create_index("by_vec", "hnsw", "vec")
    near = nearest(table, [26, 26, 26], limit=2)
    assert near == [(2, pytest.approx(6.9282, abs=1e-4)), (3, pytest.approx(10.3923, abs=1e-4))]
    assert nearest(table, np.array([26, 26, 26], np.float32), limit=2, exact=True) == near
    table.append([{"id": 4, "vec": None}, {"id": 5, "vec": [1.0]}, {"id": 6, "vec": [1.0, None]}])
    assert [number for number, _ in nearest(table, (26, 26, 26))] == [2, 3, 1]
    assert [number for number, _ in nearest(table, [2])] == [5]
    with pytest.raises(StatementError, match="has 5 numbers, and the vectors have 3"):
        nearest(table, [1, 2, 3, 4, 5])
    for query in ("pink", [], [[1.0]], None, ["a"], [True], 5):
        with pytest.raises(StatementError, match=r"Invalid query .*expected a sequence of numbers"):
            nearest(table, query)
    for number in (float("nan"), float("inf")):
        with pytest.raises(StatementError, match=f"has {number} in it"):
            nearest(table, [1, number, 3])


@pytest.mark.parametrize("element", ["FLOAT", "DOUBLE"])
def test_graphs_of_large_files(
    lake: Lake, table_of: TableOf, element: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("usearch")
    vectors = clustered(900)
    rows = [{"id": i, "vec": v} for i, v in enumerate(vectors.tolist())]
    properties = {"icefloe.inline.enabled": "true"}
    table = table_of(f"id BIGINT, vec ARRAY<{element}>", rows[:800], properties=properties)
    result = table.create_index("by_vec", "hnsw", "vec", exact_below=100, dimension=8)
    assert (result.files_covered, result.rows) == (1, 800)
    assert result.bytes > 800 * 8 * 4
    table.append(rows[800:850])
    table.insert(rows[850:])
    table.delete().where("id % 5 = 0").execute()
    model = Model(vectors, {number for number in range(900) if number % 5})
    assert model.recall(table) >= 0.9
    query = (vectors[1] + 0.1).tolist()
    exact = nearest(table, query, exact=True)
    assert exact == [(i, pytest.approx(d)) for i, d in model.nearest(query)]
    assert dict(nearest(table, query)) == dict(exact)
    with pytest.raises(StatementError, match="has 1 numbers, and the vectors have 8"):
        nearest(table, [1.0])

    gone = [number for number, _ in exact[:3]]
    publish(lake, table, deletes=[equality_delete(table, [{"id": number} for number in gone])])
    model = Model(vectors, model.live - {i for i in gone if i < 850})
    assert [i for i, _ in nearest(table, query)] == [i for i, _ in model.nearest(query)]


def test_a_missing_or_damaged_graph(table_of: TableOf, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("usearch")
    vectors = clustered(300)
    rows = [{"id": i, "vec": v} for i, v in enumerate(vectors.tolist())]
    table = table_of("id BIGINT, vec ARRAY<FLOAT>", rows)
    table.create_index("by_vec", "hnsw", "vec", exact_below=100)
    expected = nearest(table, vectors[1].tolist(), exact=True)
    [path] = sidecars(table)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "icefloe"):
        assert nearest(table, vectors[1].tolist()) == expected
    assert "A sidecar of" in caplog.text
    path.unlink()
    assert nearest(table, vectors[1].tolist()) == expected


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_other_metrics(table_of: TableOf, metric: str) -> None:
    pytest.importorskip("usearch")
    rows = [
        {"id": 1, "vec": [3.0, 3.0]},
        {"id": 2, "vec": [0.0, 9.0]},
        {"id": 3, "vec": [0.0, 0.0]},
    ]
    table = table_of("id BIGINT, vec ARRAY<FLOAT>", rows)
    table.create_index("by_vec", "hnsw", "vec", metric=metric)
    near = nearest(table, [1, 1])
    if metric == "dot":
        assert near == [(2, -9.0), (1, -6.0), (3, 0.0)]
        return
    assert near == [(1, pytest.approx(0, abs=1e-12)), (2, pytest.approx(1 - 2**-0.5))]
    with pytest.raises(StatementError, match="zero vector, which has no direction"):
        nearest(table, [0, 0])


def test_an_extra_that_is_missing(table_of: TableOf, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("id BIGINT, vec ARRAY<FLOAT>", [{"id": 1, "vec": [1.0]}])
    before = table.iceberg.metadata
    monkeypatch.setitem(sys.modules, "usearch", None)
    with pytest.raises(StatementError, match=r"pip install 'icefloe\[vector\]'"):
        table.create_index("by_vec", "hnsw", "vec")
    assert table.iceberg.metadata == before
    with pytest.raises(StatementError, match=r"list<float> or list<double>"):
        table.create_index("by_vec", "hnsw", "id")


@pytest.mark.slow
def test_recall_of_many_vectors(spark: SparkSession, table_of: TableOf) -> None:
    pytest.importorskip("usearch")
    vectors = clustered(200_000, dimension=16, centres=500)
    frame = pa.table(
        {
            "id": pa.array(range(len(vectors)), pa.int64()),
            "vec": pa.array(list(vectors), pa.list_(pa.float32())),
        }
    )
    table = table_of("id BIGINT, vec ARRAY<FLOAT>")
    table.append(spark.createDataFrame(frame).coalesce(1))
    assert len(data_files(table)) == 1
    table.create_index("by_vec", "hnsw", "vec")
    table.delete().where("id % 5 = 0").execute()
    model = Model(vectors, {number for number in range(len(vectors)) if number % 5})
    assert model.recall(table) >= 0.9


def clustered(rows: int, dimension: int = 8, centres: int = 30) -> np.ndarray:
    generator = np.random.default_rng(1)
    middle = generator.normal(size=(centres, dimension)) * 4
    found = middle[generator.integers(0, centres, rows)]
    return (found + generator.normal(size=(rows, dimension))).astype(np.float32)


class Model:
    """The nearest of all vectors, by id."""

    def __init__(self, vectors: np.ndarray, live: set[int]) -> None:
        self.vectors, self.live = vectors, live

    def nearest(self, query: list[float], limit: int = 10) -> list[tuple[int, float]]:
        distances = np.sqrt(((self.vectors.astype(float) - np.array(query)) ** 2).sum(axis=1))
        order = [int(i) for i in np.argsort(distances) if int(i) in self.live]
        return [(i, float(distances[i])) for i in order[:limit]]

    def recall(self, table: Table) -> float:
        """The part of the nearest rows that a search finds; no deleted row is found."""
        found = 0
        for query in (self.vectors[7:47:10] + 0.05).tolist():
            hits = nearest(table, query)
            assert len(hits) == 10
            assert {number for number, _ in hits} <= self.live
            found += len({number for number, _ in hits} & {i for i, _ in self.nearest(query)})
        return found / 40
