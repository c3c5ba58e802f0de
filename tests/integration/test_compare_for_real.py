"""`tidegate bench compare` on llama.cpp: settings that run are measured, settings that are too large are a result."""

import json
import os
import subprocess
import sys

import psutil

COMPARE = [sys.executable, "-m", "tidegate", "bench", "compare"]
LOAD = [
    "--concurrency",
    "2",
    "--requests",
    "6",
    "--warmup",
    "0",
    "--workload",
    "short",
    "--output",
    "8",
    "--ignore-eos",
    "--rounds",
    "1",
]
SETTINGS = '[[model]]\nname = "m"\nsource = "{path}"\n[[pool]]\nname = "p"\nmodel = "m"\noptions = {{ slots = {slots}, context_tokens = {context} }}\n'


def test_settings_of_llama_cpp_are_measured_and_too_large_ones_are_told(demo_model, tmp_path):
    for name, slots, context in (("one", 1, 1024), ("two", 2, 1024), ("big", 256, 8192)):
        text = SETTINGS.format(path=demo_model, slots=slots, context=context)
        (tmp_path / f"{name}.toml").write_text(text)
    environ = {**os.environ, "TIDEGATE_HOME": str(tmp_path / "home")}
    files = ["one.toml", "two.toml", "big.toml", "--json", "c.json"]
    done = subprocess.run(
        [*COMPARE, *files, *LOAD], cwd=tmp_path, env=environ, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two, big = json.loads((tmp_path / "c.json").read_bytes())["arms"]
    for arm in (one, two):
        (run,) = arm["runs"]
        assert (run["answered"], run["failed"]) == (6, {})
        assert run["use"]["most_resident_bytes"] > 50 * 1024**2
    assert (big["runs"], big["no_memory"]) == ([None], True)
    assert "big has too little memory" in done.stdout
    left = [
        one
        for one in psutil.process_iter(["environ"])
        if (one.info["environ"] or {}).get("TIDEGATE_HOME") == str(tmp_path / "home")
    ]
    assert not left
