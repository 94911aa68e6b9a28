#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""digest.py [--params] RUN/checkpoints/step-00000500: its digest from its files (docs/internals/numerics.md)"""
import hashlib, json, struct, sys

def add_file(digest, path):
    with open(path, "rb") as f:
        header_bytes, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(header_bytes))
        header.pop("__metadata__", None)
        for name in sorted(header, key=lambda n: n.encode()):
            dtype, shape = header[name]["dtype"], header[name]["shape"]
            begin, end = header[name]["data_offsets"]
            for text in (name.encode(), dtype.encode()):
                digest.update(struct.pack("<I", len(text)) + text)
            digest.update(struct.pack(f"<I{len(shape)}q", len(shape), *shape))
            f.seek(8 + header_bytes + begin)
            for at in range(begin, end, 1 << 20):
                digest.update(f.read(min(1 << 20, end - at)))

digest = hashlib.sha256()
add_file(digest, sys.argv[-1] + "/model/model.safetensors")
if "--params" not in sys.argv:
    add_file(digest, sys.argv[-1] + "/optimizer/optimizer.safetensors")
print("sha256:" + digest.hexdigest())
