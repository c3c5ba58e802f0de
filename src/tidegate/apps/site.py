"""The folder that Chainlit works in: its settings, its sentences, and the files it serves under /public.

All of it is written anew at every start, so that nothing of an older version stays; nothing is ever written into the
folder a user happens to be in.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from tidegate.errors import OperatorError

NAME = "Tidegate"

SENTENCES: dict[str, dict[str, Any]] = {
    "en-US": {
        "auth": {
            "login": {
                "title": "Sign in to Tidegate",
                "form": {
                    "email": {"label": "Your name", "required": "a name is needed", "placeholder": "Li Lei"},
                    "password": {"label": "API key", "required": "a key is needed"},
                },
                "errors": {
                    "unauthorized": "This key is not valid. Ask whoever runs this Tidegate for one.",
                    "default": "Signing in did not work. Please check the key, and try again.",
                },
            }
        },
        "chat": {
            "input": {"placeholder": "Ask something", "actions": {"stop": "Stop"}},
            "watermark": "Small models make mistakes. Check what matters.",
        },
    },
    "zh-CN": {
        "auth": {
            "login": {
                "title": "登录 Tidegate",
                "form": {
                    "email": {"label": "您的名字", "required": "请填写名字", "placeholder": "李雷"},
                    "password": {"label": "API 密钥", "required": "请填写密钥"},
                },
                "errors": {
                    "unauthorized": "密钥无效。请向 Tidegate 的管理员索取。",
                    "default": "登录没有成功。请检查密钥后再试。",
                },
            }
        },
        "chat": {
            "input": {"placeholder": "请输入您的问题", "actions": {"stop": "停止"}},
            "watermark": "小模型会出错，重要内容请核实。",
        },
    },
}
"""What the page says otherwise than Chainlit does, by language."""


def write_site(root: Path, *, language: str) -> None:
    """Write Chainlit's folder. `language` is "auto" (each browser's own), "en-US" or "zh-CN"."""
    chainlit = _chainlit_folder()
    for part in (".chainlit", ".files", "public"):
        shutil.rmtree(root / part, ignore_errors=True)
    translations = root / ".chainlit" / "translations"
    translations.mkdir(mode=0o700, parents=True)
    (root / ".files").mkdir(mode=0o700)
    for source in sorted((chainlit / "translations").glob("*.json")):
        sentences = json.loads(source.read_text("utf-8"))
        _merge(sentences, SENTENCES.get(source.stem, {}))
        (translations / source.name).write_text(json.dumps(sentences, ensure_ascii=False), "utf-8")
    (root / ".chainlit" / "config.toml").write_text(_config(language), "utf-8")
    shutil.copytree(Path(__file__).parent / "public", root / "public")


def _chainlit_folder() -> Path:
    spec = importlib.util.find_spec("chainlit")
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError("the chat page needs Chainlit, which is not installed", hint="run `make setup` again")
    return Path(spec.submodule_search_locations[0])


def _config(language: str) -> str:
    """Chainlit's config.toml. No origin but our own may read answers, so that none need be named."""
    return f"""\
[project]
session_timeout = 600
user_session_timeout = 604800
allow_origins = []

[features]
unsafe_allow_html = false
latex = false
edit_message = true

[features.spontaneous_file_upload]
enabled = false

[features.audio]
enabled = false

[features.mcp]
enabled = false

[UI]
name = "{NAME}"
description = "A language model of your own"
cot = "hidden"
confirm_new_chat = false
custom_css = "/public/style.css"
custom_meta_url = "/"
custom_meta_image_url = "/favicon"
login_page_image = "/public/tide.svg"
login_page_image_filter = ""
login_page_image_dark_filter = ""
{f'language = "{language}"' if language != "auto" else ""}

[meta]
generated_by = "2.12.0"
"""


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value
