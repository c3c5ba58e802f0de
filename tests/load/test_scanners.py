"""Scanners before a real gateway: what they make up leaves no trace that grows."""

import asyncio
import json
import urllib.request

import uvloop

from load.programs import fake_engine, gateway

SCANS = 10_000


def pytest_asyncio_loop_factories(config, item):
    """As the data path has it."""
    return {"uvloop": uvloop.new_event_loop}


def series(port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return {line.rsplit(" ", 1)[0] for line in answer.read().decode().splitlines()}


def requests(number: int) -> bytes:
    body = json.dumps({"model": f"made up {number}", "messages": [{"role": "user", "content": "hi"}]}).encode()
    return (
        b"GET /wp-admin/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (number, len(body), body)


async def scan(port: int, numbers: range) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        writer.write(requests(number))
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 404 "), head
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()
    await writer.wait_closed()


async def test_ten_thousand_scanner_paths_and_made_up_models_make_no_series_no_flood_of_logs_and_no_memory(tmp_path):
    with fake_engine(tmp_path) as engine, gateway(tmp_path, engine) as front:
        await scan(front.port, range(1000))
        before, rss, log = series(front.port), front.rss_mib, front.log.stat().st_size
        await asyncio.gather(*(scan(front.port, range(start, SCANS, 10)) for start in range(10)))
        assert series(front.port) == before
        assert front.rss_mib < rss + 20
        assert front.log.stat().st_size < log + 2000, front.log.read_text()[-2000:]
