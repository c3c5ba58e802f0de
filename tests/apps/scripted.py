"""A gateway whose answers a test writes, and that remembers what it was asked. Real sockets, an OpenAI API."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Scripted:
    """What it does next is in the attributes; what happened, in `asked` and `closed`."""

    def __init__(self):
        self.model = "ernie-4.5-0.3b"
        self.pieces = ["Hello", " there", "."]
        self.pause_s = 0.0
        self.status = 200
        self.error = {}
        self.retry_after = None
        self.break_after = None
        self.keys = None
        self.tokens = None
        """Function of the messages; None: 501."""
        self.asked = []
        self.closed = []
        """When a stream was left by the client before its end (monotonic)."""
        self.sent = 0
        self.url = ""

    def app(self):
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
            ]
        )

    def _refusal(self, request):
        if self.keys is not None and request.headers.get("authorization", "").removeprefix("Bearer ") not in self.keys:
            return JSONResponse({"error": {"message": "invalid key", "code": "invalid_api_key"}}, 401)
        return None

    async def models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse(
            {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        )

    async def tokenize(self, request: Request) -> Response:
        if self.tokens is None:
            return JSONResponse({"error": {"message": "no tokenizer", "code": None}}, 501)
        body = await request.json()
        return JSONResponse({"count": self.tokens(body["messages"]), "max_model_len": 4096})

    async def chat(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self.status != 200:
            headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
            return JSONResponse({"error": {"message": "scripted", **self.error}}, self.status, headers=headers)
        body = await request.json()
        if body["model"] != self.model:
            return JSONResponse({"error": {"message": f"no model {body['model']}; valid: {self.model}"}}, 404)
        self.asked.append(body["messages"])
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        done = False
        try:
            for index, piece in enumerate(self.pieces):
                if index == self.break_after:
                    self.break_after = None
                    raise ConnectionError("scripted break")
                yield _event({"content": piece})
                self.sent = index + 1
                await asyncio.sleep(self.pause_s)
            yield _event({}, finish="stop")
            yield b"data: [DONE]\n\n"
            done = True
        finally:
            if not done:
                self.closed.append(time.monotonic())


def _event(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def running(scripted: Scripted) -> Iterator[Scripted]:
    """Serve it from a thread, on a port from the kernel. May be entered again, on the same port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(scripted.url.rsplit(":", 1)[1]) if scripted.url else 0))
    listener.listen(64)
    scripted.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(scripted.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none")
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield scripted
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
