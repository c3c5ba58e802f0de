import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidegate.fleet import local
from tidegate.types import ProcessId

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); time.sleep(600)",
]


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


@pytest.fixture
async def spawn(tmp_path):
    children = []

    async def start(argv, **more):
        child = await local.spawn(argv, env=dict(os.environ), log=tmp_path / "child.log", **more)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        await child.wait()


async def test_a_child_leads_a_session_and_writes_to_its_log(spawn, tmp_path):
    child = await spawn(SLEEPER)
    await until(lambda: (tmp_path / "child.log").read_text() == "up\n")
    assert os.getsid(child.id.pid) == child.id.pid
    assert Path(f"/proc/{child.id.pid}/fd/0").readlink() == Path("/dev/null")
    assert child.alive()


async def test_wait_tells_the_exit_status(spawn):
    child = await spawn([sys.executable, "-c", "raise SystemExit(7)"])
    assert await child.wait() == 7
    assert await child.wait() == 7
    assert not child.alive()


async def test_several_may_wait_for_one_child(spawn):
    child = await spawn(SLEEPER)
    waits = [asyncio.create_task(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    os.kill(child.id.pid, signal.SIGKILL)
    assert await asyncio.gather(*waits) == [-9, -9, -9]


async def test_a_cancelled_wait_leaves_the_child_to_the_next(spawn):
    child = await spawn(SLEEPER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.wait(), 0.05)
    await child.stop(5.0)
    assert await child.wait() == -15


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(spawn, tmp_path):
    child = await spawn(STUBBORN)
    await until(lambda: (tmp_path / "child.log").read_text() == "up\n")
    await child.stop(0.1)
    assert await child.wait() == -9


async def test_what_a_killed_child_had_started_ends_with_it(spawn, tmp_path):
    child = await spawn(PARENT)
    await until(lambda: (tmp_path / "child.log").read_text().endswith("\n"))
    grandchild = local.process_id(int((tmp_path / "child.log").read_text()))
    os.kill(child.id.pid, signal.SIGKILL)
    await child.wait()
    await until(lambda: not local.is_alive(grandchild))


async def test_a_zombie_is_not_alive(spawn):
    child = await spawn(["true"])
    await until(lambda: local.read_stat(child.id.pid).state == "Z")
    assert not child.alive()
    assert not local.is_alive(child.id)


async def test_passed_descriptors_alone_are_inherited(spawn, tmp_path):
    passed, kept = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        child = await spawn(
            [sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"], pass_fds=(passed,)
        )
        await child.wait()
    finally:
        os.close(passed)
        os.close(kept)
    seen = (tmp_path / "child.log").read_text()
    assert f"'{passed}'" in seen
    assert len(seen.split(",")) == 5  # 0, 1, 2, the passed one, and that of listdir itself


async def test_an_adopted_process_is_waited_for_and_stopped_like_a_child(tmp_path):
    """The process here is a grandchild, as it is after the control that started it has died."""
    starter = f"import subprocess; print(subprocess.Popen({SLEEPER!r}, start_new_session=True, stdout=2).pid)"
    pid = int(
        subprocess.run(
            [sys.executable, "-Wignore", "-c", starter], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ).stdout
    )
    child = local.adopt(local.process_id(pid))
    assert child is not None
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    assert child.alive()
    await child.stop(5.0)
    assert await waiting is None
    assert not child.alive()


def test_a_later_process_of_the_same_pid_is_not_adopted():
    own = local.process_id(os.getpid())
    assert local.adopt(ProcessId(pid=own.pid, started=own.started - 1)) is None
    assert not local.is_alive(ProcessId(pid=own.pid, started=own.started - 1))
    assert local.is_alive(own)


async def test_sessions_are_found_by_their_environment(tmp_path):
    env = dict(os.environ) | {"TIDEGATE_TEST_MARK": str(tmp_path)}
    child = await local.spawn(SLEEPER, env=env, log=tmp_path / "log")
    try:
        await until(lambda: (tmp_path / "log").read_text() == "up\n")
        found = local.find_sessions("TIDEGATE_TEST_MARK", str(tmp_path))
        assert set(found) == {child.id}
        assert found[child.id]["TIDEGATE_TEST_MARK"] == str(tmp_path)
        assert local.memory_bytes(child.id) > 1_000_000
    finally:
        await child.stop(5.0)
    assert local.find_sessions("TIDEGATE_TEST_MARK", str(tmp_path)) == {}
    assert local.memory_bytes(child.id) is None


def test_log_files_are_the_owners_alone(tmp_path):
    async def main():
        child = await local.spawn(["true"], env={}, log=Path(tmp_path) / "logs" / "x.log")
        await child.wait()

    asyncio.run(main())
    assert (tmp_path / "logs" / "x.log").stat().st_mode & 0o777 == 0o600


def test_uvloop_waits_for_children_too(tmp_path):
    import uvloop

    async def main():
        child = await local.spawn(SLEEPER, env=dict(os.environ), log=tmp_path / "log")
        waiting = asyncio.create_task(child.wait())
        await asyncio.sleep(0.05)
        await child.stop(5.0)
        return await waiting

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == -15
