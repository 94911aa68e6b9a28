# SPDX-License-Identifier: Apache-2.0
"""Frames of HTTP/2 that no client sends, against a running `kumi ps serve --vector 4`: attack.py ADDRESS PID.

After each of them a plain call must still be answered. Known defects of gRPC before 1.54 are among them: header values
that abort the process, and messages that announce 4 GiB. ADDRESS: HOST:PORT or unix:PATH.
"""
import os
import socket
import struct
import sys
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PULL, PUSH = "/ParameterServer/PullParameters", "/ParameterServer/PushGradients"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def length(n, prefix=7):
    if n < (1 << prefix) - 1:
        return bytes([n])
    out, n = bytes([(1 << prefix) - 1]), n - (1 << prefix) + 1
    while n >= 128:
        out, n = out + bytes([n % 128 + 128]), n // 128
    return out + bytes([n])


def literal(key, value):  # RFC 7541, 6.2.2: without indexing, new name
    return b"\0" + b"".join(length(len(x)) + x for x in (key, value))


def headers(path=PULL, more=(), **replaced):
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "content-type": "application/grpc",
              "te": "trailers"}
    fields.update({k.replace("_", ":", 1) if k.startswith("_") else k: v for k, v in replaced.items()})
    pairs = [(k.encode(), v.encode()) for k, v in fields.items() if v is not None] + list(more)
    return b"".join(literal(k, v) for k, v in pairs)


def message(data=b"", n=None, compressed=0):
    return struct.pack(">BI", compressed, len(data) if n is None else n) + data


