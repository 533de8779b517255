"""Measure this node against the job's others: the speed of multiplication and of the network.

preflight.sh runs it once on each node, with the job's Python. Each line of its output is a
measurement, or starts with "bad: " or "warning: ". The exit code is 3 if another node is bad.
"""

import datetime
import json
import os
import statistics
import sys
import threading
import time

# GPUs of one kind differ by 8 % on average and by 22 % at most; outliers are 1.5 times slower than
# the median (Sinha et al., "Not All GPUs Are Created Equal", SC22).
SLOWEST = 0.7
# Networks differ more: pairs on one switch are faster than pairs across two. So a node counts by
# the better of its two links.
SLOWEST_LINK = 0.5
# Other work on a node can slow one measurement: after a slow link all are measured again, and each
# counts by its best result.
MEASUREMENTS = 3
PATIENCE = datetime.timedelta(seconds=60)


def judge(kinds, speeds, links):
    """Return the bad nodes with reasons, by the measurements of all nodes.

    ``kinds`` and ``speeds`` are those of a node's devices, by node; ``links`` are rates by pair of
    nodes.

    >>> judge({0: ["A"] * 2, 1: ["A"] * 2}, {0: [100, 98], 1: [99, 60]}, {(0, 1): 1})
    {1: 'device 1 multiplies at 0.61 of the speed of the others: 60 of 98.5 TFLOP/s'}
    >>> judge({0: ["cpu"], 1: ["cpu"]}, {0: [100], 1: [40]}, {(0, 1): 1})  # what else runs on them
    {}
    >>> judge({0: ["A"], 1: ["B"]}, {0: [100], 1: [40]}, {(0, 1): 1})
    {}
    >>> judge({}, {}, {(0, 1): 10, (1, 2): 9, (2, 3): 1, (3, 0): 1.1})
    {3: 'its network reaches 0.12 of the speed of the others: 1.1 of 9.5 GB/s'}
    """
    bad = {}
    for kind in sorted({name for names in kinds.values() for name in names} - {"cpu"}):
        found = [
            (speed, node, index)
            for node in speeds
            for index, speed in enumerate(speeds[node])
            if kinds[node][index] == kind
        ]
        middle = statistics.median(speed for speed, _, _ in found)
        for speed, node, index in sorted(found, reverse=True):
            if speed < SLOWEST * middle:
                bad[node] = (
                    f"device {index} multiplies at {speed / middle:.2f} of the speed of the "
                    f"others: {speed:.3g} of {middle:.3g} TFLOP/s"
                )
    best = {}
    for pair, rate in links.items():
        for node in pair:
            best[node] = max(rate, best.get(node, 0))
    # With two nodes it is unknown which one is slow.
    middle = statistics.median(best.values()) if len(best) > 2 else 0
    for node, rate in best.items():
        if rate < SLOWEST_LINK * middle:
            bad[node] = (
                f"its network reaches {rate / middle:.2f} of the speed of the others: "
                f"{rate:.2g} of {middle:.2g} GB/s"
            )
    return bad


def rounds(nodes):
    """Pair each node with both neighbours, in rounds that contain each node at most once.

    >>> rounds(2), rounds(3), rounds(4)
    ([[(0, 1)]], [[(0, 1)], [(1, 2)], [(2, 0)]], [[(0, 1), (2, 3)], [(1, 2), (3, 0)]])
    """
    if nodes < 3:
        return [[(0, 1)]] if nodes == 2 else []
    even = [(node, node + 1) for node in range(0, nodes - 1, 2)]
    odd = [(node, node + 1) for node in range(1, nodes - 1, 2)]
    if nodes % 2:
        return [even, odd, [(nodes - 1, 0)]]
    return [even, [*odd, (nodes - 1, 0)]]


def devices():
    """Return this node's devices and their kinds; a CPU is one device."""
    import torch

    if os.environ.get("HPCRUN_DEVICE") != "cuda":
        return ["cpu"], ["cpu"]
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return names, [torch.cuda.get_device_name(name) for name in names]


