#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pth2safetensors.py FILE OUT [CONFIG_JSON]: a state dict as OUT/model.safetensors

FILE is a .pth, .pt, .bin or .ckpt that PyTorch wrote (read with weights_only, so that no code in it runs; needs
torch), or a .h5 of Keras or of transformers' TensorFlow models (needs h5py; names are the paths in the file, arrays
as they are: `kumi ckpt import --map` renames, but nothing is transposed). CONFIG_JSON is copied beside it.
A state dict inside {"state_dict": ..} or {"model": ..} is found; what is no tensor is left out and named.
"""
import json, os, shutil, struct, sys

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
         "uint16": "U16", "uint8": "U8"}


def read_torch(path):
    import torch
    state = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model", "model_state_dict", "net"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    for name, x in state.items():
        if not hasattr(x, "dtype"):
            print(f"{path}: {name}: no tensor, left out", file=sys.stderr)
            continue
        x = x.detach().contiguous()
        kind = str(x.dtype).removeprefix("torch.")
        data = x.reshape(-1).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)
        yield name, kind, list(x.shape), data.numpy().tobytes()


def read_h5(path):
    import h5py
    found = []
    with h5py.File(path, "r") as f:
        f.visititems(lambda name, x: found.append((name, x[()])) if isinstance(x, h5py.Dataset) else None)
    for name, x in found:
        if hasattr(x, "dtype") and str(x.dtype) in TYPES:
            yield name, str(x.dtype), list(x.shape), x.tobytes()
        else:
            print(f"{path}: {name}: no array of numbers, left out", file=sys.stderr)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    path, out = sys.argv[1:3]
    tensors = list(read_h5(path) if path.endswith((".h5", ".hdf5", ".keras")) else read_torch(path))
    for name, kind, _, _ in tensors:
        if kind not in TYPES:
            sys.exit(f"{path}: {name}: dtype {kind}; only {' '.join(TYPES)} can be written")
    width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U16": 2, "U8": 1}
    tensors.sort(key=lambda t: (-width[TYPES[t[1]]], t[0]))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": TYPES[kind], "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "model.safetensors"), "xb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            f.write(data)
    if len(sys.argv) == 4:
        shutil.copyfile(sys.argv[3], os.path.join(out, "config.json"))


if __name__ == "__main__":
    main()
