"""The HTML report of a round: one self-contained file, plots as inline SVG, nothing fetched from anywhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from negotiation.roles import Role
from pipelines.round_state import RoundResult

Curves = Mapping[Role, Sequence[Mapping[str, float]]]
"""Per role, one mapping of metric to value for each training step."""

_COLOURS = {Role.AGENT: "#1f6f8b", Role.COUNTERPART: "#b5541c"}


def render_report(result: RoundResult, curves: Curves, params: Mapping[str, object]) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=PackageLoader("pipelines"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("round.html.j2").render(
        result=result,
        verdicts=[result.verdicts[role] for role in Role if role in result.verdicts],
        curves=Markup(_curves(curves)) if any(curves.values()) else None,  # our own SVG, no outside text in it
        opponents=Markup(_opponents(result)),
        params=params,
    )


def write_report(path: Path, result: RoundResult, curves: Curves, params: Mapping[str, object]) -> None:
    path.write_text(render_report(result, curves, params), encoding="utf-8")


def _curves(curves: Curves) -> str:
    names = sorted({name for steps in curves.values() for step in steps for name in step})
    columns = 3
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(11, 2.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, name in zip(axes, names, strict=False):
        for role, steps in curves.items():
            points = [(number, step[name]) for number, step in enumerate(steps) if name in step]
            if points:
                axis.plot(*zip(*points, strict=True), color=_COLOURS[role], label=str(role))
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
    for axis in list(figure.axes)[len(names) :]:
        axis.set_axis_off()
    figure.axes[0].legend(fontsize=7)
    return _svg(figure)


def _opponents(result: RoundResult) -> str:
    rows = [
        (role, f"{role} against {name}", interval)
        for role, verdict in result.verdicts.items()
        for name, interval in verdict.by_opponent.items()
    ]
    figure = Figure(figsize=(9, 0.9 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for height, (role, _, interval) in enumerate(rows):
        axis.plot((interval.low, interval.high), (height, height), color=_COLOURS[role], linewidth=2)
        axis.plot(interval.mean, height, "o", color=_COLOURS[role])
    axis.axvline(0, color="#888", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [label for _, label, _ in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("candidate minus champion", fontsize=8)
    axis.grid(axis="x", alpha=0.25)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    sink = io.StringIO()
    # A fixed salt and no date: the same round gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "sparring", "svg.fonttype": "none"}):
        figure.savefig(sink, format="svg", metadata={"Date": None})
    text = sink.getvalue()
    return text[text.index("<svg") :]
