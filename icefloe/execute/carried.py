"""What the entry of an old file still says of a file put together from its chunks.

The new footer tells sizes, counts and bounds, but never how many NaN there are, and no bounds and
no count of NULLs of a copied chunk whose writer left them out.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from icefloe.execute.data_files import Carried, leaves


def carried_metrics(
    written: Mapping[str, Any], old: DataFile, schema: Schema, assigned: Container[str]
) -> Carried:
    """Metrics of the copied columns that are known from the old file's entry.

    Bounds hold on when rows go, but not when they get new values. NaN are as many as before, or,
    in a column copied in part, differ by what came and went. NULLs are counted on only in columns
    copied as a whole.
    """
    copied = written.get("copied")
    carried = Carried()
    if copied is None:
        return carried
    for field in schema.fields:
        whole, partly = field.name in copied["whole"], copied["partly"].get(field.name)
        if not whole and partly is None:
            continue
        for path, leaf in leaves(Schema(field)).items():
            key = leaf.field_id
            nans = (old.nan_value_counts or {}).get(key)
            added = 0 if whole else partly.get(path, 0)
            if nans is not None and (nans == 0 or not copied["loses_a_group"]):
                carried.nans[key] = nans + added
            if whole and key in (old.null_value_counts or {}):
                carried.nulls[key] = old.null_value_counts[key]
            if whole or field.name not in assigned:
                for kept, bounds in (
                    (carried.lower, old.lower_bounds),
                    (carried.upper, old.upper_bounds),
                ):
                    if key in (bounds or {}):
                        kept[key] = bounds[key]
    return carried
