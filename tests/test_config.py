"""Settings: who wins, and for every mistake one message that names the setting and where it was written."""

import os
import subprocess
import sys

import pytest

from tidegate import config
from tidegate.config import Settings, addresses, explain, find_file, is_loopback, load, split_address
from tidegate.errors import SettingError


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "tidegate.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def fault(file=None, flags=None, environ=None):
    with pytest.raises(SettingError) as caught:
        load(file, flags, environ or {})
    return caught.value


def test_without_anything_there_are_the_defaults():
    assert load(environ={}) == Settings()


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(write):
    file = write('[gateway]\nlisten = "127.0.0.1:1"\nmax_headers = 11\nmax_connections = 12\n')
    environ = {"TIDEGATE_GATEWAY__LISTEN": "127.0.0.1:2", "TIDEGATE_GATEWAY__MAX_HEADERS": "22"}
    gateway = load(file, {"gateway": {"listen": "127.0.0.1:3"}}, environ).gateway
    assert (gateway.listen, gateway.max_headers, gateway.max_connections) == ("127.0.0.1:3", 22, 12)
    assert gateway.max_head_bytes == 32 * 1024


def test_the_origin_of_every_value_is_known(write):
    file = write('[log]\nlevel = "debug"\n[[model]]\nname = "a"\naliases = ["b"]\ndefaults.top_k = 5\n')
    environ = {"TIDEGATE_LOG__BACKUPS": "2", "TIDEGATE_HOME": "/srv/x", "TIDEGATE_PORT_8000_TCP": "tcp://10.0.0.1:8000"}
    explained = explain(file, {"chat": {"enabled": False}}, environ)
    assert explained.origins == {
        "log.level": str(file),
        "model.1.name": str(file),
        "model.1.aliases": str(file),
        "model.1.defaults.top_k": str(file),
        "log.backups": "$TIDEGATE_LOG__BACKUPS",
        "store.home": "$TIDEGATE_HOME",
        "chat.enabled": "the command line",
    }
    assert explained.unread == ("TIDEGATE_PORT_8000_TCP",)
    assert str(explained.settings.store.home) == "/srv/x"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("GATEWAY__MAX_HEADERS", "50", 50),
        ("GATEWAY__IDLE_TIMEOUT_S", "1.5", 1.5),
        ("GATEWAY__IDLE_TIMEOUT_S", "2", 2.0),
        ("GATEWAY__ALLOW_ANONYMOUS", "true", True),
        ("GATEWAY__ALLOW_ANONYMOUS", "0", False),
        ("GATEWAY__ALLOW_ANONYMOUS", "Yes", True),
        ("GATEWAY__CORS_ORIGINS", '["https://a.example"]', ("https://a.example",)),
        ("CHAT__SYSTEM_PROMPT", "123", "123"),
        ("CHAT__SYSTEM_PROMPT", "你好", "你好"),
        ("LOG__FORMAT", "json", "json"),
    ],
)
def test_a_variable_s_text_takes_the_setting_s_type(name, text, value):
    section, key = name.lower().split("__")
    assert getattr(getattr(load(environ={f"TIDEGATE_{name}": text}), section), key) == value


def test_a_list_of_tables_comes_as_json_from_one_variable(write):
    file = write('[[model]]\nname = "from-file"\n')
    loaded = load(file, environ={"TIDEGATE_MODEL": '[{"name": "a", "defaults": {"top_k": 3}}, {"name": "b"}]'})
    assert [model.name for model in loaded.model] == ["a", "b"]
    assert loaded.model[0].defaults.top_k == 3


def test_one_variable_may_hold_a_section_and_another_one_key_of_it():
    environ = {"TIDEGATE_LOG__LEVEL": "error", "TIDEGATE_LOG": '{"level": "debug", "backups": 1}'}
    log = load(environ=environ).log
    assert (log.level, log.backups) == ("error", 1)


