"""Plots as inline SVG: text in, text out. Whatever comes from a record is escaped here and nowhere else.

Colours are names of CSS variables, so that a page decides how they look by day and by night. Every bar has a title,
which browsers show when it is pointed at; there is no script.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

COLOURS: Final = 8  # --c0 to --c7
CHART_WIDTH: Final = 920
LABEL_WIDTH: Final = 300
LABEL_CHARS: Final = 42
BAR_HEIGHT: Final = 22
BAR_GAP: Final = 8
PLOT_HEIGHT: Final = 220
AXIS_WIDTH: Final = 56
TICKS_X: Final = 6


def bars(rows: Sequence[tuple[str, int]], *, colours: Sequence[int] | None = None) -> str:
    """One bar a row, from the left, longest as long as there is room."""
    most = max((count for _, count in rows), default=0) or 1
    room = CHART_WIDTH - LABEL_WIDTH - 80
    height = len(rows) * (BAR_HEIGHT + BAR_GAP)
    parts = [_open(CHART_WIDTH, height)]
    for at, (label, count) in enumerate(rows):
        y = at * (BAR_HEIGHT + BAR_GAP)
        width = max(1.0, room * count / most)
        colour = colours[at] if colours is not None else 0
        middle = y + BAR_HEIGHT / 2 + 5
        parts.append(
            f"<g><title>{text(label)}: {count:,}</title>"
            f'<text x="{LABEL_WIDTH - 10}" y="{middle:.0f}" class="label" text-anchor="end">{text(cut(label))}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="3" '
            f'fill="var(--c{colour % COLOURS})"/>'
            f'<text x="{LABEL_WIDTH + width + 8:.1f}" y="{middle:.0f}" class="number">{count:,}</text></g>'
        )
    parts.append("</svg>")
    return "".join(parts)


def stacks(columns: Sequence[tuple[str, Sequence[int]]], names: Sequence[str]) -> str:
    """One stacked column for each label, in their order; `names` are those of the layers, from the bottom up."""
    most = max((sum(layers) for _, layers in columns), default=0) or 1
    top = nice_ceiling(most)
    room = CHART_WIDTH - AXIS_WIDTH
    pitch = room / max(1, len(columns))
    width = max(1.0, min(pitch - 2, 48.0))
    parts = [_open(CHART_WIDTH, PLOT_HEIGHT + 40)]
    for tick in _ticks(top):
        y = 10 + PLOT_HEIGHT * (1 - tick / top)
        parts.append(
            f'<line x1="{AXIS_WIDTH}" x2="{CHART_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{AXIS_WIDTH - 8}" y="{y + 4:.1f}" class="tick" text-anchor="end">{tick:,}</text>'
        )
    every = max(1, -(-len(columns) // TICKS_X))
    for at, (label, layers) in enumerate(columns):
        x = AXIS_WIDTH + at * pitch + (pitch - width) / 2
        y = 10.0 + PLOT_HEIGHT
        for colour, count in enumerate(layers):
            if not count:
                continue
            height = PLOT_HEIGHT * count / top
            y -= height
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{height:.2f}" '
                f'fill="var(--c{colour % COLOURS})">'
                f"<title>{text(label)}, {text(names[colour])}: {count:,}</title></rect>"
            )
        if at % every == 0:
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{PLOT_HEIGHT + 30}" class="tick" text-anchor="middle">'
                f"{text(label)}</text>"
            )
    parts.append("</svg>")
    return "".join(parts)


def legend(names: Sequence[str]) -> str:
    return (
        '<p class="legend">'
        + "".join(
            f'<span><i style="background:var(--c{colour % COLOURS})"></i>{text(cut(name))}</span>'
            for colour, name in enumerate(names)
        )
        + "</p>"
    )


def nice_ceiling(most: int) -> int:
    """The least of 1, 2, 4, 5 or 8 times a power of ten that is not below it."""
    power = 1
    while True:
        for step in (1, 2, 4, 5, 8):
            if step * power >= most:
                return step * power
        power *= 10


def cut(label: str, limit: int = LABEL_CHARS) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"


def text(given: str) -> str:
    """Escaped, and without the characters that XML has no place for."""
    return escape("".join(char if char >= " " and not "\ud800" <= char <= "\udfff" else "\ufffd" for char in given))


def _ticks(top: int) -> list[int]:
    parts = 4 if top % 4 == 0 else 5 if top % 5 == 0 else 2 if top % 2 == 0 else 1
    return [top * part // parts for part in range(parts + 1)]


def _open(width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {max(1, height)}" role="img" xmlns="http://www.w3.org/2000/svg">'
