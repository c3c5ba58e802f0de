"""What `tidegate up` makes of its flags, and what it prints."""

import shlex

import pytest

from tidegate.cli import announce, parts, reload, status, up
from tidegate.config import Settings, load
from tidegate.control.doctor.gpu import GpuFacts
from tidegate.control.reload import Change, Effect
from tidegate.control.snapshot import Keys
from tidegate.control.status import ModelStatus, Status
from tidegate.errors import SettingError
from tidegate.gpus import Gpu
from tidegate.home import Home

NONE = {
    "model": None,
    "engines": [],
    "ports": dict.fromkeys(("gateway", "admin", "chat")),
    "lan": False,
    "chat": True,
    "allow_anonymous": False,
}
PORTS = {"gateway": 9000, "admin": None, "chat": 9080}


def settings(base=None, **given):
    base = base or {}
    flags = up.flags_of(load(None, base, environ={}), **(NONE | given))
    return load(None, base | flags, environ={})


def state(*, keys=False, chat=True, host="127.0.0.1"):
    urls = {"api": f"http://{host}:8000/v1", "admin": "http://127.0.0.1:8001"}
    return Status(
        version="1",
        pid=1,
        home="/h",
        up_s=1.0,
        ready=True,
        snapshot=1,
        keys_required=keys,
        memory_used_bytes=1,
        memory_total_bytes=2,
        urls=urls | ({"chat": f"http://{host}:8080"} if chat else {}),
        processes=(),
        models=(ModelStatus("a", (), 1, 0), ModelStatus("b", (), 1, 1)),
        replicas=(),
        gateways=(),
    )


def test_no_flags_change_nothing():
    assert settings() == Settings()


def test_ports_keep_the_host_of_their_setting():
    made = settings({"gateway": {"listen": "[::1]:1"}}, ports=PORTS)
    assert (made.gateway.listen, made.chat.listen, made.admin.listen) == (
        "[::1]:9000",
        "127.0.0.1:9080",
        "127.0.0.1:8001",
    )


def test_lan_opens_the_api_and_the_page_and_never_the_admin_port():
    made = settings(lan=True, ports=PORTS)
    assert (made.gateway.listen, made.chat.listen, made.admin.listen) == (
        "0.0.0.0:9000",
        "0.0.0.0:9080",
        "127.0.0.1:8001",
    )


def test_model_replaces_the_files_models_and_keeps_the_engines_options():
    base = {
        "model": [{"name": "x", "source": "demo"}],
        "pool": [{"name": "p", "model": "x", "options": {"threads": 3}}],
    }
    made = settings(base, model="./m.gguf")
    assert [(model.name, model.source) for model in made.model] == [("auto", "./m.gguf")]
    assert [(pool.name, pool.options) for pool in made.pool] == [("default", {"threads": 3})]


