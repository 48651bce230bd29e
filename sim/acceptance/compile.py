"""From one acceptance model per request class to the arrays of the compiled engine."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.chain import BINS, Chain, Factors
from draftcast.sim.acceptance.compiled import KIND_RATES, KIND_TRACE, MAX_K, PARAMS, AcceptanceArrays
from draftcast.sim.acceptance.model import AcceptanceModel, Trace, check_drafts
from draftcast.sim.compiled.random_streams import Stream, request_keys, request_uniforms


def compile_acceptance(
    models: Sequence[AcceptanceModel],
    class_id: ArrayLike,
    seed: int,
    k: int = 0,
    *,
    confidence: Sequence[float | None] = (),
    prompt_tokens: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
) -> AcceptanceArrays:
    """Arrays for ``len(class_id)`` requests.

    Args:
        models: one per class, indexed by ``class_id``, shape [n].
        k: most drafts the run may ask for.
        confidence: ``confidence_discrimination`` of each class, None for none; empty: none for any class.
        prompt_tokens: of each request, for classes with factors by context; None: 0.
        offsets, lengths: the request table's recorded acceptance, for classes whose model is ``trace``.

    Raises ScenarioError: k beyond a model's list, a trace class without (or with a misfitting) recording.
    """
    k = check_drafts(k)
    classes = np.asarray(class_id, dtype=np.int16)
    n = len(classes)
    kinds = np.array([model.kind for model in models], dtype=np.int64)
    is_trace = kinds == KIND_TRACE
    prompts = np.zeros(n, np.int64) if prompt_tokens is None else np.asarray(prompt_tokens)
    factors = [(model.factors if isinstance(model, Chain) else None) or Factors() for model in models]
    most = max(len(of_class.context) + len(of_class.output_position) for of_class in factors)
    band_starts = np.zeros((n, most), np.int64)
    band_jumps = np.zeros((len(models), most), np.int64)
    band_rows = np.zeros(len(models), np.int64)
    params = np.zeros((max(len(of_class.log_odds) for of_class in factors), len(models)), PARAMS)
    tables = [np.atleast_2d(model.draft_probabilities()) for model in models]
    first = np.cumsum([0, *map(len, tables)]).astype(np.int32)
    conditional = np.zeros((first[-1], MAX_K))
    row = first[classes]
    for c, model in enumerate(models):
        check_drafts(k, model.max_drafts(), f"the {type(model).__name__} acceptance list")
        by_band = model.parameters()
        params[: len(by_band), c] = by_band
        conditional[first[c] : first[c + 1], : tables[c].shape[1]] = tables[c]
        members = classes == c
        band_rows[c] = len(tables[c]) // len(by_band)
        starts, jumps = factors[c].starts(prompts[members])
        band_starts[members, : len(jumps)], band_jumps[c, : len(jumps)] = starts, jumps
        if band_rows[c] >= BINS:  # of a bin of its own, with or without two states
            bins = (request_uniforms(seed, Stream.ALPHA, n)[members] * BINS).astype(np.int32)
            row[members] += bins * np.int32(band_rows[c] // BINS)
    params["confidence"] = [-1.0 if value is None else value for value in confidence or [None] * len(models)]
    recorded_offsets, recorded_lengths = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if is_trace.any():
        if offsets is None or lengths is None:
            missing = "acceptance_offsets" if offsets is None else "acceptance_lengths"
            message = "acceptance model trace needs requests with a recorded acceptance"
            raise ScenarioError(message, key=missing, value=None)
        recorded_offsets, recorded_lengths = np.asarray(offsets, np.int64), np.asarray(lengths, np.uint8)
        bare = np.flatnonzero((np.diff(recorded_offsets) == 0) & is_trace[classes])
        if len(bare):
            message = f"acceptance model trace needs a recording for every request; request {bare[0]} has none"
            raise ScenarioError(message, key="acceptance_lengths")
        for c, model in enumerate(models):
            if isinstance(model, Trace):
                replayed = model.of_recording(recorded_offsets, recorded_lengths)
                params["stationary"][:, c] = replayed.missed_share(k)
                if (params["confidence"] >= 0.0).any():
                    conditional[first[c], :k] = replayed.conditional(k)
    draws_matches = ((kinds != KIND_RATES) & ~(is_trace & (params["stationary"][0] == 1.0))).any()
    return AcceptanceArrays(
        kind=kinds,
        conditional=conditional,
        params=params.reshape(-1),
        band_rows=band_rows,
        band_starts=band_starts,
        band_jumps=band_jumps,
        keys=request_keys(seed, Stream.ACCEPT, n),
        match_keys=request_keys(seed, Stream.MATCH, n) if draws_matches else np.zeros(0, np.uint64),
        row=row,
        state=np.full(n if draws_matches else 0, -1, dtype=np.int64),
        class_id=classes,
        offsets=recorded_offsets,
        lengths=recorded_lengths,
    )
