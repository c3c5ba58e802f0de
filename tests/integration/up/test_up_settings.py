"""What `up` says about models and settings, what `--lan` does, and what a reload changes."""

import httpx
import pytest
from openai import OpenAI


def test_lan_lets_colleagues_in_with_the_key_that_it_prints_and_nobody_without(site):
    up = site.up("--lan").ready()
    key = next(line.split()[-1] for line in up.text().splitlines() if line.strip().startswith("Key: sk-tg-"))
    api = site.urls()["api"]
    assert site.ask(api, key=key)
    with pytest.raises(AssertionError, match=r"API key|api_key"):
        site.ask(api)
    assert key not in (site.home.logs / "tidegate.log").read_text()
    assert f'api_key="{key}"' in up.text()
    client = OpenAI(base_url=api, api_key=key)
    with client:
        assert client.models.list().data[0].id == "m"


def test_listening_to_others_without_a_key_is_refused(site):
    text = (site.home.path / "tidegate.toml").read_text().replace("127.0.0.1:0", "0.0.0.0:0", 1)
    (site.home.path / "tidegate.toml").write_text(text)
    up = site.up()
    assert up.end() == 2
    assert "gateway.listen" in up.text()
    assert "--lan" in up.text()
    site.up("--allow-anonymous").ready()
    assert site.ask(site.urls()["api"])


def test_reload_shows_the_difference_and_applies_what_it_can(site):
    site.up().ready()
    urls, pids = site.urls(), site.pids()
    more = """
[log]
level = "debug"
[[model]]
name = "m"
aliases = ["other-name"]
[[pool]]
name = "p"
model = "m"
engine = "fake"
[pool.options]
tokens = 20
gap_ms = 1
[[pool]]
name = "q"
model = "m"
engine = "fake"
"""
    site.settings(more)
    text = (site.home.path / "tidegate.toml").read_text().replace("[chat]", '[chat]\nlanguage = "zh-CN"')
    (site.home.path / "tidegate.toml").write_text(text)
    shown = site.run("reload", "--dry-run")
    assert 'log.level: "info" -> "debug"   at once' in shown.stdout
    assert site.pids() == pids
    applied = site.run("reload")
    assert applied.returncode == 0, applied.stderr
    assert "chat.language" in applied.stdout
    assert "needs a restart" in applied.stdout
    assert {name: pid for name, pid in site.pids().items() if name in pids} == pids
    site.started[-1].until(lambda: site.status().ready and "q-0" in site.pids())
    site.started[-1].until(lambda: httpx.get(f"{urls['api']}/models", trust_env=False).status_code == 200)
    assert site.ask(urls["api"], model="other-name")

    (site.home.path / "tidegate.toml").write_text("[log]\nlevel = 7\n")
    refused = site.run("reload")
    assert refused.returncode == 2
    assert "log.level" in refused.stderr
    assert site.ask(urls["api"])


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (["--model", "./no-such.gguf"], "", ["no-such.gguf does not exist"]),
        (["--model", "BROKEN"], "", ["broken.gguf"]),
        ([], "[gateway]\nlisten_port = 1\n", ["gateway.listen_port", "there is no such setting"]),
        ([], '[log]\nlevel = "loud"\n', ["log.level"]),
        (["--config", "missing.toml"], "", ["missing.toml"]),
        (["--engine", "http://127.0.0.1:1"], "", ["http://127.0.0.1:1", "cannot be reached"]),
    ],
)
def test_bad_input_is_one_clear_message_and_code_2(site, arguments, settings, words):
    broken = site.folder / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    site.settings("")
    if settings:
        (site.home.path / "tidegate.toml").write_text(settings)
    up = site.up(*(str(broken) if argument == "BROKEN" else argument for argument in arguments))
    assert up.end() == 2, up.text()
    for word in words:
        assert word in up.text()
    assert "Traceback" not in up.text()
    assert site.living() == set()


def test_a_model_that_does_not_fit_is_told_with_the_arithmetic(site, demo_model):
    more = '[[pool]]\nname = "default"\nmodel = "auto"\n[pool.options]\ncontext_tokens = 8192\nslots = 256\nmemory_fraction = 0.01\n'
    site.settings(more)
    up = site.up("--model", demo_model)
    assert up.end() == 2, up.text()
    assert "GiB" in up.text() or "MiB" in up.text()
    assert "Traceback" not in up.text()
    assert site.living() == set()


def test_a_real_model_answers_and_comes_back_when_its_engine_is_killed(site, demo_model):
    import os
    import signal

    site.settings("")
    up = site.up("--model", demo_model).ready()
    status = site.status()
    api, model = status.urls["api"], status.models[0].name
    assert site.ask(api, model=model, temperature=0)
    old = site.pids()["default-0"]
    os.kill(old, signal.SIGKILL)
    site.back(up, "default-0", old)
    assert site.ask(api, model=model, temperature=0)
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait(10)
    assert site.ask(api, model=model, temperature=0)
    left = site.living()
    site.up("--model", demo_model).ready()
    assert set(site.pids().values()) == left
    assert site.ask(api, model=model, temperature=0)
