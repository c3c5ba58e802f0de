"""A bridge to no cluster: every replica is ready at once, or does what its model's name says.

Its first argument is a folder: what it is told is written to `told`, `refuse` and `hang` in it are asked for by being there,
and a file `lost` names the lives that end.
"""

import json
import sys
import threading
import time
from pathlib import Path


def say(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main():
    folder = Path(sys.argv[1])
    if (folder / "refuse").exists():
        say(type="refused", why="no cluster answers", hint="start one")
        return
    if (folder / "hang").exists():
        sys.stdin.read()
        return
    say(type="connected", address="here", version="0", nodes=1, cpus=1.0, gpus=0.0)
    threading.Thread(target=watch, args=(folder,), daemon=True).start()
    for line in sys.stdin:
        with (folder / "told").open("a") as file:
            file.write(line)
        told = json.loads(line)
        if told["type"] == "place":
            place(told["job"])
        elif told["type"] == "stop":
            say(type="word", life=told["life"], said={"type": "ended", "cause": "it was ended"})


def place(job):
    life, model = job["life"], job["model"]
    if model == "broken":
        said = {"type": "ended", "cause": "out of memory", "log_tail": ["last line"]}
    elif model == "missing":
        said = {"type": "ended", "cause": "no such file", "hint": "copy it", "mend": True}
    elif model == "no room":
        say(type="waits", life=life, wants="GPU 1", free="CPU 3")
        return
    else:
        facts = {"slots": 4, "context_tokens": 100, "started_s": 0.5, "served_name": model}
        url = f"http://10.0.0.1/{life}"
        said = {"type": "ready", "url": url, "api_key": "k", "dialect": "vllm", "facts": facts}
    say(type="word", life=life, said=said, node="10.0.0.1")


def watch(folder):
    while True:
        if (folder / "lost").exists():
            for life in (folder / "lost").read_text().split():
                say(type="word", life=life, said={"type": "ended", "cause": "its node is gone"})
            (folder / "lost").unlink()
        time.sleep(0.01)


main()
