"""From one acceptance model per request class to the arrays of the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.beta import Beta
from draftcast.sim.acceptance.compiled import (
    KIND_MARKOV,
    KIND_NGRAM,
    KIND_TRACE,
    MAX_K,
    N_PARAMS,
    P_CONFIDENCE,
    AcceptanceArrays,
)
from draftcast.sim.acceptance.model import AcceptanceModel, check_drafts
from draftcast.sim.acceptance.trace import Trace, check_recording
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
        models: one per class; ``class_id`` indexes it.
        class_id: class of each request, shape [n].
        seed: the run's seed; every draw follows from (seed, request, output position).
        k: most drafts the run may ask for. A model that does not know that many raises; drafts beyond k are never
            needed, and drafts beyond what a model knows would be rejected.
        confidence: per class, how well the draft's confidence tells accepted drafts from rejected ones (0..1, see
            ``draftcast.sim.acceptance.confidence``), None for none; empty: none for any class.
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
    has_chain = bool(np.isin(kinds, (KIND_MARKOV, KIND_NGRAM)).any())
    recorded_offsets, recorded_lengths = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if (kinds == KIND_TRACE).any():
        own = next(model for model in models if isinstance(model, Trace))
        if offsets is None and lengths is None:
            offsets, lengths = own.offsets, own.lengths
        recorded_offsets, recorded_lengths = check_recording(offsets, lengths)
        if len(recorded_offsets) != n + 1:
            message = f"must hold one entry per request and one more, {n + 1}, got {len(recorded_offsets)}"
            raise ScenarioError(message, key="acceptance_offsets")
        bare = np.flatnonzero((np.diff(recorded_offsets) == 0) & (kinds[classes] == KIND_TRACE))
        if len(bare):
            message = f"acceptance model trace needs a recording for every request; request {bare[0]} has none"
            raise ScenarioError(message, key="acceptance_lengths")
        if has_confidence:
            rates = Trace(recorded_offsets, recorded_lengths).conditional(k)
            conditional[kinds == KIND_TRACE, :k] = rates
    return AcceptanceArrays(
        kind=kinds,
        conditional=conditional,
        params=params,
        keys=request_keys(seed, Stream.ACCEPT, n),
        match_keys=request_keys(seed, Stream.MATCH, n) if has_chain else np.zeros(0, np.uint64),
        alpha=alpha,
        state=np.full(n if has_chain else 0, -1, dtype=np.int64),
        class_id=classes,
        offsets=recorded_offsets,
        lengths=recorded_lengths,
    )
