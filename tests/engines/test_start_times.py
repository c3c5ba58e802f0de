"""What engines say of their start, as they say it."""

import pytest

from tidegate.engines.start_times import StartTimes, of_log, read

GPU = """\
(APIServer pid=812) INFO 12-01 09:13:04 [api_server.py:1262] vLLM API server version 0.32.0
(EngineCore pid=901) INFO 12-01 09:13:31 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'
(Worker_TP0 pid=950) INFO 12-01 09:17:40 [default_loader.py:501] Loading weights took 240.12 seconds
(Worker_TP1 pid=951) INFO 12-01 09:17:42 [default_loader.py:501] Loading weights took 242.00 seconds
(Worker_TP0 pid=950) INFO 12-01 09:17:43 [gpu_model_runner.py:5150] Model loading took 0.68 GiB memory and 243.501222 seconds
(Worker_TP0 pid=950) INFO 12-01 09:17:51 [backends.py:1167] Dynamo bytecode transform time: 3.10 s
(Worker_TP0 pid=950) INFO 12-01 09:18:01 [backends.py:399] Compiling a graph for compile range (1, 2048) takes 9.81 s
(Worker_TP0 pid=950) INFO 12-01 09:18:02 [monitor.py:53] torch.compile took 13.25 s in total
(Worker_TP0 pid=950) INFO 12-01 09:18:03 [monitor.py:92] Initial profiling/warmup run took 0.61 s
(Worker_TP0 pid=950) INFO 12-01 09:18:08 [gpu_model_runner.py:6582] Graph capturing finished in 4 secs, took 0.55 GiB
(EngineCore pid=901) INFO 12-01 09:18:09 [core.py:396] init engine (profile, create kv cache, warmup model) took 24.70 s (compilation: 13.25 s)
"""
CPU = """\
(Worker pid=29834) INFO 12-01 03:39:24 [default_loader.py:501] Loading weights took 0.01 seconds
(EngineCore pid=29705) INFO 12-01 03:39:32 [core.py:402] init engine (profile, create kv cache, warmup model) took 7.65 s
"""
OLDER = """\
INFO 05-02 10:00:11 [default_loader.py:272] Loading weights took 2.31 seconds
INFO 05-02 10:00:12 [gpu_model_runner.py:1595] Model loading took 1.2152 GiB and 2.917301 seconds
INFO 05-02 10:00:31 [monitor.py:34] torch.compile takes 14.55 s in total
INFO 05-02 10:00:52 [gpu_model_runner.py:2066] Graph capturing finished in 20 secs, took 0.44 GiB
INFO 05-02 10:00:52 [core.py:171] init engine (profile, create kv cache, warmup model) took 39.85 seconds
"""
TOGETHER = "INFO [monitor.py:53] torch.compile and initial profiling/warmup run together took 8.00 s in total\n"
OURS = "tidegate: smollm2-135m loaded in 0.42 s, listens on http://127.0.0.1:40321: 4 slots of 4096 tokens\n"
LLAMA = "llama_perf_context_print:        load time =     850.12 ms\n"


@pytest.mark.parametrize(
    ("text", "load_s", "compile_s", "warm_s"),
    [
        (GPU, 243.501222, 13.25, 11.45),
        (CPU, 0.01, None, 7.65),
        (OLDER, 2.917301, 14.55, 25.3),
        (TOGETHER, None, 8.0, None),
        (OURS, 0.42, None, None),
        (LLAMA, 0.85012, None, None),
        ("Graph capturing finished in 21 secs, took 0.4 GiB", None, None, 21.0),
        ("", None, None, None),
        ("Loading weights took long", None, None, None),
    ],
)
def test_each_engine_tells_it_in_its_own_words(text, load_s, compile_s, warm_s):
    found = read(text)
    assert (found.load_s, found.compile_s) == (load_s, compile_s)
    assert found.warm_s == (None if warm_s is None else pytest.approx(warm_s))


def test_the_parts_and_what_is_left_are_told():
    assert read(GPU).words(300.0) == "load 243.5 s, compile 13.2 s, warm-up 11.4 s, rest 31.8 s"
    assert read(OURS).words(0.4) == "load 0.4 s, rest 0.0 s"
    assert not read("").words(9.0)


GIB = 1024**3


def test_a_slow_disk_is_named_with_its_speed():
    slow = StartTimes(load_s=240.0, weights_bytes=int(0.7 * GIB), read_bytes=3 * GIB)
    assert slow.slow_disk(300.0) == "weights on a slow disk: 4 min of 5 (0.7 GiB at 3 MB/s)"
    assert StartTimes(15.0, weights_bytes=GIB, read_bytes=GIB).slow_disk(20.0) == (
        "weights on a slow disk: 15 s of 20 (1.0 GiB at 72 MB/s)"
    )


@pytest.mark.parametrize(
    ("times", "total_s"),
    [
        (StartTimes(9.0, weights_bytes=GIB, read_bytes=GIB), 10.0),  # short
        (StartTimes(40.0, weights_bytes=GIB, read_bytes=GIB), 100.0),  # something else took longer
        (StartTimes(40.0, weights_bytes=GIB, read_bytes=0), 50.0),  # it was in memory: the disk had no part in it
        (StartTimes(40.0, weights_bytes=GIB, read_bytes=None), 50.0),
        (StartTimes(40.0, weights_bytes=None, read_bytes=GIB), 50.0),
        (StartTimes(40.0, weights_bytes=40 * GIB, read_bytes=40 * GIB), 50.0),  # 1 GB/s
        (StartTimes(), 500.0),
    ],
)
def test_no_disk_is_blamed_without_proof(times, total_s):
    assert not times.slow_disk(total_s)


def test_only_the_start_that_is_meant_is_read(tmp_path):
    log = tmp_path / "log"
    log.write_text(GPU + CPU)
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"x" * 10)
    found = of_log(log, len(GPU), weights=weights, read_bytes=7)
    assert (found.load_s, found.compile_s, found.weights_bytes, found.read_bytes) == (0.01, None, 10, 7)
    assert of_log(log, 10**9).load_s == 243.501222  # it was emptied meanwhile: all that is there is newer
    assert of_log(tmp_path / "none", 0) == StartTimes()
    assert of_log(log, 0, weights=tmp_path / "none").weights_bytes is None
