"""Runs of LLMServingSim's benchmark as live runs: clocks, engine arguments, faults by file and line."""

import json
from pathlib import Path

import pytest

from draftcast.calibration.live.imported_runs import META, REQUESTS, import_recorded_run, is_recorded_run
from draftcast.errors import InputError
from draftcast.scenarios.live.validate.comparison import validate
from draftcast.scenarios.schema.load import load_scenario, with_values

# Wall clock 1000 s ahead of the engine's 50 s; the second request is on its way for 1 ms longer than the first.
LINES = (
    {"input_toks": 200, "output_toks": 5, "arrival_time": 1000.0, "queued_ts": 50.002, "first_token_ts": 50.102},
    {"input_toks": 100, "output_toks": 3, "arrival_time": 1000.5, "queued_ts": 50.503, "first_token_ts": 50.602},
)
META_DATA = {
    "vllm_version": "0.19.0",
    "engine_kwargs": {"model": "meta-llama/Llama-3.1-8B", "tensor_parallel_size": 1, "max_num_seqs": 4},
    "kv_cache": {"num_gpu_blocks": 777, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False},
}


def recorded(folder: Path, lines: tuple[dict[str, float], ...] = LINES) -> Path:
    folder.mkdir(exist_ok=True)
    texts = [json.dumps({"last_token_ts": line["first_token_ts"] + 0.1, **line}) for line in lines]
    (folder / REQUESTS).write_text("\n".join(texts) + "\n")
    (folder / META).write_text(json.dumps(META_DATA))
    return folder


def test_times_are_of_the_engine_clock_and_arrivals_as_recorded(tmp_path: Path) -> None:
    run = import_recorded_run(recorded(tmp_path / "run"), tmp_path / "out")
    requests = run.requests
    assert requests["sent_s"].tolist() == pytest.approx([0.0, 0.5])
    assert requests["first_token_s"].tolist() == pytest.approx([0.1, 0.6])
    assert requests["finish_s"].tolist() == pytest.approx([0.2, 0.7])
    assert requests["prompt_tokens"].tolist() == [200, 100]
    assert requests["output_tokens"].tolist() == [5, 3]
    assert run.complete
    assert not len(run.chunks)


def test_validate_takes_the_recorded_engine(tmp_path: Path) -> None:
    run = import_recorded_run(recorded(tmp_path / "run"), tmp_path / "out")
    scenario = with_values(load_scenario(), {"statistics.replications": 1, "engine.model": "Qwen/Qwen3-8B"})
    found = validate(run, scenario, attribute=False)
    engine = found.question.scenario.engine
    assert (engine.model, engine.max_num_seqs, engine.num_gpu_blocks) == ("meta-llama/Llama-3.1-8B", 4, 777)
    assert (engine.gpu_memory_utilization, engine.enable_prefix_caching) == (0.9, False)
    assert engine.speculative_config is None
    assert found.figures["mean_ttft_s"].measured == pytest.approx(0.1)
    assert found.figures["mean_tpot_s"].measured == pytest.approx((0.1 / 4 + 0.1 / 2) / 2)
    assert found.figures["request_throughput"].measured == pytest.approx(2 / 0.7)
    # Both requests count: nothing is cut off as warm-up.
    assert len(found.replays[0].requests) == 2


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    assert is_recorded_run(folder)
    assert not is_recorded_run(tmp_path)
    for change, message in (
        ({"queued_ts": "soon"}, ":2: queued_ts = 'soon'"),
        ({"output_toks": 0}, "whole numbers >= 1"),
        ({"first_token_ts": 49.0}, "must not fall"),
    ):
        recorded(folder, (LINES[0], {**LINES[1], **change, "last_token_ts": 60.0}))
        with pytest.raises(InputError, match=message):
            import_recorded_run(folder, tmp_path / "other")
    (folder / REQUESTS).write_text("\n")
    with pytest.raises(InputError, match="holds no request"):
        import_recorded_run(folder, tmp_path / "other")
