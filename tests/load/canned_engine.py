"""An engine that costs next to nothing: canned answers, so that what is measured is the gateway and not the engine.

`python canned_engine.py PORT TOKENS GAP_MS`. Every answer is the same; it speaks vLLM's dialect as far as a gateway looks.
"""

import asyncio
import sys

import uvloop

EVENT = 'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"fake","choices":[%s]}\n\n'
TOKEN = EVENT % '{"index":0,"delta":{"content":"你好"},"logprobs":null,"finish_reason":null}'
LAST = EVENT % '{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}'
USAGE = '"usage":{"prompt_tokens":40,"completion_tokens":64,"total_tokens":104}'
WITH_USAGE = f'data: {{"id":"c","object":"chat.completion.chunk","created":1,"model":"fake","choices":[],{USAGE}}}\n\n'
ANSWER = '{"id":"c","object":"chat.completion","created":1,"model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],%s}'
MODELS = '{"object":"list","data":[{"id":"fake","object":"model","owned_by":"vllm","max_model_len":32768}]}'


def chunk(event: str) -> bytes:
    payload = event.encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def whole(body: str, status: str = "200 OK") -> bytes:
    payload = body.encode()
    head = f"HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


STREAM = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ONE_TOKEN, ENDING = chunk(TOKEN), chunk(LAST) + chunk(WITH_USAGE) + chunk("data: [DONE]\n\n") + b"0\r\n\r\n"
JSON, LIST, NOTHING = whole(ANSWER % ("你好" * 64, USAGE)), whole(MODELS), whole("{}", "404 Not Found")


class Connection(asyncio.Protocol):
    """Answers each request when it is whole, and hopes that it is a sound one."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self.tokens, self.gap_s, self.data = tokens, gap_s, b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:")
        if not end or (at >= 0 and len(body) < int(head[at + 15 :].split(b"\r\n", 1)[0])):
            return
        self.data = b""
        if not head.startswith(b"POST "):
            self.transport.write(LIST if head.startswith(b"GET /v1/models") else NOTHING)
        elif b'"stream":true' in body.replace(b" ", b""):
            self.left = self.tokens
            self.transport.write(STREAM)
            self.due = asyncio.get_running_loop().time()
            self.step()
        else:
            self.transport.write(JSON)

    def step(self) -> None:
        if not self.left:
            self.transport.write(ENDING)
            return
        self.left -= 1
        self.transport.write(ONE_TOKEN)
        self.due += self.gap_s
        self.timer = asyncio.get_running_loop().call_at(self.due, self.step)


async def main(port: int, tokens: int, gap_ms: float) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(tokens, gap_ms / 1000), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
