import json
import secrets
import socket

import httpx
import pytest

from tidegate.control import ports
from tidegate.control.admin import AdminServer, host_name
from tidegate.control.reload import Change, Effect, ReloadAnswer
from tidegate.control.status import Status
from tidegate.errors import NotFound, OperatorError, SettingError

TOKEN = secrets.token_urlsafe(8)
STATUS = Status(
    version="1",
    pid=1,
    home="/h",
    up_s=1.0,
    ready=True,
    snapshot=1,
    keys_required=False,
    memory_used_bytes=1,
    memory_total_bytes=2,
    urls={},
    processes=(),
    models=(),
    replicas=(),
    gateways=(),
)


class Operations:
    def __init__(self):
        self.applied = None

    def status(self):
        return STATUS

    def top(self):
        return {"top": True}

    def limits(self):
        return {"replicas": [], "classes": []}

    def set_limit(self, replica, sequences):
        return {"id": replica, "limit_set": sequences}

    def drain(self, replica, *, drained):
        if replica != "p-0":
            raise NotFound(f"there is no replica {replica!r}; there are: p-0", code="no_such_replica")
        return {"id": replica, "drained": drained}

    async def replace_gateways(self):
        if self.applied is True:
            raise OperatorError("gateway-2 cannot be replaced: it ended with status 3")
        return ("gateway", "gateway-2")

    async def reload(self, *, apply):
        self.applied = apply
        if self.applied is True:
            raise SettingError("log.level", "is not a level", hint="as in info")
        return ReloadAnswer(changes=(Change("log.level", "info", "debug", Effect.LIVE),), applied=apply)


@pytest.fixture
async def admin():
    """A running admin port, and a client that may use it."""
    operations = Operations()
    listening = ports.bind("127.0.0.1:0", "admin.listen")
    server = AdminServer(operations, operations, token=TOKEN, listen="127.0.0.1:0", allowed_hosts=("admin.example",))
    server.open(listening)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"http://{ports.address_of(listening)}", headers=headers) as client:
        client.operations = operations
        yield client
    await server.close()
    assert listening.fileno() == -1


def message(answer):
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["error"]["message"]


async def test_status_is_told_to_whoever_has_the_token(admin):
    answer = await admin.get("/admin/v1/status")
    assert answer.status_code == 200
    assert answer.json()["ready"] is True


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer schlüssel"]
)
async def test_any_other_token_is_refused(admin, given):
    answer = await admin.get("/admin/v1/status", headers={"authorization": given.encode()})
    assert answer.status_code == 401
    assert "run/admin.json" in message(answer)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8001", "admin.example:8001", "LOCALHOST"])
