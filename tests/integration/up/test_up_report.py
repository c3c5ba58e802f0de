"""`tidegate report` tells what `tidegate up` served, out of its own samples and out of a Prometheus that scraped it."""

import json
import re
import shutil
import subprocess
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tidegate.control.report.prometheus import Prometheus
from tidegate.control.report.samples import by_class

SCRAPE = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: tidegate
    static_configs: [{{targets: ["{target}"]}}]
"""
LISTENING = re.compile(r'"Listening on" address=(127\.0\.0\.1:\d+)')
BEFORE, AFTER = 3, 20


def told(site, *more):
    answer = site.run("report", "--since", "1h", "--json", *more)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_the_report_has_every_request_that_was_sent_to_either_data_process(site):
    site.settings(replicas=2, processes=2)
    up = site.up().ready()
    api = site.urls()["api"]
    for number in range(12):
        site.ask(api, **({"user": "u"} if number % 2 else {}))
    up.interrupt()
    assert up.end() == 0
    report = told(site)
    assert report["requests"] == 12
    figures = {chapter["subject"]: chapter["figures"] for chapter in report["chapters"]}
    assert figures["load by hour"]["requests"] == 12
    assert figures["refusals"]["standard.refused"] == 0
    assert 0 < figures["drift of lengths"]["answers.p50"] <= 16
    assert "samples" in report["partial"][0]  # of some seconds of the hour
    assert "12 requests" in site.run("report", "--since", "1h", "--markdown").stdout


@pytest.fixture
def prometheus(site):
    """Starts one that scrapes a target; its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Debian's package prometheus is missing")
    running = []

    def start(target):
        settings = site.folder / "prometheus.yml"
        settings.write_text(SCRAPE.format(target=target))
        log = (site.folder / "prometheus.txt").open("w+")
        data = site.folder / "prometheus"
        arguments = [f"--config.file={settings}", f"--storage.tsdb.path={data}", "--web.listen-address=127.0.0.1:0"]
        running.append((subprocess.Popen([program, *arguments], stderr=log, stdout=log), log))
        deadline = time.monotonic() + 30
        while not (found := LISTENING.search(text := (site.folder / "prometheus.txt").read_text())):
            assert time.monotonic() < deadline, text
            assert running[0][0].poll() is None, text
            time.sleep(0.05)
        return f"http://{found[1]}"

    yield start
    for process, log in running:
        process.terminate()
        process.wait(20)
        log.close()


def counted(url):
    """Ended requests, as Prometheus saw them last."""
    query = {"query": "sum(tidegate_requests_total)"}
    found = httpx.get(f"{url}/api/v1/query", params=query, trust_env=False, timeout=10).json()["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def test_a_prometheus_has_the_same_figures(site, prometheus):
    site.settings(replicas=2)
    up = site.up().ready()
    api = site.urls()["api"]
    url = prometheus(urlsplit(api).netloc)
    for _ in range(BEFORE):  # what a counter begins with is no growth to Prometheus
        site.ask(api)
    up.until(lambda: counted(url) == BEFORE)
    for _ in range(AFTER):
        site.ask(api)
    up.until(lambda: counted(url) == BEFORE + AFTER)
    now = time.time()
    (sample,) = Prometheus(url).read(now - 60, now, 60)
    found = by_class([sample])["standard"]
    requests = found.requests["done"]
    assert AFTER <= requests <= 3 * AFTER  # drawn out to the ends of a span of which it saw some seconds
    for counts in (found.first_s, found.duration_s, found.queue_s, found.prompt_tokens, found.answer_tokens):
        assert sum(counts) == pytest.approx(requests, abs=3)
    tenant = sample.tenants["anonymous"]
    assert tenant.requests == requests
    assert tenant.answer_tokens == pytest.approx(8 * requests, abs=10)
    assert tenant.engine_s > 0
    assert set(sample.replicas) == {"p-0", "p-1"}
    report = told(site, "--prometheus", url)
    assert report["source"] == url
    up.interrupt()
    assert up.end() == 0


def test_what_is_no_prometheus_is_told_in_a_sentence(site):
    site.settings()
    up = site.up().ready()
    answer = site.run("report", "--prometheus", site.urls()["api"].removesuffix("/v1"))
    assert answer.returncode == 2
    assert "does not answer as Prometheus does: status 4" in answer.stderr
    answer = site.run("report", "--prometheus", "http://127.0.0.1:9")
    assert "cannot be asked" in answer.stderr
    up.interrupt()
    assert up.end() == 0
