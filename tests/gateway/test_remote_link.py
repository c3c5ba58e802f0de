"""The gateway's talk with control on another host: whatever answers there, it serves on, and nothing told is lost."""

import asyncio
import contextlib
import json
import shutil
import ssl
import subprocess
import time
import tracemalloc

import msgspec
import pytest

from gateway.wire import until
from tidegate import logs
from tidegate.channel import PROTOCOL, REPORT_PATH, RemoteHello, RemoteReport, Word
from tidegate.errors import OperatorError, SettingError
from tidegate.gateway import control_client, remote_link
from tidegate.gateway.control_client import AwayError, ControlClient, ControlUrl, read_token, trust
from tidegate.gateway.remote_link import Here, RemoteLink, for_this_host, retry_s
from tidegate.types import (
    DataReport,
    DialectName,
    FleetSnapshot,
    Hello,
    Outcome,
    ProcessId,
    ReplicaState,
    ReplicaView,
    UsageCount,
)

OWN = ProcessId(1, 1)
HELLO = RemoteHello(PROTOCOL, "a" * 16, "gw", Hello(OWN, "127.0.0.1:0", "1"))
LOOPBACK = Here("127.0.0.1:8000", allow_anonymous=False)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = Word(PROTOCOL, "1")


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def line(word):
    return chunk(msgspec.json.encode(word) + b"\n")


