"""Field numbers of the structures in a Parquet file, from the format's Thrift definition."""

from __future__ import annotations


class File:
    """FileMetaData."""

    SCHEMA = 2
    ROWS = 3
    GROUPS = 4
    KEY_VALUES = 5
    CREATED_BY = 6
    ORDERS = 7
    ENCRYPTION = 8


class KeyValue:
    """One entry of the key-value metadata."""

    KEY = 1
    VALUE = 2


class Element:
    """SchemaElement: a column, or a group of columns."""

    TYPE = 1
    LENGTH = 2
    REPETITION = 3
    NAME = 4
    CHILDREN = 5
    CONVERTED = 6
    SCALE = 7
    PRECISION = 8
    FIELD_ID = 9
    LOGICAL = 10


class Group:
    """RowGroup."""

    COLUMNS = 1
    BYTES = 2
    ROWS = 3
    SORTING = 4
    OFFSET = 5
    COMPRESSED = 6
    ORDINAL = 7


class Sorting:
    """SortingColumn."""

    LEAF = 1
    DESCENDING = 2
    NULLS_FIRST = 3


class Chunk:
    """ColumnChunk."""

    FILE_PATH = 1
    FILE_OFFSET = 2
    META = 3
    OFFSET_INDEX = 4
    OFFSET_INDEX_LENGTH = 5
    COLUMN_INDEX = 6
    COLUMN_INDEX_LENGTH = 7
    CRYPTO = 8
    ENCRYPTED = 9


class Meta:
    """ColumnMetaData."""

    TYPE = 1
    ENCODINGS = 2
    PATH = 3
    CODEC = 4
    VALUES = 5
    UNCOMPRESSED = 6
    COMPRESSED = 7
    DATA_PAGE = 9
    INDEX_PAGE = 10
    DICTIONARY_PAGE = 11
    STATISTICS = 12
    ENCODING_STATS = 13
    BLOOM = 14
    BLOOM_LENGTH = 15
    SIZES = 16


class Statistics:
    """Statistics, of a chunk or of a page."""

    OLD_MOST = 1  # only for types that are ordered as signed numbers
    OLD_LEAST = 2
    NULLS = 3
    DISTINCT = 4
    MOST = 5
    LEAST = 6
    MOST_IS_EXACT = 7
    LEAST_IS_EXACT = 8


class Sizes:
    """SizeStatistics: the bytes of the values, and how many values have each level."""

    BYTES = 1
    REPETITION = 2
    DEFINITION = 3


class PageEncoding:
    """PageEncodingStats."""

    PAGE = 1
    ENCODING = 2
    COUNT = 3


class OffsetIndex:
    """OffsetIndex: where the pages of a chunk are."""

    LOCATIONS = 1
    BYTES = 2


class Location:
    """PageLocation."""

    OFFSET = 1
    SIZE = 2
    FIRST_ROW = 3


class ColumnIndex:
    """ColumnIndex: what the pages of a chunk hold."""

    NULL_PAGES = 1
    LEAST = 2
    MOST = 3
    ORDER = 4
    NULL_COUNTS = 5
    REPETITION = 6
    DEFINITION = 7


class Page:
    """PageHeader."""

    UNCOMPRESSED = 2
    COMPRESSED = 3
    DATA = 5
    DICTIONARY = 7
    DATA_V2 = 8


class PageData:
    """DataPageHeader."""

    VALUES = 1
    ENCODING = 2
    STATISTICS = 5


class PageDataV2:
    """DataPageHeaderV2."""

    NULLS = 2
    ROWS = 3
    ENCODING = 4
    STATISTICS = 8
