"""Full text search without Spark: tokens, sidecars, scores, queries."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from icefloe.commands.search.text import parse_query
from icefloe.errors import StatementError
from icefloe.indexes.kinds import KINDS
from icefloe.tasks import bm25, text_search, tokens
from icefloe.tasks.bm25 import TextIndex, build_bm25
from icefloe.tasks.messages import TextStatistics
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    SidecarPlace,
    sidecar_path,
    write_sidecar,
)
from icefloe.tasks.text_search import (
    TextQuery,
    TextSearch,
    best_rows,
    index_statistics,
    score_tokens,
    token_statistics,
)
from icefloe.tasks.tokens import Tokenizer
from support.text_model import TextModel, model_tokens

NONE = np.empty(0, np.int64)
WORDS = ["pink", "house", "大学", "校園", "sea", "naïve", "42", "a", "b-b", "Ω", "東", "wave's"]


def words(text: str, **params: object) -> list[str]:
    return Tokenizer(**params).words(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World! foo-bar_baz", ["hello", "world", "foo", "bar", "baz"]),
        ("don't", ["don", "t"]),
        ("It costs 42.50€", ["it", "costs", "42", "50"]),
        ("ÉCOLE e\u0301cole ﬁn ＡＢＣ", ["école", "école", "fin", "abc"]),
        ("大学生", ["大学", "学生"]),
        ("大", ["大"]),
        ("大 学", ["大", "学"]),
        ("東京タワーへ行く", ["東京", "京タ", "タワ", "ワー", "ーへ", "へ行", "行く"]),
        ("ﾊﾝｶｸ", ["ハン", "ンカ", "カク"]),
        ("iPhone手机x", ["iphone", "手机", "x"]),
        ("한국어", ["한국", "국어"]),
        ("co\u00adoperate a\u200db", ["cooperate", "ab"]),
        ("हिन्दी", ["हिन्दी"]),
        ("😀 ok 😀", ["ok"]),
        ("", []),
        ("…", []),
        ("x" * 255 + " " + "y" * 256, ["x" * 255]),
        ("é" * 127 + " " + "é" * 128, ["é" * 127]),
        ("ΟΔΟΣ a\x00b", ["οδο\u03c2", "a", "b"]),
    ],
)
def test_tokens(text, expected):
    assert words(text) == expected


def test_stop_words_and_stems():
    pytest.importorskip("snowballstemmer")
    assert words("The running dogs of the sea", stem="english", stop_words=["the", "of"]) == [
        "run",
        "dog",
        "sea",
    ]
    assert words("running 大学生", stem="english") == ["run", "大学", "学生"]


texts = st.one_of(
    st.none(),
    st.lists(st.sampled_from([*WORDS, "…", "😀", ", "]), max_size=6).map(" ".join),
    st.text("aB1 é_大学 x.-ハ", max_size=12),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, max_size=12), st.sampled_from([1, 7, 2**22]))
def test_tokens_of_many_texts_are_those_of_each(rows, chunk_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_CHUNK_BYTES", chunk_bytes)
        found = []
        for first, part in tokens.chunks(pa.array(rows, pa.large_string())):
            read = Tokenizer().tokens(part)
            assert len(part) == read.count
            codes = zip(read.rows.tolist(), read.codes.tolist(), strict=True)
            found += [(first + row, read.terms[code].as_py()) for row, code in codes]
    assert found == [(i, token) for i, text in enumerate(rows) for token in model_tokens(text)]


def test_bytes_that_are_no_text_are_replaced():
    stored = pa.array([b"caf\xe9 ok", b"pink \xff", b"ok"]).view(pa.string())
    read = Tokenizer().tokens(stored)
    assert [read.terms[code].as_py() for code in read.codes] == ["caf", "ok", "pink", "ok"]
    assert read.rows.tolist() == [0, 0, 1, 2]


# -------------------------------------------------------------------------------------------------
# Sidecars


def index_in(folder: Path, **params: object) -> IndexToWrite:
    given = KINDS["bm25"].parameters(params)
    return IndexToWrite(
        "0123abcd", "t", "bm25", (1,), ("string",), given, LocalFileSystem(), str(folder)
    )


def write(folder: Path, rows: list[str | None], **params: object) -> SidecarPlace:
    index = index_in(folder, **params)
    column = pa.chunked_array([pa.array(rows, pa.string())])
    file = IndexedFile(LocalFileSystem(), "data", "data/f.parquet", 77, len(rows), {1: column})
    write_sidecar(index, file, build_bm25(index, file))
    return SidecarPlace.of(index, "data/f.parquet", 77, len(rows))


def some_texts(seed: int, count: int) -> list[str | None]:
    choose = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    return [
        None if choose.random() < 0.05 else " ".join(choose.choices(WORDS, weights, k=size))
        for size in (choose.randrange(0, 15) for _ in range(count))
    ]


def query(*terms: str, **parts: object) -> TextQuery:
    return replace(TextQuery(terms, (1,) * len(terms), frozenset(), frozenset()), **parts)  # type: ignore[arg-type]


def hits(place: SidecarPlace, wanted: TextQuery, limit: int = 10, deleted=NONE, statistics=None):
    with place.open() as sidecar:
        index = TextIndex.of(sidecar)
        statistics = statistics or index_statistics(wanted, index)
        search = TextSearch(wanted, {}, statistics, limit)
        rows, scores = best_rows(search, index, deleted)
    return list(zip(rows.tolist(), scores.tolist(), strict=True))


def test_lucenes_formula(tmp_path):
    """By hand: 2 of 4 texts have the word; 8 tokens; the lengths are 3 and 1."""
    place = write(tmp_path, ["pink pink sea", "pink", "house by", "sea sea", None, ""])
    idf = np.log(1 + 2.5 / 2.5)
    expected = [
        (1, idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 1 / 2))),
        (0, idf * 4.4 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))),
    ]
    assert hits(place, query("pink")) == [
        (i, pytest.approx(s)) for i, s in sorted(expected, key=lambda e: -e[1])
    ]
    assert round(expected[0][1], 6) == 0.871385


@pytest.mark.parametrize("batch_rows", [7, 65_536])
def test_scores_are_those_of_the_model(tmp_path, monkeypatch, batch_rows):
    monkeypatch.setattr(bm25, "BATCH_ROWS", batch_rows)
    monkeypatch.setattr(text_search, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(tokens, "_CHUNK_BYTES", 300)
    rows = some_texts(1, 400)
    place = write(tmp_path, rows)
    deleted = frozenset(range(3, 400, 7))
    model = TextModel(dict(enumerate(rows)), deleted)
    gone = np.array(sorted(deleted))
    for terms, required, excluded in [
        (["pink"], [], []),
        (["pink", "大学", "sea"], [], []),
        (["pink", "b", "absent"], ["b"], []),
        (["pink", "sea"], ["sea", "pink"], ["house"]),
        (["s"], [], ["absent", "大学"]),
        (["absent"], [], []),
        (["pink", "absent"], ["absent"], []),
    ]:
        wanted = query(*terms, required=frozenset(required), excluded=frozenset(excluded))
        scores = model.scores(terms, required, excluded)
        for limit in (1, 10, 1000):
            found = hits(place, wanted, limit, gone)
            assert found == [(i, pytest.approx(scores[i])) for i, _ in found]
            best = sorted(scores.values(), reverse=True)[:limit]
            assert [score for _, score in found] == pytest.approx(best)
            assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))


def test_scores_do_not_depend_on_where_a_row_is(tmp_path):
    rows = some_texts(2, 300)
    wanted = query("pink", "大学", "sea")
    whole = dict(hits(write(tmp_path / "whole", rows), wanted, 1000))
    parts = [rows[:10], rows[10:11], rows[11:200], rows[200:]]
    places = [write(tmp_path / str(i), part) for i, part in enumerate(parts)]
    statistics = []
    for place in places:
        with place.open() as sidecar:
            statistics.append(index_statistics(wanted, TextIndex.of(sidecar)))
    read = [Tokenizer().tokens(pa.array(part, pa.string())) for part in parts]
    assert statistics == [token_statistics(wanted, each) for each in read]

    total = text_search.total(statistics, 3)
    start = 0
    from_sidecars, from_texts = {}, {}
    for place, part, each in zip(places, parts, read, strict=True):
        found = hits(place, wanted, 1000, statistics=total)
        from_sidecars.update((start + i, score) for i, score in found)
        scores = score_tokens(TextSearch(wanted, {}, total, 1000), each)
        from_texts.update((start + i, s) for i, s in enumerate(scores.tolist()) if s)
        start += len(part)
    assert from_sidecars == whole
    assert from_texts == whole


def test_of_equal_scores_the_first_rows_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(text_search, "_BLOCK_ROWS", 16)
    place = write(tmp_path, ["pink"] * 100)
    assert [row for row, _ in hits(place, query("pink"), 5)] == [0, 1, 2, 3, 4]
    found = hits(place, query("pink"), 5, deleted=np.array([0, 2, 3, 99]))
    assert [row for row, _ in found] == [1, 4, 5, 6, 7]


def test_phrases_are_found_in_texts():
    read = Tokenizer().tokens(
        pa.array(["a quick brown fox", "brown quick", "quick", "the quick", "brown", "上大学生"])
    )
    assert read.rows_with(["quick", "brown"]).tolist() == [True, False, False, False, False, False]
    assert read.rows_with(["大学", "学生"]).tolist() == [False] * 5 + [True]
    assert not read.rows_with(["quick", "absent"]).any()
    assert not Tokenizer().tokens(pa.array(["x"])).rows_with(["x", "x", "x"]).any()
    wanted = query("quick", phrases=(("quick", "brown"),))
    search = TextSearch(wanted, {}, TextStatistics(6, 12, (4,)), 10)
    assert np.flatnonzero(score_tokens(search, read)).tolist() == [0]
    search = replace(search, query=query("quick", excluded_phrases=(("quick", "brown"),)))
    assert np.flatnonzero(score_tokens(search, read)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("rows", [[], [None], ["", None, "…"]])
def test_a_file_without_tokens(tmp_path, rows):
    assert hits(write(tmp_path, rows), query("pink")) == []


def test_a_changed_byte_costs_no_row(tmp_path):
    place = write(tmp_path, some_texts(3, 40))
    wanted = query("pink", "大学")
    expected = hits(place, wanted)
    path = Path(sidecar_path(str(tmp_path), "data/f.parquet"))
    original = path.read_bytes()
    damaged = 0
    for at in range(0, len(original), 5):
        changed = bytearray(original)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            assert hits(place, wanted) == expected
        except (DamagedSidecarError, FileNotFoundError):
            damaged += 1
    assert damaged > 100
    path.write_bytes(original[:-20])
    with pytest.raises(DamagedSidecarError):
        hits(place, wanted)


def test_a_sidecar_of_another_tokenizer_is_not_used(tmp_path, monkeypatch):
    place = write(tmp_path, ["pink"])
    monkeypatch.setattr(bm25, "TOKENIZER", tokens.TOKENIZER + 1)
    with pytest.raises(DamagedSidecarError, match="another version"):
        hits(place, query("pink"))


def test_a_column_that_is_no_text_is_not_indexed(tmp_path):
    index = index_in(tmp_path)
    column = pa.chunked_array([pa.array([1, 2])])
    file = IndexedFile(LocalFileSystem(), "data", "data/f.parquet", 77, 2, {1: column})
    with pytest.raises(NotIndexableError, match="int64"):
        build_bm25(index, file)


# -------------------------------------------------------------------------------------------------
# Queries and parameters


def test_queries():
    parsed = parse_query('Pink  +sea -house "by the sea" -"red car" +大学生 pink -大', Tokenizer())
    assert dict(zip(parsed.terms, parsed.weights, strict=True)) == {
        "pink": 2, "sea": 2, "by": 1, "the": 1, "大学": 1, "学生": 1,
    }  # fmt: skip
    assert parsed.required == {"sea", "by", "the", "大学", "学生"}
    assert parsed.excluded == {"house", "大"}
    assert parsed.phrases == (("by", "the", "sea"), ("大学", "学生"))
    assert parsed.excluded_phrases == (("red", "car"),)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("well-known", ("well", "known")),
        ("+ pink", ("pink",)),
        ('"pink"', ("pink",)),
        ("-house pink", ("pink",)),
        ("大学生", ("大学", "学生")),
        ('x"two words"y', ("x", "two", "words", "y")),
    ],
)
def test_words_of_a_query(text, terms):
    assert parse_query(text, Tokenizer()).terms == terms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The query '' has no word to search for"),
        ("-pink ,", "has no word to search for"),
        ("the", "neither a stop word nor excluded"),
        ('pink "sea', "has a quote without an end"),
        (7, "Invalid query 7 of a full text search: expected a text"),
        ([1.0], r"Invalid query \[1.0\] of a full text search"),
        (None, "Invalid query None"),
    ],
)
def test_refused_queries(text, message):
    with pytest.raises(StatementError, match=message):
        parse_query(text, Tokenizer(stop_words=["the"]))


def test_parameters():
    assert KINDS["bm25"].parameters({}) == {"on_write": False, "stem": None, "stop_words": []}
    given = {"stop_words": ["The", "a", "the"], "on_write": True}
    assert KINDS["bm25"].parameters(given)["stop_words"] == ["a", "the"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stem": "klingon"}, "Invalid value 'klingon' for the parameter 'stem'.*english"),
        ({"stop_words": "the"}, "Invalid value 'the' for the parameter 'stop_words'"),
        ({"stop_words": ["two words"]}, "Invalid value 'two words' for the parameter 'stop_words'"),
        ({"stop_words": [1]}, "Invalid value 1 for the parameter 'stop_words'"),
        ({"k1": 2}, "has no parameter 'k1'; it takes: on_write, stem, stop_words"),
    ],
)
def test_refused_parameters(params, message):
    pytest.importorskip("snowballstemmer")
    with pytest.raises(StatementError, match=message):
        KINDS["bm25"].parameters(params)


def test_stems_need_a_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "snowballstemmer", None)
    with pytest.raises(StatementError, match=r"pip install 'icefloe\[text\]'"):
        KINDS["bm25"].parameters({"stem": "english"})
