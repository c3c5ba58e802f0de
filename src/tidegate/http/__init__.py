"""HTTP/1.1 on asyncio.Protocol: a server, a client pool, flow control. Knows nothing of language models.

Everything here is synchronous callbacks: a request on the data path starts no task and awaits nothing.
"""

from tidegate.http.client import Connection, Endpoint, Reply, ResponseHead
from tidegate.http.request import Request
from tidegate.http.server import Exchange, HeaderList, HttpServer, Limits, as_lines

__all__ = [
    "Connection",
    "Endpoint",
    "Exchange",
    "HeaderList",
    "HttpServer",
    "Limits",
    "Reply",
    "Request",
    "ResponseHead",
    "as_lines",
]
