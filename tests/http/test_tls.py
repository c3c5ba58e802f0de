"""HTTPS with a certificate from the settings."""

import shutil
import ssl
import subprocess

import pytest

from gateway.wire import until
from tidegate.errors import SettingError
from tidegate.http.tls import server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", *request, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return certificate, key


@pytest.fixture
def trusting(pem):
    return ssl.create_default_context(cafile=str(pem[0]))


async def test_requests_streams_and_pipelines_work_over_tls(serve, pem, trusting):
    def handler(exchange):
        exchange.start(200)
        exchange.write("盘古".encode())
        exchange.write(exchange.request.body)
        exchange.finish()

    served = await serve(handler, tls=server_context(*pem))
    async with await served.connect(tls=trusting) as client:
        for _ in range(2):
            answer = await client.ask("POST", "/", b"x" * 100_000)
            assert answer.body == "盘古".encode() + b"x" * 100_000
        assert (await client.ask("GET", "/", headers=("Connection: close",))).status == 200
        assert await client.ended()


async def test_a_client_that_goes_is_noticed_over_tls(serve, pem, trusting):
    told = []

    def handler(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)

    served = await serve(handler, tls=server_context(*pem))
    client = await served.connect(tls=trusting)
    client.request("GET", "/")
    await until(lambda: served.exchanges)
    client.reset()
    await until(lambda: told, deadline_s=0.5)


async def test_what_is_not_http_is_refused_over_tls(serve, pem, trusting):
    served = await serve(tls=server_context(*pem))
    async with await served.connect(tls=trusting) as client:
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.ended()


async def test_plain_http_to_a_tls_port_does_not_disturb_others(serve, pem, trusting):
    served = await serve(tls=server_context(*pem))
    async with await served.connect() as plain, await served.connect(tls=trusting) as client:
        plain.request("GET", "/")
        assert await plain.ended()
        assert (await client.ask("GET", "/")).status == 200


def test_old_tls_is_not_spoken(pem):
    context = server_context(*pem)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_missing_file_is_named_with_its_setting(pem, tmp_path):
    with pytest.raises(SettingError, match=r"gateway\.tls_cert_file.*none\.pem is not a file"):
        server_context(tmp_path / "none.pem", pem[1])
    with pytest.raises(SettingError, match=r"gateway\.tls_key_file.*none\.pem is not a file"):
        server_context(pem[0], tmp_path / "none.pem")


def test_files_that_do_not_fit_are_one_clear_message(pem):
    with pytest.raises(SettingError, match="cannot be used"):
        server_context(pem[1], pem[0])
