import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidegate.apps import site
from tidegate.apps.chat.starters import DEMO_MODEL, footnote, invitation, starters
from tidegate.apps.page import local_html, mend, policy_of
from tidegate.apps.site import write_site
from tidegate.models import catalogue

CHAINLIT = Path(importlib.util.find_spec("chainlit").submodule_search_locations[0])
DIST = CHAINLIT / "frontend" / "dist"


def test_nothing_of_the_index_page_points_elsewhere_and_the_rest_is_whole():
    html = (DIST / "index.html").read_text("utf-8")
    assert "https://" in html
    local = local_html(html)
    assert "//" not in re.sub(r"<!--.*?-->", "", local)
    for kept in ("viewport", "/assets/index-", 'id="root"', "globalThis"):
        assert kept in local


def test_the_policy_allows_each_inline_script_and_no_other():
    policy = policy_of("<script>\n1\n</script><script src='/a.js'></script><script>2</script>")
    assert policy.count("'sha256-") == 2
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "https:" not in policy


def test_the_script_of_the_installed_chainlit_is_mended():
    (script,) = DIST.glob("assets/index-*.js")
    content = script.read_bytes()
    mended = mend(content)
    assert b"{text:{},flow:{}}" in mended
    assert 0 < len(content) - len(mended) < 40


@pytest.mark.parametrize(("language", "forced"), [("auto", None), ("zh-CN", "zh-CN"), ("en-US", "en-US")])
def test_chainlits_folder_is_written_anew_with_what_is_not_wanted_switched_off(tmp_path, language, forced):
    root = tmp_path / "chat"
    (root / "public").mkdir(parents=True)
    (root / "public" / "old.js").touch()
    (root / "auth.secret").write_text("kept")
    write_site(root, language=language)
    settings = tomllib.loads((root / ".chainlit" / "config.toml").read_text("utf-8"))
    assert settings["UI"].get("language") == forced
    assert settings["project"]["allow_origins"] == []
    assert not settings["features"]["unsafe_allow_html"]
    assert not any(settings["features"][name]["enabled"] for name in ("spontaneous_file_upload", "audio", "mcp"))
    assert not (root / "public" / "old.js").exists()
    assert (root / "public" / "favicon.svg").exists()
    assert (root / "auth.secret").read_text() == "kept"


@pytest.mark.parametrize("language", sorted(site.SENTENCES))
def test_our_sentences_take_the_place_of_chainlits(tmp_path, language):
    write_site(tmp_path, language="auto")
    written = json.loads((tmp_path / ".chainlit" / "translations" / f"{language}.json").read_text("utf-8"))
    assert written["chat"]["watermark"] == site.SENTENCES[language]["chat"]["watermark"]
    assert written["chat"]["input"]["actions"]["send"]


def test_chainlit_imports_with_the_stand_ins_and_without_what_they_stand_for(tmp_path):
    program = (
        "import sys; from tidegate.apps import standins; standins.install()\n"
        "import chainlit, chainlit.server\n"
        "print(sorted({name.split('.')[0] for name, module in sys.modules.items() if getattr(module, '__file__', None)}))"
    )
    environment = {"CHAINLIT_APP_ROOT": str(tmp_path), "PATH": ""}
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert not {"traceloop", "mcp", "grpc", "google", "opentelemetry_instrumentation"} & set(eval(told.stdout))  # noqa: S307 - our own


def test_the_demo_model_is_asked_in_english_and_says_why():
    assert catalogue.DEMO.name == DEMO_MODEL
    assert all(question.isascii() for _, question in starters("zh-CN", DEMO_MODEL))
    assert not any(question.isascii() for _, question in starters("zh-CN", "ernie-4.5-0.3b"))
    assert "只会英文" in footnote("zh-CN", DEMO_MODEL, "w")
    assert "English only" in footnote("en-US", DEMO_MODEL, "w")
    assert "English only" in invitation("en-US", DEMO_MODEL, "g")
    assert footnote("en-US", "ernie-4.5-0.3b", "w") == "ernie-4.5-0.3b · w"
    assert (footnote("zh-CN", "", "w"), invitation("zh-CN", "", "g")) == ("w", "g")
