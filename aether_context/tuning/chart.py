"""An HTML page with the results of studies: the front of best trials, the knobs, and the comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from aether_context.tuning.proposal import Recordings
from aether_context.tuning.study import Compared, Point, Study

_WIDTH, _HEIGHT, _EDGE = 520, 300, 46
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
html { color-scheme: light dark }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: right }
td:first-child, th:first-child { text-align: left } pre { overflow: auto }
svg { max-width: 100%; height: auto } .dot { fill: #888 } .front { fill: #2a78d6 } .chosen { fill: #c4442a }
.axis { stroke: currentColor; opacity: .4 } text { fill: currentColor; font-size: 12px }
.charts { display: flex; flex-wrap: wrap; gap: 1rem }
"""


def report(results: Sequence[tuple[Recordings, Study]], policy: str) -> str:
    """A single HTML page without scripts."""
    body = "".join(_study(recordings, study) for recordings, study in results)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Tuning</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><body>{body}<h2>The policy</h2><pre>{escape(policy)}</pre></body></html>\n"
    )


def _study(recordings: Recordings, study: Study) -> str:
    names = list(dict.fromkeys(name for point in study.points for name in point.values))
    charts = [_scatter(study, "cost, %", "retention, points", lambda point: point.cost, lambda point: point.retention)]
    for name in names:
        charts.append(_scatter(study, name, "cost, %", _value(name), lambda point: point.cost))
        charts.append(_scatter(study, name, "retention, points", _value(name), lambda point: point.retention))
    parts = [("fit", study.fit), ("check", study.check), ("held out", study.held_out)]
    rows = "".join(_row(name, part) for name, part in parts if part is not None)
    table = (
        "<table><tr><th>sessions</th><th>number</th><th>that differ</th><th>cost, %</th><th>retention, points</th>"
        f"<th>bill, %</th></tr>{rows}</table>"
        if rows
        else ""
    )
    return (
        f"<h1>{escape(study.profile)}: {escape(study.verdict)}</h1><p>{escape(study.reason)}. "
        f"{len(recordings.sessions)} sessions, {recordings.calls} calls.</p>{table}"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _value(name: str) -> Callable[[Point], float | None]:
    return lambda point: point.values.get(name)


def _row(name: str, part: Compared) -> str:
    cells = [
        name,
        f"{part.sessions}",
        f"{part.cost.sessions}",
        *(
            f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
            for difference in (part.cost, part.retention)
        ),
        f"{part.bill:+.1f}",
    ]
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _scatter(
    study: Study,
    across: str,
    up: str,
    x: Callable[[Point], float | None],
    y: Callable[[Point], float | None],
) -> str:
    """A chart with a dot for each trial; those of the front and the recommended one are highlighted."""
    dots = [
        (number, across_value, up_value)
        for number, point in enumerate(study.points)
        if (across_value := x(point)) is not None and (up_value := y(point)) is not None
    ]
    if not dots:
        return ""
    across_values, up_values = [across_value for _, across_value, _ in dots], [up_value for _, _, up_value in dots]

    def placed(value: float, values: Sequence[float], start: float, end: float) -> float:
        low, high = min(values), max(values)
        return start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)

    marks = []
    for number, across_value, up_value in dots:
        kind = "chosen" if number == study.chosen else "front" if number in study.front else "dot"
        cx = placed(across_value, across_values, _EDGE, _WIDTH - 12)
        cy = placed(up_value, up_values, _HEIGHT - _EDGE, 12)
        title = escape(
            f"{'base' if number == 0 else f'trial {number}'}: {across} {across_value:g}, {up} {up_value:.2f}"
        )
        radius = 4 if kind == "dot" else 6
        marks.append(f'<circle class="{kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="{radius}"><title>{title}</title></circle>')
    bottom = _HEIGHT - _EDGE + 8
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(up)} by {escape(across)}">'
        f'<path class="axis" fill="none" d="M{_EDGE - 8} 8V{bottom}H{_WIDTH - 8}"/>{"".join(marks)}'
        f'<text x="{_EDGE}" y="{_HEIGHT - 22}">{min(across_values):g}</text>'
        f'<text x="{_WIDTH - 12}" y="{_HEIGHT - 22}" text-anchor="end">{max(across_values):g}</text>'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'
        f'<text x="2" y="{_HEIGHT - _EDGE}">{min(up_values):.1f}</text><text x="2" y="18">{max(up_values):.1f}</text>'
        f'<text x="{_EDGE + 4}" y="18">{escape(up)}</text></svg>'
    )
