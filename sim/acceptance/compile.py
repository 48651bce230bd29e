"""From one acceptance model per request class to the arrays of the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.compiled import (
    KIND_MARKOV,
    KIND_NGRAM,
    KIND_TRACE,
    MAX_K,
    N_PARAMS,
    P_CONFIDENCE,
    P_STATIONARY,
    AcceptanceArrays,
)
from draftcast.sim.acceptance.model import AcceptanceModel, Beta, check_drafts
from draftcast.sim.acceptance.trace import Trace
from draftcast.sim.compiled.random_streams import Stream, request_keys, request_uniforms


def compile_acceptance(
    models: Sequence[AcceptanceModel],
    class_id: npt.ArrayLike,
    seed: int,
    k: int = 0,
    *,
    confidence: Sequence[float | None] = (),
    offsets: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> AcceptanceArrays:
    """Arrays for ``len(class_id)`` requests.

    Args:
        models: one per class; ``class_id``, shape [n], indexes it.
        k: most drafts the run may ask for.
        confidence: ``confidence_discrimination`` of each class, None for none; empty: none for any class.
        offsets, lengths: the request table's recorded acceptance, for classes whose model is ``trace``.

    Raises:
        ScenarioError: k beyond a model's list, a class without a model, a trace class without (or with a misfitting)
            recording.
    """
    k = check_drafts(k)
    classes = np.asarray(class_id, dtype=np.int16)
    n = len(classes)
    if n and not 0 <= int(classes.min()) <= int(classes.max()) < len(models):
        raise ScenarioError(f"every class needs an acceptance model; {len(models)} given", key="acceptance")
    kinds = np.array([model.kind for model in models], dtype=np.int64)
    conditional = np.zeros((len(models), MAX_K))
    params = np.zeros((len(models), N_PARAMS))
    alpha = np.zeros(0)
    for c, model in enumerate(models):
        check_drafts(k, model.max_drafts(), f"the {type(model).__name__} acceptance list")
        probabilities = model.draft_probabilities()
        conditional[c, : len(probabilities)] = probabilities
        params[c] = model.parameters()
        if isinstance(model, Beta):
            if not len(alpha):
                alpha = np.zeros(n)
            members = classes == c
            alpha[members] = model.quantile(request_uniforms(seed, Stream.ALPHA, n)[members])

    for c, discrimination in enumerate(confidence or [None] * len(models)):
        params[c, P_CONFIDENCE] = -1.0 if discrimination is None else discrimination
    has_confidence = bool((params[:, P_CONFIDENCE] >= 0.0).any())
    draws_matches = bool(np.isin(kinds, (KIND_MARKOV, KIND_NGRAM)).any())
    recorded_offsets, recorded_lengths = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if (kinds == KIND_TRACE).any():
        if offsets is None or lengths is None:
            missing = "acceptance_offsets" if offsets is None else "acceptance_lengths"
            message = "acceptance model trace needs requests with a recorded acceptance"
            raise ScenarioError(message, key=missing, value=None)
        recorded_offsets, recorded_lengths = np.asarray(offsets, np.int64), np.asarray(lengths, np.uint8)
        bare = np.flatnonzero((np.diff(recorded_offsets) == 0) & (kinds[classes] == KIND_TRACE))
        if len(bare):
            message = f"acceptance model trace needs a recording for every request; request {bare[0]} has none"
            raise ScenarioError(message, key="acceptance_lengths")
        for c, model in enumerate(models):
            if isinstance(model, Trace):
                replayed = model.of_recording(recorded_offsets, recorded_lengths)
                params[c, P_STATIONARY] = replayed.missed_share(k)
                if has_confidence:
                    conditional[c, :k] = replayed.conditional(k)
        draws_matches = draws_matches or bool((params[kinds == KIND_TRACE, P_STATIONARY] < 1.0).any())
    return AcceptanceArrays(
        kind=kinds,
        conditional=conditional,
        params=params,
        keys=request_keys(seed, Stream.ACCEPT, n),
        match_keys=request_keys(seed, Stream.MATCH, n) if draws_matches else np.zeros(0, np.uint64),
        alpha=alpha,
        state=np.full(n if draws_matches else 0, -1, dtype=np.int64),
        class_id=classes,
        offsets=recorded_offsets,
        lengths=recorded_lengths,
    )
