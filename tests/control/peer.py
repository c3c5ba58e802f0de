"""A small gateway for tests of control: speaks its channel, and answers every HTTP request with what it knows.

`python peer.py --control PATH --listen-fd N`. `/hold?FOLDER` makes the file `held` there, and answers once there is a
file `release`. `/say?ID=HEALTH:COUNT` has it report that health, and so many requests in flight, of a replica. On SIGTERM or SIGUSR1 it stops listening, finishes what it has, and ends.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path

from tidegate import channel
from tidegate.channel import ChannelClosedError
from tidegate.fleet.local import process_id
from tidegate.types import ClassReport, DataReport, FleetSnapshot, Hello, ReplicaReport

OWN = process_id(os.getpid())


class Peer:
    def __init__(self):
        self.snapshot = FleetSnapshot(number=0)
        self.in_flight = 0
        self.said = {}
        self.seen = []
        """Of every snapshot, the states of its replicas."""

    async def answer(self, reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        self.in_flight += 1
        if request.startswith(b"GET /hold?"):
            folder = Path(request.split()[1].partition(b"?")[2].decode())
            (folder / "held").touch()
            while not (folder / "release").exists():
                await asyncio.sleep(0.01)
        if request.startswith(b"GET /say?"):
            name, _, what = request.split()[1].partition(b"?")[2].decode().partition("=")
            self.said[name] = what.split(":")
        body = {
            "seen": self.seen[-100:],
            "pid": OWN.pid,
            "snapshot": self.snapshot.number,
            "keys": [key.name for key in self.snapshot.keys],
            "replicas": {one.id: [one.state, one.url] for one in self.snapshot.replicas},
            "limits": self.snapshot.limits_set,
        }
        data = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        self.in_flight -= 1
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def state(self):
        replicas = tuple(
            ReplicaReport(
                one.id,
                int(self.said.get(one.id, ("", "0"))[1]) if one.state == "ready" else 0,
                0,
                0,
                reachable=True,
                health=self.said.get(one.id, ("", "0"))[0],
                limit=self.snapshot.limits_set.get(one.id, 4),
            )
            for one in self.snapshot.replicas
        )
        classes = tuple(ClassReport(one.name, queued=2) for one in self.snapshot.classes)
        return DataReport(OWN, self.snapshot.number, 0, self.in_flight, {}, replicas, classes=classes)

    async def report(self, connected):
        while True:
            await connected.send(self.state())
            await asyncio.sleep(0.1)

    async def talk(self, path, listening):
        while True:
            with contextlib.suppress(ChannelClosedError):
                connected = channel.connect(path)
                try:
                    descriptor = listening.fileno()
                    await connected.send(Hello(OWN, "x", "y"), (descriptor,) if descriptor >= 0 else ())
                    reporting = asyncio.create_task(self.report(connected))
                    try:
                        while True:
                            self.snapshot, _ = await connected.receive(FleetSnapshot)
                            self.seen.append([(one.id, one.state) for one in self.snapshot.replicas])
                            await connected.send(self.state())
                    finally:
                        reporting.cancel()
                        await asyncio.gather(reporting, return_exceptions=True)
                finally:
                    connected.close()
            await asyncio.sleep(0.05)


async def main(path, descriptor):
    peer = Peer()
    with socket.socket(fileno=descriptor) as listening:
        listening.setblocking(False)
        server = await asyncio.start_server(peer.answer, sock=listening.dup())
        talking = asyncio.create_task(peer.talk(path, listening))
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        await ending.wait()
        server.close()
        listening.close()
        while peer.in_flight:
            await asyncio.sleep(0.01)
        talking.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=Path)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--metrics", type=Path)
    parser.add_argument("--await-fleet", action="store_true")
    options = parser.parse_args()
    asyncio.run(main(options.control, options.listen_fd))
