"""A file that starts vLLM is gone through: what is obsolete, harmful or missing in it is told with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.doctor.deployment import find
from tidegate.control.doctor.findings import Level
from tidegate.control.doctor.reading import check
from tidegate.control.doctor.start_rules import RULES, VARIABLES

COMPOSE = """\
services:
  llm:
    image: vllm/vllm:latest
    command: >
      --model baidu/ERNIE-4.5-0.3B-PT
      --chunked-prefill-size 512
      --enforce-eager
    environment:
      - VLLM_USE_V1=1
  proxy:
    image: nginx:1.29
  other:
    image: vllm/vllm-openai:v0.6.3
    entrypoint: ["vllm", "serve"]
    command:
      - baidu/ERNIE-4.5-0.3B-PT
      - --max-num-seqs
      - "4"
    deploy: {resources: {reservations: {devices: [{driver: nvidia, capabilities: [gpu]}]}}}
"""
KUBERNETES = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          command: ["/bin/sh", "-c"]
          args: ["vllm serve baidu/ERNIE-4.5-0.3B-PT --swap-space 4"]
          env:
            - name: VLLM_ATTENTION_BACKEND
              value: FLASHINFER
          resources: {limits: {nvidia.com/gpu: 1}}
"""
SCRIPT = """\
#!/bin/bash
export VLLM_ATTENTION_BACKEND=FLASHINFER   # a comment with 'a quote
cd /srv && CUDA_VISIBLE_DEVICES=0 vllm serve /models/ERNIE-4.5-0.3B-PT \\
  --dtype bf16 \\
  --swap-space 16 \\
  --hf-overrides '{"a":
     1}' --enable-prefix-caching True \\
  --max-model-len 200000 &
python -m vllm.entrypoints.api_server --model x --tensor-parallel-size 2; echo started
docker run --gpus all -p 8000:8000 -e HF_TOKEN=x --rm \\
    vllm/vllm-openai:latest --model baidu/ERNIE-4.5-0.3B-PT --max-num-seqs 64
vllm convert a b
echo vllm is started
"""
UNIT = """\
[Service]
Environment=VLLM_USE_V1=0
ExecStart=/opt/vllm/bin/vllm serve baidu/ERNIE-4.5-0.3B-PT \\
    --disable-log-requests
"""
DOCKERFILE = """\
FROM vllm/vllm-openai:v0.32.0
ENV VLLM_USE_V1=1
CMD ["vllm", "serve", "baidu/ERNIE-4.5-0.3B-PT", "--max-log-requests"]
"""
GOOD = """\
VLLM_API_KEY=$KEY VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75 vllm serve baidu/ERNIE-4.5-0.3B-PT --max-model-len 8192 \\
  --max-num-seqs 256 --max-num-queued-reqs 1024 --scheduling-policy priority --shutdown-timeout 60
"""


def told(text, name="run.sh"):
    return [(int(one.subject.removeprefix("line ")), one.text) for one in check(text, name)]


def says(text, line, words, name="run.sh"):
    return any(at == line and words in what for at, what in told(text, name))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (3, "vllm/vllm:latest: there is no image of that name"),
        (6, "--chunked-prefill-size is SGLang's"),
        (7, "--enforce-eager turns CUDA graphs off"),
        (9, "VLLM_USE_V1 no longer exists"),
        (3, "no GPU is handed to the container"),
        (3, "shared memory is 64 MiB"),
        (3, "--max-num-queued-reqs is missing"),
        (13, "vLLM 0.6.3 does not know ERNIE 4.5"),
        (17, "--max-num-seqs lets so few"),
    ],
)
def test_a_compose_file_is_read_with_its_lines(line, words):
    assert says(COMPOSE, line, words, "compose.yaml")
    assert says(COMPOSE, line, words, "")
    assert not any(at in {10, 11} for at, _ in told(COMPOSE, "compose.yaml"))


def test_what_a_container_has_is_not_missing():
    text = COMPOSE.replace("image: vllm/vllm:latest", "image: vllm/vllm-openai:v0.32.0\n    ipc: host\n    gpus: all")
    text = text.replace("command: >", "restart: always\n    volumes: [./m:/m]\n    command: >", 1)
    first = [what for at, what in told(text, "compose.yaml") if at < 14]
    assert not any("shared memory" in one or "GPU is handed" in one or "anew" in one or "again" in one for one in first)


@pytest.mark.parametrize(("line", "words"), [(10, "--swap-space no longer exists"), (12, "VLLM_ATTENTION_BACKEND")])
def test_a_kubernetes_manifest_is_read_too(line, words):
    assert says(KUBERNETES, line, words, "deployment.yml")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (2, "VLLM_ATTENTION_BACKEND no longer exists"),
        (4, "--dtype has no value 'bf16'"),
        (5, "--swap-space no longer exists"),
        (6, "--enable-prefix-caching takes no value"),
        (8, "was trained on 131,072 positions"),
        (3, "--served-model-name is missing"),
        (9, "the old demonstration server is gone"),
        (11, "is another vLLM after every pull"),
        (12, "`vllm convert`: there is no such command"),
    ],
)
def test_a_shell_script_is_read_with_its_lines(line, words):
    assert says(SCRIPT, line, words)


