"""An engine that cannot live any more: it is left alone with its reason told, and started again when that is asked for."""

import os
import signal

BREAKS = """\
import os, sys
if "fake-engine" in sys.orig_argv and os.path.exists({flag!r}):
    for number in range(30):
        print(f"line {{number}} of the fault")
    print("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99", flush=True)
    os._exit(1)
"""


def test_a_crash_loop_ends_with_the_last_lines_and_the_likely_cause_and_a_command_that_starts_it_again(site):
    flag = site.folder / "broken"
    (site.folder / "sitecustomize.py").write_text(BREAKS.format(flag=str(flag)))
    site.environ["PYTHONPATH"] = str(site.folder)
    site.settings(replicas=2)
    up = site.up().ready()
    before = site.pids()
    flag.touch()
    os.kill(before["p-0"], signal.SIGKILL)
    up.until(lambda: "process given up" in up.text())

    one = next(one for one in site.status().replicas if one.id == "p-0")
    assert str(one.state) == "failed"
    assert one.cause.startswith("there was not enough memory")
    assert one.cause.endswith("it ended 5 times in a row and is left alone")
    assert len(one.log_tail) == 20
    assert one.log_tail[-1].startswith("ggml_backend")

    log = (site.home.logs / "tidegate.log").read_text()
    assert log.count("ERROR last words process=p-0") == 20
    assert 'start_again="tidegate scale p"' in log
    shown = site.run("status").stdout
    assert "p-0: there was not enough memory" in shown
    assert shown.count("  | line") == 19
    assert "`tidegate scale p` starts p-0 again" in shown

    assert site.pids()["p-1"] == before["p-1"]
    assert site.ask(site.urls()["api"])
    refused = site.run("scale", "p")  # still broken: three attempts, and the reason again
    assert refused.returncode == 1
    assert "p-0 was given up: there was not enough memory" in refused.stdout
    flag.unlink()
    mended = site.run("scale", "p")
    assert mended.returncode == 0, mended.stderr
    assert mended.stdout.startswith("p: 2 replicas, as before\nbegun: p-0\np-0 is ready after")
    assert site.pids()["p-1"] == before["p-1"]
