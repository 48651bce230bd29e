"""A cutover that follows from a formula, for tests and the benchmark.

Requests are all alike, in a closed loop, over a whole-step profile of easy numbers: by Little's law the mean latency of
N clients is the time of a request's steps plus that of all N's rows.
"""

from __future__ import annotations

from pathlib import Path

from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario

PROMPT, OUTPUT, K, ALPHA = 8, 41, 3, 0.5
STEP_S, ROW_S, SEARCH = 10e-3, 0.2e-3, 0.01
PROFILE = f"""
schema_version: 1
kind: affine
name: easy
model: llama-3.1-8b
hardware: h100-sxm
tp: 1
dtype: bf16
date: 2026-11-21
source: numbers for a closed form
fitted_sequences: [1, 256]
target: {{fixed_s: {STEP_S}, row_s: {ROW_S}, kv_token_s: 0.0}}
draft: {{fixed_s: 0.0, draft_token_s: 0.0, kv_token_s: 0.0, methods: {{eagle: interpolated}}}}
ngram: {{fraction_of_target: {SEARCH}, methods: {{ngram: interpolated}}}}
overhead_s: 0.0
"""


def easy(folder: Path, *changes: str) -> Scenario:
    """Requests all alike, a step of 10 ms + 0.2 ms a row, drafts of 3 found in every round and kept with 0.5.

    Args:
        folder: gets the profile.
        changes: ``key=value``, as of ``--set``.
    """
    profile = folder / "easy.yaml"
    profile.write_text(PROFILE)
    return load_scenario(
        overrides=[
            f"engine.speculative_config={{method: ngram, num_speculative_tokens: {K}}}",
            f"acceptance={{model: ngram, match_probability: 1.0, alpha: {ALPHA}}}",
            f"profile={profile}",
            f"workload.lengths={{prompt_tokens: {PROMPT}, output_tokens: {OUTPUT}}}",
            *changes,
        ]
    )


def rounds(tokens: int) -> float:
    """Mean rounds of up to 1 + K tokens until so many are out; each draft token is kept with ALPHA while all before."""
    kept = [ALPHA**i * (1 - ALPHA) for i in range(K)] + [ALPHA**K]
    mean = [0.0]
    for left in range(1, tokens + 1):
        mean.append(1 + sum(p * mean[max(left - 1 - i, 0)] for i, p in enumerate(kept)))
    return mean[tokens]


def latency_s(clients: float, speculates: bool) -> float:
    """Mean end-to-end latency of a closed loop of so many clients in its steady state."""
    steps, rows = _steps_and_rows(speculates)
    return steps + rows * clients


def closed_form() -> float:
    """Clients at which latency is the same with and without speculation."""
    (on_steps, on_rows), (off_steps, off_rows) = _steps_and_rows(True), _steps_and_rows(False)
    return (off_steps - on_steps) / (on_rows - off_rows)


def _steps_and_rows(speculates: bool) -> tuple[float, float]:
    """Seconds of a request's steps without any rows, and of its rows."""
    if not speculates:
        return OUTPUT * STEP_S, (PROMPT + OUTPUT - 1) * ROW_S
    r = rounds(OUTPUT - 1)
    # The search costs a share of the step, but not of the prompt's: nothing is looked for before the first token.
    return (1 + r) * STEP_S * (1 + SEARCH), (PROMPT + r * (1 + K)) * ROW_S * (1 + SEARCH)
