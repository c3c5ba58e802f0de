import os
import shutil
import subprocess
import sys

import msgspec
import pytest

from tidegate.control import state
from tidegate.control.state import Lock, ProcessKind, ProcessRecord, Records
from tidegate.errors import HomeLockedError, OperatorError
from tidegate.types import ProcessId

RECORD = ProcessRecord(name="gateway", kind=ProcessKind.GATEWAY, id=ProcessId(pid=5, started=6), digest="d")


def test_a_second_lock_is_refused_and_names_the_holder(home):
    lock = Lock.acquire(home)
    with pytest.raises(HomeLockedError) as refused:
        Lock.acquire(home)
    assert refused.value.pid == os.getpid()
    lock.release()
    Lock.acquire(home).release()


def test_children_do_not_inherit_the_lock(home):
    lock = Lock.acquire(home)
    show = "import os; print([os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')])"
    shown = subprocess.run([sys.executable, "-c", show], close_fds=False, check=True, stdout=subprocess.PIPE, text=True)
    assert str(home.run / "lock") not in shown.stdout
    lock.release()


def test_records_are_on_disk_after_every_change(home):
    records = Records.load(home)
    records.put(RECORD)
    assert Records.load(home).get("gateway") == RECORD
    assert (home.run / "processes.json").stat().st_mode & 0o777 == 0o600
    records.forget("gateway")
    assert Records.load(home).all() == ()


def test_a_broken_file_of_records_counts_as_none(home):
    (home.run / "processes.json").write_text("[{")
    assert Records.load(home).all() == ()


def test_the_admin_address_is_for_its_owner_and_has_a_new_token_each_time(home):
    assert state.read_admin(home) is None
    first = state.write_admin(home, "http://127.0.0.1:1")
    assert state.read_admin(home) == first
    assert state.write_admin(home, "http://127.0.0.1:1").token != first.token
    assert (home.run / "admin.json").stat().st_mode & 0o777 == 0o600


def test_the_service_key_stays_until_the_run_ends(home):
    key = state.service_key(home)
    assert state.service_key(home) == key
    assert (home.run / "service.key").stat().st_mode & 0o777 == 0o600
    state.clear(home)
    assert state.service_key(home) != key


def test_a_disk_that_cannot_be_written_costs_the_file_of_records_and_nothing_else(home, caplog):
    records = Records.load(home)
    home.run.rmdir()
    records.put(RECORD)
    records.put(msgspec.structs.replace(RECORD, name="chat"))
    records.forget("chat")
    assert records.get("gateway") == RECORD
    assert [record.message for record in caplog.records] == ["data folder cannot be written"]
    home.run.mkdir()
    records.put(RECORD)
    assert Records.load(home).get("gateway") == RECORD


def test_what_a_start_cannot_write_is_one_message_with_the_file(home):
    home.run.rmdir()
    for write in (lambda: state.write_admin(home, "http://127.0.0.1:1"), lambda: state.service_key(home)):
        with pytest.raises(OperatorError, match=r"/run/\S+ cannot be written: No such file"):
            write()
    with pytest.raises(OperatorError, match=r"sign-in.json cannot be written"):
        state.write_sign_in(home, ())


def test_a_data_folder_that_somebody_removed_or_filled_with_noise_stops_nothing(home):
    (home.run / "service.key").write_bytes(b"\x9a\xff")
    assert state.service_key(home).startswith("sk-tg-")
    (home.run / "processes.json").mkdir()
    assert Records.load(home).all() == ()
    (home.run / "admin.json").mkdir()
    with pytest.raises(OperatorError, match=r"admin.json cannot be read: Is a directory"):
        state.read_admin(home)
    (home.run / "lock").mkdir()
    with pytest.raises(OperatorError, match=r"lock cannot be opened: Is a directory"):
        Lock.acquire(home)
    shutil.rmtree(home.run)
    state.clear(home)
