"""OpenAI's completions and chat over HTTP, as vLLM's server has them, in front of a `Fleet`.

Answers consist of a filler token. Sampling, stop strings, logprobs and tools change nothing; several prompts or choices
in one request and content that is no text are refused.
"""

import asyncio
import gc
import json
import os
import resource
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import uvicorn
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftcast.calibration.live.server import CONFIG
from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.serve.fleet import Answer, Fleet, Refused

BACKLOG = 2048
INTERRUPTED = 130
MAX_BODY_BYTES = 32 * 2**20
BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4  # of a chat message, besides its role and text: a template's marks
Count = Annotated[int, Field(ge=1)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # as a scenario's: the engine keeps 32 bits
ERRORS = {404: "NotFoundError", 413: "RequestTooLarge", 500: "InternalServerError", 503: "ServiceUnavailable"}


class TokenCounter:
    """Counts the tokens of texts, and makes those of answers; without a tokenizer four bytes of UTF-8 are a token.

    Raises InputError: no ``tokenizer.json`` at the path, or none that can be read.
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


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What completions and chat have in common; unknown fields are ignored, as vLLM does."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    priority: Priority | None = None
    return_token_ids: bool | None = False


class Completion(Body):
    prompt: str | list[Annotated[int, Field(ge=0)]]
    max_tokens: Count | None = 16

    def prompt_tokens(self, tokens: TokenCounter) -> int:
        return tokens.count(self.prompt) if isinstance(self.prompt, str) else len(self.prompt)


class TextPart(BaseModel):
    text: str


class ChatMessage(BaseModel):
    role: str
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else [TextPart(text=self.content or "")]
        return f"{self.role}\n{''.join(part.text for part in parts)}"


class Chat(Body):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None

    def prompt_tokens(self, tokens: TokenCounter) -> int:
        return sum(tokens.count(message.text) + MESSAGE_TOKENS for message in self.messages)


async def read_body(request: Request) -> bytes:
    """Raises Refused: too large."""
    too_large = Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise too_large
    return bytes(body)


class ApiFrontEnd:
    """Starts the answers to requests and writes them down as OpenAI's objects."""

    def __init__(self, fleet: Fleet, tokens: TokenCounter) -> None:
        self._fleet, self._tokens = fleet, tokens
        self._model = fleet.scenario.engine.model

    def app(self) -> Starlette:
        routes = [
            Route("/v1/completions", partial(self._answer, kind=Completion), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._answer, kind=Chat), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/version", self._version),
            Route("/server_info", self._server_info),
        ]
        return Starlette(routes=routes, exception_handlers={Refused: _refuse, ClientDisconnect: _refuse})

    async def _answer(self, request: Request, kind: type[Completion | Chat]) -> Response:
        sent_s = time.monotonic()
        try:
            body = kind.model_validate_json(await read_body(request))
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
        if body.model not in (None, self._model):
            raise Refused(404, f"The model `{body.model}` does not exist.")
        wanted = body.max_completion_tokens or body.max_tokens if isinstance(body, Chat) else body.max_tokens
        prompt = body.prompt_tokens(self._tokens)
        if prompt < 1:
            raise Refused(400, "prompt: is empty")
        if (longest := prompt + (wanted or 1)) > (limit := self._fleet.max_model_len):
            raise Refused(400, f"prompt and max_tokens make {longest} tokens, the model's maximum is {limit}")
        answer = self._fleet.submit(prompt, wanted, body.priority, sent_s)
        if body.stream:
            left = BackgroundTask(self._fleet.drop, answer)
            return StreamingResponse(self._events(body, answer), media_type="text/event-stream", background=left)
        whole = asyncio.create_task(self._whole(body, answer))
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                raise ClientDisconnect
            return JSONResponse(await whole)
        finally:
            whole.cancel()
            gone.cancel()
            await self._fleet.drop(answer)

    def _head(self, body: Body) -> dict[str, Any]:
        name, kind = ("chatcmpl", "chat.completion") if isinstance(body, Chat) else ("cmpl", "text_completion")
        kind += ".chunk" * (isinstance(body, Chat) and bool(body.stream))
        return {"id": f"{name}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self._model}

    def _choices(self, body: Body, answer: Answer, tokens: int) -> dict[str, Any]:
        """The last ``tokens`` of the answer."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "stop_reason": None}
        choice["finish_reason"] = answer.reason if answer.ended else None
        text = self._tokens.filler * tokens
        if isinstance(body, Chat):
            role = {"role": "assistant"} if tokens == answer.tokens else {}
            choice["delta" if body.stream else "message"] = {**role, "content": text}
        else:
            choice["text"] = text
        if body.return_token_ids:
            choice["token_ids"] = [self._tokens.filler_id] * tokens
        return {"choices": [choice]}

    async def _whole(self, body: Body, answer: Answer) -> dict[str, Any]:
        async for _ in answer.pieces():
            pass
        if answer.error:
            raise Refused(500, answer.error)
        return self._head(body) | self._choices(body, answer, answer.tokens) | _usage(answer)

    async def _events(self, body: Body, answer: Answer) -> AsyncIterator[bytes]:
        """Server-sent events: a piece of the answer each, at the end the usage where asked for."""
        options = body.stream_options or StreamOptions()
        head = self._head(body)
        alike: dict[int, bytes] = {}  # by tokens: all events but the first and last, where they say no usage
        async for tokens in answer.pieces():
            if answer.error:
                yield _event(_error(500, answer.error))
            elif answer.ended or tokens == answer.tokens or options.continuous_usage_stats:
                usage = _usage(answer) if options.continuous_usage_stats else {}
                yield _event(head | self._choices(body, answer, tokens) | usage)
            else:
                if tokens not in alike:
                    alike[tokens] = _event(head | self._choices(body, answer, tokens))
                yield alike[tokens]
        if options.include_usage and not answer.error:
            yield _event(head | {"choices": []} | _usage(answer))
        yield b"data: [DONE]\n\n"

    async def _models(self, _: Request) -> Response:
        model = {"id": self._model, "object": "model", "created": int(time.time()), "owned_by": "draftcast"}
        model |= {"root": self._model, "max_model_len": self._fleet.max_model_len}
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self._fleet.healthy else 503)

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": self._fleet.deployment.settings.version.rpartition(" ")[2]})

    async def _metrics(self, _: Request) -> Response:
        await self._fleet.count()
        return Response(generate_latest(self._fleet.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _server_info(self, _: Request) -> Response:
        """vLLM's sections, of what the scenario says, and the scenario itself."""
        scenario, settings = self._fleet.scenario, self._fleet.deployment.settings
        spec = scenario.speculative_config
        config: dict[str, Any] = {
            section: {name: getattr(settings, name) for name in names if hasattr(settings, name)}
            for section, names in CONFIG.items()
        }
        config["model_config"]["model"] = self._model
        config["scheduler_config"]["policy"] = settings.scheduling_policy
        config["speculative_config"] = spec.model_dump(mode="json", exclude_unset=True) if spec is not None else None
        simulated = {"scenario": scenario.model_dump(mode="json", exclude_unset=True), "speed": self._fleet.speed}
        return JSONResponse({"vllm_config": config, "draftcast": simulated})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def _usage(answer: Answer) -> dict[str, Any]:
    prompt, output = answer.prompt_tokens, answer.tokens
    return {"usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}}


def _error(status: int, message: str) -> dict[str, Any]:
    kind = ERRORS.get(status, "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def _refuse(_: Request, error: Exception) -> Response:
    status, message = error.args if isinstance(error, Refused) else (400, "the client left")
    return JSONResponse(_error(status, message), status)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def run_server(
    scenario: Scenario, host: str, port: int, speed: float, tokenizer: Path | None, tell: Callable[[str], None]
) -> None:
    """Serve the scenario at ``host:port`` (0: a free one); ``tell`` gets the address when requests can come.

    Raises InputError: the address cannot be used, the scenario or the tokenizer is refused.
    """
    # A stream is a file; the soft limit is often 1,024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tokens = TokenCounter(tokenizer)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot be used: {error}", file="--host, --port", value=f"{host}:{port}") from None
    try:
        uvloop.run(_serve(Fleet(scenario, speed), tokens, place, tell))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # to take down compiled code in order takes a second


async def _serve(fleet: Fleet, tokens: TokenCounter, place: socket.socket, tell: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        ApiFrontEnd(fleet, tokens).app(),
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=0,  # streams may have minutes to go
        backlog=BACKLOG,
    )
    try:
        await fleet.start()
        async with anyio.create_task_group():  # loads what the first answer would wait for
            pass
        gc.freeze()  # to go through all that was imported stops all answers for a fifth of a second
        host, port = place.getsockname()[:2]
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await uvicorn.Server(config).serve(sockets=[place])
    finally:
        fleet.stop()
