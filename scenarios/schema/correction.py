"""What the user's own runs without speculation say of a forecast's step time and front end.

``--calibrate-to`` makes it (`draftcast.scenarios.live.calibrate_to`); a scenario carries it, so that a run's manifest
repeats the run without the measured file. It holds for the engine it was measured on and for no other.
"""

from typing import Annotated

from pydantic import Field

from draftcast.frozen import Count, Faults, Frozen, NonEmpty, Seconds, Text, wrong

# A step time off by more than this is a wrong model, device, flag or load, and no matter of calibration.
PLAUSIBLE = (0.5, 2.0)
MEASURED_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_Factor = Annotated[float, Field(ge=PLAUSIBLE[0], le=PLAUSIBLE[1], allow_inf_nan=False)]
_End = Annotated[float, Field(allow_inf_nan=False)]
# Interval ends say how sure a value is; they are not held to its range.
_Interval = Annotated[tuple[_End, _End], Field(strict=False)]


class Correction(Frozen):
    """A corrected step takes ``step_factor`` x the forecast's time + ``step_s``, with and without speculation alike.

    A request reaches the engine ``front_end_s`` after its sending. Intervals are 95 %; None: not fitted.
    """

    # Files and addresses, as they were given, and the loads in them.
    source: NonEmpty
    loads: Text = ""
    runs: Count = 1
    # The engine that was measured; the correction is refused for any other.
    model: NonEmpty
    hardware: NonEmpty
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    data_parallel_size: Count = 1
    quantization: NonEmpty | None = None
    # Sha256 of the profile whose times are corrected; None: not checked.
    profile_checksum: NonEmpty | None = None
    step_factor: _Factor
    step_factor_interval: _Interval | None = None
    step_s: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    step_s_interval: _Interval | None = None
    front_end_s: Annotated[Seconds, Field(le=10)] = 0.0
    front_end_s_interval: _Interval | None = None

    def faults(self) -> Faults:
        for name in ("step_factor", "step_s", "front_end_s"):
            interval = getattr(self, f"{name}_interval")
            if interval is not None and not interval[0] <= getattr(self, name) <= interval[1]:
                yield wrong(f"{name}_interval", list(interval), f"must hold {name} = {getattr(self, name):g}")

    @property
    def sentence(self) -> str:
        """What every result says of it."""
        low_high = self.step_factor_interval
        interval = f" ({low_high[0]:.2f} to {low_high[1]:.2f})" if low_high is not None else ""
        parts = [f"step time x {self.step_factor:.3f}{interval}"]
        if self.step_s_interval is not None:
            low, high = (1e3 * end for end in self.step_s_interval)
            parts.append(f"+ {1e3 * self.step_s:.2f} ms a step ({low:.2f} to {high:.2f})")
        if self.front_end_s_interval is not None or self.front_end_s:
            parts.append(f"front end {1e3 * self.front_end_s:.1f} ms a request")
        loads = f" ({self.loads})" if self.loads else ""
        return f"calibrated to {self.source}{loads}: {', '.join(parts)}"
