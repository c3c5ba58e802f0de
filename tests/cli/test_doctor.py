"""`tidegate doctor` looks at everything, says what to do, and ends with 1 if there is a problem."""

import contextlib
import json
import socket

import pytest


@pytest.fixture
def free():
    """Three addresses that nobody listens on."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listening.getsockname()[1] for listening in held]
    names = ("TIDEGATE_GATEWAY__LISTEN", "TIDEGATE_ADMIN__LISTEN", "TIDEGATE_CHAT__LISTEN")
    # Port 1 of loopback is refused at once, so that no test waits for a hub.
    return {"TIDEGATE_HUB": "http://127.0.0.1:1"} | {
        name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
    }


def test_a_machine_without_faults_gives_0_and_is_left_as_it_was(tidegate, free):
    ran = tidegate("doctor", **free)
    assert ran.returncode == 0, ran.stdout
    assert ran.stderr == ""
    for subject in (
        "settings",
        "python",
        "processor",
        "memory",
        "open files",
        "gpu",
        "model",
        "disk space",
        "disk speed",
        "hub",
    ):
        assert f"  {subject} " in ran.stdout
    assert "No problems found." in ran.stdout
    assert not tidegate.home.exists()


def test_a_port_that_is_held_is_a_problem_with_the_process_that_holds_it(tidegate, free):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        ran = tidegate("doctor", "--json", **{**free, "TIDEGATE_CHAT__LISTEN": f"127.0.0.1:{port}"})
    assert ran.returncode == 1
    (problem,) = [finding for finding in json.loads(ran.stdout) if finding["level"] == "problem"]
    assert problem["subject"] == f"port {port}"
    assert "is held by process" in problem["text"]
    assert "chat.listen" in problem["advice"]


def test_a_mistake_in_the_settings_or_the_hub_s_address_is_one_of_the_findings(tidegate, free):
    (tidegate.here / "tidegate.toml").write_text("[log]\nlevle = 1\n")
    ran = tidegate("doctor", "--json", **{**free, "TIDEGATE_HUB": "nonsense"})
    assert ran.returncode == 1
    problems = {
        f["subject"]: f for f in json.loads(ran.stdout) if f["level"] == "problem" and "port" not in f["subject"]
    }
    assert problems["settings"]["text"] == "log.levle: there is no such setting (in tidegate.toml)"
    assert problems["settings"]["advice"] == "did you mean 'level'?"
    assert "not a hub" in problems["hub"]["text"]


def test_a_damaged_model_is_a_problem(tidegate, free):
    (tidegate.home / "models").mkdir(parents=True, mode=0o700)
    tidegate.home.chmod(0o700)
    (tidegate.home / "models" / "mine.gguf").write_bytes(b"GGUF")
    ran = tidegate("doctor", **free)
    assert ran.returncode == 1
    assert "mine.gguf is not a whole GGUF file" in ran.stdout
    assert "1 problem found." in ran.stdout


def test_odd_rules_and_keys_and_targets_below_what_was_measured_are_notes(tidegate, free):
    (tidegate.here / "tidegate.toml").write_text("[[class]]\nname = 'gone'\n")
    assert tidegate("keys", "create", "--name", "anna", "--class", "gone").returncode == 0
    line = {"class": "batch", "stream": True, "outcome": "done", "moves": 0, "queue_ms": 0.0, "first_ms": 900.0}
    (tidegate.home / "logs").mkdir(exist_ok=True)
    (tidegate.home / "logs" / "access.log").write_text(f"{json.dumps(line)}\n" * 30)
    (tidegate.here / "tidegate.toml").write_text("[[rule]]\nclass = 'batch'\n[[rule]]\nclass = 'long'\nstream = true\n")
    ran = tidegate("doctor", "--json", **free)
    notes = [one["text"] for one in json.loads(ran.stdout) if one["subject"] == "classes"]
    assert [note.split(":")[0] for note in notes] == [
        "rule.1",
        "rule.2",
        "class 'interactive' (built in)",
        "key 'anna'",
    ]
    assert "here it takes 900 ms at the least" in notes[2]
    assert {one["level"] for one in json.loads(ran.stdout) if one["subject"] == "classes"} == {"note"}


def test_a_file_is_read_instead_of_the_machine(tidegate):
    (tidegate.here / "run.sh").write_text("vllm serve baidu/ERNIE-4.5-0.3B-PT \\\n  --chunked-prefill-size 512\n")
    ran = tidegate("doctor", "--read", "run.sh")
    assert ran.returncode == 1
    assert "PROBLEM  line 2       --chunked-prefill-size is SGLang's, not vLLM's" in ran.stdout
    assert "-> use --max-num-batched-tokens" in ran.stdout
    assert "1 problem found." in ran.stdout
    told = json.loads(tidegate("doctor", "--read", "run.sh", "--json").stdout)
    assert told[0]["level"] == "problem"
    missing = tidegate("doctor", "--read", "none.sh")
    assert missing.returncode == 2
    assert "none.sh cannot be read: No such file" in missing.stderr
