"""A Ray cluster of three nodes on this machine, as a program: says where it is, and lives until its input ends.

One line of JSON on its output: the address, and the pid of each node's first process; the first node is the head.
"""

import json
import sys

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 2}


def main():
    folder = sys.argv[1]
    head = {**SMALL, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.head_node, *(cluster.add_node(wait=False, **SMALL) for _ in range(2))]
    cluster.wait_for_nodes(timeout=90)
    pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
    sys.stdout.write(json.dumps({"address": cluster.address, "raylets": pids}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


main()
