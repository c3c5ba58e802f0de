"""Faults that engines are known to end with: how each is recognised in a log, what it means, and what to do. Data.

One table for all who ask: an engine that did not become ready, the one that is no longer started, and `tidegate doctor`.
What stands first wins, so the particular comes before the general. vLLM's messages are those of 0.32 and of what it loads.
"""

import re
from typing import Final, Literal, NamedTuple

VLLM: Final = "vllm"
LLAMACPP: Final = "llamacpp"
BOTH: Final = "both"
EngineName = Literal["vllm", "llamacpp"]
LONGEST_EVIDENCE: Final = 300
HARMLESS: Final = re.compile(
    r"""^(\[[^\]\n]+\]\ \w+\ engine\ log\ [^\n]*?line=")?   # as Tidegate's own log tells it again
    (\(\w+[^)\n]*\bpid=\d+\)\s*)?(DEBUG|INFO|WARNING)\ \d\d-\d\d\ [^\n]*$""",
    re.MULTILINE | re.VERBOSE,
)
"""What vLLM only remarks: it warns at every start of what may go wrong, in the words of what did."""


class Known(NamedTuple):
    """One fault."""

    name: str
    engine: str
    pattern: str
    """Of its message, in one line or several; what a group named `what` finds is put into `cause`."""
    cause: str
    advice: str


class Diagnosis(NamedTuple):
    """What is the matter."""

    name: str
    evidence: str
    """The line of the log that says so."""
    cause: str
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.cause}: {self.advice}"


PULL: Final = "pull it again (`tidegate models pull`)"

