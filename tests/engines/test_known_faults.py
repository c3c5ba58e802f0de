"""Every fault of the table is recognised in the log of an engine that ended with it, and none hides another."""

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines import causes, vllm_causes
from tidegate.engines.known_faults import BOTH, FAULTS, VLLM, diagnose

CORE = "(EngineCore pid=4242) ERROR 12-01 03:55:30 [core.py:946] "
CONFIG = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, "
BEFORE = (
    "INFO 12-01 03:55:10 [api_server.py:1351] vLLM API server version 0.32.0\n"
    "WARNING 12-01 03:55:12 [cpu.py:188] Triton is not installed. triton-cpu is expected on x86 CPUs.\n"
    "(APIServer pid=4100) WARNING 12-01 03:55:13 [system_utils.py:255] Found ulimit of 20000 and failed to automatically "
    "increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too "
    "many open files`. Consider increasing with ulimit -n\n"
)
AFTER = (
    "\n(APIServer pid=4100) Traceback (most recent call last):\n"
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
)
OF_VLLM = [
    (
        "no memory for the KV cache",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing",
    ),
    (
        "context longer than memory",
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (2.25 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (1.1 GiB). Based on the available memory, the estimated "
            "maximum model length is 64000. Try increasing"
        ),
    ),
    (
        "GPU memory in use",
        (
            "ValueError: Free memory on device cuda:0 (3.1/22.03 GiB) on startup is less than desired GPU memory utilization "
            "(0.92, 20.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
    ),
    (
        "out of GPU memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.58 GiB",
    ),
    (
        "machine memory in use",
        (
            "ValueError: Available memory on node 0 (3.2/15.6 GiB) on startup is less than desired CPU memory utilization "
            "(0.92, 14.4 GiB)."
        ),
    ),
    (
        "context longer than trained",
        CONFIG + "User-specified max_model_len (200000) is greater than the derived max_model_len "
        "(max_position_embeddings=131072.0 or model_max_length=None in model's config.json).",
    ),
    (
        "architecture's older name",
        CONFIG + "Model architectures ['Ernie4_5_ForCausalLM'] are not supported for now. Supported architectures: "
        "dict_keys(['AfmoeForCausalLM', 'Ernie4_5ForCausalLM'",
    ),
    (
        "architecture dropped",
        (
            "ValueError: Model architecture QWenLMHeadModel was supported in vLLM until v0.23.0, and is not supported anymore. "
            "Please use an older version of vLLM"
        ),
    ),
    ("vLLM older than the model", CONFIG + "Model architectures ['Ernie4_5ForCausalLM'] are not supported for now."),
    (
        "vLLM older than the model",
        (
            "Value error, The checkpoint you are trying to load has model type `ernie4_5` but Transformers does not recognize "
            "this architecture."
        ),
    ),
    (
        "model brings code",
        CONFIG + "The repository /m/fancy contains custom code which must be executed to correctly load the model.",
    ),
    ("GGUF for vLLM", CONFIG + "Invalid repository ID or local directory specified: '/m/ernie-Q8_0.gguf'."),
    ("GGUF for vLLM", CONFIG + "Unknown quantization method: gguf. Must be one of ['awq', 'auto_awq', 'fp8'"),
    ("no model folder", CONFIG + "Invalid repository ID or local directory specified: '/m/ernie'."),
    (
        "no model folder",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/m/x'",
    ),
    (
        "gated model",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://x/resolve/main",
    ),
    (
        "hub out of reach",
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
            "specified revision on the local disk and outgoing traffic has been disabled."
        ),
    ),
    (
        "shard missing",
        "FileNotFoundError: Weight files referenced in index but missing: {'/m/e/model-00002-of-00002.safetensors'}",
    ),
    (
        "pointer instead of weights",
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too large",
    ),
    (
        "half a file of weights",
        (
            "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not "
            "fully covered"
        ),
    ),
    ("half a file of weights", "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    ("no weights", "RuntimeError: Cannot find any model weights with `/m/ernie`"),
    (
        "weights of another model",
        "ValueError: Following weights were not initialized from checkpoint: {'model.layers.17.mlp.down_proj.weight'}",
    ),
    (
        "tokenizer missing",
        "ValueError: Couldn't instantiate the backend tokenizer from one of: \n(1) a `tokenizers` library serialization file",
    ),
    (
        "chat template missing",
        "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide one",
    ),
    (
        "no kernel for this GPU",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "no kernel for this GPU",
        "UserWarning: Tesla P4 with CUDA capability sm_61 is not compatible with the current PyTorch installation.",
    ),
    (
        "bfloat16 on an old GPU",
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
            "compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI"
        ),
    ),
    (
        "fp8 on an old GPU",
        "ValueError: The quantization method fp8 is not supported for the current GPU. fp8e4nv not supported on sm_80",
    ),
    ("driver library mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    (
        "driver too old",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver",
    ),
    ("wrong CUDA", "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"),
    (
        "torch of another build",
        "ImportError: /e/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
    ),
    ("no GPU to be seen", "RuntimeError: No CUDA GPUs are available"),
    ("no GPU to be seen", "RuntimeError: Failed to infer device type, please set the environment variable"),
    (
        "more GPUs than there are",
        CONFIG + "World size (2) is larger than the number of available GPUs (1) in this node.",
    ),
    (
        "heads do not divide",
        CONFIG + "Total number of attention heads (16) must be divisible by tensor parallel size (3).",
    ),
    ("GPU lost", "torch.AcceleratorError: CUDA error: unspecified launch failure"),
    (
        "GPUs cannot talk",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error",
    ),
    ("CPU too old", "/bin/sh: line 1: 4242 Illegal instruction     (core dumped) python -m vllm"),
    ("glibc too old", "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by /e/vllm/_C.abi3.so)"),
    ("shared memory too small", "RuntimeError: unable to write to file </torch_4242_1>: No space left on device (28)"),
    ("shared memory too small", "DataLoader worker killed by signal: Bus error. It is possible that shm is too small"),
    ("no space", "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache'"),
    ("port taken", "OSError: [Errno 98] Address already in use"),
    ("too many open files", "OSError: [Errno 24] Too many open files"),
    ("threads run out", "RuntimeError: can't start new thread"),
    ("threads run out", "libgomp: Thread creation failed: Resource temporarily unavailable"),
    ("cores or memory nodes refused", "RuntimeError: sched_setaffinity failed. errno: 22"),
    ("no C compiler", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."),
    ("unknown flag", "api_server.py: error: unrecognized arguments: --disable-log-requests"),
    (
        "wrong dtype",
        "api_server.py: error: argument --dtype: invalid choice: 'bf16' (choose from 'auto', 'bfloat16', 'float16')",
    ),
    ("wrong flag", "api_server.py: error: argument --max-num-seqs: invalid int value: 'many'"),
    ("unknown quantisation", CONFIG + "Unknown quantization method: fancy. Must be one of ['awq', 'fp8']"),
    (
        "wrong value",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n"
            "  Input should be less than or equal to 1"
        ),
    ),
    ("no vLLM here", "/usr/bin/python3: No module named vllm"),
    ("its command does not work", "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"),
    (
        "not ready in time",
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by",
    ),
    ("may not read", "PermissionError: [Errno 13] Permission denied: '/m/ernie/config.json'"),
    ("environment not whole", "ModuleNotFoundError: No module named 'xgrammar'"),
]
OF_LLAMACPP = [
    ("damaged model file", "llama_model_load: error loading model: tensor data is not within the file bounds, model is corrupted or incomplete"),
    ("damaged model file", "gguf_init_from_file_impl: invalid magic characters: 'vers', expected 'GGUF'"),
    ("llama.cpp older than the model", "llama_model_load: error loading model: unknown model architecture: 'ernie5'"),
    ("out of memory", "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 2415919136"),
    ("file missing", "gguf_init_from_file: failed to open GGUF file '/m/x.gguf' (No such file or directory)"),
    ("package not whole", "ModuleNotFoundError: No module named 'xllamacpp'"),
    ("port taken", "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"),
    ("no space", "OSError: [Errno 28] No space left on device"),
    ("glibc too old", "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), OF_VLLM)
def test_what_vllm_ended_with_is_recognised_with_the_line_that_says_so(name, message):
    found = diagnose(BEFORE + CORE + message + AFTER, "vllm")
    assert found.name == name
    assert found.evidence in BEFORE + CORE + message
    assert found.evidence
    assert found.cause
    assert found.advice
    assert "{" not in found.cause.replace("{'/m/e", "")


@pytest.mark.parametrize(("name", "message"), OF_LLAMACPP)
def test_what_llamacpp_ended_with_is_recognised(name, message):
    found = diagnose(f"0.00.1 I loading\n{message}\nexiting", "llamacpp")
    assert found.name == name
    assert found.evidence == message


def test_every_fault_of_the_table_is_among_those_tried_and_named_once():
    tried = {name for name, _ in (*OF_VLLM, *OF_LLAMACPP)}
    names = [fault.name for fault in FAULTS]
    assert set(names) == tried
    assert len(names) == len(set(names))
    assert len(names) >= 50
    for fault in FAULTS:
        re.compile(fault.pattern)


def test_what_the_log_names_is_named():
    assert (
        "--disable-log-requests" in diagnose("error: unrecognized arguments: --disable-log-requests", "vllm").sentence
    )
    assert (
        "200000 tokens" in diagnose("User-specified max_model_len (200000) is greater than the derived", "vllm").cause
    )
    assert "model-00002" in diagnose("Weight files referenced in index but missing: {'model-00002'}", "vllm").cause
    assert (
        "Ernie4_5_ForCausalLM"
        in diagnose("Model architectures ['Ernie4_5_ForCausalLM'] are not supported", "vllm").cause
    )


def test_one_engine_s_faults_are_not_looked_for_in_the_other_s_log():
    assert diagnose("unknown model architecture: 'x'", "vllm") is None
    assert diagnose("CUDA out of memory", "llamacpp").name == "out of memory"
    assert {fault.engine for fault in FAULTS} == {"vllm", "llamacpp", "both"}
    assert sum(fault.engine in {VLLM, BOTH} for fault in FAULTS) > 40


def test_what_the_engine_only_warns_of_is_no_cause_of_its_end(tmp_path):
    log = tmp_path / "chat-0.log"
    log.write_text(
        BEFORE + "(EngineCore pid=7) ERROR 12-01 03:55:30 [core.py:946] torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    cause, lines = vllm_causes.last_words(log, 0, 1)
    assert cause.startswith("the GPU has too little memory")
    assert any("out of memory" in line for line in lines)
    log.write_text(BEFORE)
    assert vllm_causes.last_words(log, 0, 1)[0] == ""


def test_the_supervisor_s_message_is_of_the_same_table():
    text = "torch.OutOfMemoryError: CUDA out of memory."
    assert vllm_causes.likely_cause(text, 1) == diagnose(text, "vllm").sentence
    lines = ("unknown model architecture: 'x'",)
    assert causes.likely_cause(lines, 1) == diagnose(lines[0], "llamacpp").sentence
    assert "AVX2" in vllm_causes.likely_cause("", -signal.SIGILL)
    assert vllm_causes.likely_cause("FooError: it broke", 1) == "FooError: it broke"


@pytest.mark.parametrize(
    "text",
    [
        BEFORE,
        f'[2026-12-01T03:39:04+00:00] WARNING engine log replica=default-0 line="{BEFORE.splitlines()[2]}"',
        "",
        "INFO: Started server process [1]",
        'INFO: 127.0.0.1 - "POST /v1/chat/completions" 200 OK',
    ],
)
def test_a_log_of_an_engine_that_is_well_has_no_fault(text):
    assert diagnose(text, "vllm") is None
    assert diagnose(text, "llamacpp") is None


@given(st.text(max_size=400))
def test_any_text_is_looked_through(text):
    for engine in ("vllm", "llamacpp"):
        found = diagnose(text, engine)
        assert found is None or found.evidence in text
