"""The front end of a simulated server: when requests reach the engine, and how many tokens a text has."""

from collections.abc import Sequence
from pathlib import Path

from draftcast.errors import InputError
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.run.simulate import front_end_servers, front_end_work_s
from draftcast.scenarios.schema import Scenario

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""Of a chat message, besides its role and text: a template's marks."""


class FrontEnd:
    """`front_end_s` for requests that come one by one."""

    def __init__(self, scenario: Scenario, deployments: Sequence[Deployment]) -> None:
        self._servers = front_end_servers(scenario, deployments)
        self._more_s = scenario.correction.front_end_s if scenario.correction is not None else 0.0
        self._free_s = [0.0] * len(self._servers)
        self._number, self._last_s = 0, 0.0

    def hand_over_s(self, sent_s: float, prompt_tokens: int) -> float:
        """When the engine has the next request, which is sent no earlier than those before it."""
        server = self._number % len(self._servers)
        self._number += 1
        work_s = float(front_end_work_s(self._servers[server], prompt_tokens))
        self._free_s[server] = max(self._free_s[server], sent_s) + work_s
        self._last_s = max(self._last_s, self._free_s[server])
        return self._last_s + self._more_s


class Tokens:
    """Counts the tokens of texts, and makes those of answers.

    Without a tokenizer four bytes of UTF-8 are a token.

    Raises:
        InputError: no ``tokenizer.json`` at the path, or none that can be read.
    """

    def __init__(self, path: Path | None) -> None:
        self.filler, self.filler_id = " token", 0
        self._tokenizer = None
        if path is None:
            return
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing more particular
            raise InputError(f"no tokenizer: {error}", file=str(file)) from None
        self.filler_id = self._tokenizer.encode(self.filler, add_special_tokens=False).ids[-1]
        self.filler = self._tokenizer.decode([self.filler_id]) or self.filler

    def count(self, text: str) -> int:
        if self._tokenizer is None:
            return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
        return len(self._tokenizer.encode(text).ids)
