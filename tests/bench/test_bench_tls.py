"""Load over https: only on a server whose certificate is believed."""

import shutil
import subprocess

import pytest

from bench.test_bench_load import Canned, bench, planned
from tidegate.bench.driver import Driver
from tidegate.http import Endpoint
from tidegate.http.tls import client_context, server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")

ANSWER = b'{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":2,"completion_tokens":3}}'
LOAD = ("--concurrency", 3, "--requests", 12, "--no-stream", "--model", "m", "--workload", "service")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *request, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return certificate, key


@pytest.fixture
async def url(pem):
    async with Canned(ANSWER, b"application/json", tls=server_context(*pem)) as running:
        yield running


@pytest.mark.parametrize("how", ["--ca-file", "--insecure"])
async def test_load_goes_over_tls_where_the_certificate_is_believed(url, pem, how):
    code, out, err = await bench(url, *LOAD, how, *([pem[0]] if how == "--ca-file" else []))
    assert (code, err) == (0, ""), out
    assert url in out
    assert "12" in out


async def test_streams_come_over_tls(pem):
    body = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with Canned(body, tls=server_context(*pem)) as url:
        endpoint = Endpoint(url, tls=client_context("--ca-file", pem[0]))
        load = Driver(endpoint, timeout_s=5, most_in_flight=9, count_events=True)
        await load.closed_loop(planned(url, range(6)), 2, None)
    assert load.kinds == {"": 6}
    assert all(0 < sample.first <= sample.end for sample in load.samples)


async def test_a_certificate_of_nobody_is_told_with_what_helps(url):
    code, _, err = await bench(url, *LOAD)
    assert code == 2
    assert f"the certificate of {url} is not trusted: self-signed certificate" in err
    assert "--ca-file names who signed it; --insecure believes anybody" in err


async def test_a_certificate_of_another_host_is_not_believed(url, pem):
    code, _, err = await bench(url.replace("127.0.0.1", "127.0.0.2"), *LOAD, "--ca-file", pem[0])
    assert code == 2
    assert "127.0.0.2" in err


async def test_a_server_of_plain_http_is_told():
    async with Canned(ANSWER, b"application/json") as url:
        code, _, err = await bench(url.replace("http://", "https://"), *LOAD, "--insecure")
    assert code == 2
    assert "does not speak TLS" in err