def test_an_empty_variable_counts_as_not_set():
    assert load(environ={"TIDEGATE_GATEWAY__LISTEN": "", "TIDEGATE_HOME": ""}) == Settings()


def test_the_long_name_of_the_data_folder_beats_the_short_one():
    environ = {"TIDEGATE_HOME": "/short", "TIDEGATE_STORE__HOME": "/long"}
    assert str(load(environ=environ).store.home) == "/long"


def test_variables_that_a_container_platform_makes_are_ignored():
    environ = {"TIDEGATE_SERVICE_HOST": "10.0.0.1", "TIDEGATE_PORT": "tcp://10.0.0.1:8000", "TIDEGATE_HUB": "hf"}
    assert load(environ=environ) == Settings()


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "[gateway]\n", "\ufeff[gateway]\n"])
def test_an_empty_file_is_the_defaults(write, text):
    assert load(write(text), environ={}) == Settings()


def test_paths_in_the_file_count_from_its_folder_and_others_from_where_one_stands(write, tmp_path):
    file = write(
        '[gateway]\ntls_cert_file = "c.pem"\ntls_key_file = "/k.pem"\n[store]\nhome = "~/x"\n'
        '[[pool]]\nname = "p"\nmodel = "m"\nengine = "external"\nurls = ["http://h"]\noptions.api_key_file = "key"\n'
    )
    loaded = load(file, environ={"TIDEGATE_STORE__PASSWORD_FILE": "pw"})
    assert loaded.gateway.tls_cert_file == tmp_path / "c.pem"
    assert str(loaded.gateway.tls_key_file) == "/k.pem"
    assert loaded.store.home == (type(tmp_path).home() / "x")
    assert str(loaded.store.password_file) == "pw"
    assert loaded.pool[0].engine_options().api_key_file == tmp_path / "key"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("gatewy = 1", "gatewy: there is no such setting (in FILE)", "did you mean 'gateway'?"),
        ("[gateway]\nlistn = ''", "gateway.listn: there is no such setting (in FILE)", "did you mean 'listen'?"),
        ("[gateway]\nxyzzy = 1", "gateway.xyzzy: there is no such setting (in FILE)", "tidegate.example.toml shows"),
        (
            "[[model]]\nname = 'a'\n[[model]]\nname = 'b'\ndefaults.temprature = 1",
            "model.2.defaults.temprature: there is no such setting (in FILE)",
            "did you mean 'temperature'?",
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\noptions.slot = 1",
            "pool.1.options.slot: there is no such setting (in FILE)",
            "did you mean 'slots'?",
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\noptions.gap_ms = 1",
            "pool.1.options.gap_ms: there is no such setting (in FILE)",
            'is it for a pool with engine = "fake"?',
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\noptions.slots = 'x'",
            "pool.1.options.slots: must be a whole number, not 'x' (in FILE)",
            "",
        ),
        ("[gateway]\nmax_headers = '100'", "gateway.max_headers: must be a whole number, not '100' (in FILE)", ""),
        ("[gateway]\nmax_headers = 1.5", "gateway.max_headers: must be a whole number, not 1.5 (in FILE)", ""),
        ("[gateway]\nmax_headers = true", "gateway.max_headers: must be a whole number, not true (in FILE)", ""),
        ("[gateway]\nmax_headers = 1", "gateway.max_headers: must be 10 or more, not 1 (in FILE)", ""),
        ("[gateway]\nidle_timeout_s = 0", "gateway.idle_timeout_s: must be more than 0", ""),
        ("[gateway]\nidle_timeout_s = inf", "gateway.idle_timeout_s: must be a finite number, not inf (in FILE)", ""),
        ("[gateway]\nidle_timeout_s = nan", "gateway.idle_timeout_s: must be a finite number, not nan (in FILE)", ""),
        ("[gateway]\nallow_anonymous = 1", "gateway.allow_anonymous: must be true or false, not 1 (in FILE)", ""),
        ("[gateway]\nlisten = 8000", "gateway.listen: must be text in quotes, not 8000 (in FILE)", ""),
        ("[gateway]\nlisten = '8000'", "gateway.listen: '8000' is not HOST:PORT, as in 127.0.0.1:8000 (in FILE)", ""),
        ("[gateway]\ncors_origins = 'x'", "gateway.cors_origins: must be a list in brackets, not 'x' (in FILE)", ""),
        ("[gateway]\ncors_origins = ['x']", "gateway.cors_origins.1: 'x' is not an origin", ""),
        ("[gateway]\nmetrics_allow = ['10.0.0.1/8']", "gateway.metrics_allow.1: '10.0.0.1/8' is not a network", ""),
        ("[gateway]\nextra_paths = ['v1/score']", "gateway.extra_paths.1: 'v1/score' is not a path", ""),
        ("[log]\nlevel = 'loud'", "log.level: must be 'debug', 'info', 'warning' or 'error', not 'loud' (in FILE)", ""),
        ("gateway = 5", "gateway: must be a table, written as [gateway], not 5 (in FILE)", ""),
        ("[[gateway]]\nlisten = ':1'", "gateway: must be a table, written as [gateway], not [{", ""),
        ("[model]\nname = 'a'", "model: must be written as [[model]], not {", ""),
        ("model = 'a'", "model: must be written as [[model]], not 'a' (in FILE)", ""),
        ("model = ['a']", "model.1: must be a table, written as [[model]], not 'a' (in FILE)", ""),
        ("[[model]]\naliases = []", "model.1.name: is missing (in FILE)", ""),
        ("[[model]]\nname = ''", "model.1.name: must not be empty (in FILE)", ""),
        ("[[pool]]\nname = 'A b'\nmodel = 'm'", "pool.1.name: must be lower-case letters, digits, - and _", ""),
        ("[[pool]]\nname = 'a'\nmodel = 'm'\noptions = 5", "pool.1.options: must be a table, not 5 (in FILE)", ""),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\nengine = 'vlm'",
            "pool.1.engine: must be 'llamacpp', 'vllm', 'external' or 'fake'",
            "",
        ),
        ("[[pool]]\nname = 'a'\nmodel = 'm'\nengine = 'external'", "pool.1.urls: are missing", "as in urls"),
        ("[[pool]]\nname = 'a'\nmodel = 'm'\nurls = ['http://h:1']", "pool.1.urls: are for engine", ""),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\nengine = 'external'\nurls = ['h:1']",
            "pool.1.urls.1: 'h:1' is not the URL of an engine, as in http://127.0.0.1:8100 (in FILE)",
            "",
        ),
        (
            "[[pool]]\nname = 'a'\nmodel = 'm'\n[[pool]]\nname = 'a'\nmodel = 'm'",
            "pool.2.name: there are two pools",
            "",
        ),
        (
            "[[model]]\nname = 'ernie'\n[[pool]]\nname = 'a'\nmodel = 'erni'",
            "pool.1.model: there is no [[model]] named 'erni'",
            "did you mean 'ernie'?",
        ),
        (
            "[[model]]\nname = 'a'\n[[model]]\nname = 'b'\naliases = ['A']",
            "model.2.aliases: 'A' is already a name of model 1",
            "",
        ),
        ("[gateway]\ntls_cert_file = 'a'", "gateway.tls_key_file: is missing beside gateway.tls_cert_file", ""),
        (
            "[admin]\nlisten = '127.0.0.1:8000'",
            "admin.listen: 127.0.0.1:8000 is taken by gateway.listen",
            "port of its own",
        ),
        ("[admin]\nlisten = ':8000'", "admin.listen: :8000 is taken by gateway.listen", ""),
        ("[chat]\nlisten = 'localhost:8000'", "chat.listen: localhost:8000 is taken by gateway.listen", ""),
        ("[gateway\n", "FILE: is not TOML: ", "tidegate.example.toml"),
        ("[gateway]\nlisten = here:80", "FILE: is not TOML: ", "text stands in quotes"),
        ("[log]\n[log]", "FILE: is not TOML: ", ""),
        (b"[log]\nlevel = '\xff'", "FILE: is not UTF-8 in line 2", "save the file as UTF-8"),
        (b"#" * 1024 * 1024 + b"#", "FILE: is larger than 1 MiB", "is it a settings file"),
    ],
)
def test_a_mistake_in_the_file_is_one_clear_message(write, text, message, hint):
    file = write(text)
    error = fault(file)
    assert str(error).startswith(message.replace("FILE", str(file)))
    assert "\n" not in str(error)
    assert hint in error.hint
    assert error.exit_code == 2


