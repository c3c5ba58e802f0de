"""`up` with a certificate: the API speaks HTTPS, also to its own chat page."""

import shutil
import ssl
import subprocess

import httpx
import pytest

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")


def test_the_api_speaks_https_and_the_page_trusts_it(site):
    """The certificate names nobody whom the page could have asked by: it is trusted for what it is."""
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=api.example"]
    names = ["-addext", "subjectAltName=DNS:api.example", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *request, *names], check=True, capture_output=True, cwd=site.home.path)
    site.settings(chat=True)
    file = site.home.path / "tidegate.toml"
    tls = '[gateway]\ntls_cert_file = "cert.pem"\ntls_key_file = "key.pem"'
    file.write_text(file.read_text().replace("[gateway]", tls))
    up = site.up().ready()
    urls = site.urls()
    assert urls["api"].startswith("https://")
    trust = ssl.create_default_context(cafile=site.home.path / "cert.pem")
    trust.check_hostname = False
    with httpx.Client(verify=trust, trust_env=False, timeout=30) as client:
        model = client.get(f"{urls['api']}/models").raise_for_status().json()["data"][0]["id"]

    def the_page_names_the_model():
        answer = httpx.get(f"{urls['chat']}/project/translations?language=en-US", trust_env=False, timeout=30)
        return answer.json()["translation"]["chat"]["watermark"].startswith(f"{model} ·")

    up.until(the_page_names_the_model)
    up.interrupt()  # the page still holds an idle connection to the gateway
    assert up.end(10) == 0
