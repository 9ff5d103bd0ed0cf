"""Kinds of indexes: which columns and parameters they take, and what they are for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefloe.errors import StatementError

ON_WRITE = "on_write"  # a parameter of every kind: whether writes of data files write sidecars


class IndexKind(ABC):
    """A kind of index; what its sidecars have is in `tasks`, how they are read beside this file."""

    name: ClassVar[str]
    writes_by_default: ClassVar[bool]
    is_searched: ClassVar[bool]  # by `search`; other indexes answer conditions

    @abstractmethod
    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""

    def parameters(self, given: Mapping[str, object]) -> dict[str, object]:
        """The parameters with their defaults; raises StatementError for a wrong one."""
        own = self.own_parameters(given)
        unknown = sorted(set(given) - {ON_WRITE, *own})
        if unknown:
            takes = ", ".join(sorted({ON_WRITE, *own}))
            raise StatementError(
                f"An index of kind {self.name} has no parameter {unknown[0]!r}; it takes: {takes}."
            )
        on_write = given.get(ON_WRITE, self.writes_by_default)
        if not isinstance(on_write, bool):
            raise StatementError(
                f"Invalid value {on_write!r} for the parameter {ON_WRITE!r} of an index: expected "
                "True or False."
            )
        return {ON_WRITE: on_write, **own}

    def own_parameters(self, given: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG002
        """The parameters that only this kind has, with their defaults."""
        return {}


class BtreeKind(IndexKind):
    """Values and ranges of values of one column, or equal values of several."""

    name = "btree"
    writes_by_default = True
    is_searched = False
    _TYPES = (
        IntegerType,
        LongType,
        FloatType,
        DoubleType,
        DecimalType,
        DateType,
        TimeType,
        TimestampType,
        TimestamptzType,
        StringType,
        BinaryType,
        FixedType,
        UUIDType,
    )

    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""
        return next(
            (
                f"column {column.name!r} has type {column.field_type}, which a btree index does "
                "not take"
                for column in columns
                if not self._takes(column.field_type)
            ),
            None,
        )

    def _takes(self, kind: IcebergType) -> bool:
        return isinstance(kind, self._TYPES)


KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in (BtreeKind(),)}
