"""Trust shows live sweeps beside their forecasts, what they miss among it, and takes the reader's own."""

from __future__ import annotations

import json
from pathlib import Path

from app_pages import known, open_page, told

from draftcast.dashboards.session.uploads import VALIDATION, receive
from draftcast.scenarios.show.validation_sweep_summary import shipped_summaries


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