class Connection:
    def __init__(self, address, preface=PREFACE + frame(SETTINGS, 0, 0)):
        kind = socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET
        self.socket = socket.socket(kind)
        host, _, port = address.rpartition(":")
        self.socket.connect(address[5:] if kind == socket.AF_UNIX else (host, int(port)))
        self.socket.settimeout(1)
        self.received = b""
        if preface:
            self.socket.sendall(preface)

    def send(self, *frames):
        try:
            self.socket.sendall(b"".join(frames))
        except OSError:
            pass  # the server has closed it

    def read(self):
        """The next frame, or None at the end of the connection."""
        while len(self.received) < 9 or len(self.received) < 9 + int.from_bytes(self.received[:3], "big"):
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self.received += data
        n = int.from_bytes(self.received[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self.received[3:9])
        payload, self.received = self.received[9:9 + n], self.received[9 + n:]
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        return kind, flags, stream, payload

    def outcome(self, stream=1):
        """How a stream ended: grpc-status as a number and the data, "reset", "closed", or "silent" after a second."""
        data = b""
        while True:
            try:
                got = self.read()
            except TimeoutError:
                return "silent", data
            if got is None:
                return "closed", data
            kind, flags, of, payload = got
            if kind == GOAWAY:
                return "closed", payload[8:]
            if of != stream:
                continue
            if kind == RST_STREAM:
                return "reset", payload
            if kind == DATA:
                data += payload
            if kind == HEADERS and b"grpc-status" in payload:
                at = payload.index(b"grpc-status") + len(b"grpc-status")
                return int(payload[at + 1:at + 1 + (payload[at] & 127)]), data

    def call(self, block, *frames, stream=1):
        self.send(frame(HEADERS, END_HEADERS, stream, block), *frames)
        return self.outcome(stream)


def rss_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def end(data):
    return frame(DATA, END_STREAM, 1, data)


def split(block, size=16384):
    """A header block over HEADERS and CONTINUATION frames."""
    parts = [block[i:i + size] for i in range(0, len(block), size)]
    return [frame(HEADERS if i == 0 else CONTINUATION, END_HEADERS if i == len(parts) - 1 else 0, 1, p)
            for i, p in enumerate(parts)]


def attacks(address, pid):
    """Pairs of a name and what came of it."""
    big = [(b"x-%d" % i, b"v" * 1000) for i in range(40)]
    yield "a plain pull", Connection(address).call(headers(), end(message()))
    yield "no preface", Connection(address, b"GET / HTTP/1.1\r\n\r\n").outcome()
    yield "random bytes", Connection(address, os.urandom(1000)).outcome()
    for name, fields in (("te", {"te": "x"}), (":scheme", {"_scheme": "x"}), ("grpclb_client_stats", {"grpclb_client_stats": "x"}),
                         ("grpc-timeout", {"grpc-timeout": "x"}), ("content-type", {"content-type": "text/x"}),
                         (":method", {"_method": "GET"}), ("no path", {"_path": None}), ("no te", {"te": None}),
                         ("grpc-encoding", {"grpc-encoding": "x"}), ("grpc-tags-bin", {"grpc-tags-bin": "***"}),
                         ("binary", {"x-bin": "*"}), ("upper case", {"X": "x"})):
        yield name, Connection(address).call(headers(**fields), end(message()))
        yield name + " before 40 kB of metadata", Connection(address).call(headers(more=big, **fields), end(message()))
    yield "lines in a path", Connection(address).call(headers("/x\n\x1b[31mkumi: error: forged\x7f\xff"), end(message()))
    for n in (1, 8, 9, 16, 64, 1000, 20000):
        c = Connection(address)
        c.send(*split(headers(more=[(b"k%d" % i, b"v" * 1000) for i in range(n)])), end(message()))
        yield f"{n} kB of metadata", c.outcome()
    c = Connection(address)
    c.send(frame(HEADERS, 0, 1, headers()), *[frame(CONTINUATION, 0, 1) for _ in range(10000)])
    c.socket.close()
    yield "10,000 empty continuations", None
    yield "a second block of headers", Connection(address).call(headers(), frame(HEADERS, END_HEADERS, 1, headers()), end(message()))
    yield "a compressed message", Connection(address).call(headers(), end(message(b"x", compressed=1)))
    yield "compressed with gzip", Connection(address).call(headers(**{"grpc-encoding": "gzip"}), end(message(b"\x1f\x8b", compressed=1)))
    yield "two messages", Connection(address).call(headers(), end(message() + message()))
    yield "no message", Connection(address).call(headers(), end(b""))
    yield "half a message", Connection(address).call(headers(), end(message(b"abc", 4)))
    yield "an unknown flag", Connection(address).call(headers(), end(message(b"abc", compressed=7)))
    yield "data without a stream", Connection(address).call(headers(), frame(DATA, 0, 7, b"x"))
    yield "a frame of 1 MiB", Connection(address).call(headers(), frame(DATA, 0, 1, bytes(1 << 20)))
    yield "a window of 2^31", Connection(address).call(headers(), frame(WINDOW_UPDATE, 0, 0, b"\xff" * 4), end(message()))
    yield "a table of 2^31", Connection(address).call(b"\x3f\xe1\xff\xff\xff\x07" + headers(), end(message()))
    yield "an index beyond the table", Connection(address).call(b"\xff\xff\x7f" + headers(), end(message()))
    c = Connection(address)
    c.send(*[frame(HEADERS, END_HEADERS, 2 * i + 1, headers()) + frame(RST_STREAM, 0, 2 * i + 1, bytes(4)) for i in range(5000)])
    c.socket.close()
    yield "5,000 calls that are reset", None
    c = Connection(address)
    c.send(*[frame(PING, 0, 0, bytes(8)) for _ in range(1000)])
    yield "1,000 pings", c.call(headers(), end(message()))
    before, sent = rss_mib(pid), 0
    c = Connection(address)
    c.send(frame(HEADERS, 0, 1, headers()))
    block = b"".join(literal(b"k", b"v" * 65000) for _ in range(16))
    try:
        while sent < FLOOD_MIB << 20:
            c.socket.sendall(b"".join(frame(CONTINUATION, 0, 1, block[i:i + 16384]) for i in range(0, len(block), 16384)))
            sent += len(block)
    except OSError:
        pass
    yield flood("metadata", pid, before, sent), None
    before, sent = rss_mib(pid), 0
    c = Connection(address)
    c.send(frame(HEADERS, END_HEADERS, 1, headers(PUSH)), frame(DATA, 0, 1, message(b"", 0xFFFFFFFF)))
    room = {0: 65535 - 5, 1: 65535 - 5}
    while sent < FLOOD_MIB << 20:
        try:
            while min(room.values()) >= 16384:
                c.socket.sendall(frame(DATA, 0, 1, bytes(16384)))
                sent, room = sent + 16384, {k: v - 16384 for k, v in room.items()}
            kind, _, stream, payload = c.read() or (GOAWAY, 0, 0, b"")
        except OSError:
            break
        if kind in (RST_STREAM, GOAWAY):
            break
        if kind == WINDOW_UPDATE:
            room[stream] += int.from_bytes(payload, "big")
        for i in range(0, len(payload) if kind == SETTINGS else 0, 6):
            if payload[i:i + 2] == b"\0\4":  # SETTINGS_INITIAL_WINDOW_SIZE, of streams
                room[1] += int.from_bytes(payload[i + 2:i + 6], "big") - 65535
    yield flood("4 GiB announced", pid, before, sent), None


FLOOD_MIB, MOST_MIB = 1024, 400


def flood(what, pid, before, sent):
    """The server has ended it before it took the memory."""
    more = rss_mib(pid) - before
    if sent >= FLOOD_MIB << 20 or more > MOST_MIB:
        raise SystemExit(f"{what}: {sent >> 20} MiB were taken, {more:.0f} MiB of memory")
    return f"{what}: ended after {sent >> 20} MiB, {more:.0f} MiB of memory"


def main():
    address, pid = sys.argv[1], int(sys.argv[2])
    for name, what in attacks(address, pid):
        began = time.monotonic()
        answer = Connection(address).call(headers(), end(message()))
        took = time.monotonic() - began
        print(f"{name}: {what}; then {answer} in {took:.3f} s", flush=True)
        if answer != (0, message(b"\x0a\x10" + bytes(16))):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
