"""llama.cpp's own server on one GGUF file, in a child process; run as a script it is the child."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx


@contextlib.contextmanager
def serving(path, context_tokens=256):
    """A client of a server that has the model; the child is reaped."""
    argv = [sys.executable, str(Path(__file__)), str(path), str(context_tokens)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as child,
    ):
        try:
            url = child.stdout.readline().decode().strip()
            if not url:
                log.seek(0)
                raise AssertionError(log.read().decode(errors="replace")[-2000:])
            with httpx.Client(base_url=url, timeout=60) as http:
                yield http
        finally:
            child.kill()
            child.communicate()


def greedy(http, tokens, count):
    """The tokens that llama.cpp generates after `tokens`."""
    body = {
        "prompt": list(tokens),
        "n_predict": count,
        "temperature": 0,
        "return_tokens": True,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


def main(path, context_tokens):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.port = int(context_tokens), 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # Until the parent closes the pipe or kills: its death never leaves a server behind.
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