class Script:
    """A server that does with each greeting what the test says; reports are taken unless it says otherwise."""

    def __init__(self, act):
        self.act = act
        self.greetings, self.reports, self.answer_reports = 0, [], True
        self._tasks = set()

    async def open(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def close(self):
        self.server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                    body = await reader.readexactly(length)
                    if REPORT_PATH.encode() not in head:
                        self.greetings += 1
                        await self.act(writer, self.greetings)
                        break
                    self.reports.append(msgspec.json.decode(body, type=RemoteReport))
                    if not self.answer_reports:
                        break
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        finally:
            self._tasks.discard(asyncio.current_task())
            writer.close()

    def client(self):
        return ControlClient(ControlUrl.parse(self.url), lambda: "token", None)


@pytest.fixture
async def play():
    """Start a script."""
    logs.set_level("critical")
    scripts = []

    async def start(act):
        scripts.append(await Script(act).open())
        return scripts[-1]

    yield start
    for script in scripts:
        await script.close()
    logs.set_level("warning")


class Followed:
    """A link to a script, and what it did."""

    def __init__(self, script, last=FleetSnapshot(number=1), refuse=()):  # noqa: B008 - immutable
        self.snapshots, self.waiting, self.refuse = [], 0, refuse
        self.link = RemoteLink(
            script.client(),
            HELLO,
            LOOPBACK,
            last=last,
            apply=self.apply,
            report=self.report,
            unsent=self.unsent,
            random=lambda: 0.0,
        )
        self.task = asyncio.ensure_future(self.link.run())

    def apply(self, snapshot):
        self.snapshots.append(snapshot.number)
        if snapshot.number in self.refuse:
            raise ValueError("no such port")

    def report(self):
        taken, self.waiting = self.waiting, 0
        usage = (UsageCount("2026-01-01", "t", "", "m", Outcome.DONE, taken, 0, 0),) if taken else ()
        return DataReport(OWN, 1, 0, 0, {}, (), usage)

    def unsent(self, report):
        self.waiting += told(report)

    async def end(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def told(report):
    return sum(one.requests for one in report.usage)


@contextlib.asynccontextmanager
async def following(script, **more):
    followed = Followed(script, **more)
    try:
        yield followed
    finally:
        await followed.end()


async def forever(writer):
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(0.05)
            if writer.is_closing():
                return


def sends(*parts, then=forever):
    async def act(writer, _):
        for part in parts:
            writer.write(part)
        await writer.drain()
        await then(writer)

    return act


async def endlessly(writer, data):
    while True:
        writer.write(data)
        await writer.drain()


async def closes(_):
    """Nothing more."""


ERROR = json.dumps({"error": {"message": "this host name is not one of the admin port's"}}).encode()
NOT_CONTROL = (
    (sends(b"SSH-2.0-OpenSSH_9\r\n\r\n"), "does not answer as control does"),
    (sends(b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n<html></html>\n\n"), "is not control"),
    (sends(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"), "status 404"),
    (sends(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"), "status 302"),
    (sends(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"), "does not know the token"),
    (sends(b"HTTP/1.1 403 Forbidden\r\ncontent-length: %d\r\n\r\n%b" % (len(ERROR), ERROR)), "refuses: this host name"),
    (sends(HEAD, line({"protocol": PROTOCOL + 1, "version": "9.9"})), "control is Tidegate 9.9"),
    (sends(HEAD, line({"protocol": PROTOCOL, "snapshot": {"number": "x"}})), "cannot read: Expected `int`"),
    (sends(HEAD, chunk(b"null\n")), "is not control"),
    (sends(HEAD, chunk(b"\xff\xfe\n")), "is not control"),
    (sends(HEAD, b"zz\r\n"), "is not the size of a chunk"),
    (sends(then=closes), "closed the connection"),
    (sends(HEAD, then=closes), "closed the connection"),
    (sends(b"HTTP/1.1 200 OK\r\n", then=lambda writer: endlessly(writer, b"x: y\r\n" * 1000)), "a head longer than"),
    (sends(b"HTTP/1.1 500 No\r\n\r\n", then=lambda writer: endlessly(writer, b"x" * 1000)), "status 500"),
)


@pytest.mark.parametrize(("act", "words"), NOT_CONTROL, ids=[words for _, words in NOT_CONTROL])
async def test_what_is_not_control_is_said_in_words(play, act, words):
    script = await play(act)
    with pytest.raises(AwayError) as refused:
        await asyncio.wait_for(script.client().look(HELLO), 5)
    assert words in str(refused.value)


@pytest.mark.parametrize("parts", [(), (HEAD,), (HEAD, chunk(b"{")), (b"HTTP/1.1 500 No\r\n\r\n",)])
async def test_one_that_never_answers_is_given_up(play, monkeypatch, parts):
    monkeypatch.setattr(control_client, "ANSWER_S", 0.2)
    script = await play(sends(*parts))
    with pytest.raises(AwayError, match=r"says nothing|said nothing"):
        await asyncio.wait_for(script.client().look(HELLO), 5)


async def test_an_endless_line_costs_a_bounded_amount_of_memory(play, monkeypatch):
    monkeypatch.setattr(control_client, "MAX_LINE_BYTES", 2**20)
    script = await play(sends(HEAD, line(FIRST), then=lambda writer: endlessly(writer, chunk(b"x" * 65_536))))
    client = script.client()
    tracemalloc.start()
    try:
        async with client.listen(HELLO) as words:
            await words.first()
            with pytest.raises(AwayError, match="a line of more than"):
                await words.next()
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


async def test_what_nobody_has_read_yet_waits_in_the_socket(play):
    script = await play(sends(HEAD, line(FIRST), then=lambda writer: endlessly(writer, chunk(b"{}\n" * 20_000))))
    tracemalloc.start()
    try:
        async with script.client().listen(HELLO) as words:
            await words.first()
            await asyncio.sleep(0.5)
            assert await words.next() == Word()
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


async def test_one_that_never_stops_talking_leaves_the_gateway_its_time(play):
    script = await play(sends(HEAD, line(FIRST), then=lambda writer: endlessly(writer, chunk(b"{}\n" * 20_000))))
    async with following(script):
        await until(lambda: script.reports, "a report")
        longest, began = 0.0, time.monotonic()
        while time.monotonic() - began < 1.0:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
        assert longest < 0.25


HOSTILE = {
    "closes at once": sends(then=closes),
    "garbage": sends(b"\0\1\2 garbage \r\n\r\n"),
    "another protocol": sends(HEAD, line({"protocol": 99})),
    "garbage after the first word": sends(HEAD, line(FIRST), chunk(b"}{\n")),
    "a snapshot of another shape": sends(HEAD, line(FIRST), chunk(b'{"snapshot": {"number": []}}\n')),
    "a snapshot that makes no sense": sends(HEAD, line(FIRST), line(Word(snapshot=FleetSnapshot(number=666)))),
    "half a chunk": sends(HEAD, line(FIRST), b"40\r\n{", then=closes),
    "another status": sends(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"),
    "the token is wrong now": sends(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_a_control_gone_mad_ends_nothing_and_a_sound_one_is_followed_again(play, monkeypatch, how):
    monkeypatch.setattr(remote_link, "RETRY_S", 0.02)
    sound = sends(HEAD, line(FIRST), line(Word(snapshot=FleetSnapshot(number=7))))

    async def act(writer, count):
        await (HOSTILE[how] if count <= 3 else sound)(writer, count)

    script = await play(act)
    async with following(script, refuse={666}) as followed:
        await until(lambda: followed.snapshots[-1:] == [7], "the sound snapshot")
        assert script.greetings == 4
        assert set(followed.snapshots) <= {666, 1, 7}
        if how == "a snapshot that makes no sense":
            assert followed.snapshots == [666, 1, 666, 1, 666, 1, 7]  # each time what holds is put back
        assert not followed.task.done()


async def test_one_that_says_nothing_any_more_is_left(play, monkeypatch):
    monkeypatch.setattr(control_client, "ANSWER_S", 0.2)
    monkeypatch.setattr(remote_link, "RETRY_S", 0.02)
    script = await play(sends(HEAD, line(FIRST)))
    async with following(script):
        await until(lambda: script.greetings >= 3, "another greeting")


async def test_what_was_used_is_told_under_one_number_until_it_is_answered(play, monkeypatch):
    monkeypatch.setattr(remote_link, "RETRY_S", 0.02)
    script = await play(sends(HEAD, line(FIRST)))
    script.answer_reports = False
    async with following(script) as followed:
        followed.waiting = 3
        await until(lambda: len(script.reports) >= 2, "a report")
        followed.waiting += 4
        await until(lambda: len(script.reports) >= 4, "more reports")
        assert {(one.batch, told(one.report)) for one in script.reports} == {(1, 3)}
        script.answer_reports = True
        await until(lambda: script.reports[-1].batch == 2, "the next batch")
        assert told(script.reports[-1].report) == 4


async def test_the_last_report_says_what_ended_meanwhile(play):
    script = await play(sends(HEAD, line(FIRST)))
    async with following(script) as followed:
        await until(lambda: script.reports, "a report")
        followed.waiting = 5
        await followed.end()
        assert told(script.reports[-1].report) == 5
        assert followed.waiting == 0


async def test_what_could_not_be_told_by_the_end_is_given_back(play):
    script = await play(sends(HEAD, line(FIRST)))
    script.answer_reports = False
    async with following(script) as followed:
        followed.waiting = 5
        await until(lambda: script.reports, "a report")
        followed.waiting += 1
        await followed.end()
        assert followed.waiting == 6


async def test_an_end_while_nobody_is_there_is_no_fault(play):
    script = await play(sends(then=closes))
    await script.close()
    async with following(script) as followed:
        await asyncio.sleep(0.1)
        await followed.end()
        assert followed.task.cancelled()


def test_retries_come_later_and_later_and_not_all_at_once():
    waits = [retry_s(failures, 0.999) for failures in range(12)]
    assert waits == sorted(waits)
    assert 0.2 < waits[0] <= 0.25
    assert 4.9 < retry_s(10_000, 0.999) <= 5.0
    assert retry_s(5, 0.0) == pytest.approx(retry_s(5, 1.0) / 2)


def replica(name, url, state=ReplicaState.READY):
    return ReplicaView(name, "p", "m", url, DialectName.OPENAI, state, api_key="secret")


def test_what_listens_on_controls_loopback_is_not_asked_here_and_its_key_is_not_kept():
    urls = ("http://127.0.0.1:1", "http://[::1]:2", "http://localhost:3", "http://10.0.0.9:4", "http://gpu-1:5")
    replicas = tuple(replica(f"p-{number}", url) for number, url in enumerate(urls))
    coming = replica("p-9", "http://127.0.0.1:0", ReplicaState.STARTING)
    ours, out_of_reach = for_this_host(FleetSnapshot(1, replicas=(*replicas, coming)), LOOPBACK, same_host=False)
    assert out_of_reach == ("p-0", "p-1", "p-2")
    assert [one.state for one in ours.replicas[:3]] == [ReplicaState.FAILED] * 3
    assert [one.api_key for one in ours.replicas] == ["", "", "", "secret", "secret", ""]
    assert ours.replicas[3:5] == replicas[3:]
    same, out_of_reach = for_this_host(FleetSnapshot(1, replicas=replicas), LOOPBACK, same_host=True)
    assert (same.replicas, out_of_reach) == (replicas, ())


@pytest.mark.parametrize(
    ("listen", "allowed", "required"),
    [("127.0.0.1:1", False, False), ("0.0.0.0:1", False, True), ("0.0.0.0:1", True, False), ("gw:1", False, True)],
)
def test_who_can_connect_from_elsewhere_needs_a_key_whatever_controls_own_port_does(listen, allowed, required):
    ours, _ = for_this_host(FleetSnapshot(1), Here(listen, allow_anonymous=allowed), same_host=True)
    assert ours.keys_required is required
    assert ours.options.allow_anonymous is allowed
    ours, _ = for_this_host(FleetSnapshot(1, keys_required=True), Here(listen, allow_anonymous=True), same_host=True)
    assert ours.keys_required


@pytest.mark.parametrize(
    "text",
    ["control:8001", "ftp://c:1", "http://", "http://c:99999", "http://c:x", "http://u:p@c:1", "http://c:1/?q", "http://c:1#f",
     "http://c:0", "http://[::1", "http://c\r\nx: y", "http://ü:1", "run/control.sock"],
)  # fmt: skip
def test_what_is_no_url_of_a_control_is_refused(text):
    with pytest.raises(SettingError, match="--control"):
        ControlUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://c:8001/", ("c", 8001, "c:8001", "", False)),
        ("https://c.example", ("c.example", 443, "c.example", "", True)),
        ("http://[fd00::1]:1", ("fd00::1", 1, "[fd00::1]:1", "", False)),
        ("https://proxy/tide/gate/", ("proxy", 443, "proxy", "/tide/gate", True)),
    ],
)
def test_a_url_of_a_control(text, parts):
    url = ControlUrl.parse(text)
    assert (url.host, url.port, url.authority, url.prefix, url.tls) == parts


def test_a_token_file_holds_the_token_or_is_an_admin_json(tmp_path):
    file = tmp_path / "token"
    for content in ("secret-1", "  secret-1\n", '{"url": "http://x", "token": "secret-1", "pid": 1}'):
        file.write_text(content)
        assert read_token(file) == "secret-1"
    for content in ("", "\n", "two words", "schlüssel", "{}", "{", "a\nb", "a\0b"):
        file.write_text(content)
        with pytest.raises(SettingError, match="--token-file"):
            read_token(file)
    with pytest.raises(SettingError, match="cannot be read"):
        read_token(tmp_path / "missing")
    with pytest.raises(SettingError, match="cannot be read"):
        read_token(tmp_path)


async def test_nobody_there_and_no_such_host_are_said_in_words(play):
    script = await play(sends(then=closes))
    await script.close()
    with pytest.raises(AwayError, match="cannot be reached") as refused:
        await script.client().look(HELLO)
    assert "admin.listen" in refused.value.hint
    client = ControlClient(ControlUrl.parse("http://no-such-host.invalid:1"), lambda: "t", None)
    with pytest.raises(OperatorError, match=r"no host 'no-such-host\.invalid'|cannot be reached"):
        await client.look(HELLO)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")
async def test_a_certificate_is_believed_only_if_its_authority_is(tmp_path, play):
    for name, host in (("good", "IP:127.0.0.1"), ("other", "DNS:elsewhere.example")):
        request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"]
        files = ["-addext", f"subjectAltName={host}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(["openssl", *request, *files], check=True, capture_output=True, cwd=tmp_path)
    plain = await play(sends(HEAD, line(Word(PROTOCOL, "1", FleetSnapshot(number=3)))))

    async def look(name, ca):
        """Control behind a certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        server = await asyncio.start_server(plain._serve, "127.0.0.1", 0, ssl=context)
        try:
            url = ControlUrl.parse(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            return await ControlClient(url, lambda: "t", trust(ca and tmp_path / f"{ca}.pem")).look(HELLO)
        finally:
            server.close()

    snapshot, same_host = await look("good", "good")
    assert (snapshot.number, same_host) == (3, True)
    for name, ca in (("good", None), ("good", "other"), ("other", "other")):
        with pytest.raises(AwayError, match="is not trusted") as refused:
            await look(name, ca)
        assert "--control-ca" in refused.value.hint
    client = ControlClient(ControlUrl.parse(plain.url.replace("http", "https")), lambda: "t", trust(None))
    with pytest.raises(AwayError):
        await client.look(HELLO)
    (tmp_path / "empty.pem").write_text("nothing")
    for file in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(SettingError, match="--control-ca"):
            trust(file)
