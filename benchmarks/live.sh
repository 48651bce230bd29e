#!/bin/sh
# The whole validation on a real vLLM server: calibration runs, then the sweep that the forecast is judged by.
#
#     benchmarks/live.sh DIR [OPTIONS of draftcast live sweep]
#
# Made for two CPU cores (about 30 minutes on a quiet machine): a 54 M parameter target in float32 with drafts of one
# layer, speculation off, draft_model k = 1, 3, 5 and ngram k = 3. Calibration runs are closed loops of other lengths and
# other numbers of users. A stopped run goes on with the same command; the report is in DIR/sweep. Five minutes:
#
#     benchmarks/live.sh DIR --k 3 --concurrency 1,8 --rates 2 --calibration-concurrency 4 --cell-seconds 6
set -e
out=$1
shift
uniform() { echo "{distribution: uniform, low: $1, high: $2}"; }
lengths() { echo "{prompt_tokens: $(uniform "$1" "$2"), output_tokens: $(uniform "$3" "$4")}"; }
[ -d "$out/testbed/target" ] || draftcast live checkpoint "$out/testbed" --rates 0.8,0.62,0.48,0.37,0.28 --k 1,3,5 \
    --dtype fp32 --target "$(dirname "$0")/live-target.json" --draft-layers 1
exec draftcast live sweep "$out/testbed/scenario.yaml" --out "$out/sweep" --k 1,3,5 --cell-seconds 9 \
    --set 'name=54 M target on two CPU cores' --set workload.num_requests=100 \
    --set engine.max_model_len=1024 --set engine.max_num_batched_tokens=1024 --set engine.num_gpu_blocks=512 \
    --set "workload.lengths=$(lengths 80 144 24 56)" --candidate '{"speculative_config": {"method": "ngram",
        "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3},
        "acceptance": {"model": "ngram", "match_probability": 0.45, "rates": [0.85, 0.7, 0.6]}}' \
    --concurrency 1,2,3,4,6,8,12,16 --calibration-concurrency 1,5,7,10,14,20 \
    --calibration-lengths "$(lengths 96 320 32 64)" "$@"
