"""Trace readers: every format on a tiny file, every corruption with its place, and the real files where present."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paths import shared_data
from samples import (
    ACCEPTANCE,
    AIPERF,
    AZURE_2023,
    AZURE_2024,
    BURSTGPT,
    GUIDELLM,
    GUIDELLM_REPORT,
    MOONCAKE,
    SAMPLES,
    SHAREGPT,
    VLLM_BENCH,
)

from draftcast.errors import TraceError
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import TRACE_READERS, TraceSpec, load_trace, read_trace

DATA = shared_data("data")

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def columns(table: RequestTable) -> list[tuple[float, int, int]]:
    table.check_integrity()
    rows = zip(table.arrival_s, table.prompt_tokens, table.output_tokens, strict=True)
    return [(round(float(at), 9), int(prompt), int(output)) for at, prompt, output in rows]


def lines(table: RequestTable) -> list[int]:
    assert table.source_lines is not None
    return table.source_lines.tolist()


def test_every_format_is_recognised_and_can_be_named(write: Write) -> None:
    assert set(SAMPLES) == set(TRACE_READERS)
    for name, content in SAMPLES.items():
        path = write(content)
        assert columns(read_trace(path)) == columns(read_trace(path, name))


def test_azure_2023(write: Write) -> None:
    table = read_trace(write(AZURE_2023))
    assert columns(table) == [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]
    assert lines(table) == [2, 3, 4]
    assert table.source_file.endswith("trace")
    assert table.notes == ()


def test_azure_2024(write: Write) -> None:
    expected = [(0.0, 2162, 5), (0.99007, 2399, 6), (1.49007, 76, 15)]
    assert columns(read_trace(write(AZURE_2024))) == expected
    shifted = AZURE_2024.replace("00:00:01+00:00", "02:00:01+02:00")  # another zone, the same moment
    assert columns(read_trace(write(shifted))) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("GeneratedTokens", "GeneratedTokens,Extra").replace("4\n", "4,x\n")
        .replace("109\n", "109,y\n").replace("55\n", "55,z\n"),
        lambda text: text.replace("374,", " 374 ,"),
        lambda text: text.replace("374,", "374.0,"),
        lambda text: text.replace("374,", '"374",'),
        lambda text: text.replace("TIMESTAMP,ContextTokens", "TIMESTAMP , ContextTokens"),
    ],
)  # fmt: skip
def test_csv_variants_read_the_same(write: Write, change: Callable[[str], str]) -> None:
    table = read_trace(write(change(AZURE_2023)))
    assert columns(table) == columns(read_trace(write(AZURE_2023)))
    assert lines(table) == [2, 3, 4]


def test_blank_lines_do_not_shift_line_numbers(write: Write) -> None:
    content = AZURE_2023.replace("2023-11-16 18:15:51", "\n\n2023-11-16 18:15:51")
    assert lines(read_trace(write(content))) == [2, 3, 6]
    with pytest.raises(TraceError, match=":6: GeneratedTokens = '-5'"):
        read_trace(write(content.replace(",55", ",-5")))


def test_rows_without_tokens_are_dropped_and_counted(write: Write) -> None:
    table = read_trace(write(BURSTGPT))
    assert columns(table) == [(0.0, 472, 18), (40.0, 1087, 230), (115.0, 1360, 276)]
    assert lines(table) == [2, 3, 5]
    assert len(table.notes) == 1
    assert "dropped 1 of 4 requests with no tokens (1 without output, 0 without prompt)" in table.notes[0]
    all_failed = "\n".join(BURSTGPT.splitlines()[i] for i in (0, 3))
    with pytest.raises(TraceError, match="no request with a prompt and an output"):
        read_trace(write(all_failed))


def test_times_out_of_order_are_sorted_and_noted(write: Write) -> None:
    content = "\n".join(AZURE_2023.splitlines()[i] for i in (0, 3, 1, 2))
    table = read_trace(write(content))
    assert columns(table) == columns(read_trace(write(AZURE_2023)))
    rows = content.splitlines()
    assert len(rows) == 4
    table = read_trace(write(content))
    assert lines(table) == [3, 4, 2]
    assert "out of order" in table.notes[0]


def test_mooncake(write: Write) -> None:
    table = read_trace(write(MOONCAKE))
    assert columns(table) == [(0.0, 1100, 500), (1.5, 700, 490), (3.0, 512, 9)]
    assert table.hash_ids is not None
    assert table.hash_offsets is not None
    assert table.hash_ids.tolist() == [0, 1, 2, 0, 3, 0]
    assert table.hash_offsets.tolist() == [0, 3, 5, 6]
    assert table.hash_block_tokens == 512
    plain = read_trace(write('{"timestamp": 7, "input_length": 3, "output_length": 2}\n'))
    assert columns(plain) == [(0.0, 3, 2)]
    assert plain.hash_ids is None


def test_sharegpt(write: Write) -> None:
    table = read_trace(write(SHAREGPT))
    assert columns(table) == [(0.0, 12, 30), (0.0, 10, 20), (0.0, 35, 7), (0.0, 3, 4)]
    assert lines(table) == [2, 3, 3, 6]
    assert not table.has_arrivals
    assert table.notes[-1].endswith("turns of a conversation are requests of their own and share no cached prefix")
    turns = json.dumps([{"timestamp": 5, "messages": [{"role": "assistant", "tokens": 7}] * 3}])
    table = read_trace(write(turns))
    assert columns(table) == [(0.0, 7, 7), (0.0, 14, 7)]
    assert "turns of a conversation arrive together" in table.notes[-1]
    timed = '{"prompt_len": 4, "output_len": 2, "timestamp": 9.5}\n{"prompt_len": 1, "output_len": 3, "timestamp": 11}'
    table = read_trace(write(timed), "sharegpt")
    assert columns(table) == [(0.0, 4, 2), (1.5, 1, 3)]
    assert lines(table) == [1, 2]
    assert table.notes == ()


def test_vllm_bench(write: Write) -> None:
    table = read_trace(write(VLLM_BENCH))
    assert columns(table) == [(0.0, 10, 5), (0.5, 20, 6), (2.0, 40, 8)]
    (note,) = table.notes  # of the request that failed: its start of 0 s is no time that is out of order
    assert "dropped 1 of 4" in note
    twice = read_trace(write(VLLM_BENCH + "\n" + VLLM_BENCH))  # --append-result
    assert columns(twice)[3:] == [(3.0, 10, 5), (3.5, 20, 6), (5.0, 40, 8)]
    old = {key: value for key, value in json.loads(VLLM_BENCH).items() if key != "start_times"}
    assert not read_trace(write(json.dumps(old, indent=1))).has_arrivals


@pytest.mark.parametrize("content", [AIPERF, GUIDELLM], ids=["AIPerf", "GuideLLM"])
def test_records_of_other_tools(write: Write, content: str) -> None:
    assert columns(read_trace(write(content))) == [(0.0, 100, 10), (0.5, 300, 30)]


def test_requests_of_a_report_of_guidellm_itself(write: Write) -> None:
    """Twelve at 4 a second, then twelve at 8."""
    table = read_trace(write(GUIDELLM_REPORT))
    assert (set(table.prompt_tokens), set(table.output_tokens), len(table)) == ({26}, {8}, 24)
    gaps_s = np.diff(table.arrival_s)
    assert np.median(gaps_s[:11]) == pytest.approx(1 / 4, rel=0.1)
    assert np.median(gaps_s[12:]) == pytest.approx(1 / 8, rel=0.1)


def test_a_record_without_tokens_names_its_key(write: Write) -> None:
    with pytest.raises(TraceError, match=r"metrics\.output_sequence_length\.value"):
        read_trace(write(AIPERF.replace("output_sequence", "reply")))
    with pytest.raises(TraceError, match=r"benchmarks\[1\]\.requests\.successful\[0\]\.request_start_time"):
        read_trace(write(GUIDELLM.replace('"start_time"', '"began"')))
    with pytest.raises(TraceError, match="must be a list of requests"):
        read_trace(write('{"benchmarks": [{"requests": {"successful": 3}}]}'), "guidellm")


def test_specdecode_bench_index_convention(write: Write) -> None:
    path = write(ACCEPTANCE)
    table = read_trace(path)
    assert columns(table) == [(0.0, 3, 3), (0.0, 1, 1)]
    assert table.acceptance_offsets is not None
    assert table.acceptance_lengths is not None
    # acc_len [1, 4, 2]: a round started when 1, 2, 3 output tokens exist has 0, 3, 1 drafts accepted
    assert table.acceptance_lengths.tolist() == [0, 0, 3, 1, 0, 1]
    assert table.acceptance_offsets.tolist() == [0, 4, 6]
    assert not table.has_arrivals
    ngram = read_trace(path, record="acc_ngram")
    assert ngram.acceptance_lengths is not None
    assert ngram.acceptance_lengths.tolist() == [0, 0, 20, 0, 2]
    with pytest.raises(TraceError, match=r":1: acc_medusa: no such .*this line has: acc_eagle, acc_ngram"):
        read_trace(path, record="acc_medusa")


def bad(content: str, old: str, new: str) -> str:
    assert old in content
    return content.replace(old, new, 1)


CORRUPT: list[tuple[str, str | bytes, str]] = [
    ("empty", b"", "trace: the trace is empty"),
    ("blank", " \n\n", "trace: the trace is empty"),
    ("header only", AZURE_2023.splitlines()[0] + "\n", "holds no request"),
    ("unknown", "hello,world\n1,2\n", r"trace:1: 'hello,world': not a trace format draftcast knows: azure \("),
    ("utf-16", AZURE_2023.encode("utf-16"), "trace:1: .*not UTF-8"),
    ("latin-1", AZURE_2023.encode().replace(b",396,", b",\xe9396,"), r"trace:3: b'\\xe9': not UTF-8"),
    ("csv truncated", AZURE_2023[:-4], r"trace:4: has 2 of 3 fields .*truncated"),
    ("csv too long", bad(AZURE_2023, ",109", ",109,1"), "trace:3: has 4 of 3 fields"),
    (
        "csv column",
        bad(AZURE_2023, "GeneratedTokens", "Tokens"),
        "trace:1: GeneratedTokens: missing column .*found: TIME",
    ),
    ("csv negative", bad(AZURE_2023, ",396,", ",-396,"), "trace:3: ContextTokens = '-396': must be an integer from 0"),
    ("csv nan", bad(AZURE_2023, ",109", ",NaN"), "trace:3: GeneratedTokens = 'NaN'"),
    ("csv missing", bad(AZURE_2023, ",396,", ",,"), "trace:3: ContextTokens = ''"),
    ("csv fraction", bad(AZURE_2023, ",109", ",10.5"), "trace:3: GeneratedTokens = '10.5'"),
    ("csv huge", bad(AZURE_2023, ",109", ",99999999999"), "trace:3: GeneratedTokens = '99999999999'"),
    ("csv inf", bad(AZURE_2023, ",109", ",inf"), "trace:3: GeneratedTokens = 'inf'"),
    ("csv time", bad(AZURE_2023, "2023-11-16 18:15:50.9951690", "yesterday"), "trace:3: TIMESTAMP = 'yesterday'"),
    ("csv date", bad(AZURE_2023, "2023-11-16 18:15:50", "2023-13-16 18:15:50"), "trace:3: TIMESTAMP = '2023-13"),
    ("csv nul", bad(AZURE_2023, ",396,", ",3\x0096,"), "trace:3: ContextTokens"),
    ("csv return", bad(AZURE_2023, ",396,", ",3\r96,"), "trace:3: .*not a CSV line"),
    ("csv endless", bad(AZURE_2023, ",396,", "," + "x" * 200_000 + ","), "trace:3: .*not a CSV line"),
    ("burst nan", bad(BURSTGPT, "45,", "nan,"), "trace:3: Timestamp = 'nan': must be a finite number >= 0"),
    ("burst negative", bad(BURSTGPT, "45,", "-45,"), "trace:3: Timestamp = '-45'"),
    ("burst column", bad(BURSTGPT, "Response tokens", "Answer"), "trace:1: Response tokens: missing column"),
    ("burst tokens", bad(BURSTGPT, ",1087,", ",many,"), "trace:3: Request tokens = 'many'"),
    ("mooncake truncated", MOONCAKE[:-12], "trace:3: not valid JSON.*truncated"),
    ("mooncake first truncated", MOONCAKE[:60], "trace:1: not valid JSON"),
    ("mooncake field", bad(MOONCAKE, '"output_length": 490, ', ""), "trace:2: output_length: missing field"),
    ("mooncake negative", bad(MOONCAKE, "700", "-700"), "trace:2: input_length = -700: must be an integer"),
    ("mooncake nan", bad(MOONCAKE, "1500", "NaN"), "trace:2: timestamp = nan"),
    ("mooncake bool", bad(MOONCAKE, "490", "true"), "trace:2: output_length = True"),
    ("mooncake null", bad(MOONCAKE, "490", "null"), "trace:2: output_length = None"),
    ("mooncake hashes", bad(MOONCAKE, "[0, 3]", "[0, 3, 4]"), "trace:2: hash_ids = '3 ids for 700 tokens'"),
    ("mooncake hash", bad(MOONCAKE, "[0, 3]", '[0, "3"]'), "trace:2: hash_ids = '3': must be a list of integers"),
    ("mooncake hash list", bad(MOONCAKE, "[0, 3]", "17"), "trace:2: hash_ids = 17"),
    ("mooncake array", bad(MOONCAKE, MOONCAKE.splitlines()[1], "[1, 2]"), "trace:2: .*must be a JSON object"),
    ("sharegpt truncated", SHAREGPT[:-3], r"trace:\d: the JSON array .*truncated"),
    ("sharegpt half", SHAREGPT[:120], r"trace:\d: \[1\]: not complete JSON"),
    ("sharegpt comma", bad(SHAREGPT, "},\n", "}\n"), "trace:3: the JSON array does not go on"),
    ("sharegpt after", SHAREGPT + "x", "trace:8: text after the end"),
    ("sharegpt negative", bad(SHAREGPT, "30", "-30"), r"trace:2: \[0\].output_tokens = -30"),
    ("sharegpt text", bad(SHAREGPT, '"output_tokens": 30', '"output": "hi"'), r"trace:2: \[0\]: needs a token count"),
    (
        "sharegpt turn",
        bad(SHAREGPT, '"human", "tokens"', '"human", "t"'),
        r"trace:3: \[1\].conversations\[0\]: needs a",
    ),
    ("sharegpt role", bad(SHAREGPT, '"role": "user"', '"r": "user"'), r"trace:6: \[2\].messages\[0\].role: missing"),
    (
        "sharegpt times",
        bad(SHAREGPT, '"output_tokens": 30', '"output_tokens": 30, "arrival_s": 1'),
        r":3: \[1\]: either",
    ),
    ("sharegpt number", bad(SHAREGPT, '{"prompt_tokens": 12, "output_tokens": 30}', "3"), r"trace:2: \[0\] = 3: each"),
    ("bench truncated", VLLM_BENCH[:-20], r"trace:1: \[0\]: not complete JSON"),
    (
        "bench short",
        bad(VLLM_BENCH, "[5, 6, 0, 8]", "[5, 6, 0]"),
        r"\[0\].output_lens = '3 values': must have 4 values",
    ),
    ("bench list", bad(VLLM_BENCH, "[5, 6, 0, 8]", "5"), r"\[0\].output_lens: must be a list"),
    ("bench undetailed", bad(VLLM_BENCH, "output_lens", "o"), r"\[0\].output_lens: missing field; .*--save-detailed"),
    ("bench negative", bad(VLLM_BENCH, "[5, 6, 0, 8]", "[5, 6, 0, -8]"), r"\[0\].output_lens\[3\] = -8"),
    ("bench nan", bad(VLLM_BENCH, "1001.0", "NaN"), r"\[0\].start_times\[1\] = nan"),
    ("acceptance truncated", ACCEPTANCE[:-15], "trace:2: not valid JSON"),
    (
        "acceptance zero",
        bad(ACCEPTANCE, "[1, 4, 2]", "[1, 0, 2]"),
        r"trace:1: acc_eagle.acc_len\[1\] = 0: must be a list",
    ),
    ("acceptance float", bad(ACCEPTANCE, "[1, 4, 2]", "[1, 4.5, 2]"), r"trace:1: acc_eagle.acc_len\[1\] = 4.5"),
    ("acceptance large", bad(ACCEPTANCE, "[1, 4, 2]", "[1, 400, 2]"), r"trace:1: acc_eagle.acc_len\[1\] = 400"),
    ("acceptance field", bad(ACCEPTANCE, '"prompt_token_ids": [5], ', ""), "trace:2: prompt_token_ids: missing field"),
    ("acceptance shape", bad(ACCEPTANCE, '{"acc_len": [2]}', "[2]"), "trace:2: acc_eagle: must be an object"),
]


@pytest.mark.parametrize(("content", "message"), [c[1:] for c in CORRUPT], ids=[c[0] for c in CORRUPT])
def test_corrupt_files(write: Write, content: str | bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message) as info:
        read_trace(write(content))
    assert "\n" not in str(info.value)
    assert str(info.value).count("trace") >= 1


def test_unreadable_and_unknown(tmp_path: Path, write: Write) -> None:
    with pytest.raises(TraceError, match="absent: no such file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="trace:1: TIMESTAMP: missing column"):
        read_trace(write(BURSTGPT), "azure")


def test_selection(write: Write) -> None:
    path = str(write(MOONCAKE))
    assert columns(load_trace(TraceSpec(path=path))) == columns(read_trace(path))
    assert columns(load_trace(TraceSpec(path=path, start_s=1.0, stop_s=4.0))) == [(0.0, 700, 490), (1.5, 512, 9)]
    # A window keeps the request at its start, not the one at its end.
    assert columns(load_trace(TraceSpec(path=path, start_s=1.5, stop_s=3.0))) == [(0.0, 700, 490)]
    sampled = [tuple(lines(load_trace(TraceSpec(path=path, sample_requests=2, sample_seed=s)))) for s in range(8)]
    assert len(set(sampled)) > 1
    cut = load_trace(TraceSpec(path=path, max_prompt_tokens=600, max_output_tokens=100))
    assert columns(cut) == [(0.0, 600, 100), (1.5, 600, 100), (3.0, 512, 9)]
    assert cut.hash_offsets is not None
    assert cut.hash_offsets.tolist() == [0, 2, 4, 5]
    assert "cut by 600 prompt and 790 output tokens" in cut.notes[0]
    for fields, message in (
        ({"start_s": 50.0}, "no request arrives in this window; the trace lasts 3 s"),
        ({"sample_requests": 4}, "sample_requests = 4: must be between 1 and the 3 requests"),
    ):
        with pytest.raises(TraceError, match=message):
            load_trace(TraceSpec(path=path, **fields))  # type: ignore[arg-type]


def data_file(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the data file {path} is not here")
    return path


@pytest.mark.parametrize(
    ("name", "requests", "prompt_tokens", "output_tokens", "span_s"),
    [
        ("traces/azure_llm_2023_conv.csv", 19366, 22361870, 4088665, 3501.721937),
        ("traces/azure_llm_2023_code.csv", 8819, 18059974, 245896, 3435.948056),
        ("traces/mooncake_conversation.jsonl", 12031, 144793823, 4122048, 3536.999),
        ("acceptance/llama31_8b_sharegpt.jsonl", 310, 110140, 229457, 0.0),
        ("acceptance/llama31_8b_instructcoder.jsonl", 500, 85612, 125164, 0.0),
    ],
)
def test_real_files(name: str, requests: int, prompt_tokens: int, output_tokens: int, span_s: float) -> None:
    table = read_trace(data_file(name))
    table.check_integrity()
    assert len(table) == requests
    assert int(table.prompt_tokens.sum()) == prompt_tokens
    assert int(table.output_tokens.sum()) == output_tokens
    assert table.span_s == pytest.approx(span_s, abs=1e-6)
    assert table.notes == ()


def test_azure_reads_fast_and_the_slow_pass_agrees() -> None:
    path = data_file("traces/azure_llm_2023_conv.csv")
    table = read_trace(path)  # the first call imports pyarrow
    started = time.perf_counter()
    read_trace(path)
    assert time.perf_counter() - started < 0.3
    slow = path.read_text().replace(",374,", ",374.0,", 1)  # one float sends the file through the slow pass
    assert "374.0" in slow
    from draftcast.sim.workload.traces.source import TraceText

    other = TRACE_READERS["azure"].read(TraceText(str(path), slow))
    assert (other.arrival_s == table.arrival_s).all()
    assert (other.prompt_tokens == table.prompt_tokens).all()
    assert (other.output_tokens == table.output_tokens).all()
    assert lines(other) == lines(table) == list(range(2, 19368))


def test_recorded_acceptance_is_the_source_shifted_by_one() -> None:
    path = data_file("acceptance/llama31_8b_sharegpt.jsonl")
    first = json.loads(path.read_text().splitlines()[0])
    for record in ("acc_eagle", "acc_ngram"):
        table = read_trace(path, record=record)
        assert table.acceptance_lengths is not None
        acc_len = np.array(first[record]["acc_len"])
        assert int(table.output_tokens[0]) == len(acc_len)
        assert (table.acceptance_lengths[1 : len(acc_len) + 1] == acc_len - 1).all()