def test_each_thing_is_told_once_and_only_of_what_serves():
    found = told(SCRIPT)
    assert len(found) == len(set(found))
    assert [what for at, what in found if at == 12] == [
        "`vllm convert`: there is no such command: vLLM loads safetensors as they are"
    ]
    assert not any(at == 13 for at, _ in found)


def test_units_and_dockerfiles_are_read():
    assert says(UNIT, 4, "--disable-log-requests no longer exists", "vllm.service")
    assert says(UNIT, 2, "VLLM_USE_V1", "vllm.service")
    assert says(DOCKERFILE, 3, "has no flag --max-log-requests", "Dockerfile")
    assert says(DOCKERFILE, 2, "VLLM_USE_V1", "Dockerfile")


def test_a_single_line_that_is_well_has_nothing_to_be_said_about():
    (finding,) = check(GOOD, "line")
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    "written",
    [
        "--enforce-eager",
        "--gpu-memory-utilization 0.99",
        "--gpu-memory-utilization 90",
        "--trust-remote-code",
        "--api-key sk-1",
        "--no-enable-prefix-caching",
        "--no-enable-chunked-prefill",
        "--disable-log-stats",
        "--max-num-seqs 1",
        "--load-format dummy",
        "--dtype float32",
        "--quantization gguf",
        "--sse-keep-alive-interval 5",
        "--tensor-parallel-size 2",
        "--enable-expert-parallel",
        "--max-model-len 256K",
        "--kv-cache-dtype fp8",
    ],
)
def test_what_harms_is_told(written):
    line = GOOD.replace(
        "--max-model-len 8192", written if "model-len" in written else f"--max-model-len 8192 {written}"
    )
    line = line.replace("--max-num-seqs 256 ", "" if "num-seqs" in written else "--max-num-seqs 256 ")
    found = list(check(line, "line"))
    assert len(found) == 1, found
    assert found[0].level is not Level.OK
    assert found[0].advice


def test_every_rule_of_the_table_is_among_those_tried():
    assert len(RULES) == 17
    for name in VARIABLES:
        assert says(f"{name}=1 {GOOD}", 1, name)
        assert not says(f"{name}=0 {GOOD}", 1, name)


def test_eager_and_float32_are_right_on_a_processor():
    line = f"VLLM_CPU_KVCACHE_SPACE=4 {GOOD.strip()} --enforce-eager --dtype float32"
    assert [one.level for one in check(line, "line")] == [Level.OK]
    server = line.replace("vllm serve", "python -m vllm.entrypoints.openai.api_server --model")
    assert [one.level for one in check(server, "line")] == [Level.OK]


def test_a_stop_that_docker_cuts_short_is_told():
    text = "docker run --gpus all --ipc=host --restart always -v m:/m vllm/vllm-openai:v0.32.0 --shutdown-timeout 60"
    assert says(text, 1, "Docker kills after 10 s")
    assert not says(text.replace("--gpus", "--stop-timeout=80 --gpus"), 1, "Docker kills")


def test_names_and_volumes_of_a_container_are_not_taken_for_its_image():
    line = "docker run -d --name vllm -v vllm:/root --gpus all --ipc host vllm/vllm:latest --model x --swap-space 4"
    (found,) = find(line)
    assert found.image.text == "vllm/vllm:latest"
    assert [word.text for word in found.arguments] == ["--model", "x", "--swap-space", "4"]
    assert find("docker run --name vllm nginx") == ()
    assert find("docker run python:3.12 vllm serve m")[0].command[0].text == "serve"
    assert find("docker ps") == find("docker run") == find("docker run --name vllm") == ()


@pytest.mark.parametrize("name", ["compose.yaml", "x.yml"])
def test_a_file_that_cannot_be_read_is_told_with_the_line(name):
    (finding,) = check("services:\n  a: [1\n  b: 2\n", name)
    assert finding.level is Level.PROBLEM
    assert "line 3" in finding.text


def test_a_file_without_vllm_is_told():
    (finding,) = check("echo hello\n", "x.sh")
    assert finding.level is Level.PROBLEM
    assert "starts no vLLM" in finding.text
    assert find("", name="x.yaml") == ()
    assert find("a: &a [*a]\n", name="x.yaml") == ()


def test_an_engine_s_log_is_read_for_what_it_ended_with():
    log = (
        "INFO vLLM API server version 0.32.0\nERROR loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    )
    (finding,) = check(log, "chat-0.log")
    assert finding.subject == "line 3"
    assert "out of GPU memory" in finding.text
    assert "smaller context_tokens" in finding.advice


@given(st.text(max_size=200) | st.lists(st.sampled_from(SCRIPT.split(" ")), max_size=30).map(" ".join))
def test_any_text_at_all_is_gone_through(text):
    for name in ("x.sh", "x.yaml", ""):
        for finding in check(text, name):
            assert finding.text
