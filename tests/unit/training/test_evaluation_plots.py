"""The plots of an examination: written, readable, the same every time, and with nothing left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from negotiation.roles import Role
from training.evaluation import METRICS, Estimate
from training.evaluation_plots import agreement_figure, success_figure, write_plots
from training.evaluation_report import Figures, GroupFigures, PolicyFigures, SuiteReport


def figures(share: float, **known: float | None) -> Figures:
    values: dict[str, float | None] = {**dict.fromkeys(METRICS, share), **known}
    return {name: None if v is None else Estimate(v, v - 0.1, v + 0.1) for name, v in values.items()}


def policy(name: str, share: float, groups: dict[str, list[str]], **known: Any) -> PolicyFigures:
    tables = {
        group: GroupFigures(10 * len(opponents), figures(share), {}, {o: figures(share, **known) for o in opponents})
        for group, opponents in groups.items()
    }
    return PolicyFigures(name, Role.AGENT, figures(share), tables)


@pytest.fixture
def report() -> SuiteReport:
    groups = {"held_out": ["mirror", "an opponent of a rather long name"], "adversary": ["injector"]}
    return SuiteReport(
        schema_version=1,
        scenario="telesales",
        role=Role.AGENT,
        adapter="agent@7",
        counterpart_adapter=None,
        training_partners=("conceder",),
        seeds=tuple(range(10)),
        confidence=0.9,
        averaged_over=("held_out",),
        absent_splits=(),
        policies={
            "judged": policy("agent@7", 0.8, groups),
            "warm_start": policy("base", 0.5, groups),
            "accept_everything": policy("accept-everything", 0.2, groups, success=None),
        },
        chairs={},
        mismatches={"judged": None, "warm_start": None, "accept_everything": None},
        mismatch_by_partner={},
        gains={},
    )


def test_both_plots_are_written_as_png_and_svg(report: SuiteReport, tmp_path: Path) -> None:
    written = write_plots(report, tmp_path)
    assert sorted(path.name for path in written) == ["agreement.png", "agreement.svg", "success.png", "success.svg"]
    for path in written:
        if path.suffix == ".png":
            pixels = imread(path)
            assert min(pixels.shape[:2]) > 300
            assert pixels[..., :3].std() > 0.05, f"{path.name} is empty"
        else:
            text = path.read_text(encoding="utf-8")
            assert "agent@7" in text
            assert "warm start" in text


def test_the_same_report_gives_the_same_bytes(report: SuiteReport, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    contents = []
    for folder in folders:
        folder.mkdir()
        contents.append([path.read_bytes() for path in write_plots(report, folder)])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("draw", [success_figure, agreement_figure])
def test_nothing_is_cut_off(report: SuiteReport, draw: Any) -> None:
    figure: Figure = draw(report)
    figure.draw_without_rendering()  # settles the layout
    page, drawn = figure.bbox, figure.get_tightbbox()
    assert drawn.x0 >= -0.02
    assert drawn.y0 >= -0.02
    assert drawn.x1 <= page.width / figure.dpi + 0.02
    assert drawn.y1 <= page.height / figure.dpi + 0.02


def test_axes_name_what_they_measure_and_its_unit(report: SuiteReport) -> None:
    success, agreement = success_figure(report).axes[0], agreement_figure(report).axes[0]
    assert success.get_xlabel() == "Success@1, % of 10 scenarios (90% interval)"
    assert [label.get_text() for label in success.get_yticklabels()] == [
        "mirror",
        "an opponent of a rather long name",
        "injector",
    ]
    assert agreement.get_xlabel().startswith("agreement, % of conversations")
    assert "between -1 and 1" in agreement.get_ylabel()