def test_several_mistakes_are_counted(write):
    assert str(fault(write("a = 1\nb = 2\nc = 3"))).endswith("; 2 more such faults follow")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TIDEGATE_GATEWAY__LISTEN": "x"}, "gateway.listen: 'x' is not HOST:PORT, as in 127.0.0.1:8000 (in $NAME)"),
        ({"TIDEGATE_GATEWAY__MAX_HEADERS": "x"}, "gateway.max_headers: must be a whole number, not 'x' (in $NAME)"),
        (
            {"TIDEGATE_GATEWAY__ALLOW_ANONYMOUS": "x"},
            "gateway.allow_anonymous: must be true or false, not 'x' (in $NAME)",
        ),
        ({"TIDEGATE_GATEWAY__LISTN": "x"}, "gateway.listn: there is no such setting (in $NAME)"),
        ({"TIDEGATE_GATEWY__LISTEN": "x"}, "gatewy: there is no such setting (in $NAME)"),
        ({"TIDEGATE_GATEWAY__CORS_ORIGINS": "x"}, "gateway.cors_origins: is not JSON in $NAME"),
        (
            {"TIDEGATE_GATEWAY__CORS_ORIGINS": '"x"'},
            "gateway.cors_origins: must be a list in brackets, not 'x' (in $NAME)",
        ),
        ({"TIDEGATE_GATEWAY": "x"}, "gateway: is not JSON in $NAME"),
        ({"TIDEGATE_POOL": "[{}]"}, "pool.1.name: is missing (in $NAME); 1 more such faults follow"),
        ({"TIDEGATE_MODEL__NAME": "x"}, "model: must be written as [[model]], not {'name': 'x'} (in $NAME)"),
        (
            {"TIDEGATE_GATEWAY__LISTEN__PORT": "1"},
            "gateway.listen: must be text in quotes, not {'port': '1'} (in $NAME)",
        ),
    ],
)
def test_a_mistake_in_a_variable_names_it(environ, message):
    assert str(fault(environ=environ)) == message.replace("NAME", next(iter(environ)))


