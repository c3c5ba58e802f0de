import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

from tidegate.apps.guard import MAX_BODY_BYTES, Guard, HostRule

EVERYWHERE = "0.0.0.0"  # noqa: S104 - a name, nothing is bound


@pytest.mark.parametrize(
    ("listen", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:8080", True),
        ("127.0.0.1", "localhost:9", True),
        ("127.0.0.1", "LOCALHOST.", True),
        ("127.0.0.1", "[::1]:8080", True),
        ("127.0.0.1", "127.8.8.8", True),
        ("127.0.0.1", "chat.example", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "10.0.0.5", False),
        ("10.0.0.5", "10.0.0.5:8080", True),
        ("10.0.0.5", "10.0.0.6", False),
        (EVERYWHERE, "10.0.0.5:8080", True),
        ("::", "[fe80::1]:8080", True),
        (EVERYWHERE, "evil.example", False),
        (EVERYWHERE, "10.0.0.5.evil.example", False),
        (EVERYWHERE, "", False),
        (EVERYWHERE, "localhost:80;x", False),
        (EVERYWHERE, "a@localhost", False),
        (EVERYWHERE, "localhost/..", False),
    ],
)
def test_the_name_is_looked_at_and_not_the_port(listen, host, allowed):
    assert HostRule(listen, ["Chat.example"]).allows(host) is allowed


def guarded():
    async def hello(request):
        return PlainTextResponse("hello")

    async def socket(websocket):
        await websocket.accept()

    inner = Starlette(routes=[Route("/", hello, methods=["GET", "POST"]), WebSocketRoute("/ws", socket)])
    return Guard(inner, hosts=HostRule("127.0.0.1", []), policy="default-src 'self' ws://{host}")


async def ask(method="GET", **headers):
    transport = httpx.ASGITransport(guarded())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        return await client.request(
            method, "/", headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


async def test_what_comes_from_the_page_itself_passes_with_its_policy():
    answer = await ask("POST", origin="http://127.0.0.1:8080")
    assert answer.text == "hello"
    assert answer.headers["content-security-policy"] == "default-src 'self' ws://127.0.0.1:8080"
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_foreign_name_is_refused_in_both_languages():
    answer = await ask(host="evil.example")
    assert answer.status_code == 403
    assert "evil.example" in answer.text
    assert "主机名" in answer.text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "http://localhost:8080"])
async def test_what_another_site_sends_is_refused(origin):
    assert (await ask("POST", origin=origin)).status_code == 403


async def test_a_body_too_large_or_of_unknown_length_is_refused():
    assert (await ask("POST", content_length=str(MAX_BODY_BYTES + 1))).status_code == 413
    assert (await ask("POST", content_length="x")).status_code == 411
    assert (await ask("POST", transfer_encoding="chunked")).status_code == 411


@pytest.mark.parametrize(("origin", "answer"), [("http://127.0.0.1:8080", "accept"), ("http://evil.example", "close")])
async def test_a_websocket_opens_only_for_the_page_itself(origin, answer):
    sent = []
    scope = {
        "type": "websocket",
        "path": "/ws",
        "headers": [(b"host", b"127.0.0.1:8080"), (b"origin", origin.encode())],
        "subprotocols": [],
        "query_string": b"",
    }

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message["type"])

    await guarded()(scope, receive, send)
    assert sent[0] == f"websocket.{answer}"
