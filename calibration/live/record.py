"""Records one live run: metrics and log around a load, all into a run directory."""

import contextlib
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from draftcast.calibration.acceptance.metrics import read_metrics
from draftcast.calibration.live import run_directory
from draftcast.calibration.live.load import LoadPlan, LoadProgress, run_load
from draftcast.calibration.live.run_directory import JOURNAL, LiveRun, LiveRunWriter
from draftcast.calibration.live.server import RunningServer, get
from draftcast.calibration.microbench.noise import host_facts, nvidia_smi
from draftcast.errors import InputError, LiveError
from draftcast.files import written

_LOG_LAG_S = 0.5  # a step's line is written a moment after its tokens are sent


def record(
    writer: LiveRunWriter, endpoint: RunningServer, plan: LoadPlan, *, warmup: LoadPlan | None, progress: LoadProgress
) -> LiveRun:
    """Send ``warmup`` unrecorded, then ``plan`` recorded, and finish the run.

    It is marked incomplete, with a reason, when a request failed, the server or the client did not reach the end, or a
    token differs from the known continuation. Raises LiveError: the disk refuses; what stopped it (KeyboardInterrupt,
    ...), once the run is finished as incomplete.
    """
    machine = {
        **host_facts(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "gpus": nvidia_smi("name", "memory.total", "driver_version"),
    }
    writer.update(server=endpoint.manifest(), machine=machine)
    recording = _Recording(writer, endpoint)
    with writer.noting(recording.close):
        reason = recording.carry_out(plan, warmup, progress)
    return recording.close(reason)


@dataclass
class _Recording:
    _writer: LiveRunWriter
    _endpoint: RunningServer
    _log_mark: int | None = None
    _others_cores: float | None = None

    def carry_out(self, plan: LoadPlan, warmup: LoadPlan | None, progress: LoadProgress) -> str:
        """Everything up to the last answer; returns why it stopped early, or ""."""
        if warmup is not None:
            with TemporaryDirectory(prefix="draftcast-") as folder:
                _, reason = run_load(warmup, Path(folder) / JOURNAL, self._endpoint.trouble)
            if reason:
                return f"{reason} (while warming up)"
        before = self._metrics(run_directory.METRICS_BEFORE)
        if self._endpoint.log is not None:
            self._log_mark = self._endpoint.log.stat().st_size
        used_s, began = self._others_cpu_seconds(), time.monotonic()
        client, reason = run_load(plan, self._writer.folder / JOURNAL, self._endpoint.trouble, progress)
        used_s, spent_s = self._others_cpu_seconds() - used_s, time.monotonic() - began
        if self._endpoint.server is not None:
            self._others_cores = max(used_s - float(client.get("cpu_s") or 0.0), 0.0) / spent_s
        start_unix_s = client.pop("start_unix_s", None)
        acceptance, after = None, self._metrics(run_directory.METRICS_AFTER)
        if before is not None and after is not None:
            with contextlib.suppress(InputError):  # it drafted nothing, or does not say
                acceptance = read_metrics(after, before=before).counts()
        self._writer.update(client=client, start_unix_s=start_unix_s, acceptance=acceptance)
        return reason

    def close(self, reason: str) -> LiveRun:
        requests, chunks = run_directory.tables(run_directory.read_journal(self._writer.folder / JOURNAL))
        checked = requests[requests["wrong_tokens"] >= 0]
        wrong, total = int(checked["wrong_tokens"].sum()), int(checked["output_tokens"].sum())
        failed = requests[requests["error"] != ""]
        if not reason and len(failed):
            reason = f"{len(failed)} of {len(requests)} requests failed; the first: {failed['error'].iloc[0]}"
        if not reason and wrong:
            reason = f"{wrong} of {total} tokens differ from the known continuation"
        self._copy_log()
        self._writer.update(
            known_continuation={"checked_tokens": total, "wrong_tokens": wrong} if len(checked) else None,
            noise={"others_cores": self._others_cores},
        )
        return self._writer.finish(reason, (requests, chunks))

    def _metrics(self, name: str) -> Path | None:
        try:
            text = get(f"{self._endpoint.url}/metrics")
        except LiveError:
            return None  # a server that is gone, or that has none
        return self._writer.write_text(name, text)

    def _others_cpu_seconds(self) -> float:
        """CPU seconds so far of this host without our server's."""
        server = self._endpoint.server
        return busy_seconds() - (tree_seconds(server.pid) if server is not None else 0.0)

    def _copy_log(self) -> None:
        """The server's start, which says what it is, and what it printed during the run."""
        source, target = self._endpoint.log, self._writer.folder / run_directory.SERVER_LOG
        if source is None or self._log_mark is None:
            return
        time.sleep(_LOG_LAG_S)
        with written(target, LiveError) as part, source.open("rb") as log, part.open("wb") as copy:
            for line in log:
                if b"Iteration(" in line or log.tell() > self._log_mark:
                    break
                copy.write(line)
            log.seek(self._log_mark)
            shutil.copyfileobj(log, copy)


def busy_seconds() -> float:
    """CPU seconds of all processes since the host's start; idle, waiting and stolen time left out."""
    times = psutil.cpu_times()._asdict()
    return float(sum(times.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")))


def tree_seconds(pid: int) -> float:
    """CPU seconds so far of the living processes that descend from ``pid``, itself among them."""
    total_s = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
    return total_s
