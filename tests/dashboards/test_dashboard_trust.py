"""Trust shows live sweeps beside their forecasts, what they miss among it, and takes the reader's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from app_pages import known, open_page, told

from draftcast.dashboards.session.uploads import VALIDATION, receive
from draftcast.scenarios.evidence.summary import scorecard, shipped_forecasts
from draftcast.scenarios.show.evidence_report import score_rows
from draftcast.scenarios.show.validation_sweep_report import shipped_summaries


def test_the_validation_that_ships_is_shown_with_what_it_misses(sweep_report: Path) -> None:
    app = open_page({"page": "trust"})
    session = known(app)
    shown = "".join(each.proto.body for each in app.get("html"))
    for name, found in shipped_summaries().items():
        assert name in told(app.subheader)
        assert f"data-held='{found.held}' data-of='{found.of}'" in shown
        for bar in found.verdicts.values():
            assert f"{bar.held} of {bar.of}" in shown
            assert ", ".join(bar.missed) in shown
        for each in found.cutovers:
            assert each.shown[0] in shown
    own = json.loads(sweep_report.read_text())
    own["verdicts"] = {"cutover": {"held": 1, "of": 1, "missed": []}}
    receipt = receive(session, VALIDATION, {"my server.json": json.dumps(own).encode()})
    assert (receipt.good, receipt.text) == (True, "my server.json: Of 1 checks 1 hold and 0 miss their bar.")
    app.run()
    assert not app.exception
    assert "validation-my_server.json" in told(app.subheader)
    refused = receive(session, VALIDATION, {"bad.json": b'{"cells": []}'})
    assert not refused.good
    assert refused.text.startswith("bad.json: draftcast_version")
    assert session.validation == "validation-my_server.json"


@pytest.mark.parametrize(("device", "stratum"), [("h100-sxm", "dense, measured"), ("mi300x", "dense, not measured")])
def test_the_scorecard_marks_forecasts_like_the_scenarios(device: str, stratum: str) -> None:
    app = open_page({"page": "trust", "hardware": device})
    known(app)
    table = next(each.proto.body for each in app.get("html") if "Errors of speed-ups" in each.proto.body)
    shown = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr.*?</tr>", table)]
    scores = scorecard(shipped_forecasts(), "speedup")
    assert shown[1:] == score_rows(scores)
    marked = re.findall("<tr aria-current='true'><td>(.*?)</td>", table)
    engines = [score.engine for score in scores if score.stratum == stratum and score.engine in ("", "vllm")]
    assert len(marked) == len(engines) > 0
    assert all(kind.startswith(stratum) for kind in marked)
    assert any("measured 2025-04 to 2026-11" in text for text in told(app.caption))


def test_an_imported_profile_says_when_it_was_imported_not_measured() -> None:
    app = open_page({"page": "trust"})
    known(app)
    facts = next(each.proto.body for each in app.get("html") if "aria-label='Profile'" in each.proto.body)
    assert "<td>imported</td><td>2026-11-21</td>" in facts
    assert "<td>measured</td><td>the source gives no date" in facts