def test_a_mistake_in_a_flag_is_said_to_be_on_the_command_line(write):
    error = fault(write('[gateway]\nlisten = ":1"'), {"gateway": {"listen": "127.0.0.1:99999"}})
    assert str(error) == "gateway.listen: '127.0.0.1:99999': a port is at most 65535 (on the command line)"


def test_a_file_that_cannot_be_read_says_why(write):
    file = write("")
    missing = file.with_name("other.toml")
    assert str(fault(missing)) == f"{missing}: cannot be read: No such file or directory"
    code = (
        "import os, sys; from pathlib import Path; from tidegate.config import load; from tidegate.errors import SettingError\n"
        "os.chmod(sys.argv[1], 0); os.getuid() or os.setuid(65534)  # root reads everything\n"
        "try: load(Path(sys.argv[1]), environ={})\nexcept SettingError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code, file], check=True, timeout=60, capture_output=True, text=True)
    assert ran.stdout == f"{file}: cannot be read: Permission denied\n"


def test_a_pool_without_a_model_is_told_with_its_place(write):
    with pytest.raises(SettingError, match=r"^pool\.1\.model: "):
        load(write("[[pool]]\nname = 'p'\nmodel = ''\nengine = 'fake'"), environ={})


@pytest.mark.parametrize("port", ["99999", "x"])
def test_an_engine_s_port_is_one_that_can_be(port):
    pool = {"name": "p", "model": "auto", "engine": "external", "urls": [f"http://127.0.0.1:{port}"]}
    with pytest.raises(SettingError, match="a port is a number, and at most 65535"):
        load(None, {"pool": [pool]}, environ={})


@pytest.mark.parametrize("text", ["a=" + "[" * 5000 + "]" * 5000, "[a" + ".a" * 5000 + "]", "a=" + "[" * 40 + "]" * 40])
def test_what_is_nested_without_end_is_no_settings_file(write, text):
    file = write(text)
    assert str(fault(file)) == f"{file}: is nested too deeply"


def test_the_file_given_beats_the_variable_beats_the_current_folder_beats_the_data_folder(tmp_path, monkeypatch):
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.chdir(here)
    assert find_file(None, home, {}) is None
    (home / "tidegate.toml").touch()
    assert find_file(None, home, {}) == home / "tidegate.toml"
    (here / "tidegate.toml").touch()
    assert find_file(None, home, {}).absolute() == here / "tidegate.toml"
    named = tmp_path / "named.toml"
    named.touch()
    assert find_file(None, home, {"TIDEGATE_CONFIG": str(named)}) == named
    assert find_file(named, home, {"TIDEGATE_CONFIG": "/nowhere"}) == named


@pytest.mark.parametrize(("explicit", "environ", "name"), [(True, {}, "--config"), (False, {}, "$TIDEGATE_CONFIG")])
def test_a_file_that_was_named_must_be_there(tmp_path, explicit, environ, name):
    gone = tmp_path / "gone.toml"
    environ = environ if explicit else {"TIDEGATE_CONFIG": str(gone)}
    with pytest.raises(SettingError, match="does not exist") as caught:
        find_file(gone if explicit else None, tmp_path, environ)
    assert caught.value.setting == name
    with pytest.raises(SettingError, match="is a folder"):
        find_file(tmp_path, tmp_path, {})
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SettingError, match="is not a regular file"):
        find_file(tmp_path / "fifo", tmp_path, {})