def multiply(name):
    """Measure a device's speed, in TFLOP/s, for a second."""
    import torch

    on_gpu = name != "cpu"
    size, repeats = (8192, 4) if on_gpu else (512, 2)
    dtype = torch.float32
    if on_gpu:
        dtype = torch.bfloat16 if torch.cuda.get_device_capability(name)[0] >= 8 else torch.float16
    a = torch.randn(size, size, device=name, dtype=dtype)
    out = torch.empty_like(a)
    found = []
    deadline = None
    while deadline is None or time.perf_counter() < deadline:
        begun = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, a, out=out)
        if on_gpu:
            torch.cuda.synchronize(name)
        found.append(2 * size**3 * repeats / (time.perf_counter() - begun) / 1e12)
        if deadline is None:  # the first time, libraries are loaded
            found, deadline = [], time.perf_counter() + 1
    # A GPU belongs to the job alone: the median counts. CPUs may have other work: the best counts.
    return statistics.median(found or [0]) if on_gpu else max(found or [0])


def multiply_all(names):
    """Measure all devices at once, as training uses them."""
    speeds = [0.0] * len(names)

    def one(index):
        speeds[index] = multiply(names[index])

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return speeds


def all_reduce(store, me, pair, device):
    """Measure the network between this node and another one, by an all-reduce, in GB/s."""
    import torch
    import torch.distributed as dist

    on_gpu = device != "cpu"
    backend = "nccl" if on_gpu else "gloo"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=pair.index(me),
        world_size=2,
        timeout=PATIENCE,
    )
    data = torch.ones((64 << 20) if on_gpu else (2 << 20), device=device)  # 256 MB, or 8 MB
    best = 0.0
    for attempt in range(6):
        begun = time.perf_counter()
        dist.all_reduce(data)
        if on_gpu:
            torch.cuda.synchronize(device)
        if attempt:  # the first one connects
            best = max(best, data.nbytes / (time.perf_counter() - begun) / 1e9)
    dist.destroy_process_group()
    return best


def tell(store, key, value):
    """Publish a value to all nodes."""
    store.set(key, json.dumps(value))


def ask(store, key):
    """Wait for a value of another node."""
    return json.loads(store.get(key))


def compare(store, me, nodes, mine, measure):
    """Measure the links between all nodes; return the nodes' names, and the bad ones with reasons.

    ``mine`` is this node's name, kinds and speeds of devices; ``measure`` returns the rate of a
    pair.
    """
    links = {}
    for measurement in range(MEASUREMENTS):
        rates = [
            [*pair, measure(f"{measurement}-{pair[0]}-{pair[1]}", pair)]
            for pairs in rounds(nodes)
            for pair in pairs
            if me in pair
        ]
        tell(store, f"{measurement}-{me}", [*mine, rates])
        found = [ask(store, f"{measurement}-{node}") for node in range(nodes)]
        for a, b, rate in (link for one in found for link in one[3]):
            links[a, b] = max(rate, links.get((a, b), 0))
        if not judge({}, {}, links):
            break
    kinds = {node: one[1] for node, one in enumerate(found)}
    speeds = {node: one[2] for node, one in enumerate(found)}
    return [one[0] for one in found], judge(kinds, speeds, links)


def main():
    """Measure, compare, and print the result."""
    import torch.distributed as dist

    me, nodes = int(os.environ["HPCRUN_NODE_RANK"]), int(os.environ["HPCRUN_NODES"])
    names, kinds = devices()
    address = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    # The port after the job's own, which the launcher is about to use.
    port = int(os.environ["MASTER_PORT"]) + 1
    store = dist.TCPStore(address, port, nodes, me == 0, timeout=PATIENCE)
    speeds = multiply_all(names)
    print(f"multiplies at {', '.join(f'{speed:.3g}' for speed in speeds)} TFLOP/s", flush=True)

    def measure(name, pair):
        rate = all_reduce(dist.PrefixStore(name, store), me, pair, names[0])
        print(f"all-reduce with node {sum(pair) - me}: {rate:.2g} GB/s", flush=True)
        return rate

    host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    hosts, bad = compare(store, me, nodes, [host, kinds, speeds], measure)
    # Node 0 hosts the store, so it exits last.
    tell(store, f"read-{me}", True)
    for node in range(nodes) if me == 0 else ():
        ask(store, f"read-{node}")
    for node in sorted(bad):
        if node == me:
            print(f"bad: {bad[node]}")
        else:
            print(f"warning: {hosts[node]} is bad: {bad[node]}")
    return 3 if bad and me not in bad else 0


if __name__ == "__main__":
    sys.exit(main())
