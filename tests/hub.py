"""A small hub on loopback that speaks both hubs' endpoints, with faults on demand.

Used as a context manager: `with Hub({"baidu/ERNIE": {"model.safetensors": b"..."}}) as hub: hub.url`.
Every file of 1 KiB and more is a large one, kept apart and reached by a redirect, as on the real hubs.
"""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_BYTES = 1024


@dataclass
class Faults:
    """What is wrong with the hub; each may be changed while it runs."""

    hang_s: float = 0.0
    """Accept, and say nothing for so long (or until the hub is closed)."""
    speaks: tuple[str, ...] = ("hf", "ms")
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    """File: after how many bytes of the body each next request is cut."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next requests for large files, before they are served."""
    listing_status: int = 0
    no_ranges: bool = False
    no_etags: bool = False
    wrong_bytes: set[str] = field(default_factory=set)
    """Files of which other bytes of the same length are sent."""
    listing: object = None
    """Sent in place of any list of files."""
    chunk_delay_s: float = 0.0
    wrong_length: set[str] = field(default_factory=set)
    wrong_range: bool = False


@dataclass
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]


class Hub:
    """The server. `repositories`: repository id -> file -> bytes."""

    def __init__(self, repositories: dict[str, dict[str, bytes]], *, licence: str = "apache-2.0") -> None:
        self.repositories, self.licence, self.faults = repositories, licence, Faults()
        self.asked: list[Asked] = []
        self.closed = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def requests(self, part: str) -> list[Asked]:
        """The requests whose path has `part` in it."""
        return [asked for asked in self.asked if part in asked.path]

    def revision(self, repository: str) -> str:
        files = self.repositories[repository]
        return hashlib.sha1(
            b"".join(name.encode() + files[name] for name in sorted(files)), usedforsecurity=False
        ).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        hub.asked.append(Asked(self.path, {name.lower(): value for name, value in self.headers.items()}))
        if hub.faults.hang_s:
            hub.closed.wait(hub.faults.hang_s)
            self.close_connection = True
            return
        path = unquote(parts.path)
        routes = {
            r"/api/models/([^/]+/[^/]+)": self._hf_listing,
            r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)": self._hf_file,
            r"/api/v1/models/([^/]+/[^/]+)/repo/files": self._ms_listing,
            r"/api/v1/models/([^/]+/[^/]+)/repo": self._ms_file,
            r"/cdn/([^/]+/[^/]+)/(.+)": self._file,
        }
        for pattern, route in routes.items():
            if match := re.fullmatch(pattern, path):
                route(*match.groups())
                return
        self._send(404, b"no such path")

    def _hf_listing(self, repository: str) -> None:
        files = self.hub.repositories.get(repository) if "hf" in self.hub.faults.speaks else None
        siblings = []
        for name, data in (files or {}).items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if len(data) >= LARGE_BYTES:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        answer = {"id": repository, "cardData": {"license": self.hub.licence}, "siblings": siblings}
        self._listing(repository, files, lambda: answer | {"sha": self.hub.revision(repository)})

    def _ms_listing(self, repository: str) -> None:
        files = self.hub.repositories.get(repository) if "ms" in self.hub.faults.speaks else None
        entries = [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(data), "Sha256": hashlib.sha256(data).hexdigest()}
            for name, data in (files or {}).items()
        ]
        entries.append({"Path": "folder", "Name": "folder", "Type": "tree", "Size": 0, "Sha256": ""})
        self._listing(repository, files, lambda: {"Code": 200, "Success": True, "Data": {"Files": entries}})

    def _listing(self, repository, files, answer) -> None:
        faults = self.hub.faults
        if faults.listing_status:
            self._send(faults.listing_status, b"fault on demand")
        elif faults.listing is not None:
            self._send(200, json.dumps(faults.listing).encode())
        elif files is None:
            self._send(404, json.dumps({"Code": 10010205001, "Message": f"no {repository}"}).encode())
        else:
            self._send(200, json.dumps(answer()).encode())

    def _hf_file(self, repository: str, revision: str, name: str) -> None:
        if revision != self.hub.revision(repository):
            self._send(404, b"no such revision")
        else:
            self._small_or_redirect(repository, name)

    def _ms_file(self, repository: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if query.get("Revision") != ["master"]:
            self._send(404, b"no such revision")
        else:
            self._small_or_redirect(repository, query["FilePath"][0])

    def _small_or_redirect(self, repository: str, name: str) -> None:
        data = self.hub.repositories.get(repository, {}).get(name)
        if data is not None and len(data) >= LARGE_BYTES:
            # The other host of the redirect: the token must not follow there.
            port = self.server.server_address[1]
            self._send(302, b"", {"location": f"http://localhost:{port}/cdn/{repository}/{name}"})
        else:
            self._file(repository, name)

    def _file(self, repository: str, name: str) -> None:
        faults, data = self.hub.faults, self.hub.repositories.get(repository, {}).get(name)
        if data is None:
            self._send(404, b"no such file")
            return
        if faults.statuses:
            self._send(faults.statuses.pop(0), b"fault on demand")
            return
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {} if faults.no_etags else {"etag": etag}
        start, wanted = 0, re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        if wanted and not faults.no_ranges and self.headers.get("if-range", etag) == etag:
            start = int(wanted[1])
            if start >= len(data):
                self._send(416, b"")
                return
            told = 0 if faults.wrong_range else start
            headers["content-range"] = f"bytes {told}-{len(data) - 1}/{len(data)}"
        body = (bytes(len(data)) if name in faults.wrong_bytes else data)[start:]
        if name in faults.wrong_length:
            body = b"<html>please log in</html>"
        self._send(206 if start else 200, body, headers, cut=(faults.cut_after.get(name) or [None]).pop(0))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            for at in range(0, len(body if cut is None else body[:cut]), 16 * 1024):
                self.wfile.write(body[at : at + 16 * 1024] if cut is None else body[at : min(at + 16 * 1024, cut)])
                time.sleep(self.hub.faults.chunk_delay_s)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if cut is not None:
            self.close_connection = True


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
