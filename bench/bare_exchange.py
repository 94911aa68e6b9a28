# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce of two hosts sends, without summing: both send and receive a vector of --most bytes at once over --connections TCP connections, equal
parts of the vector on each.
One JSON object, as those of `kumi bench comm`.

    bare_exchange.py --rank R --master ADDRESS [--most BYTES] [--connections N]
"""
import argparse
import json
import socket
import threading
import time

PORT = 29531


def connect(address):
    for _ in range(500):
        try:
            return socket.create_connection((address, PORT), 5)
        except OSError:
            time.sleep(0.02)
    raise SystemExit("bare_exchange: no other side")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rank", type=int, required=True)
    p.add_argument("--master", required=True)
    p.add_argument("--most", type=int, default=64 << 20)
    p.add_argument("--connections", type=int, default=1)
    a = p.parse_args()
    if a.rank == 0:
        listener = socket.create_server((a.master, PORT), backlog=a.connections)
        wires = [listener.accept()[0] for _ in range(a.connections)]
    else:
        wires = [connect(a.master) for _ in range(a.connections)]
    for s in wires:
        s.settimeout(60)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    part = a.most // a.connections
    out, into = bytes(part), [memoryview(bytearray(part)) for _ in wires]

    def receive(i):
        at = 0
        while at < part:
            n = wires[i].recv_into(into[i][at:])
            if not n:
                raise SystemExit("bare_exchange: the other side has ended")
            at += n
    times = []
    for i in range(-2, max(7, min(201, (1 << 28) // (a.most + 65536)))):
        begin = time.perf_counter()
        threads = [threading.Thread(target=s.sendall, args=(out,)) for s in wires]
        threads += [threading.Thread(target=receive, args=(i,)) for i in range(1, len(wires))]
        for thread in threads:
            thread.start()
        receive(0)
        for thread in threads:
            thread.join()
        if i >= 0:
            times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    if a.rank == 0:
        print(json.dumps({"collective": "all_reduce", "memory": "private", "bytes": a.most, "ranks": 2, "median_us": round(times[len(times) // 2], 3),
                          "runs": len(times)}), flush=True)


main()
