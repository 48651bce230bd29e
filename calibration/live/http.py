"""Small requests to a server: health, metrics, configuration. The load itself is the client's."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from draftcast.errors import LiveError

# Servers here are named by the user; a proxy in the environment is for elsewhere.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, timeout_s: float = 10.0) -> str:
    """The answer's text.

    Raises:
        LiveError: no answer, or one that is not 200; the address is named.
    """
    try:
        with _OPENER.open(url, timeout=timeout_s) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        raise LiveError(f"{url}: HTTP {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise LiveError(f"{url}: no answer: {getattr(reason, 'strerror', None) or reason}") from None
    return body.decode("utf-8", errors="replace")


def get_json(url: str, timeout_s: float = 10.0) -> Any:
    """The answer's JSON.

    Raises:
        LiveError: as `get`, or the answer is not JSON.
    """
    try:
        return json.loads(get(url, timeout_s))
    except ValueError:
        raise LiveError(f"{url}: the answer is not JSON; is it a vLLM server?") from None