def test_engines_are_the_urls_of_the_default_pool_of_the_first_model():
    made = settings({"model": [{"name": "qwen"}]}, engines=["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    assert made.pool[0].urls == ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
    assert (made.pool[0].engine, made.pool[0].model) == ("external", "qwen")


def test_a_model_and_an_engine_contradict_each_other():
    with pytest.raises(SettingError, match="--model"):
        settings(model="demo", engines=["http://10.0.0.1:8000"])


def test_the_page_can_be_left_out():
    assert not settings(chat=False).chat.enabled


@pytest.mark.parametrize(
    ("flags", "keys", "setting"),
    [
        ({"gateway": {"listen": "0.0.0.0:1"}}, False, "gateway.listen"),
        ({"chat": {"listen": "0.0.0.0:1"}}, False, "chat.listen"),
        ({"gateway": {"listen": "0.0.0.0:1"}}, True, None),
        ({"gateway": {"listen": "0.0.0.0:1", "allow_anonymous": True}}, False, None),
        ({"chat": {"listen": "0.0.0.0:1", "enabled": False}}, False, None),
        ({}, False, None),
    ],
)
def test_listening_to_others_without_a_key_is_refused_unless_asked_for(flags, keys, setting):
    asked = load(None, flags, environ={})
    if setting is None:
        up._refuse_open_doors(asked, keys=keys)
        return
    with pytest.raises(SettingError) as refused:
        up._refuse_open_doors(asked, keys=keys)
    assert refused.value.setting == setting


def test_the_curl_line_is_one_command_whatever_the_model_is_called():
    line = announce.curl("http://h:1/v1", 'it\'s $(rm) "x"', "你好！", "")
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    assert words[-1] == '{"model": "it\'s $(rm) \\"x\\"", "messages": [{"role": "user", "content": "你好！"}]}'


def test_on_this_machine_a_certificate_need_not_name_the_loopback_address():
    assert announce.curl("https://127.0.0.1:1/v1", "m", "Hello!", "", own=True).startswith("curl -k https://")
    assert announce.curl("https://tide.example:1/v1", "m", "Hello!", "").startswith("curl https://")


def test_a_file_that_is_no_certificate_is_refused_before_anything_starts(tmp_path):
    file = tmp_path / "c.pem"
    file.write_text("no certificate")
    asked = load(None, {"gateway": {"tls_cert_file": str(file), "tls_key_file": str(file)}}, environ={})
    with pytest.raises(SettingError, match="cannot be used"):
        up._read_certificate(asked)


def test_what_is_printed_names_the_page_the_api_and_a_model_that_is_ready():
    text = announce.announce(state(), Settings(), None, "en")
    assert "http://127.0.0.1:8080" in text
    assert '"model": "b"' in text
    assert "Authorization" not in text
    assert "colleague" not in text
    assert "聊天页面" in announce.announce(state(), Settings(), None, "zh")


def test_a_key_that_is_not_known_is_left_to_the_shell():
    text = announce.announce(state(keys=True), Settings(), None, "en")
    assert '-H "Authorization: Bearer $TIDEGATE_API_KEY"' in text


def test_colleagues_are_told_address_key_and_how_to_sign_in(monkeypatch):
    monkeypatch.setattr(announce.ports, "lan_address", lambda: "192.0.2.5")
    text = announce.announce(state(keys=True), settings(lan=True), "sk-tg-x", "en")
    assert "http://192.0.2.5:8080" in text
    assert 'OpenAI(base_url="http://192.0.2.5:8000/v1", api_key="sk-tg-x")' in text
    assert "curl http://192.0.2.5:8000/v1/chat/completions" in text
    assert "key as password" in text


def test_a_gpu_is_told_with_the_command_that_makes_use_of_it():
    gpu = Gpu("GPU-a", "NVIDIA A10", memory_bytes=24 * 1024**3)
    lost = Gpu("GPU-b", "NVIDIA A10", fault="it is lost")
    assert announce.gpu_sentence(GpuFacts(), ["llamacpp"], "en") == ""
    assert announce.gpu_sentence(GpuFacts((lost,)), ["llamacpp"], "en") == ""
    assert announce.gpu_sentence(GpuFacts((gpu,)), ["external"], "en") == ""
    for language in ("en", "zh"):
        sentence = announce.gpu_sentence(GpuFacts((gpu, lost, gpu), driver="550.54"), ["llamacpp"], language)
        assert "2 " in sentence
        assert "NVIDIA A10" in sentence
        assert "24 GiB" in sentence
        assert "550.54" in sentence
        assert sentence.endswith("tidegate engines install vllm")


def test_the_lan_key_stays_the_same_until_it_is_revoked(tmp_path):
    home = Home(tmp_path / "home")
    home.create()
    store = parts.Store.open(Settings(), home)
    try:
        first = store.lan_key(home)
        assert store.lan_key(home) == first
        assert (home.path / "lan.key").stat().st_mode & 0o777 == 0o600
        assert store.keys().required
        assert store.keys() != Keys()
        parts.KeyStore(store.database).revoke("lan")
        second = store.lan_key(home)
        assert second != first
        (home.path / "lan.key").unlink()
        assert store.lan_key(home) not in {first, second}
    finally:
        store.close()


def test_reload_tells_each_change_and_what_it_takes():
    changes = (
        Change("log.level", "info", "debug", Effect.LIVE),
        Change("gateway.listen", None, "127.0.0.1:9", Effect.RESTART),
    )
    lines = reload.render(changes, applied=True)
    assert lines[0] == 'log.level: "info" -> "debug"   at once'
    assert "(not set)" in lines[1]
    assert lines[2:] == [
        "Applied 1 of 2.",
        "The rest needs a restart: end `tidegate up` with Ctrl-C, and start it again.",
    ]
    assert reload.render((), applied=False) == ["Nothing changed."]


def test_durations_are_read_at_a_glance():
    told = [status.duration(seconds) for seconds in (None, 1.2, 119, 120, 7200, 200_000)]
    assert told == ["", "1 s", "119 s", "2 min", "2 h", "2 d"]
