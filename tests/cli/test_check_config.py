"""`tidegate check-config` explains what is set, and answers a mistake with one message and exit code 2."""

import json

import pytest

from tidegate.config import explain
from tidegate.config.advice import advice


def test_without_a_file_it_tells_the_defaults(tidegate):
    ran = tidegate("check-config")
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert "Settings: no file" in ran.stdout
    assert "gateway  127.0.0.1:8000" in ran.stdout
    assert "the best model to be had" in ran.stdout


def test_it_tells_what_differs_and_where_that_was_said(tidegate):
    file = tidegate.here / "tidegate.toml"
    file.write_text('[gateway]\nmax_headers = 50\n[log]\nlevel = "info"\n[[model]]\nname = "mine"\nsource = "demo"\n')
    ran = tidegate("check-config", TIDEGATE_CHAT__ENABLED="false")
    assert "gateway.max_headers = 50   from tidegate.toml, default 100" in ran.stdout
    assert 'log.level = "info"   from tidegate.toml (the default)' in ran.stdout
    assert "chat.enabled = false   from $TIDEGATE_CHAT__ENABLED, default true" in ran.stdout
    assert "model    mine from demo" in ran.stdout
    assert "pool     default: 1 x llamacpp, for mine" in ran.stdout
    assert "\n  chat " not in ran.stdout


def test_it_tells_programs_the_same_without_passwords(tidegate):
    file = tidegate.here / "other.toml"
    file.write_text('[store]\nurl = "postgresql://u:hidden@h/d"\n')
    ran = tidegate("check-config", file, "--json")
    report = json.loads(ran.stdout)
    assert report["file"] == str(file)
    assert report["settings"]["store"]["url"] == "postgresql://u:***@h/d"
    assert {given["name"]: given["from"] for given in report["given"]} == {
        "store.url": str(file),
        "store.home": "$TIDEGATE_HOME",
    }
    assert "hidden" not in ran.stdout


@pytest.mark.parametrize(
    "text", ["[gateway]\nlistn = 1", "[gateway]\nmax_headers = 'x'", "gateway = 1", "[[", "a=" + "[" * 5000]
)
def test_a_mistake_is_one_message_and_exit_code_2(tidegate, text):
    (tidegate.here / "tidegate.toml").write_text(text)
    ran = tidegate("check-config")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("tidegate: ")
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.splitlines()) <= 2
    as_json = tidegate("check-config", "--json")
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["error"]["message"] in ran.stderr


def test_a_file_that_is_not_there_is_said_so(tidegate):
    ran = tidegate("check-config", "nowhere.toml")
    assert ran.returncode == 2
    assert "nowhere.toml does not exist" in ran.stderr


def test_it_writes_the_example_file(tidegate):
    assert "[gateway]" in tidegate("check-config", "--example").stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("[gateway]\nlisten = ':1'", ["gateway.listen: :1 can be reached", "gateway.tls_cert_file: without TLS"]),
        (
            "[gateway]\nlisten = ':1'\nallow_anonymous = true\ntls_cert_file = 'c'\ntls_key_file = 'k'",
            ["gateway.allow_anonymous: whoever reaches"],
        ),
        ("[gateway]\nallow_anonymous = true", ["gateway.allow_anonymous: does nothing"]),
        ("[gateway]\nmetrics_allow = ['0.0.0.0/0']", ["gateway.metrics_allow: 0.0.0.0/0 lets everybody"]),
        ("[admin]\nlisten = ':1'\n[chat]\nlisten = ':2'", ["admin.listen: :1 can be", "chat.listen: :2 can be"]),
        ("[chat]\nenabled = false\nlisten = ':2'", ["chat.listen: does nothing while chat.enabled is false"]),
        ("[store]\nurl = 'postgresql://u:p@h/d'", ["store.url: holds a password"]),
        ("[store]\npassword_file = 'x'", ["store.password_file: does nothing"]),
        ("[limits]\nraise_by = 2.0", ['limits.raise_by: does nothing unless limits.kind is "threshold"']),
        ("[limits]\nraise_by = 2.0\nkind = 'threshold'", []),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\nengine = 'external'\nurls = ['http://h']\nreplicas = 2",
            ["pool.1.replicas: does nothing"],
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\noptions.batch_tokens = 100",
            ["pool.1.options.micro_batch_tokens: is cut to batch_tokens (100)"],
        ),
    ],
)
def test_what_there_is_to_think_about(tmp_path, text, expected):
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    found = advice(explain(file, environ={}))
    assert len(found) == len(expected)
    for sentence, start in zip(found, expected, strict=True):
        assert sentence.startswith(start)


def test_a_name_of_the_catalogue_for_another_model_is_pointed_out(tidegate):
    (tidegate.here / "tidegate.toml").write_text("[[model]]\nname = 'x'\naliases = ['ernie']\nsource = 'demo'\n")
    assert "model.1: 'ernie' is a name of ERNIE-4.5-0.3B, but its source is demo" in tidegate("check-config").stdout


def test_classes_and_rules_are_explained_and_what_is_odd_about_them_is_told_with_its_place(tidegate):
    (tidegate.here / "tidegate.toml").write_text(
        "[[class]]\nname = 'batch'\npools = ['slow']\n"
        "[[rule]]\nclass = 'batch'\ntenant = 'ops'\n[[rule]]\nclass = 'long'\ntenant = 'ops'\nstream = true\n"
    )
    told = tidegate("check-config").stdout
    assert 'class.1.pools = ["slow"]   from tidegate.toml' in told
    assert 'rule.2.class = "long"   from tidegate.toml' in told
    assert "  class.1.pools: there is no pool named 'slow'; there are: default" in told
    assert "  rule.2: can never match: rule.1 takes every request that it would" in told


def test_a_certificate_that_is_not_there_is_pointed_out(tidegate):
    (tidegate.here / "tidegate.toml").write_text("[gateway]\ntls_cert_file = 'c.pem'\ntls_key_file = 'k.pem'\n")
    assert f"gateway.tls_cert_file: {tidegate.here}/c.pem is not there" in tidegate("check-config").stdout
    for name in ("c.pem", "k.pem"):
        (tidegate.here / name).write_text("no certificate\n")
    assert f"{tidegate.here}/c.pem and {tidegate.here}/k.pem cannot be used" in tidegate("check-config").stdout


def test_a_flag_that_the_engine_does_not_have_is_said_before_anything_starts(tidegate):
    pool = "[[pool]]\nname = 'big'\nmodel = 'ernie-4.5-0.3b'\nengine = 'vllm'\n[pool.options]\n"
    (tidegate.here / "tidegate.toml").write_text(f"{pool}args = ['--chunked-prefill-size', '512']\n")
    for command in ("check-config", "up"):
        ran = tidegate(command)
        assert ran.returncode == 2
        assert "pool.1.options.args: --chunked-prefill-size is SGLang's, not vLLM's" in ran.stderr
        assert "use --max-num-batched-tokens" in ran.stderr
    (tidegate.here / "tidegate.toml").write_text(f"{pool}preset = 'turbo'\n")
    assert "pool.1.options.preset: there is no 'turbo'" in tidegate("check-config").stderr
    (tidegate.here / "tidegate.toml").write_text(f"{pool}args = ['--disable-cascade-attn']\n")
    assert "pool.1.options.args: --disable-cascade-attn is deprecated" in tidegate("check-config").stdout
