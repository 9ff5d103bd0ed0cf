"""Table properties: what is read and what is refused."""

from __future__ import annotations

import pytest

from icefloe import errors
from icefloe.settings import TABLE_PROPERTIES, RetryPolicy, Settings, UpdateKind, UpdateMode

NAMES = [declared.name for declared in TABLE_PROPERTIES]


def test_a_property_is_declared_once():
    assert len(set(NAMES)) == len(NAMES)


def test_properties_that_are_not_set_have_their_defaults():
    assert Settings.of({"owner": "x"}) == Settings()
    assert Settings().retry == RetryPolicy(4, 0.1, 60.0, 1800.0)
    assert Settings().mode(UpdateKind.MERGE) is UpdateMode.MERGE_ON_READ
    assert Settings().compression_level is None


def test_default_texts_read_as_the_defaults():
    texts = {p.name: p.default for p in TABLE_PROPERTIES if p.default is not None}
    assert Settings.of(texts) == Settings()


def test_properties_are_read_in_the_units_of_the_fields():
    settings = Settings.of(
        {
            "commit.retry.min-wait-ms": "250",
            "write.delete.granularity": "FILE",
            "write.parquet.compression-codec": "uncompressed",
            "write.merge.isolation-level": "Snapshot",
        }
    )
    assert settings.retry.min_wait_s == 0.25
    assert settings.deletes_per_file
    assert settings.compression == "none"
    assert settings.isolation(UpdateKind.MERGE).value == "snapshot"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("write.target-file-size-bytes", "0", "an integer >= 1"),
        ("write.target-file-size-bytes", "big", "an integer >= 1"),
        ("write.target-file-size-bytes", str(2**63), f"an integer <= {2**63 - 1}"),
        ("commit.retry.num-retries", str(2**31), f"an integer <= {2**31 - 1}"),
        ("commit.retry.max-wait-ms", "-1", "an integer >= 0"),
        ("gc.enabled", "yes", "'true' or 'false'"),
        ("write.merge.mode", "fast", "'merge-on-read', 'copy-on-write' or 'auto'"),
        ("write.merge.isolation-level", "none", "'serializable' or 'snapshot'"),
        ("write.parquet.compression-level", "99", "an integer from -131072 to 22, or 'null'"),
        ("icefloe.auto.rewrite-fraction", "nan", "a number from 0 to 1"),
    ],
)
def test_errors_name_the_property_the_value_and_what_is_expected(name, value, expected):
    with pytest.raises(errors.StatementError) as raised:
        Settings.of({name: value})
    text = f"Invalid value {value!r} for table property {name!r}: expected {expected}"
    assert str(raised.value) == text


@pytest.mark.parametrize("value", ["-1", "1e400", "nan", "inf", "0x10", "", str(10**400)])
def test_numbers_that_no_engine_reads_are_refused_by_name(value):
    """Huge and negative numbers fail when a property is read, not in a commit or a wait."""
    refused = set()
    for name in NAMES:
        try:
            Settings.of({name: value})
        except errors.StatementError as error:
            assert name in str(error)
            refused.add(name)
    levels = {"write.parquet.compression-level"} if value == "-1" else set()  # zstd has such
    assert set(NAMES) - refused == {"write.avro.compression-codec"} | levels