@pytest.mark.parametrize(
    ("value", "pair"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        (":8000", ("0.0.0.0", 8000)),  # noqa: S104 - not bound
        ("[::1]:8000", ("::1", 8000)),
        ("db.example:0", ("db.example", 0)),
    ],
)
def test_addresses_are_split(value, pair):
    assert split_address(value) == pair


@pytest.mark.parametrize(
    "value",
    ["", "8000", "host", "host:", "host:x", "host:-1", "h:²", "::1:80", "http://h:80", "a b:80", "[x]:1", "h:70000"],
)
def test_what_is_no_address_is_refused(value):
    with pytest.raises(ValueError):
        split_address(value)


@pytest.mark.parametrize(
    ("value", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.1.2.3:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        (":1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("db.example:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_is_recognised(value, loopback):
    assert is_loopback(value) is loopback


def test_port_0_never_clashes():
    assert not addresses.clash("127.0.0.1:0", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_terminal_s_language_follows_the_locale(environ, language):
    assert config.terminal_language(environ) == language


def test_what_the_environment_says_about_hubs():
    assert config.hub_environment({"TIDEGATE_HUB": " hf ", "HF_TOKEN": "t"}) == config.HubEnvironment("hf", "", "t")


def test_every_option_of_the_data_path_is_a_setting():
    assert load(environ={}).gateway.options().max_headers == 100


def test_importing_the_settings_imports_neither_asyncio_nor_a_web_library():
    code = "import sys, tidegate.config; print([n for n in ('asyncio', 'httpx', 'structlog', 'sqlalchemy') if n in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, env={**os.environ}
    )
    assert ran.stdout == "[]\n"
