"""What the load client is to send: plain arrays, handed over in a file because the client is a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftcast.errors import InputError


@dataclass(frozen=True)
class LoadPlan:
    """Requests and how they are sent. Lists hold one value per request, in the order of sending.

    Attributes:
        url: of the server, without ``/v1``.
        model: name that the server serves.
        prompts: token ids.
        output_tokens: wanted of each.
        classes: name of each request's class.
        due_s: open loop: when each request is sent, seconds since the start, not falling. None: closed loop.
        concurrency: closed loop: users, each with one request at a time.
        think_s: closed loop: pause before each request after its user's last answer.
        send_for_s: no request is sent later than this; None: all are sent.
        request_timeout_s: a request that takes longer has failed.
        answers: the token ids each request must be answered with; None: not known.
    """

    url: str
    model: str
    prompts: list[list[int]]
    output_tokens: list[int]
    classes: list[str]
    due_s: list[float] | None = None
    concurrency: int | None = None
    think_s: list[float] | None = None
    send_for_s: float | None = None
    request_timeout_s: float = 120.0
    answers: list[list[int]] | None = None

    def __post_init__(self) -> None:
        if (self.due_s is None) == (self.concurrency is None):
            raise InputError("give due_s (open loop) or concurrency (closed loop)", key="due_s", value=self.due_s)
        for name in ("output_tokens", "classes", "due_s", "think_s", "answers"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.prompts):
                raise InputError(f"one for each of the {len(self.prompts)} prompts is needed", key=name)

    def __len__(self) -> int:
        return len(self.prompts)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LoadPlan:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return cls(**data)
