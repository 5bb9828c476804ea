"""Line charts as SVG, without a plotting library: legible on light and on dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

WIDTH = 760
HEIGHT = 430  # of one chart
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 46, 118  # around the plot: axes, title, legend
COLOURS = ("#0b5cad", "#c2410c", "#15803d", "#7e22ce", "#57534e")
DASHES = ("none", "7 4", "2 4", "11 4 2 4", "4 4")
STYLE = "font-family='Helvetica, Arial, sans-serif' font-size='13' fill='#1c1917'"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """What is along one side of a chart."""

    label: str  # with its unit
    ticks: Sequence[float]  # the first and the last are its ends
    is_log: bool = False

    def share(self, value: float) -> float:
        """How far along it that value is; 0 and 1 are its ends."""
        low, at, high = (
            log10(number) if self.is_log else number
            for number in (self.ticks[0], value, self.ticks[-1])
        )
        return min(1.0, max(0.0, (at - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together, joined or each marked."""

    label: str
    points: Sequence[Point]
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart with a legend of at most two columns below."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]

    def elements(self, top: float) -> list[str]:
        """Its SVG, from that height on."""
        parts = [_text(self.title, LEFT, top + 28, weight="bold", size=15)]
        parts += self._x_axis(top) + self._y_axis(top)
        for number, line in enumerate(self.lines):
            parts += self._line(line, number, top) + _legend(line, number, top)
        return parts

    def _at(self, point: Point, top: float) -> Point:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        x = LEFT + wide * self.x.share(point[0])
        y = top + TOP + high * (1 - self.y.share(point[1]))
        return x, y

    def _x_axis(self, top: float) -> list[str]:
        parts = []
        for tick in self.x.ticks:
            start = self._at((tick, self.y.ticks[0]), top)
            parts.append(_rule(start, self._at((tick, self.y.ticks[-1]), top)))
            parts.append(_text(f"{tick:,g}", start[0], start[1] + 18, "middle"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        under = top + HEIGHT - BOTTOM + 38
        return [*parts, _text(self.x.label, middle, under, "middle")]

    def _y_axis(self, top: float) -> list[str]:
        parts = []
        for tick in self.y.ticks:
            start = self._at((self.x.ticks[0], tick), top)
            parts.append(_rule(start, self._at((self.x.ticks[-1], tick), top)))
            parts.append(_text(f"{tick:,g}", start[0] - 8, start[1] + 4, "end"))
        middle = top + (TOP + HEIGHT - BOTTOM) / 2
        return [*parts, _text(self.y.label, 20, middle, "middle", turned=True)]

    def _line(self, line: Line, number: int, top: float) -> list[str]:
        points = [self._at(point, top) for point in line.points]
        if line.is_marked:
            return [_mark(point, number) for point in points]
        return [_path(points, number)]


def drawing(charts: Sequence[Chart]) -> str:
    """An SVG file of charts, one below the other."""
    height = HEIGHT * len(charts)
    size = f"width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {STYLE}>",
        f"<title>{escape('; '.join(chart.title for chart in charts))}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
    ]
    for number, chart in enumerate(charts):
        lines += chart.elements(number * HEIGHT)
    return "\n".join([*lines, "</svg>", ""])


def _legend(line: Line, number: int, top: float) -> list[str]:
    x = LEFT + (number % 2) * (WIDTH - LEFT - RIGHT) / 2
    y = top + HEIGHT - BOTTOM + 62 + number // 2 * 20
    sample = (x, y - 4), (x + 34, y - 4)
    drawn = _mark((x + 17, y - 4), number) if line.is_marked else _path(sample, number)
    return [drawn, _text(line.label, x + 44, y)]


def _path(points: Sequence[Point], number: int) -> str:
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f"stroke='{COLOURS[number]}' stroke-dasharray='{DASHES[number]}'"
    return f"<polyline points='{steps}' fill='none' {stroke} stroke-width='2.2'/>"


def _mark(point: Point, number: int) -> str:
    x, y = point
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{COLOURS[number]}'/>"


def _rule(start: Point, end: Point) -> str:
    ends = (
        f"x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}'"
    )
    return f"<line {ends} stroke='#d6d3d1'/>"


def _text(
    text: str,
    x: float,
    y: float,
    anchor: str = "start",
    *,
    weight: str = "normal",
    size: int = 13,
    turned: bool = False,
) -> str:
    turn = f" transform='rotate(-90 {x:.1f} {y:.1f})'" if turned else ""
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'{turn}"
    font = f"font-weight='{weight}' font-size='{size}'"
    return f"<text {place} {font}>{escape(text)}</text>"
