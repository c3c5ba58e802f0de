"""docs/metrics.md names every metric of ours, with its kind and labels, and no other."""

import re
from pathlib import Path

import msgspec

from gateway.test_accounting import NOON, ended
from tidegate.gateway.accounting import Accounting
from tidegate.gateway.metrics import Metrics
from tidegate.gateway.record import ANONYMOUS
from tidegate.types import ClassReport, FleetSnapshot, GpuReport, ReplicaReport

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SUFFIXES = {"counter": "_total", "gauge": "", "histogram": ""}


def test_the_page_says_what_the_code_tells():
    metrics = Metrics()
    accounting = Accounting(metrics)
    accounting.apply(FleetSnapshot(number=1))
    replica = ReplicaReport("p-0", 0, 1, 0, reachable=True, outs={"stuck": 1}, limit=4, by_class={"batch": 1})
    metrics.replicas = lambda: [msgspec.structs.replace(replica, running=1, waiting=0, kv_usage=0.5)]
    metrics.classes = lambda: [ClassReport("batch", queued=1)]
    metrics.gpus = lambda: [GpuReport("GPU-a", "NVIDIA A10", 0.5, 1, 2, 3.0, 4.0)]
    metrics.dropped_lines = metrics.dropped_trace = lambda: {"full": 1}
    metrics.model("m").in_flight += 1
    accounting.ended(ended())
    accounting.refused(at_s=NOON, request_id="r", caller=ANONYMOUS, path="/", status=404, code="unknown_path")
    told = {}
    for family in metrics.collect():
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        told[family.name + SUFFIXES[family.type]] = (family.type, labels)
    rows = re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \| ([\w, ]*?) ?\| \S.+ \|$", PAGE.read_text(), re.MULTILINE)
    said = {name: (kind, {label for label in labels.split(", ") if label}) for name, kind, labels in rows}
    assert said == told
    assert all(name.endswith("_total") for name, (kind, _) in told.items() if kind == "counter")
