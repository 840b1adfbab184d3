"""The report on dead letters as one page of HTML that stands alone: no script, nothing fetched, everything escaped."""

from collections import defaultdict
from typing import Final

from penstock.pipeline.jobs.dead_letter_report import Report, when
from penstock.pipeline.jobs.plots import COLOURS, bars, legend, stacks, text

SHOWN_ORIGINS: Final = 15
OTHERS: Final = "others"

_STYLE: Final = """
:root { --bg: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #5c6b7d; --line: #dfe4ea;
  --c0: #2f6fde; --c1: #e07b39; --c2: #2a9d72; --c3: #c2459b; --c4: #8a6fd1; --c5: #c9a227; --c6: #4aa3b5;
  --c7: #8d99a6 }
@media (prefers-color-scheme: dark) { :root { --bg: #12171e; --card: #1b222c; --ink: #e6ebf2; --soft: #94a3b5;
  --line: #2d3744; --c0: #6a9df0; --c1: #f09a60; --c2: #4fc495; --c3: #e06bbb; --c4: #a994e6; --c5: #e0bf4d;
  --c6: #6dc3d4; --c7: #a5b0bc } }
* { box-sizing: border-box }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 17px; margin: 0 0 14px }
.soft { color: var(--soft) } p { margin: 4px 0 }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-top: 20px }
.figures { display: flex; gap: 40px; flex-wrap: wrap; margin-top: 20px }
.figures b { display: block; font-size: 28px; line-height: 1.2 }
svg { width: 100%; height: auto; display: block } svg text { font: 13px system-ui, sans-serif; fill: var(--ink) }
svg .tick, svg .number { fill: var(--soft) } svg .tick { font-size: 12px } .grid { stroke: var(--line) }
.legend { display: flex; gap: 18px; flex-wrap: wrap; margin-top: 10px; color: var(--soft) }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: 14px }
th { text-align: left; color: var(--soft); font-weight: 600 }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.v { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; max-width: 360px }
td.t { white-space: nowrap }
"""


def page(report: Report) -> str:
    reasons = [reason for reason, _ in report.by_reason()]
    named = reasons if len(reasons) <= COLOURS else [*reasons[: COLOURS - 1], OTHERS]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Dead letters</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>Dead letters</h1><p class="soft">{text(", ".join(report.topics))} · {when(report.made_ms)} UTC</p>',
        _figures(report),
    ]
    if report.total:
        parts += [_times(report, named), _reasons(report, named), _origins(report), _counts(report), _samples(report)]
    parts.append("</main></body></html>\n")
    return "".join(parts)


def _figures(report: Report) -> str:
    figures = [("letters", f"{report.total:,}"), ("reasons", str(len(report.by_reason())))]
    figures.append(("origins", str(len(report.by_origin()))))
    if report.counts:
        figures.append(("last death", when(max(count.last_ms for count in report.counts))))
    return '<div class="figures">' + "".join(f"<div><b>{n}</b>{text(name)}</div>" for name, n in figures) + "</div>"


def _times(report: Report, named: list[str]) -> str:
    if not report.times:
        return ""
    layers: dict[int, list[int]] = defaultdict(lambda: [0] * len(named))
    places = {reason: at for at, reason in enumerate(named)}
    for begin_ms, reason, count in report.times:
        layers[begin_ms][places.get(reason, len(named) - 1)] += count
    first, last, width = min(layers), max(layers), report.width_ms
    columns = [(_label(at, width), layers[at]) for at in range(first, last + 1, width)]
    return (
        f'<section><h2>When they died <span class="soft">per {_span(width)}</span></h2>'
        f"{stacks(columns, named)}{legend(named)}</section>"
    )


def _reasons(report: Report, named: list[str]) -> str:
    rows = report.by_reason()
    if len(rows) > len(named):
        rows = [*rows[: len(named) - 1], (OTHERS, sum(count for _, count in rows[len(named) - 1 :]))]
    return f"<section><h2>Why</h2>{bars(rows, colours=range(len(rows)))}</section>"


def _origins(report: Report) -> str:
    rows = report.by_origin()
    if len(rows) > SHOWN_ORIGINS:
        rows = [*rows[:SHOWN_ORIGINS], (OTHERS, sum(count for _, count in rows[SHOWN_ORIGINS:]))]
    return f"<section><h2>Where they came from</h2>{bars(rows)}</section>"


def _counts(report: Report) -> str:
    head = (
        '<th>reason</th><th>origin</th><th>dead letters in</th><th class="n">letters</th><th class="n">bytes</th>'
        "<th>first</th><th>last</th>"
    )
    rows = "".join(
        f"<tr><td>{text(count.reason)}</td><td>{text(count.origin)}</td><td>{text(count.letters)}</td>"
        f'<td class="n">{count.count:,}</td><td class="n">{count.bytes:,}</td>'
        f'<td class="t">{when(count.first_ms)}</td><td class="t">{when(count.last_ms)}</td></tr>'
        for count in report.counts
    )
    more = f'<p class="soft">and {report.left_out:,} letters of further reasons and origins</p>'
    return (
        f'<section><h2>All of them</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
        f"{more if report.left_out else ''}</section>"
    )


def _samples(report: Report) -> str:
    if not report.samples:
        return ""
    head = (
        "<th>letter</th><th>reason</th><th>origin</th><th>died</th>"
        '<th class="n">attempts</th><th>key</th><th>value</th>'
    )
    rows = "".join(
        f"<tr><td>{text(sample.letters)}-{sample.partition}@{sample.offset}</td><td>{text(sample.reason)}</td>"
        f'<td>{text(sample.origin_view or sample.origin_topic)}</td><td class="t">{when(sample.died_ms)}</td>'
        f'<td class="n">{sample.attempts}</td><td class="v">{text(sample.key)}</td>'
        f'<td class="v">{text(sample.value)}</td></tr>'
        for sample in report.samples
    )
    return f'<section><h2>Samples</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div></section>'


def _label(time_ms: int, width_ms: int) -> str:
    """As much of the time as tells one column from the next."""
    told = when(time_ms)
    if width_ms >= 86_400_000:
        return told[:10]
    return told[5:16] if width_ms >= 60_000 else told[11:]


def _span(width_ms: int) -> str:
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if width_ms >= unit:
            count = width_ms // unit
            return name if count == 1 else f"{count} {name}s"
    return f"{width_ms} ms"
