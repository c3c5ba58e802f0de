"""HTTP/1.1 on asyncio.Protocol: a server, a client pool, flow control. Knows nothing of language models.

Everything here is synchronous callbacks: a request on the data path starts no task and awaits nothing.
"""

from tidegate.http.client import Connection, Endpoint, Reply, ResponseHead
from tidegate.http.exchange import Exchange, HeaderList, as_lines
from tidegate.http.limits import Limits
from tidegate.http.outbox import Outbox
from tidegate.http.request import Request
from tidegate.http.server import HttpServer

__all__ = [
    "Connection",
    "Endpoint",
    "Exchange",
    "HeaderList",
    "HttpServer",
    "Limits",
    "Outbox",
    "Reply",
    "Request",
    "ResponseHead",
    "as_lines",
]
