"""Contents of files that do not change are held within a limit, by location and length."""

from __future__ import annotations

import os
import time
from threading import Thread

from pyiceberg.io.pyarrow import PyArrowFileIO

from icefloe.storage import file_cache
from icefloe.storage.file_cache import FileCache, file_keys

LONG_AGO = time.time() - 1000


def key(name):
    return name, 1, 0


def test_the_least_recently_used_go_first():
    cache = FileCache(len)
    cache.put(key("a"), "x" * 10, 10**9)
    assert cache.bytes == 10
    for name in "bc":
        cache.put(key(name), "x" * 10, 31)
    assert cache.get(key("a")) == "x" * 10
    cache.put(key("d"), "x" * 10, 31)
    assert [key(name) in cache for name in "abcd"] == [True, False, True, True]
    cache.put(key("huge"), "x" * 40, 31)  # never fits: others stay
    assert len(cache) == 3
    cache.put(key("d"), "x" * 11, 31)  # twice the same counts once
    assert (len(cache), cache.bytes) == (3, 31)
    cache.clear()
    assert (len(cache), cache.bytes, cache.get(key("a"))) == (0, 0, None)


def test_memory_stays_within_the_limit_while_threads_fill_it():
    cache = FileCache(len)
    limit = 1000

    def fill(thread):
        for number in range(500):
            cache.put(key(f"{thread}-{number}"), "x" * 30, limit)
            assert cache.bytes <= limit
            cache.get(key(f"{thread}-{number - 3}"))

    threads = [Thread(target=fill, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < cache.bytes <= limit
    assert cache.bytes == sum(size for _, size in cache._held.values())


def test_a_file_that_changed_has_another_key(tmp_path):
    path, io = tmp_path / "f", PyArrowFileIO()
    location = path.as_uri()
    path.write_bytes(b"12345")
    os.utime(path, (LONG_AGO, LONG_AGO))
    before = file_keys(io, {location: 5})
    assert file_keys(io, {location: 5}) == before
    assert before[location][:2] == (location, 5)
    os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    assert file_keys(io, {location: 5}) != before


def test_a_file_has_no_key_if_it_is_missing_of_another_length_or_new(tmp_path, monkeypatch):
    path, io = tmp_path / "f", PyArrowFileIO()
    assert file_keys(io, {path.as_uri(): 5}) == {path.as_uri(): None}
    path.write_bytes(b"12345")
    monkeypatch.setattr(file_cache, "_CLOCK_TICK_NS", 10**12)
    assert file_keys(io, {path.as_uri(): 5}) == {path.as_uri(): None}
    os.utime(path, (LONG_AGO - 1000, LONG_AGO - 1000))
    assert file_keys(io, {path.as_uri(): 6}) == {path.as_uri(): None}
    assert file_keys(io, {path.as_uri(): 5})[path.as_uri()] is not None


def test_objects_of_a_store_are_not_asked_for_their_time():
    io = PyArrowFileIO(
        {"s3.region": "eu-west-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    )
    assert file_keys(io, {"s3://bucket/f": 7}) == {"s3://bucket/f": ("s3://bucket/f", 7, 0)}
    assert file_keys(io, {}) == {}
