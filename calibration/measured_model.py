"""Whether what was measured is of the model that is asked about."""

import pandas as pd

from draftcast.errors import InputError
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model


def check_model(measured: str, model: str, source: str) -> None:
    """InputError where ``source`` was measured on another bundled model; any other name may be any model's."""
    are_bundled = is_bundled_model(measured) and is_bundled_model(model)
    if are_bundled and canonical_name(measured) != canonical_name(model):
        raise InputError(f"was measured on another model than {model}", file=source, key="model", value=measured)


def check_model_of_logs(steps: pd.DataFrame, model: str) -> None:
    """`check_model` for every log of a table of `read_engine_log`."""
    for source, measured in steps[["source", "model"]].drop_duplicates().itertuples(index=False):
        check_model(measured, model, source)
