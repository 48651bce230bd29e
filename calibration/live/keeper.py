"""Keeps a server's life tied to that of the process that started it.

``python -m draftcast.calibration.live.keeper GRACE_S COMMAND...`` runs the command in a session of its own and waits
for its end, a signal, or for standard input to close, as it does when its parent closes it or dies in whatever way.
Then the command's whole process group, which this process made, is asked to end (SIGTERM), and after GRACE_S seconds
made to (SIGKILL). Exits with the command's exit code (128 + signal as a shell has it), 0 when it was this process that
ended the command. Standard library only: it stays as small as it can while a measurement runs.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_POLL_S = 0.1


def main() -> None:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(127)
    told_to_end: list[int] = []  # the signals that did
    for end_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # set now: the command must not inherit it
        signal.signal(end_signal, lambda number, _: told_to_end.append(number))
    while child.poll() is None and not told_to_end:
        # Readable and empty: the parent has closed its end.
        if select.select([0], [], [], _POLL_S)[0] and not os.read(0, 1024):
            break
    ended_itself = child.poll() is not None
    _signal_group(child.pid, signal.SIGTERM)
    give_up = time.monotonic() + grace_s
    while time.monotonic() < give_up and (child.poll() is None or _signal_group(child.pid, 0)):
        time.sleep(_POLL_S)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    sys.exit((code if code >= 0 else 128 - code) if ended_itself else 0)


def _signal_group(group: int, which: int) -> bool:
    """Whether there was a group to get the signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, which)
        return True
    return False


if __name__ == "__main__":
    main()
