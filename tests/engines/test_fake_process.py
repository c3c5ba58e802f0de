"""The fake engine as a process: as a replica, and as people start it."""

import asyncio
import os
import signal
import subprocess
import sys

import httpx
import pytest

from tidegate.config import FakeOptions
from tidegate.engines.fake import FakeEngine
from tidegate.engines.process import Place
from tidegate.errors import EngineStartError
from tidegate.fleet import local
from tidegate.types import DialectName

COMMAND = [sys.executable, "-m", "tidegate", "fake-engine"]


def place(folder) -> Place:
    return Place("fake-0", local.spawn, folder, folder / "fake-0.log", dict(os.environ))


async def test_it_is_an_engine_like_any_other(tmp_path):
    """Started, ready by a real token, known by its options, ended with nothing left."""
    engine = FakeEngine("m", FakeOptions(slots=3, tokens=2, gap_ms=1), place(tmp_path))
    await engine.start()
    try:
        facts = await engine.ready()
        assert (facts.slots, facts.served_name, engine.dialect) == (3, "m", DialectName.VLLM)
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
            answer = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
            assert answer.json()["choices"][0]["message"]["content"] == "词0 词1 "
        child = engine.child
    finally:
        await engine.stop(5)
    assert await child.wait() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["fake-0.log"]


async def test_told_to_die_it_is_gone_with_sigkill(tmp_path):
    engine = FakeEngine("m", FakeOptions(gap_ms=1), place(tmp_path))
    await engine.start()
    try:
        await engine.ready()
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
            body = {"messages": [{"role": "user", "content": "[[fault:die@2]]"}], "stream": True}
            with pytest.raises(httpx.TransportError):
                await http.post("/v1/chat/completions", json=body)
        assert await asyncio.wait_for(engine.child.wait(), 5) == -signal.SIGKILL
    finally:
        await engine.stop(5)


async def test_one_that_cannot_start_is_told_with_its_lines(tmp_path):
    engine = FakeEngine("m", FakeOptions(), Place("fake-0", failing, tmp_path, tmp_path / "log", dict(os.environ)))
    await engine.start()
    with pytest.raises(EngineStartError, match=r"fake-0 ended before it was ready \(exit status 7\)") as raised:
        await engine.ready()
    assert raised.value.log_tail == ("it went wrong",)
    await engine.stop(5)


async def failing(argv, *, env, log):
    del argv
    code = "import sys; print('it went wrong'); sys.exit(7)"
    return await local.spawn([sys.executable, "-c", code], env=env, log=log)


async def test_one_that_is_never_ready_is_given_up(tmp_path):
    engine = FakeEngine("m", FakeOptions(first_ms=60_000), place(tmp_path), start_timeout_s=1.5)
    await engine.start()
    with pytest.raises(EngineStartError, match=r"fake-0 was not ready after 1\.5 s"):
        await engine.ready()
    await engine.stop(5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault", "nonsense"], "--fault: 'nonsense' is no fault; there are: status,"),
        (["--dialect", "latin"], "--dialect: 'latin' is neither vllm nor llamacpp"),
        (["--api-key-file", "/nowhere"], "--api-key-file: /nowhere cannot be read"),
    ],
)
def test_a_wrong_argument_is_one_message_and_exit_code_2(arguments, words):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_quietly():
    """It prints its URL once it listens, and exits 0 on SIGINT."""
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert "listens on http://127.0.0.1:" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
        assert (child.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("flags", "told"),
    [(["--port", "99999"], "Invalid value for '--port'"), (["--ready-file", "{}/none/ready"], "--ready-file: ")],
)
def test_what_cannot_be_is_one_message(tmp_path, flags, told):
    flags = [flag.format(tmp_path) for flag in flags]
    ran = subprocess.run(
        [*COMMAND, "--port", "0", *flags], check=False, timeout=60, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 2
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