async def test_names_of_this_machine_and_allowed_ones_are_answered_on_any_port(admin, host):
    assert (await admin.get("/admin/v1/status", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:8001", "", "[::1].evil", "[::2]"])
async def test_other_host_names_are_refused_though_they_resolve_to_here(admin, host):
    answer = await admin.get("/admin/v1/status", headers={"host": host})
    assert answer.status_code == 403
    assert "admin.allowed_hosts" in message(answer)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"])
async def test_forms_are_refused_even_with_the_token(admin, kind):
    answer = await admin.post("/admin/v1/reload", content=b"dry_run=1", headers={"content-type": kind})
    assert answer.status_code == 415
    assert admin.operations.applied is None


async def test_reload_tells_the_differences_and_takes_json_or_nothing(admin):
    answer = await admin.post("/admin/v1/reload", json={"dry_run": True})
    assert answer.json() == {
        "changes": [{"setting": "log.level", "old": "info", "new": "debug", "effect": "live"}],
        "applied": False,
    }
    assert admin.operations.applied is False


async def test_wrong_settings_are_a_400_with_their_message(admin):
    answer = await admin.post("/admin/v1/reload")
    assert answer.status_code == 400
    assert message(answer) == "log.level: is not a level; as in info"
    assert answer.json()["error"]["code"] == "invalid_settings"


@pytest.mark.parametrize("body", [b"{", b"[]", json.dumps({"apply": 1}).encode()])
async def test_a_body_that_is_no_reload_is_a_400(admin, body):
    answer = await admin.post("/admin/v1/reload", content=body)
    assert answer.status_code == 400


async def test_unknown_paths_and_methods_get_openai_shaped_errors(admin):
    assert (await admin.get("/admin/v1/nothing")).status_code == 404
    assert (await admin.post("/admin/v1/status")).status_code == 405
    assert message(await admin.get("/nothing"))


async def test_health_needs_no_token(admin):
    assert (await admin.get("/health", headers={"authorization": ""})).json() == {"status": "ok"}


def test_a_host_header_is_a_name_and_perhaps_a_port():
    assert host_name("a.example:80") == "a.example"
    assert host_name("[::1]:80") == "::1"
    assert host_name("A.Example.") == "a.example"
    assert host_name("[x]") == ""


def test_a_taken_admin_port_is_named_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(Exception, match="cannot be used") as refused:
        ports.bind(f"127.0.0.1:{held.getsockname()[1]}", "admin.listen")
    assert "admin.listen" in refused.value.hint


async def test_gateways_are_replaced_and_who_cannot_be_is_told(admin):
    answer = await admin.post("/admin/v1/gateways/replace", json={})
    assert answer.json() == {"replaced": ["gateway", "gateway-2"]}
    admin.operations.applied = True
    answer = await admin.post("/admin/v1/gateways/replace")
    assert answer.status_code == 503
    assert "gateway-2 cannot be replaced" in message(answer)


async def test_a_limit_is_set_and_given_back(admin):
    assert (await admin.put("/admin/v1/limits/p-0", json={"sequences": 3})).json() == {"id": "p-0", "limit_set": 3}
    assert (await admin.delete("/admin/v1/limits/p-0")).json() == {"id": "p-0", "limit_set": None}
    assert (await admin.get("/admin/v1/limits")).json() == {"replicas": [], "classes": []}
    assert (await admin.get("/admin/v1/top")).json() == {"top": True}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"sequences": 0}', "sequences: 0 is not from 1 to 100000; to give a replica no more work, drain it"),
        (b'{"sequences": -3}', "sequences: -3 is not from 1"),
        (b'{"sequences": 100001}', "sequences: 100001 is not from 1"),
        (b'{"sequences": 1.5}', "sequences: Expected `int`, got `float`"),
        (b'{"sequences": "3"}', "sequences: Expected `int`, got `str`"),
        (b'{"sequences": true}', "sequences: Expected `int`, got `bool`"),
        (b'{"sequences": null}', "sequences: Expected `int`, got `null`"),
        (b'{"sequences": 99999999999999999999999}', "sequences:"),
        (b'{"limit": 3}', "unknown field `limit`"),
        (b"{}", "missing required field `sequences`"),
        (b"", "missing required field `sequences`"),
        (b"[3]", "Expected `object`, got `array`"),
        (b"{", "the body is not what a limit takes"),
    ],
)
async def test_a_limit_that_is_none_is_a_400_that_names_the_field(admin, body, said):
    answer = await admin.put("/admin/v1/limits/p-0", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert said in message(answer)


async def test_a_replica_is_drained_and_given_work_again_and_one_that_is_not_there_is_a_404(admin):
    assert (await admin.post("/admin/v1/replicas/p-0/drain")).json() == {"id": "p-0", "drained": True}
    assert (await admin.delete("/admin/v1/replicas/p-0/drain")).json() == {"id": "p-0", "drained": False}
    answer = await admin.post("/admin/v1/replicas/p-7/drain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_replica")
    assert message(answer) == "there is no replica 'p-7'; there are: p-0"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v1/top"),
        ("GET", "/admin/v1/limits"),
        ("PUT", "/admin/v1/limits/p-0"),
        ("DELETE", "/admin/v1/limits/p-0"),
        ("POST", "/admin/v1/replicas/p-0/drain"),
    ],
)
async def test_none_of_these_is_answered_without_the_token(admin, method, path):
    assert (await admin.request(method, path, headers={"authorization": ""})).status_code == 401
