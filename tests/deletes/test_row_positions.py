"""Row positions as bitmaps and as 64-bit words."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from icefloe.deletes.row_positions import as_array, as_bitmap, as_words, unite
from icefloe.tasks.messages import pack, unpack


@pytest.mark.requirement("T18")
def test_bitmaps_of_sparse_positions_stay_small():
    positions = np.arange(1_000_000, dtype=np.int64) * 997
    bitmap = as_bitmap(positions)
    assert len(bitmap.serialize()) < 16 * 1024 * 1024
    assert (as_array(bitmap) == positions).all()
    assert len(pack(positions)) < 1024 * 1024
    assert (unpack(pack(positions)) == positions).all()


def test_bitmap_words_hold_exactly_the_positions():
    bitmap = unite([BitMap64([0, 63]), BitMap64([64, 200, 4000])])
    words = as_words(bitmap)
    bits = [i for i in range(len(words) * 64) if (int(words[i // 64]) >> (i % 64)) & 1]
    assert bits == [0, 63, 64, 200, 4000]
    assert len(as_words(BitMap64())) == 0
