"""Acceptance from token logs: rounds by hand, vLLM's definitions, intervals, and a section that a scenario takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from paths import shared_data
from typer.testing import CliRunner

from draftcast.calibration.acceptance import fit
from draftcast.calibration.acceptance import measure as am
from draftcast.calibration.acceptance.measure import TokenRequest, read_token_log
from draftcast.errors import InputError, TraceError
from draftcast.kernels.search.suffix import SuffixSettings
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.acceptance.chain import Chain

DATA = shared_data("data/acceptance")


def request(prompt: list[int], output: list[int]) -> TokenRequest:
    return TokenRequest(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


# Bigrams. After output 1 2 (positions 0, 1): round at 1 sees "9 1": no match, emits 2. At 2 sees "1 2", drafts 3 4 5,
# the output has 3 4 6: two accepted, emits three. At 5 sees "4 6": none, emits 1. At 6 sees "6 1": none, emits 2, end.
BY_HAND = request([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 6, 1, 2])


def test_rounds_by_hand() -> None:
    measured = am.measure_ngram([BY_HAND], 3, 2, 2, bootstrap=0)
    report = measured.report()
    counts = [report[f"num_{name}"] for name in ("rounds", "drafts", "draft_tokens", "accepted_tokens")]
    assert counts == [4, 1, 3, 2]
    assert report["rounds_cut_by_end"] == 0
    assert [rate.value for rate in measured.rates] == [1.0, 1.0, 0.0]
    figures = {name: estimate.value for name, estimate in measured.figures.items()}
    assert figures["mean_acceptance_length"] == 3.0
    assert figures["draft_share"] == 0.25
    assert figures["tokens_per_round"] == 6 / 4
    # Positions 1..6; the contexts end in 91, 12, 23, 34, 46, 61; those of 2, 3 and 4 have stood before.
    assert figures["match_share"] == 3 / 6
    first, second = np.array([0, 1, 1, 1, 0]), np.array([1, 1, 1, 0, 0])
    assert figures["match_autocorrelation"] == pytest.approx(np.corrcoef(first, second)[0, 1])
    assert all(math.isnan(estimate.low) for estimate in measured.figures.values())


def test_a_draft_beyond_the_record_is_rejected_and_counted_as_cut() -> None:
    measured = am.measure_ngram([request([1, 2, 3, 4, 5, 1], [2, 3])], 4, 2, 2, bootstrap=0)
    assert measured.report()["rounds_cut_by_end"] == 1
    assert [rate.value for rate in measured.rates] == [1.0, 0.0, 0.0, 0.0]
    assert measured.figures["tokens_per_round"].value == 1.0


def test_the_first_output_token_is_the_prefills() -> None:
    """One output token: no decoding round; a log of such requests has nothing to measure."""
    with pytest.raises(InputError, match="no decoding round"):
        am.measure_ngram([request([1, 1, 1], [1])], 2, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "--num-speculative-tokens: 0: must be 1 to 64"),
        ({"k": 65}, "--num-speculative-tokens: 65"),
        ({"min_n": 0}, "--prompt-lookup-min: 0"),
        ({"min_n": 6}, "--prompt-lookup-min: 6: must not exceed --prompt-lookup-max = 5"),
        ({"bootstrap": -1}, "--bootstrap"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_settings_out_of_range_are_named(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message.split(":", maxsplit=1)[0]) as raised:
        am.measure_ngram([BY_HAND], **{"k": 3, "min_n": 2, "max_n": 5, **arguments})
    assert str(raised.value).startswith(message)


def random_log(requests: int, seed: int = 1) -> list[TokenRequest]:
    """Outputs that copy stretches of their prompt, some more than others."""
    generator = np.random.default_rng(seed)
    log = []
    for _ in range(requests):
        prompt = generator.integers(0, 50, 60)
        copy = generator.random() * 0.9
        output = [int(prompt[0])]
        place = 0
        for _ in range(80):
            place = (place + 1) % 60 if generator.random() < copy else int(generator.integers(0, 60))
            output.append(int(prompt[place]))
        log.append(request(prompt.tolist(), output))
    return log


def test_every_setting_changes_the_answer() -> None:
    log = random_log(20)

    def ngram(**changed: Any) -> dict[str, Any]:
        return am.measure_ngram(log, **{"k": 4, "min_n": 2, "max_n": 3, "bootstrap": 50, **changed}).report()

    same = ngram()
    assert ngram() == same
    for changed in ({"k": 3}, {"min_n": 1}, {"max_n": 2}, {"max_model_len": 100}, {"seed": 1}, {"bootstrap": 60}):
        assert ngram(**changed) != same, changed

    def suffix(k: int | None = 6, **changed: Any) -> dict[str, Any]:
        options, rest = SuffixSettings(max_spec_factor=1.5), {"bootstrap": 0}
        for name, value in changed.items():
            options, rest = (options._replace(**{name: value}), rest) if name in options._fields else (options, changed)
        return am.measure_suffix(log, k, options, **{"bootstrap": 0, **rest}).report()["per_request"]

    same_suffix = suffix()
    for changed in (
        {"k": 2},
        {"max_tree_depth": 3},
        {"max_spec_factor": 0.5},
        {"min_token_prob": 0.6},
        {"max_cached_requests": 0},
        {"max_model_len": 100},
    ):
        assert suffix(**changed) != same_suffix, changed


def test_lookups_work_in_the_direction_of_their_source() -> None:
    """Prompt lookup (vLLM's ngram): a longer shortest match is rarer and surer, a longer longest one surer alone."""
    log = random_log(20)

    def measured(least: int, most: int) -> tuple[float, float]:
        figures = am.measure_ngram(log, 4, least, most, bootstrap=0).figures
        return figures["draft_share"].value, figures["draft_acceptance_rate"].value

    (any_share, any_rate), (long_share, long_rate) = measured(1, 1), measured(3, 3)
    assert long_share < any_share
    assert long_rate > any_rate
    share, rate = measured(1, 3)
    assert share == pytest.approx(any_share, abs=0.02)
    assert rate > any_rate


def test_settings_of_whole_numbers_are_reported_as_such() -> None:
    settings = am.measure_suffix([BY_HAND], bootstrap=0).report()["settings"]
    assert json.dumps(settings["suffix_decoding_max_tree_depth"]) == "24"
    assert json.dumps(settings["suffix_decoding_max_spec_factor"]) == "1.0"


def test_suffix_settings_work_in_the_direction_of_their_source() -> None:
    """SuffixDecoding (arXiv 2411.04975): longer by the factor, surer by the probability, more by the cache."""
    log = random_log(20)

    def measured(**changed: Any) -> tuple[float, float, float]:
        figures = am.measure_suffix(log, 6, SuffixSettings(**changed), bootstrap=0).figures
        return tuple(figures[name].value for name in ("mean_draft_tokens", "draft_acceptance_rate", "draft_share"))  # type: ignore[return-value]

    short, usual, long = (measured(max_spec_factor=factor) for factor in (0.5, 1.0, 3.0))
    assert short[0] < usual[0] < long[0]
    any_token, sure = measured(min_token_prob=0.0), measured(min_token_prob=0.6)
    assert sure[0] < any_token[0]
    assert sure[1] > any_token[1]
    assert sure[2] < any_token[2]
    assert measured(min_token_prob=0.6, max_cached_requests=0)[2] < sure[2]


def test_figures_are_the_rounds_own() -> None:
    """Totals against a plain loop that drafts, compares and moves on."""
    log, k = random_log(10), 4
    measured = am.measure_ngram(log, k, 2, 3, bootstrap=0)
    drafts = accepted = rounds = 0
    per_position = [0] * k
    for prompt, output in log:
        text, position = prompt.tolist(), 1
        while position < len(output):
            seen = text + output[:position].tolist()
            draft: list[int] = []
            for n in (3, 2):
                places = [i for i in range(len(seen) - n) if seen[i : i + n] == seen[-n:]]
                if places:
                    draft = seen[places[0] + n : places[0] + n + k]
                    break
            kept = 0
            while kept < len(draft) and position + kept < len(output) and draft[kept] == output[position + kept]:
                per_position[kept] += 1
                kept += 1
            rounds, drafts, accepted = rounds + 1, drafts + bool(draft), accepted + kept
            position += kept + 1
    assert measured.sums[["num_rounds", "num_drafts", "num_accepted_tokens"]].sum().tolist() == [
        rounds,
        drafts,
        accepted,
    ]
    assert [rate.value for rate in measured.rates] == [count / drafts for count in per_position]
    length = measured.figures["mean_acceptance_length"].value
    assert length == pytest.approx(1 + sum(rate.value for rate in measured.rates))


def test_intervals_cover_the_truth_about_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is the figure of a large log; 80 % intervals of small ones miss it in one case of five."""
    monkeypatch.setattr(am, "CONFIDENCE", 0.8)
    truth = am.measure_ngram(random_log(3000, seed=7), 4, 2, 3, bootstrap=0).figures["mean_acceptance_length"].value
    sums = am.measure_ngram(random_log(3000, seed=8), 4, 2, 3, bootstrap=0).sums
    hits = 0
    for start in range(0, 3000, 30):
        part = am.summarise("ngram", 4, {}, sums[start : start + 30], bootstrap=200)
        estimate = part.figures["mean_acceptance_length"]
        assert estimate.low <= estimate.value <= estimate.high
        hits += estimate.low <= truth <= estimate.high
    assert 65 <= hits <= 92


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("k", [1, 4])
def test_fitted_model_reproduces_the_measured_rounds(method: str, k: int) -> None:
    log = random_log(40)
    measured = am.measure_ngram(log, k, 2, 3) if method == "ngram" else am.measure_suffix(log, k)
    model = Chain.model_validate(fit.ngram_model(measured))
    assert model.draft_share(k) == pytest.approx(measured.figures["draft_share"].value, abs=1e-4)
    assert model.unconditional(k) == pytest.approx([rate.value for rate in measured.rates], abs=1e-4)
    assert model.mean_acceptance_length(k) == pytest.approx(measured.figures["mean_acceptance_length"].value, abs=1e-3)


def test_suffix_decoding_takes_rounds_over_where_its_score_reaches_the_heads_drafts() -> None:
    # "1" stands in the earlier output and at this one's end, so half of its places go on with 2 3 4 5 6: score 5 / 2.
    log = [request([9], [1, 2, 3, 4, 5, 6]), request([8], [1, 2, 3, 4, 5, 7])]
    settings = SuffixSettings(max_spec_factor=10.0)
    columns = [*am.COUNTS, "num_emitted_tokens"]
    first, second = am.measure_arctic(log, [0.0, 0.0], settings, bootstrap=0).sums[columns].to_numpy()
    assert first.tolist() == [5, 0, 0, 0, 0, 5]
    # Four of the five hold; then 7, which stands nowhere.
    assert second.tolist() == [1, 1, 5, 4, 0, 5]
    third = am.measure_arctic(log, [0.0] * 3, settings, bootstrap=0).sums
    assert third["num_drafts"].iloc[1] == 0  # 2.5 is less than three drafts


def test_the_heads_rounds_are_drawn_at_its_rates_and_never_beyond_the_record() -> None:
    log = [request([0], list(range(1 + 1000 * i, 1001 + 1000 * i))) for i in range(6)]  # nothing stands twice
    rates = [0.8, 0.5, 0.1]
    measured = am.measure_arctic(log, rates, bootstrap=0)
    assert measured.sums["num_drafts"].sum() == measured.sums["num_accepted_tokens"].sum() == 0
    assert measured.figures["tokens_per_round"].value == pytest.approx(1 + sum(rates), rel=0.03)
    assert measured.sums["num_emitted_tokens"].sum() == 6 * 999
    assert am.measure_arctic(log, [1.0, 1.0], bootstrap=0).sums["num_rounds"].sum() == 6 * 333


@pytest.mark.parametrize("rates", [[0.6], [0.7, 0.5, 0.35]])
def test_the_arctic_section_has_the_measured_rounds(rates: list[float]) -> None:
    """Drafts of the search are longer where more are accepted, which one rate a draft cannot say."""
    log = random_log(200)
    measured = am.measure_arctic(log, rates, bootstrap=0)
    k, head = measured.num_speculative_tokens, len(rates)
    section = fit.arctic_model(measured, rates)
    model = Chain(**section).beside_head(head)
    assert 0.04 < measured.figures["draft_share"].value < 0.5
    assert model.tokens_per_round(k) == pytest.approx(measured.figures["tokens_per_round"].value, rel=0.03)
    alpha = section["alpha_bad"]
    assert sum(alpha**drafts for drafts in range(1, head + 1)) == pytest.approx(sum(rates), abs=1e-5)
    more = fit.arctic_model(measured, [1.0] * head)
    assert more["alpha_bad"] == 1.0
    assert more["alpha_good"] == section["alpha_good"]


def test_nothing_matches_and_everything_matches() -> None:
    never = am.measure_ngram([request([1, 2, 3], [4, 5, 6, 7])] * 2, 3, 1, 2)
    assert never.report()["figures"]["mean_acceptance_length"]["value"] is None
    assert fit.ngram_model(never) == {
        "model": "ngram",
        "match_probability": 0.0,
        "rates": [0.0, 0.0, 0.0],
        "persistence": 0.0,
    }
    always = fit.ngram_model(am.measure_ngram([request([1, 1, 1, 1], [1] * 14)], 2, 1, 1))
    assert always["match_probability"] == 1.0
    json.dumps(never.report(), allow_nan=False)


def write_log(path: Path, requests: list[TokenRequest], output_key: str = "generated_token_ids") -> Path:
    lines = [json.dumps({"prompt_token_ids": p.tolist(), output_key: o.tolist(), "id": 1}) for p, o in requests]
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.mark.parametrize("key", ["generated_token_ids", "output_token_ids"])
def test_both_forms_of_log_are_read(tmp_path: Path, key: str) -> None:
    (found,) = read_token_log(write_log(tmp_path / "log.jsonl", [BY_HAND], key))
    assert found.prompt.tolist() == BY_HAND.prompt.tolist()
    assert found.output.tolist() == BY_HAND.output.tolist()


GOOD = '{"prompt_token_ids": [1], "output_token_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["holds no request"]),
        (GOOD + "{", [":2:", "not valid JSON"]),
        (GOOD + "[1]", [":2:", "must be a JSON object"]),
        ('{"prompt_token_ids": [1]}', [":1:", "exactly one of generated_token_ids or output_token_ids"]),
        ('{"output_token_ids": [1]}', [":1:", "prompt_token_ids", "missing"]),
        ('{"prompt_token_ids": [1.5], "output_token_ids": []}', [":1:", "prompt_token_ids", "whole numbers"]),
        ('{"prompt_token_ids": [true], "output_token_ids": []}', [":1:", "whole numbers"]),
        ('{"prompt_token_ids": [1], "output_token_ids": "12"}', [":1:", "output_token_ids"]),
        ('{"prompt_token_ids": [1], "output_token_ids": [-1]}', [":1:", "output_token_ids = -1", "0 to 2147483647"]),
    ],
)
def test_bad_logs_are_refused_by_file_line_and_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        read_token_log(path)
    for part in ["log.jsonl", *parts]:
        assert part in str(raised.value)


def test_log_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_token_log(tmp_path / "none.jsonl")
    (tmp_path / "raw").write_bytes(b"\xff\xfe{")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_token_log(tmp_path / "raw")


def measure(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["acceptance", "measure", *arguments], catch_exceptions=True)


NGRAM_K4 = "engine.speculative_config={method: ngram, num_speculative_tokens: 4}"
NGRAM = ["--method", "ngram", "--num-speculative-tokens", "4", "--prompt-lookup-max", "3", "--prompt-lookup-min", "2"]

ARCTIC = ["--method", "arctic", "--head-rates", "0.7,0.5,0.35"]


def test_the_section_of_arctic_is_taken_by_its_scenario(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", random_log(30))
    done = measure(*ARCTIC, "--suffix-max-tree-depth", "20", "--tokens", str(log), "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["num_speculative_tokens"] == 20
    drafts = "{method: arctic, num_speculative_tokens: 3, enable_suffix_decoding: true, suffix_cache_max_depth: 20}"
    section = json.dumps(report["acceptance"])
    overrides = ["engine.version=vllm 0.11", f"engine.speculative_config={drafts}", f"acceptance={section}"]
    loaded = load_scenario(overrides=overrides)
    assert loaded.num_speculative_tokens == 20
    assert loaded.acceptance_of() == Chain(**report["acceptance"]).beside_head(3)
    assert "those that suffix decoding takes over" in measure(*ARCTIC, "--tokens", str(log)).stdout


@pytest.mark.parametrize(
    ("options", "method", "suffix"),
    [(NGRAM, "ngram", "yaml"), (NGRAM, "ngram", "json"), (["--method", "suffix"], "suffix", "yaml")],
)
def test_written_section_is_taken_by_a_scenario(tmp_path: Path, options: list[str], method: str, suffix: str) -> None:
    log = write_log(tmp_path / "log.jsonl", random_log(30))
    out = tmp_path / f"acceptance.{suffix}"
    done = measure(*options, "--tokens", str(log), "--json", "--out", str(out))
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    section = yaml.safe_load(out.read_text())
    assert section == report["acceptance"]
    k = report["num_speculative_tokens"]
    scenario = yaml.safe_load((Path(cli.__file__).parents[1] / "files/ngram-code-editing.yaml").read_text())
    scenario["engine"]["speculative_config"] = {"method": method, "num_speculative_tokens": k}
    scenario["acceptance"] = section
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario))
    loaded = load_scenario(str(path)).acceptance
    assert loaded is not None
    assert loaded.model_dump(exclude_none=True)["rates"] == tuple(section["rates"])


def test_the_written_file_says_how_sure_its_numbers_are(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", random_log(30))
    done = measure(*NGRAM, "--tokens", str(log), "--json", "--out", str(tmp_path / "a.yaml"))
    report = json.loads(done.stdout)
    lines = [line for line in (tmp_path / "a.yaml").read_text().splitlines() if line.startswith("# ")]
    assert max(map(len, lines)) <= 112
    notes = " ".join(line[2:] for line in lines)
    rates = report["per_position_acceptance_rates"]
    for position, rate in enumerate(rates):
        shown = f"{rate['value']:.4f} [{rate['low']:.4f}, {rate['high']:.4f}]"
        assert f"accepted up to position {position} {shown}" in notes
    lag = report["figures"]["match_autocorrelation"]
    shown = f"{lag['value']:.4f} [{lag['low']:.4f}, {lag['high']:.4f}]"
    assert f"autocorrelation of matches, by output position {shown}" in notes
    spread = report["per_request"]["mean_acceptance_length"]
    assert f"std {spread['std']:.3f}, p10 {spread['p10']:.3f}" in notes


def test_positions_that_no_draft_reached_are_one_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", random_log(10))
    few = measure(*NGRAM, "--tokens", str(log)).stdout
    many = measure(*NGRAM, "--num-speculative-tokens", "60", "--tokens", str(log)).stdout
    assert few.count("accepted up to position") == 4
    assert 4 < many.count("accepted up to position") < 60
    assert many.count("0.0000   [0.0000, 0.0000]") == 1


def test_per_position_section(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", random_log(10))
    done = measure(*NGRAM, "--tokens", str(log), "--model", "per_position", "--out", str(tmp_path / "a.yaml"))
    assert done.exit_code == 0, done.output
    assert "mean acceptance length" in done.stdout
    section = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert section["model"] == "per_position"
    assert section["rates"] == sorted(section["rates"], reverse=True)


def test_bad_input_is_one_line_and_exit_2(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = str(write_log(tmp_path / "log.jsonl", [BY_HAND]))
    (tmp_path / "taken.yaml").write_text("")
    cases = [
        ([*NGRAM, "--tokens", "absent.jsonl"], "absent.jsonl: no such file"),
        (["--method", "ngram", "--tokens", log], "--num-speculative-tokens: required with --method ngram"),
        ([*NGRAM, "--tokens", log, "--suffix-max-tree-depth", "3"], "only with --method suffix or arctic"),
        ([*NGRAM, "--tokens", log, "--head-rates", "0.5"], "only with --method arctic"),
        (["--method", "arctic", "--tokens", log], "--head-rates: required with --method arctic"),
        (["--method", "arctic", "--tokens", log, "--head-rates", "0.5,0.6"], "--head-rates"),
        (["--method", "arctic", "--tokens", log, "--head-rates", "nan"], "none above the one before"),
        (["--method", "arctic", "--tokens", log, "--head-rates", "half"], "must be rates by position"),
        ([*ARCTIC, "--tokens", log, "--num-speculative-tokens", "3"], "only with --method ngram or suffix"),
        ([*ARCTIC, "--tokens", log, "--model", "per_position"], "only with --method ngram or suffix"),
        (["--method", "suffix", "--tokens", log, "--prompt-lookup-max", "3"], "only with --method ngram"),
        (["--method", "suffix", "--tokens", log, "--suffix-min-token-prob", "2"], "--suffix-min-token-prob: 2.0"),
        ([*NGRAM, "--tokens", log, "--out", "taken.yaml"], "taken.yaml: already exists"),
        ([*NGRAM, "--tokens", log, "--out", "none/a.yaml"], "its folder does not exist"),
    ]
    monkeypatch.chdir(tmp_path)
    for arguments, message in cases:
        assert message in refused("acceptance", "measure", *arguments)


def test_what_changes_along_the_output_is_written(tmp_path: Path) -> None:
    """Outputs that begin at random and end in a loop: low odds before position 512, high ones beyond 1024."""
    drawn = np.random.default_rng(0).integers(0, 1000, size=(6, 700))
    loops = [np.concatenate((row, np.tile(np.arange(1, 8), 200))).astype(np.int32) for row in drawn]
    log = write_log(tmp_path / "log.jsonl", [TokenRequest(np.array([9], np.int32), row) for row in loops])
    done = measure(*NGRAM, "--model", "along_output", "--tokens", str(log), "--json")
    assert done.exit_code == 0, done.output
    section = json.loads(done.stdout)["acceptance"]
    steps = dict(section["factors"]["output_position"])
    assert steps[0] < 0.1
    assert steps[1024] > 1.0
    assert load_scenario("default", overrides=[NGRAM_K4, f"acceptance={json.dumps(section)}"]).acceptance is not None


@pytest.mark.parametrize(("name", "most"), [("sharegpt", 1), ("instructcoder", 0)])
def test_recorded_ngram_acceptance(name: str, most: int) -> None:
    """Lookup of 3 to 7 and 20 drafts give the record's numbers wherever the record does not look past its own end."""
    from draftcast.kernels.search.ngram import match_positions

    path = DATA / f"llama31_8b_{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not here: no recorded acceptance to compare with")
    differ = positions = 0
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        output = entry["generated_token_ids"]
        _, accepted = match_positions(entry["prompt_token_ids"], output, 20, 3, 7)
        recorded = np.array(entry["acc_ngram"]["acc_len"])
        known = recorded <= len(output) - np.arange(len(output))
        differ += int((accepted + 1 != recorded)[known].sum())
        positions += int(known.sum())
    assert positions > 100_000
    assert differ <= most
