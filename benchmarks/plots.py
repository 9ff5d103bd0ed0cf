"""Results as bar charts: seconds per statement and peer, one SVG for each kind of statement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.statements import Kind

_COLOURS = {
    "icefloe-cow": "#0b5fa5",
    "icefloe-mor": "#56b4e9",
    "iceberg-cow": "#b35900",
    "iceberg-mor": "#f0a030",
    "deltars": "#009e73",
    "pyiceberg": "#cc79a7",
    "sail-cow": "#5c5c5c",
    "sail-mor": "#a8a8a8",
}
_OTHER_COLOUR = "#8c6d31"

_WIDTH = 900
_LEFT = 270  # width of the statements' titles
_RIGHT = 90  # width of the number after the longest bar
_BAR = 13
_GAP = 14  # between statements
_LEGEND_ROW = 20
_LEGEND_COLUMN = 150
_LETTERS = 38  # of a title on one line
_STEPS = (1, 2, 5)
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Bar:
    """One peer at one statement; without seconds, a note says why."""

    peer: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One statement."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds on a logarithmic scale."""

    low: float
    high: float

    def x(self, seconds: float) -> float:
        """The position of a time, in pixels from the left."""
        fraction = math.log(seconds / self.low) / math.log(self.high / self.low)
        return _LEFT + fraction * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 times powers of ten."""
        for power in range(-4, 6):
            for step in _STEPS:
                tick = step * 10.0**power
                if self.low <= tick * 1.0001 and tick <= self.high * 1.0001:
                    yield tick


def plots_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The plots of a run as SVG, by the kind of statement, for the kinds that have results."""
    kinds = [kind for kind in Kind if any(s["kind"] == kind for s in document["statements"])]
    charts = {str(kind): _plot(document, kind) for kind in kinds}
    return {kind: svg for kind, svg in charts.items() if svg is not None}


def _plot(document: Mapping[str, Any], kind: str) -> str | None:
    size = document["size"]
    heading = (
        f"{document['name']}: {kind} statements, seconds (logarithmic; shorter is better). "
        f"{size['rows']:,} rows, {size['columns']} columns"
    )
    return chart(heading, _groups(document, kind))


def chart(
    heading: str, groups: Sequence[Group], names: Mapping[str, str] | None = None
) -> str | None:
    """One chart as SVG, with other names for peers; None when no peer has a result."""
    times = [bar.seconds for group in groups for bar in group.bars if bar.seconds]
    if not times:
        return None
    axis = Axis(_step_below(min(times) / 1.3), _step_above(max(times)))
    peers = dict.fromkeys(bar.peer for group in groups for bar in group.bars)
    labels = {peer: (names or {}).get(peer, peer) for peer in peers}
    width = max(_LEGEND_COLUMN, *(40 + 7 * len(label) for label in labels.values()))
    columns = (_WIDTH - 20) // width
    top = 40 + _LEGEND_ROW * math.ceil(len(peers) / columns) + 8
    bottom = top + sum(_height(group) for group in groups)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + 40}" '
        f'viewBox="0 0 {_WIDTH} {bottom + 40}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(heading)}</title>",
        f'<rect width="{_WIDTH}" height="{bottom + 40}" fill="white"/>',
        _text(10, 22, heading, size=14),
        *_legend(labels, columns, width),
        *_grid(axis, top, bottom),
    ]
    y = float(top)
    for group in groups:
        parts += _group(group, y, axis)
        y += _height(group)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _groups(document: Mapping[str, Any], kind: str) -> list[Group]:
    """One group for each statement; peers that leave out all of them are not shown."""
    statements = [statement for statement in document["statements"] if statement["kind"] == kind]
    names = {statement["name"] for statement in statements}
    peers = [
        peer
        for peer in document["peers"]
        if any(
            result["statement"] in names and result["status"] != LEFT_OUT
            for result in peer.get("results", ())
        )
    ]
    return [
        Group(statement["title"], tuple(bar_of(peer, statement["name"]) for peer in peers))
        for statement in statements
    ]


def bar_of(peer: Mapping[str, Any], statement: str) -> Bar:
    """The bar of one peer at one statement."""
    result = next((r for r in peer["results"] if r["statement"] == statement), None)
    if result is None:
        return Bar(peer["name"], None, "not run")
    if result["status"] != "ok":
        return Bar(peer["name"], None, result["status"])
    return Bar(peer["name"], result["best_seconds"])


def _height(group: Group) -> int:
    return _BAR * max(len(group.bars), len(_lines(group.title))) + _GAP


def _legend(labels: Mapping[str, str], columns: int, width: int) -> Iterator[str]:
    for number, (peer, label) in enumerate(labels.items()):
        x = 10 + width * (number % columns)
        y = 36 + _LEGEND_ROW * (number // columns)
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_colour(peer)}"/>'
        yield _text(x + 18, y + 10, label)


def _grid(axis: Axis, top: int, bottom: int) -> Iterator[str]:
    for tick in axis.ticks():
        x = axis.x(tick)
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield _text(x, bottom + 16, f"{tick:g}", anchor="middle")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield _text(middle, bottom + 34, "seconds, best of the repetitions", anchor="middle")


def _group(group: Group, y: float, axis: Axis) -> Iterator[str]:
    lines = _lines(group.title)
    middle = y + _BAR * len(group.bars) / 2
    for number, line in enumerate(lines):
        offset = (number - (len(lines) - 1) / 2) * 14 + 4
        yield _text(_LEFT - 10, middle + offset, line, anchor="end")
    for number, bar in enumerate(group.bars):
        top = y + number * _BAR
        if bar.seconds is None:
            yield _text(_LEFT + 4, top + 10, f"{bar.peer} {bar.note}", size=10, colour="#777777")
            continue
        width = axis.x(bar.seconds) - _LEFT
        yield (
            f'<rect x="{_LEFT}" y="{top:g}" width="{width:.1f}" height="{_BAR - 1}" '
            f'fill="{_colour(bar.peer)}"/>'
        )
        yield _text(_LEFT + width + 4, top + 10, f"{bar.seconds:.2f}", size=10)


def _lines(text: str) -> list[str]:
    lines = [""]
    for word in text.replace(" %", "\u00a0%").split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _LETTERS:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#222222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _colour(peer: str) -> str:
    return _COLOURS.get(peer, _OTHER_COLOUR)


def _step_below(seconds: float) -> float:
    power = math.floor(math.log10(seconds))
    return max(step * 10.0**power for step in _STEPS if step * 10.0**power <= seconds)


def _step_above(seconds: float) -> float:
    power = math.floor(math.log10(seconds))
    steps = [*(step * 10.0**power for step in _STEPS), 10.0 ** (power + 1)]
    return min(step for step in steps if step >= seconds)
