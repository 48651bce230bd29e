"""The guided start: files and choices become the question, and the answer comes with a command and a scenario file."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("streamlit")
from app_pages import control_of, known, open_page, told

from draftcast.calibration.acceptance.metrics import NUM_ACCEPTED, NUM_ACCEPTED_PER_POS, NUM_DRAFT_TOKENS, NUM_DRAFTS
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import ACCEPTANCE, MODEL, receive
from draftcast.scenarios.compare.serve_command import server_command

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
METRICS = f"""{NUM_DRAFTS} 100
{NUM_DRAFT_TOKENS} 300
{NUM_ACCEPTED} 150
{NUM_ACCEPTED_PER_POS}{{position="0"}} 80
{NUM_ACCEPTED_PER_POS}{{position="1"}} 50
{NUM_ACCEPTED_PER_POS}{{position="2"}} 20
""".encode()
# The output repeats what stands before it, so every lookup finds the right draft.
LOG = json.dumps({"prompt_token_ids": [*range(20)] * 2, "output_token_ids": [*range(20)] * 3}).encode()


def test_the_start_ends_in_the_verdict_the_command_and_what_if_goes_on() -> None:
    app = open_page({"page": "start"})
    scenario = known(app).question.scenario
    assert app.code[0].value == server_command(scenario, "vllm").text
    app.selectbox(key="control:view.start.engine").set_value("sglang").run()
    assert app.code[0].value == server_command(scenario, "sglang").text
    app.number_input(key="control:slo.tpot_ms").set_value(50.0).run()
    assert "SLO met" in told(app.success)[0]
    shown = [each.proto.body for each in app.get("html") if "class='dc-verdict'" in each.proto.body]
    known(app).go("what-if")
    app.run()
    assert shown == [each.proto.body for each in app.get("html") if "class='dc-verdict'" in each.proto.body]


def test_a_published_acceptance_comes_with_its_method() -> None:
    app = open_page({"page": "start"})
    choice = app.selectbox(key="control:reference")
    name = next(name for name in choice.options if "/dflash/" in name)
    choice.set_value(name).run()
    found = known(app).question.scenario
    assert (found.method, found.acceptance.reference) == ("dflash", name)  # type: ignore[union-attr]
    assert not app.error
    # A method whose acceptance is asked for takes one as well.
    control_of(app, app.selectbox, "method").set_value("eagle3").run()
    control_of(app, app.selectbox, "method").set_value("pard").run()
    assert not [each for each in app.get("html") if "class='dc-verdict'" in each.proto.body]
    name = next(name for name in choice.options if "/pard/" in name)
    control_of(app, app.selectbox, "reference").set_value(name).run()
    assert known(app).question.scenario.method == "pard"


def test_a_model_comes_by_its_config(alone: Session) -> None:
    receipt = receive(alone, MODEL, {"config.json": json.dumps(CONFIG).encode()})
    assert receipt.good, receipt.text
    assert re.match(r"config.json: 1\.\d+ B parameters, LlamaForCausalLM", receipt.text)
    assert alone.question.scenario.engine.model == f"{alone.path}/config.json"
    bad = receive(alone, MODEL, {"other.json": json.dumps(CONFIG | {"num_attention_heads": 0}).encode()})
    assert not bad.good
    assert alone.question.scenario.engine.model == f"{alone.path}/config.json"


def test_acceptance_comes_from_counters_or_from_a_token_log(alone: Session) -> None:
    assert receive(alone, ACCEPTANCE, {"metrics.txt": METRICS}).text.endswith(
        "eagle3, 2.50 tokens a round with a draft"
    )
    assert alone.question.scenario.acceptance.rates == (0.8, 0.5, 0.2)  # type: ignore[union-attr]
    refused = receive(alone, ACCEPTANCE, {"log.jsonl": LOG})
    assert "gives the acceptance of ngram and suffix" in refused.text
    alone.wanted_method = "ngram"
    receipt = receive(alone, ACCEPTANCE, {"log.jsonl": LOG})
    assert receipt.good, receipt.text
    found = alone.question.scenario
    assert (found.method, alone.wanted_method) == ("ngram", "")
    assert found.acceptance.match_probability > 0.9  # type: ignore[union-attr]
    alone.want_method("off")
    assert "choose the method" in receive(alone, ACCEPTANCE, {"metrics.txt": METRICS}).text
