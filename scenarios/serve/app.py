"""OpenAI's completions and chat over HTTP, as vLLM's server has them, in front of a `Fleet`.

Answers consist of a filler token. Sampling, stop strings, logprobs and tools change nothing; images are refused.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftcast.scenarios.serve.fleet import Answer, Fleet, Unavailable, pieces
from draftcast.scenarios.serve.front_end import MESSAGE_TOKENS, Tokens

MAX_BODY_BYTES = 32 * 2**20
MAX_CHOICES = 128
Count = Annotated[int, Field(ge=1)]
TokenIds = list[Annotated[int, Field(ge=0)]]


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Asked(BaseModel):
    """What completions and chat have in common; unknown fields are ignored, as vLLM does."""

    kind: ClassVar[str]  # of the whole answer
    piece: ClassVar[str]
    prefix: ClassVar[str]

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    priority: int | None = None
    return_token_ids: bool | None = False

    def prompts(self, tokens: Tokens) -> list[int]:
        """Tokens of each prompt."""
        raise NotImplementedError

    @property
    def output_tokens(self) -> int | None:
        """As many as asked for; None: the scenario's."""
        raise NotImplementedError

    def choice(self, text: str, first: bool, whole: bool) -> dict[str, Any]:
        """The part of a choice that holds its text."""
        raise NotImplementedError


class Completion(Asked):
    kind = piece = "text_completion"
    prefix = "cmpl"

    prompt: str | TokenIds | list[str] | list[TokenIds]
    max_tokens: Count | None = 16

    def prompts(self, tokens: Tokens) -> list[int]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [tokens.count(prompt)]
        if ids := [part for part in prompt if isinstance(part, int)]:
            return [len(ids)]
        return [
            tokens.count(part) if isinstance(part, str) else len(part) for part in prompt if not isinstance(part, int)
        ]

    @property
    def output_tokens(self) -> int | None:
        return self.max_tokens

    def choice(self, text: str, first: bool, whole: bool) -> dict[str, Any]:
        return {"text": text}


class TextPart(BaseModel):
    text: str


class Message(BaseModel):
    role: str
    content: str | list[TextPart] | None = None

    def count(self, tokens: Tokens) -> int:
        parts = self.content if isinstance(self.content, list) else [TextPart(text=self.content or "")]
        return tokens.count("".join([self.role, "\n", *(part.text for part in parts)])) + MESSAGE_TOKENS


class Chat(Asked):
    kind, piece = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None

    def prompts(self, tokens: Tokens) -> list[int]:
        return [sum(message.count(tokens) for message in self.messages)]

    @property
    def output_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def choice(self, text: str, first: bool, whole: bool) -> dict[str, Any]:
        content = {"role": "assistant", "content": text} if first or whole else {"content": text}
        return {"message" if whole else "delta": content}


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def error_of(status: int, message: str) -> dict[str, Any]:
    """vLLM's error object."""
    kinds = {404: "NotFoundError", 413: "RequestTooLarge", 500: "InternalServerError", 503: "ServiceUnavailable"}
    return {"error": {"message": message, "type": kinds.get(status, "BadRequestError"), "param": None, "code": status}}


async def read_body(request: Request) -> Any:
    """The request's JSON. Raises Refused: too large, or no JSON."""
    too_large = Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise too_large
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None


