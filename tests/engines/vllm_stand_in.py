"""Takes vLLM's command line, and answers as the fake engine does; what it was given is written beside it.

vllm_stand_in.py NOTES serve FOLDER --served-model-name … --port … …
"""

import json
import os
import sys
from pathlib import Path


def main(notes, *argv):
    given = dict(zip(argv, (*argv[1:], ""), strict=True))
    if "--die" in argv:
        sys.stdout.write("(EngineCore pid=7) ERROR 12-01 03:39:04 [core.py:1] ValueError: a reason of its own\n")
        sys.exit(1)
    generation = given.get("--generation-config")
    told = json.loads(Path(generation, "generation_config.json").read_text()) if generation else None
    names = ("VLLM_API_KEY", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "HF_HUB_OFFLINE", "PYTHONPATH", "LD_PRELOAD", "EXTRA")
    Path(notes).write_text(
        json.dumps({"argv": argv, "env": {name: os.environ.get(name) for name in names}, "generation": told})
    )
    fake = ("--port", given["--port"], "--model", given["--served-model-name"], "--tokens", "4")
    os.execv(sys.executable, [sys.executable, "-m", "tidegate", "fake-engine", *fake])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
