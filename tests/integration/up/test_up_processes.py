"""What holds about processes: who ends, who comes back, who is adopted, and that nobody is left behind."""

import os
import shutil
import signal
import socket
import threading
import time

import httpx
import pytest


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def test_up_answers_and_ctrl_c_ends_all_of_it_with_code_0(site):
    site.settings(replicas=2, chat=True)
    up = site.up().ready()
    status = site.status()
    assert status.ready
    assert site.ask(status.urls["api"])
    assert httpx.get(status.urls["chat"], trust_env=False, timeout=10).status_code == 200
    told = site.run("status")
    assert told.returncode == 0
    for word in ("p-0", "p-1", "gateway", "chat", "ready", status.urls["chat"]):
        assert word in told.stdout
    assert site.run("status", "--json").stdout.startswith('{"version"')
    up.interrupt()
    assert up.end() == 0
    assert site.living() == set()
    assert sorted(path.name for path in site.home.run.iterdir()) == ["lock"]
    ended = site.run("status")
    assert (ended.returncode, ended.stdout) == (1, "Tidegate is not running here; `tidegate up` starts it.\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing: apt-get install curl")
def test_what_is_printed_can_be_pasted_into_a_shell(site):
    import subprocess

    up = site.up().ready()
    curl = next(line.strip() for line in up.text().splitlines() if line.strip().startswith("curl"))
    answer = subprocess.run(["sh", "-c", curl], check=True, capture_output=True, text=True, timeout=30).stdout
    assert '"choices"' in answer
    assert "engine ready" in up.text()
    assert (site.home.logs / "tidegate.log").read_text().count("engine ready") == 1


def test_a_second_up_is_told_who_runs(site):
    first = site.up().ready()
    second = site.up()
    assert second.end() == 2
    assert f"(process {first.process.pid})" in second.text()
    assert "Traceback" not in second.text()
    assert site.status().ready


@pytest.mark.parametrize("flag", ["api", "admin", "chat"])
def test_a_taken_port_is_named_with_its_setting_and_nothing_starts(site, flag):
    site.settings(chat=True)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        up = site.up(f"--{flag}-port", port)
        assert up.end() == 2
    setting = {"api": "gateway", "admin": "admin", "chat": "chat"}[flag]
    assert f"port {port} on 127.0.0.1 cannot be used" in up.text()
    assert f"{setting}.listen" in up.text()
    assert "Traceback" not in up.text()
    assert site.living() == set()


def test_whoever_is_killed_comes_back_and_the_next_question_is_answered(site):
    site.settings(replicas=1, chat=True)
    up = site.up().ready()
    urls, pids = site.urls(), site.pids()
    for name, pid in pids.items():
        kill(pid)
        site.back(up, name, pid)
        assert site.ask(urls["api"])
    assert site.urls() == urls
    assert httpx.get(urls["chat"], trust_env=False, timeout=10).status_code == 200


def test_all_goes_on_without_control_and_a_new_up_adopts_all_of_it(site):
    site.settings(chat=True)
    up = site.up().ready()
    urls, pids = site.urls(), site.pids()
    kill(up.process.pid)
    up.process.wait(10)
    assert site.ask(urls["api"])
    assert httpx.get(urls["chat"], trust_env=False, timeout=10).status_code == 200
    assert site.run("status").returncode == 1

    again = site.up().ready()
    assert site.pids() == pids
    assert {name: url for name, url in site.urls().items() if name != "admin"} == {
        name: url for name, url in urls.items() if name != "admin"
    }
    assert site.ask(urls["api"])

    for name, pid in pids.items():  # the adopted come back like the born
        kill(pid)
        site.back(again, name, pid)
    assert site.ask(urls["api"])
    again.interrupt()
    assert again.end() == 0


def test_a_killed_controls_own_ports_are_not_called_taken(site):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = ["--api-port", one.getsockname()[1], "--admin-port", two.getsockname()[1]]
    up = site.up(*ports).ready()
    kill(up.process.pid)
    up.process.wait(10)
    site.up(*ports).ready()
    assert site.status().ready


def test_what_does_not_fit_new_settings_is_replaced(site):
    site.settings(replicas=2)
    up = site.up().ready()
    pids = site.pids()
    kill(up.process.pid)
    up.process.wait(10)
    site.settings(replicas=1, gap_ms=2)
    site.up().ready()
    now = site.pids()
    assert set(now) == {"gateway", "p-0"}
    assert now["p-0"] != pids["p-0"]
    assert now["gateway"] == pids["gateway"]
    assert site.living() == set(now.values())


def test_an_answer_in_progress_is_finished_before_the_end(site):
    site.settings(gap_ms=100)
    up = site.up().ready()
    got, began = [], threading.Event()

    def read():
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 20}
        url = f"{api}/chat/completions"
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=30) as answer:
            for line in answer.iter_lines():
                got.append(line)
                began.set()

    api = site.urls()["api"]
    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(10)
    up.interrupt()
    up.until(lambda: "gateway draining in_flight=1" in up.text())
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{api}/models", trust_env=False)
    reader.join(20)
    assert "data: [DONE]" in got
    assert up.end() == 0
    assert site.living() == set()


def test_ctrl_c_twice_ends_it_at_once(site):
    site.settings(gap_ms=500)
    up = site.up().ready()
    began = threading.Event()

    def read():
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 100}
        url = f"{api}/chat/completions"
        try:
            with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as answer:
                for _ in answer.iter_lines():
                    began.set()
        except httpx.TransportError:
            pass

    api = site.urls()["api"]
    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(10)
    asked = time.monotonic()
    up.interrupt()
    up.until(lambda: "] INFO stopping " in up.text())
    up.interrupt()
    assert up.end() == 130
    assert time.monotonic() - asked < 10
    assert site.living() == set()
    reader.join(10)


def test_an_interrupt_while_it_starts_leaves_nothing(site):
    up = site.up()
    up.until(site.living)
    up.interrupt()
    assert up.end() == 0
    assert site.living() == set()
    assert "Traceback" not in up.text()
