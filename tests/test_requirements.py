"""Every requirement that the library claims has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

NUMBER = re.compile(r"\b([UTRX])(\d\d)\b", re.IGNORECASE)

# U35 is SQL; T33 to T40 are later work.
CLAIMED = {
    *(f"U{n:02}" for n in range(1, 41) if n != 35),
    *(f"T{n:02}" for n in range(1, 33)),
    "T41",
    "T42",
    *(f"R{n:02}" for n in range(1, 39)),
    *(f"X{n:02}" for n in range(4, 11)),
}


def test_every_claimed_requirement_is_named_by_a_test():
    cited: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        text = path.read_text().replace("_", " ")
        cited |= {f"{kind.upper()}{number}" for kind, number in NUMBER.findall(text)}
    assert sorted(CLAIMED - cited) == []