FAULTS: Final = (
    # memory of the GPU
    Known(
        "no memory for the KV cache", VLLM, r"No available memory for the cache blocks",
        "after weights and working memory nothing of the GPU's share is left for the KV cache",
        "a larger share, fewer slots, or a smaller model (`tidegate engines plan` shows the sum)",
    ),
    Known(
        "context longer than memory", VLLM, r"larger than the available KV cache memory|KV cache is needed, which is larger",
        "one request of the whole context needs more KV cache than there is memory",
        "set a smaller context_tokens; the log says how long would fit",
    ),
    Known(
        "GPU memory in use", VLLM, r"is less than desired GPU memory utilization|is less than the engine's budget",
        "the memory that is free now is less than the share asked for, which counts from all of it",
        "end what else uses the GPU (`nvidia-smi`), or set a smaller memory share",
    ),
    Known(
        "out of GPU memory", VLLM, r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the GPU has too little memory for this model and these sizes",
        "a smaller context_tokens, fewer slots, another precision, or a GPU with more",
    ),
    Known(
        "machine memory in use", VLLM,
        r"is less than desired CPU memory utilization|on kv cache allocation is less than requested|DefaultCPUAllocator: can't allocate",
        "the memory that is free now is too little",
        "end other programs (`free -h`), or set a smaller context_tokens",
    ),
    # the model
    Known(
        "context longer than trained", VLLM, r"User-specified max_model_len \((?P<what>\d+)\) is greater than the derived",
        "a context of {what} tokens is more than the model was trained on", "set a smaller context_tokens",
    ),
    Known(
        "architecture's older name", VLLM, r"Model architectures \['(?P<what>\w+\d_ForCausalLM)'\] are not supported",
        "{what} is an older spelling, which vLLM does not know",
        "drop the underscore before ForCausalLM in config.json, or override it: --hf-overrides",
    ),
    Known(
        "architecture dropped", VLLM, r"was supported in vLLM until v(?P<what>[\d.]+[\d])",
        "this vLLM no longer knows the architecture: {what} was the last that did", "install that version, or take a newer model",
    ),
    Known(
        "vLLM older than the model", VLLM,
        r"Model architectures .* are not supported|does not recognize this architecture|failed to be inspected",
        "this vLLM does not know the model's architecture: it is older than the model, or the name in config.json is wrong",
        "upgrade it (`tidegate engines install vllm`), or look at the folder with `tidegate doctor`",
    ),
    Known(
        "model brings code", VLLM, r"contains custom code which must be executed|requires you to execute the configuration file",
        "the model needs code that lies beside it", 'read that code, then set args = ["--trust-remote-code"], or take another model',
    ),
    Known(
        "GGUF for vLLM", VLLM,
        r"Invalid repository ID or local directory specified: '[^']*\.gguf|Unknown quantization method: gguf|Unknown load_format: gguf",
        "GGUF files left vLLM in 0.24", "give the safetensors folder, or run the file on llama.cpp",
    ),
    Known(
        "no model folder", VLLM,
        r"Invalid repository ID or local directory specified: (?P<what>'[^']*')|Repo id must be in the form|is not a local folder and is not a valid model",
        "the model's folder is not there, or has no config.json {what}", "look at the path; a folder with config.json and *.safetensors is needed",
    ),
    Known(
        "gated model", VLLM, r"GatedRepoError|Access to model .* is restricted|gated repo|401 Client Error|403 Client Error",
        "the hub gives this model only to those who accepted its terms", "accept them on the hub's page and set HF_TOKEN, or copy the files",
    ),
    Known(
        "hub out of reach", VLLM,
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|Max retries exceeded with url|NameResolutionError|We couldn't connect to",
        "the model is not here, and no hub can be reached",
        "`tidegate models pull` where there is a network, then copy the folder; or a mirror (HF_ENDPOINT)",
    ),
    Known(
        "shard missing", VLLM, r"Weight files referenced in index but missing: (?P<what>[^\n]{1,200})|FileNotFoundError:[^\n]*\.safetensors",
        "the index names files of weights that are not there {what}", PULL,
    ),
    Known(
        "pointer instead of weights", VLLM, r"SafetensorError: Error while deserializing header: (header too large|HeaderTooLarge)",
        "a file of weights holds something else, most likely Git's pointer to it", "`git lfs pull` in that folder, or " + PULL,
    ),
    Known(
        "half a file of weights", VLLM,
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|unexpected EOF, expected \d+ more bytes",
        "a file of weights is damaged or half", PULL,
    ),
    Known(
        "no weights", VLLM, r"Cannot find any model weights", "the folder holds no weights that can be loaded", PULL,
    ),
    Known(
        "weights of another model", VLLM, r"not initialized from\s+checkpoint|size mismatch for|KeyError: 'model\.layers|There is no module or parameter named",
        "weights and config.json do not belong together", "take both from one place: " + PULL,
    ),
    Known(
        "tokenizer missing", VLLM,
        r"Couldn't instantiate the backend tokenizer|Can't load tokenizer for|No tokenizer file found|Tokenizer class \w+ does not exist",
        "the tokenizer is not in the model's folder", "copy tokenizer.json (or tokenizer.model) and tokenizer_config.json there",
    ),
    Known(
        "chat template missing", VLLM,
        r"default chat template is no longer allowed|tokenizer\.chat_template is not set",
        "the model has no chat template", "add chat_template.jinja to its folder, or --chat-template FILE",
    ),
    # hardware and driver
    Known(
        "no kernel for this GPU", VLLM,
        r"no kernel image is available|CUDA capability sm_\d+ is not compatible|Minimum and Maximum cuda capability",
        "this build has no kernels for this GPU's compute capability", "vLLM 0.32 needs 7.5 (T4) or newer; a newer GPU may need a newer vLLM",
    ),
    Known(
        "bfloat16 on an old GPU", VLLM, r"Bfloat16 is only supported on GPUs",
        "GPUs older than Ampere (T4, V100) have no bfloat16", 'set args = ["--dtype", "float16"]',
    ),
    Known(
        "fp8 on an old GPU", VLLM, r"fp8\w* .{0,80}(compute capability|not supported on)|requires compute capability (>=|of at least) 8\.9",
        "fp8 needs compute capability 8.9 (L4, RTX 40, H100 and newer)", "leave fp8 out",
    ),
    Known(
        "driver library mismatch", VLLM, r"[Dd]river/library version mismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|Error 803",
        "the driver in the kernel is of another version than its libraries, as after an update", "restart the machine",
    ),
    Known(
        "driver too old", VLLM,
        r"CUDA driver version is insufficient|driver on your system is too old|forward compatibility was attempted|CUDA_ERROR_COMPAT_NOT_SUPPORTED",
        "the NVIDIA driver is too old for the CUDA that this vLLM was built with", "CUDA 13 needs driver 580 or newer: update it",
    ),
    Known(
        "wrong CUDA", VLLM, r"(?P<what>lib(cudart|cublas\w*|cudnn\w*|nvrtc|cusparse\w*|nccl)\.so[.\d]*): cannot open shared object file",
        "it was built for another CUDA than is installed beside it ({what} is not there)", "remove the engine and install it again (`tidegate engines`)",
    ),
    Known(
        "torch of another build", VLLM, r"undefined symbol: (?P<what>_ZN?\w{0,60})|operator torchvision::nms does not exist",
        "vLLM and the torch beside it are of different builds ({what})", "remove the engine and install it again: it pins its own torch",
    ),
    Known(
        "no GPU to be seen", VLLM, r"libcuda\.so\.1|No CUDA GPUs are available|Failed to infer device type|Found no NVIDIA driver",
        "it was built for a GPU and sees none", "`tidegate engines install vllm --cpu`; in a container --gpus all; or look at the driver (`nvidia-smi`)",
    ),
    Known(
        "more GPUs than there are", VLLM, r"World size \((?P<what>\d+)\) is larger than the number of",
        "{what} GPUs are asked for, more than there are", "a smaller --tensor-parallel-size",
    ),
    Known(
        "heads do not divide", VLLM, r"must be divisible by tensor parallel size",
        "the model's heads cannot be shared out among so many GPUs", "a --tensor-parallel-size that divides them, or one GPU for each replica",
    ),
    Known(
        "GPU lost", VLLM, r"GPU has fallen off the bus|GPU is lost|uncorrectable ECC|NVRM: Xid|CUDA error: (unspecified launch failure|an illegal instruction)",
        "the GPU failed", "look into the kernel's log for Xid (`dmesg`); often the machine has to be restarted",
    ),
    Known(
        "GPUs cannot talk", VLLM, r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
        "the GPUs of one engine do not reach each other", "NCCL_DEBUG=INFO tells more; in a container --ipc=host and enough shared memory",
    ),
    Known(
        "CPU too old", VLLM, r"Illegal instruction|[Rr]equires? AVX2|AVX2 .*not supported|avx2 is required",
        "this CPU lacks instructions that the engine was built for (AVX2)", "a newer machine, or let the virtual one see its host's processor",
    ),
    Known(
        "glibc too old", BOTH, r"version `(?P<what>GLIBC(XX)?_[\d.]+)' not found",
        "this system's C library is older than the engine needs ({what})", "a newer system (glibc 2.28: RHEL 8, Debian 10, Ubuntu 18.10), or a container",
    ),
    # llama.cpp
    Known(
        "damaged model file", LLAMACPP, r"corrupted or incomplete|invalid magic|failed to read (magic|key-value|tensor)|not within the file bounds|unsupported (GGUF )?version",
        "the model file is damaged", PULL,
    ),
    Known("llama.cpp older than the model", LLAMACPP, r"unknown model architecture|unknown pre-tokenizer type", "this llama.cpp does not know the model's architecture", "upgrade xllamacpp"),
    Known(
        "out of memory", LLAMACPP,
        r"failed to allocate|unable to allocate|bad_alloc|failed to create context|failed to initialize the context|[Oo]ut of memory",
        "there was not enough memory", "set fewer slots or a smaller context_tokens in pool.options",
    ),
    Known("file missing", LLAMACPP, r"No such file or directory", "a file it needs is not there", "look at the path in the log"),
    Known("package not whole", LLAMACPP, r"ModuleNotFoundError|ImportError", "the engine's package is not installed whole", "run `make setup` again"),
    # the system
    Known(
        "shared memory too small", VLLM,
        r"Bus error|unable to write to file </torch_|No space left on device: '?/dev/shm|unable to allocate shared memory|Error while creating shared memory",
        "shared memory (/dev/shm) is too small, as in containers (64 MiB)", "--ipc=host or --shm-size 8g",
    ),
    Known("no space", BOTH, r"No space left on device|Disk quota exceeded", "the disk is full", "free some space, or move the data folder (TIDEGATE_HOME)"),
    Known("port taken", BOTH, r"[Aa]ddress already in use|couldn't bind", "the port it wanted is taken", "it gets another one at the next start"),
    Known("too many open files", BOTH, r"Too many open files", "the limit of open files is too low", "raise it: `ulimit -n 65536`"),
    Known(
        "threads run out", BOTH, r"can't start new thread|pthread_create failed|libgomp: Thread creation failed|Resource temporarily unavailable",
        "no more threads may be made", "raise the limit (`ulimit -u`, pids of the container), or set threads in pool.options",
    ),
    Known(
        "no C compiler", VLLM, r"Failed to find C compiler|(gcc|cc1plus|g\+\+): (error: )?.*not found|Python\.h: No such file",
        "kernels are compiled at the start, and there is no C compiler", "install gcc and Python's headers",
    ),
    # what it was given
    Known("unknown flag", VLLM, r"unrecognized arguments: (?P<what>[^\n]{1,200})", "this vLLM does not have a flag that it was given: {what}", "`tidegate doctor --read` knows today's names"),
    Known("wrong dtype", VLLM, r"argument --dtype: (?P<what>[^\n]{1,200})|dtype\.literal|Unknown dtype", "there is no such --dtype {what}", "auto, bfloat16, float16 or float32"),
    Known("wrong flag", VLLM, r"error: argument (?P<what>[^\n]{1,200})", "a flag was given wrongly: {what}", "change args in pool.options"),
    Known("unknown quantisation", VLLM, r"Unknown quantization method: (?P<what>\w+)", "vLLM has no quantisation {what}", "leave --quantization out: the model's config tells it"),
    Known("wrong value", VLLM, r"validation errors? for \w*Config[^\n]*\n(?P<what>[^\n]{1,200}\n[^\n]{1,200})", "a flag was given wrongly: {what}", "change args in pool.options"),
    Known("no vLLM here", VLLM, r"No module named '?vllm'?", "this Python has no vLLM", "`tidegate engines install vllm`, or another pool.options.python"),
    Known("its command does not work", VLLM, r"PackageNotFoundError.*\bvllm\b", "the CPU build's `vllm` command does not work", "give its python instead of a command"),
    Known("not ready in time", VLLM, r"Timed out waiting for engine core processes", "the engine's own wait was over before the weights were loaded", "a faster disk (`tidegate models stage`), or VLLM_ENGINE_READY_TIMEOUT_S"),
    Known("may not read", BOTH, r"Permission denied|PermissionError|cannot be read", "a file it needs may not be read by this user", "look at the owner of the models and data folders"),
    Known(
        "cores or memory nodes refused", VLLM, r"sched_setaffinity.*fail|set_mempolicy|numa_migrate_pages failed|No allowed CPU|omp.*bind.*(invalid|failed)",
        "threads could not be bound to cores or memory nodes", 'VLLM_CPU_OMP_THREADS_BIND = "nobind" in env; in a container --cap-add SYS_NICE',
    ),
    Known("environment not whole", VLLM, r"ModuleNotFoundError|ImportError", "its environment is not whole", "remove it and install it again (`tidegate engines`)"),
)  # fmt: skip


OF_MEMORY: Final = frozenset(
    {
        "no memory for the KV cache",
        "context longer than memory",
        "GPU memory in use",
        "out of GPU memory",
        "machine memory in use",
        "out of memory",
    }
)
"""Those that smaller sizes would not have."""


def diagnose(text: str, engine: EngineName) -> Diagnosis | None:
    """The first fault of an engine that its log shows; None where it is none that is known."""
    text = HARMLESS.sub("", text)
    for fault in FAULTS:
        if fault.engine not in {engine, BOTH}:
            continue
        found = re.search(fault.pattern, text)
        if found is not None:
            what = " ".join((found.groupdict().get("what") or "").split())
            cause = " ".join(fault.cause.replace("{what}", what).replace("()", "").split())
            return Diagnosis(fault.name, _line_at(text, found.start()), cause, fault.advice)
    return None


def lacks_memory(text: str, engine: EngineName) -> bool:
    """Whether an engine's last words are that its sizes are too large for the memory there is."""
    found = diagnose(text, engine)
    return found is not None and found.name in OF_MEMORY


def _line_at(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[begin : end if end >= 0 else None].strip()[:LONGEST_EVIDENCE]