class Server:
    """Starts the answers to requests and writes them down as OpenAI's objects."""

    def __init__(self, fleet: Fleet, tokens: Tokens) -> None:
        self._fleet, self._tokens = fleet, tokens
        self._model = fleet.scenario.engine.model

    def app(self) -> Starlette:
        def post(kind: type[Asked]) -> Callable[[Request], Awaitable[Response]]:
            async def endpoint(request: Request) -> Response:
                return await self._answer(request, kind)

            return endpoint

        routes = [
            Route("/v1/completions", post(Completion), methods=["POST"]),
            Route("/v1/chat/completions", post(Chat), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/ping", self._health, methods=["GET", "POST"]),
            Route("/metrics", self._metrics),
            Route("/version", self._version),
            Route("/server_info", self._server_info),
        ]
        return Starlette(routes=routes, exception_handlers={Refused: self._refuse, ClientDisconnect: self._refuse})

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status, message = (error.status, error.message) if isinstance(error, Refused) else (400, "the client left")
        return JSONResponse(error_of(status, message), status)

    # ---- answers ----

    async def _answer(self, request: Request, kind: type[Asked]) -> Response:
        sent_s = time.monotonic()
        try:
            asked = kind.model_validate(await read_body(request))
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if asked.model not in (None, self._model):
            raise Refused(404, f"The model `{asked.model}` does not exist.")
        answers = self._submit(asked, sent_s)
        base = {"id": f"{asked.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": self._model}
        if asked.stream:
            return StreamingResponse(
                self._events(asked, base, answers), media_type="text/event-stream", background=self._drop(answers)
            )
        whole = asyncio.create_task(self._whole(asked, base, answers))
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                raise ClientDisconnect
            return JSONResponse(await whole)
        finally:
            whole.cancel()
            gone.cancel()
            self._fleet.drop(answers)

    def _drop(self, answers: list[Answer]) -> BackgroundTask:
        async def drop() -> None:
            self._fleet.drop(answers)

        return BackgroundTask(drop)

    def _submit(self, asked: Asked, sent_s: float) -> list[Answer]:
        """All choices' requests, or none."""
        prompts = [size for size in asked.prompts(self._tokens) for _ in range(asked.n)]
        longest = max(prompts, default=0) + (asked.output_tokens or 1)
        if not prompts or min(prompts) < 1:
            raise Refused(400, "the prompt is empty")
        if len(prompts) > MAX_CHOICES:
            raise Refused(400, f"at most {MAX_CHOICES} choices can be asked for at once")
        if longest > self._fleet.max_model_len:
            message = f"prompt and max_tokens make {longest} tokens, the model's maximum is {self._fleet.max_model_len}"
            raise Refused(400, message)
        answers: list[Answer] = []
        news = asyncio.Event()
        try:
            for size in prompts:
                answers.append(self._fleet.submit(size, asked.output_tokens, asked.priority, news, sent_s))
        except Unavailable as error:
            self._fleet.drop(answers)
            raise Refused(503, str(error)) from None
        return answers

    def _choice(self, asked: Asked, index: int, tokens: int, answer: Answer, *, whole: bool) -> dict[str, Any]:
        choice = asked.choice(self._tokens.filler * tokens, tokens == answer.tokens, whole)
        choice |= {"index": index, "logprobs": None, "finish_reason": answer.reason if answer.ended else None}
        if asked.return_token_ids:
            choice["token_ids"] = [self._tokens.filler_id] * tokens
        return choice | {"stop_reason": None}

    @staticmethod
    def _usage(asked: Asked, answers: list[Answer]) -> dict[str, int]:
        prompt = sum(answer.prompt_tokens for answer in answers[:: asked.n])  # a prompt counts once
        output = sum(answer.tokens for answer in answers)
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    async def _whole(self, asked: Asked, base: dict[str, Any], answers: list[Answer]) -> dict[str, Any]:
        async for _, _, answer in pieces(answers):
            if answer.error:
                raise Refused(500, answer.error)
        choices = [self._choice(asked, i, answer.tokens, answer, whole=True) for i, answer in enumerate(answers)]
        return base | {"object": asked.kind, "choices": choices, "usage": self._usage(asked, answers)}

    async def _events(self, asked: Asked, base: dict[str, Any], answers: list[Answer]) -> AsyncIterator[bytes]:
        """Server-sent events: a piece of an answer each, at the end the usage where asked for."""
        options = asked.stream_options or StreamOptions()
        base = base | {"object": asked.piece}
        async for index, tokens, answer in pieces(answers):
            if answer.error:
                yield _event(error_of(500, answer.error))
                break
            event = base | {"choices": [self._choice(asked, index, tokens, answer, whole=False)]}
            if options.continuous_usage_stats:
                event["usage"] = self._usage(asked, answers)
            yield _event(event)
        else:
            if options.include_usage:
                yield _event(base | {"choices": [], "usage": self._usage(asked, answers)})
        yield b"data: [DONE]\n\n"

    # ---- about the server ----

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
        fleet = self._fleet
        scenario, settings = fleet.scenario, fleet.deployment.settings
        spec = scenario.speculative_config
        sections = {
            "model_config": ("max_model_len", "enforce_eager"),
            "cache_config": ("block_size", "num_gpu_blocks", "enable_prefix_caching", "gpu_memory_utilization"),
            "scheduler_config": (
                *("max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "enable_chunked_prefill"),
                *("long_prefill_token_threshold", "watermark", "async_scheduling"),
            ),
            "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        }
        config: dict[str, Any] = {
            section: {name: getattr(settings, name) for name in names} for section, names in sections.items()
        }
        config["model_config"]["model"] = self._model
        config["scheduler_config"]["policy"] = settings.scheduling_policy
        config["speculative_config"] = spec.model_dump(mode="json", exclude_unset=True) if spec is not None else None
        simulated = {"scenario": scenario.model_dump(mode="json", exclude_unset=True), "speed": fleet.speed}
        return JSONResponse({"vllm_config": config, "draftcast": simulated})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


async def _until_gone(request: Request) -> None:
    with suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
