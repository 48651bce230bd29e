"""Forecasts of a handful of points: units, statistics, errors, shared runs and the summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_row import BASE

from draftcast.scenarios.evidence import forecast as module
from draftcast.scenarios.evidence.forecast import Forecast, forecast_points
from draftcast.scenarios.evidence.point import EvidencePoint
from draftcast.scenarios.evidence.settings import Reading
from draftcast.scenarios.evidence.summary import errors, signs
from draftcast.scenarios.show.evidence_report import evidence_figure, page, reason_lines

ROW = {**BASE, "load": {"kind": "concurrency", "value": 2, "num_prompts": 4}, "input_tokens": 20, "output_tokens": 30}


def point(**changes: Any) -> EvidencePoint:
    return EvidencePoint.model_validate({**ROW, **changes})


def test_the_same_setting_is_simulated_once_and_read_in_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    once = module.simulate_together

    def counted(scenarios: Any, **keys: Any) -> Any:
        runs.append(scenarios)
        return once(scenarios, **keys)

    monkeypatch.setattr(module, "simulate_together", counted)
    units = ("tpot_ms", "itl_ms", "e2e_ms", "e2e_s", "output_tok_s", "total_tok_s", "req_s", "per_request_decode_tok_s")
    rows = [point(id=unit, metric=unit) for unit in units]
    rows.append(point(id="user", metric="output_tok_s", more={"metric": "tok/s/user (1/TPOT)"}))
    rows.append(point(id="run", metric="e2e_s", note="metric is the RUN duration in seconds"))
    found = {f.point.id: f for f in forecast_points(rows)}
    assert len(runs) == 2
    off = {name: f.off for name, f in found.items()}
    assert all(value is not None and value > 0 for value in off.values())
    assert off["e2e_ms"] == pytest.approx(1e3 * off["e2e_s"])
    assert off["total_tok_s"] == pytest.approx(off["output_tok_s"] * 50 / 30)
    assert off["output_tok_s"] == pytest.approx(30 * off["req_s"])
    assert off["user"] == pytest.approx(1e3 / off["tpot_ms"])
    assert off["run"] == pytest.approx(4 / off["req_s"])
    assert off["per_request_decode_tok_s"] == pytest.approx(1e3 / off["tpot_ms"] * 30 / 29, rel=0.02)
    latency, throughput = found["e2e_s"].speedup, found["output_tok_s"].speedup
    assert latency is not None
    assert throughput is not None
    assert latency > 1
    assert throughput > 1


def made(forecast_off: float | None, forecast_on: float | None, **changes: Any) -> Forecast:
    row = point(**changes)
    return Forecast(Reading(row), forecast_off, forecast_on, ())


def test_errors_are_of_time_and_those_of_a_range_end_at_it() -> None:
    latency = made(7.7, 5.4)
    assert latency.error("off") == pytest.approx(0.1)
    assert latency.error("on") == pytest.approx(-0.1)
    assert latency.error("speedup") == pytest.approx(7.7 / 5.4 / (7 / 6) - 1)
    throughput = made(14.0, None, metric="output_tok_s")
    assert throughput.error("off") == pytest.approx(-0.5)
    assert throughput.error("speedup") is None
    changes: dict[str, Any] = {"metric": "speedup", "off": None, "on": None, "ratio_range": [2.0, 2.5]}
    assert made(1.0, 1.8, **changes).error("speedup") == pytest.approx(1.8 / 2 - 1)
    assert made(1.0, 2.2, **changes).error("speedup") == 0.0
    assert made(1.0, 5.0, **changes).error("speedup") == pytest.approx(1.0)


def test_each_source_counts_once() -> None:
    many = [made(7.0 * 1.2, None, id=str(index), source="many") for index in range(9)]
    found = errors([*many, made(7.0 * 0.9, None, source="one")], "off")
    assert found is not None
    assert (found.points, found.sources) == (10, 2)
    assert found.mean == pytest.approx(0.05)
    assert found.median == pytest.approx(0.15)
    assert errors([], "off") is None


def test_signs_of_clear_gains_and_losses() -> None:
    gain, loss = made(2.0, 1.0), made(1.0, 2.0, on=8.0)
    wrong = replace(loss, off=2.0, on=1.0)
    near = made(1.0, 2.0, on=7.0)
    assert signs([gain, loss, wrong, near], below=True).right == 1
    assert signs([gain, loss, wrong, near], below=True).points == 2
    assert signs([gain, loss, wrong, near], below=False).share == 1.0


def test_the_page_and_the_picture_hold_every_point() -> None:
    found = list(forecast_points([point(), point(id="two", model=None), point(id="three", on=9.0)]))
    text = page(found)
    assert "2 of 3 points, from 1 sources" in text
    assert "| one (A) |" in text
    assert reason_lines(found) == ["model: not named: two"]
    figure = evidence_figure(found)
    assert sum(len(trace.x) for trace in figure.data if trace.mode == "markers") == 4 + 2
    assert figure.layout.xaxis.type == "log"
