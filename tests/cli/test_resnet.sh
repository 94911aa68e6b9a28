#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Residual networks on images of two classes that a few steps tell apart: accuracy, equal bits over ranks, workers and a resume, eval,
# weights out and in; an image that cannot be read is skipped and counted; bad data, named, with exit code 3.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
cat >"$dir/make.py" <<'END'
import os, random, struct, sys, zlib
dir = sys.argv[1]
r = random.Random(7)

def planes(label): # class 0 is red in its upper half, class 1 blue in its lower; noise over both
    pixel = lambda c, y: r.randrange(90) + (120 if c == 2 * label and (y < 16) == (label == 0) else 40)
    return bytes(pixel(c, y) for c in range(3) for y in range(32) for _ in range(32))

def cifar(name, n):
    with open(f"{dir}/{name}.bin", "wb") as f:
        for i in range(n):
            f.write(bytes([i % 2]) + planes(i % 2))

def png(path, label):
    p = planes(label)
    rows = b"".join(b"\0" + bytes(p[c * 1024 + y * 32 + x] for x in range(32) for c in range(3)) for y in range(32))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
                chunk(b"IEND", b""))

def idx(path, shape, data):
    open(f"{dir}/{path}", "wb").write(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data)

def npy(path, shape, data):
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {tuple(shape)}, }}\n".encode()
    open(f"{dir}/{path}", "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + data)

def arrays(images, labels, n):
    for write, end in (idx, ""), (npy, ".npy"):
        write(images + end, [n, 3, 32, 32], b"".join(planes(i % 2) for i in range(n)))
        write(labels + end, [n], bytes(i % 2 for i in range(n)))

cifar("train", 128)
cifar("test", 40)
os.makedirs(dir + "/short")
for i in range(1, 6):
    open(f"{dir}/short/data_batch_{i}.bin", "wb").write(bytes(3073))
open(dir + "/bad.bin", "wb").write(bytes(5000))
open(dir + "/label.bin", "wb").write(bytes([12]) + bytes(3072))
for split, n in ("train", 16), ("val", 4):
    for label, name in enumerate(("red", "blue")):
        os.makedirs(f"{dir}/{split}/{name}")
        for i in range(n):
            png(f"{dir}/{split}/{name}/{i:02d}.png", label)
arrays("fit", "fit-labels", 16)
arrays("own", "own-labels", 4)
npy("vectors.npy", [16, 7], bytes(r.randrange(256) for _ in range(16 * 7)))
npy("vector-labels.npy", [16], bytes(i % 2 for i in range(16)))
arrays("held-images-idx3-ubyte", "held-labels-idx1-ubyte", 6)
os.makedirs(dir + "/hollow/blue")
os.makedirs(dir + "/hollow/red")
png(dir + "/hollow/blue/0.png", 1)
END
python3 "$dir/make.py" "$dir" || say "no images"
cat >"$dir/c.json" <<END
{"model": {"model_type": "resnet", "depth": 8, "width": 4, "num_classes": 2},
 "data": {"kind": "cifar10", "train": "$dir/train.bin", "val": "$dir/test.bin", "crop": "random", "padding": 2, "flip": 0.5, "normalize": "cifar10"},
 "train": {"epochs": 5, "global_batch": 16, "virtual_shards": 4, "clip_norm": 0, "eval_every": "1ep", "log_every": 4, "threads": 1},
 "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 5e-4, "decay": "all"},
 "schedule": {"type": "cosine", "warmup_steps": "1ep"}, "checkpoint": {"every": "1ep"}}
END
train() { # OUT ARGS..
    local out=$1
    shift
    "$kumi" train "$dir/c.json" --out "$dir/$out" "$@" >"$dir/$out.out" 2>"$dir/$out.err"
}
digest() { sed -n 's/^digest: //p' "$dir/$1.out"; }

for n in 1 2 4; do
    train "$n" -n $n || say "$n ranks: $(tail -1 "$dir/$n.err")"
    [ -n "$(digest 1)" ] && [ "$(digest 1)" = "$(digest $n)" ] || say "1 and $n ranks differ"
done
train workers -n 2 --set data.workers=2 || say "workers: $(tail -1 "$dir/workers.err")"
train tensor -n 2 --set parallel.tp=2 && grep -q '^kumi: parallel.tp: 2: no layer of this model is divided' "$dir/tensor.err" || say "tensor: $(tail -2 "$dir/tensor.err")"
train part -n 4 --until 13 || say "part: $(tail -1 "$dir/part.err")"
grep -q '^{"step":13,.*"loss"' "$dir/part/metrics.jsonl" && grep -q '^step 13/13 .* 0:00 left' "$dir/part.err" || say "part: the last step is not logged: $(cat "$dir/part.err")"
train part --resume || say "resumed: $(tail -1 "$dir/part.err")"
for run in workers tensor part; do [ "$(digest 1)" = "$(digest $run)" ] || say "$run: another digest"; done
grep -q '^step 8/40  epoch 1\.00  loss [0-9.]*  accuracy [01]\.[0-9]*  lr .* samples/s' "$dir/1.err" || say "progress: $(cat "$dir/1.err")"
grep -qE '^ +step  validation loss +accuracy$' "$dir/1.out" || say "the curve: $(cat "$dir/1.out")"

"$kumi" eval "$dir/1" -n 2 --json >"$dir/eval.json" || say "no eval"
"$kumi" ckpt export "$dir/1" --to "$dir/hf" >/dev/null || say "no export"
"$kumi" ckpt import "$dir/hf" --to "$dir/again" >/dev/null || say "no import"
cmp -s "$dir/hf/model.safetensors" "$dir/again/model.safetensors" || say "export, import: other weights"
"$kumi" train "$dir/c.json" --set model.path="$dir/hf" --set optimizer.lr=0 --out "$dir/tuned" --until 1 >"$dir/tuned.out" 2>&1 || say "exported weights do not load: $(tail -1 "$dir/tuned.out")"
python3 - "$dir" <<'END' || failed=1
import json, struct, sys
dir = sys.argv[1]
rows = [json.loads(line) for line in open(dir + "/1/metrics.jsonl")]
evals, summary, found = [r for r in rows if "val_loss" in r], json.load(open(dir + "/1/summary.json")), json.load(open(dir + "/eval.json"))
assert [r["step"] for r in evals] == [8, 16, 24, 32, 40] and [r["epoch"] for r in evals] == [1, 2, 3, 4, 5], evals
assert evals[-1]["val_accuracy"] >= 0.95, evals # two classes that differ in half of their pixels
assert summary["val_accuracy"] == evals[-1]["val_accuracy"] == found["val_accuracy"] and found["samples"] == 40, (summary, found)
assert summary["val_accuracy"] * 40 == round(summary["val_accuracy"] * 40), summary # each image once
assert [[r["step"], r["val_loss"], r["val_accuracy"]] for r in evals] == summary["val_curve"], summary
assert summary["median_samples_per_s"] > 0 and summary["median_samples_per_s"] == summary["median_tps"], summary
assert all(r["samples_per_s"] > 0 and 0 <= r["accuracy"] <= 1 and r["tokens"] == 16 for r in rows if "loss" in r), rows
with open(dir + "/hf/model.safetensors", "rb") as f:
    names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
names.pop("__metadata__", None)
for name, dtype, shape in (("conv1.weight", "F32", [4, 3, 3, 3]), ("layer3.0.conv1.weight", "F32", [16, 8, 3, 3]), ("fc.weight", "F32", [2, 16]),
                           ("layer1.0.bn2.running_var", "F32", [4]), ("bn1.num_batches_tracked", "I64", [])):
    assert names[name]["dtype"] == dtype and names[name]["shape"] == shape, (name, names.get(name))
END

# the plan holds what workers read ahead: of each rank 8 rows of 3072 f32 and a class, two steps for training and two for evaluation
plan() { "$kumi" plan "$dir/c.json" -n 2 "$@"; }
[[ $(plan --set data.workers=2) == *"samples read ahead (data.workers, data.prefetch), for each rank"*" 393728"$'\n'* ]] || say "plan: $(plan --set data.workers=2 | head -12)"
python3 - "$(plan --json)" "$(plan --json --set data.workers=3 --set data.prefetch=4)" <<'END' || say "plan --json: other rows read ahead"
import json, sys
none, some = map(json.loads, sys.argv[1:])
assert none["loader_bytes"] == 0 and none["batch"]["shapes"] == []
assert some["loader_bytes"] == 787456 and some["rank_bytes"] - none["rank_bytes"] == 787456 and some["host_bytes"] - none["host_bytes"] == 2 * 787456, some
END

# an update is skipped: the first gradient and its rank are named, and running statistics move once
mkdir "$dir/nan" && cp "$dir/hf/config.json" "$dir/nan" && python3 - "$dir" <<'END' || failed=1
import json, struct, sys
data = bytearray(open(sys.argv[1] + "/hf/model.safetensors", "rb").read())
n = struct.unpack("<Q", data[:8])[0]
at = 8 + n + json.loads(data[8:8 + n])["fc.bias"]["data_offsets"][0]
data[at:at + 4] = struct.pack("<f", float("nan"))
open(sys.argv[1] + "/nan/model.safetensors", "wb").write(data)
END
for how in "-n 1" "-n 4" "-n 2 --set parallel.share_host_state=false"; do
    # shellcheck disable=SC2086
    train nan.run $how --overwrite --set model.path="$dir/nan" --set train.on_nonfinite=skip --until 3 || say "skip $how: $(tail -1 "$dir/nan.run.err")"
    [ "$(grep -c 'not finite: step [1-3]: loss nan, first in the gradient of conv1.weight on rank 0: update skipped' "$dir/nan.run.err")" = 3 ] || say "skip $how: $(cat "$dir/nan.run.err")"
    rm -rf "$dir/nan.hf" && "$kumi" ckpt export "$dir/nan.run" --to "$dir/nan.hf" >/dev/null
    python3 - "$dir" <<'END' || say "skip $how: running statistics did not move once a step"
import json, struct, sys
def number(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    at = 8 + n + json.loads(data[8:8 + n])["bn1.num_batches_tracked"]["data_offsets"][0]
    return struct.unpack("<q", data[at:at + 8])[0]
assert number(sys.argv[1] + "/nan.hf/model.safetensors") == number(sys.argv[1] + "/hf/model.safetensors") + 3
END
done

folder=(--set data.kind=folder --set data.train="$dir/train" --set data.val="$dir/val" --set train.epochs=2 -n 2)
if "$kumi" info | grep -q '^ *libpng *[0-9]'; then
    train folder "${folder[@]}" || say "folder: $(tail -1 "$dir/folder.err")"
    # of other files a class has the number that it has in data.train, whichever classes there are
    for class in red blue; do mkdir "$dir/only-$class" && cp -r "$dir/val/$class" "$dir/only-$class"; done
    for held in val only-red only-blue; do
        "$kumi" eval "$dir/folder" --data "$dir/$held" --json >"$dir/$held.json" 2>"$dir/log" || say "eval --data $held: $(cat "$dir/log")"
    done
    python3 - "$dir" <<'END' || say "eval --data: classes: $(cat "$dir/val.json" "$dir/only-red.json" "$dir/only-blue.json")"
import json, sys
both, red, blue = (json.load(open(f"{sys.argv[1]}/{held}.json")) for held in ("val", "only-red", "only-blue"))
assert (both["samples"], red["samples"], blue["samples"]) == (8, 4, 4)
assert abs(2 * both["val_loss"] - red["val_loss"] - blue["val_loss"]) < 1e-6
END
    mv "$dir/only-blue/blue" "$dir/only-blue/green"
    "$kumi" eval "$dir/folder" --data "$dir/only-blue" >"$dir/log" 2>&1
    [ $? = 3 ] && grep -q "only-blue/green: not a class of $dir/train; " "$dir/log" || say "another class: $(cat "$dir/log")"
    head -c 300 "$dir/train/red/03.png" >"$dir/cut" && cp "$dir/cut" "$dir/train/red/03.png"
    train bad "${folder[@]}"
    code=$?
    [ $code = 3 ] && [[ $(cat "$dir/bad.err") == *"red/03.png"* ]] || say "a cut image: code $code: $(cat "$dir/bad.err")"
    train skip "${folder[@]}" --set data.on_error=skip || say "skip: $(tail -1 "$dir/skip.err")"
    [ "$(grep -c 'a row of zeros, which counts in the statistics of batch norm' "$dir/skip.err")" = 1 ] || say "skip: no warning: $(cat "$dir/skip.err")"
    grep -q 'red/03.png' "$dir/skip.err" && [ "$(grep -c '2 samples could not be read' "$dir/skip.err")" = 1 ] && grep -q '"skipped_samples": 2' "$dir/skip/summary.json" || say "skipped samples: $(cat "$dir/skip.err")"
fi
# the label files of a run are of its own images: those of other IDX files are found by their names, NumPy files have none
for kind in idx npy; do
    end=
    [ $kind = npy ] && end=.npy
    train $kind --set data.kind=$kind --set data.train="$dir/fit$end" --set data.train_labels="$dir/fit-labels$end" --set data.val="$dir/own$end" \
        --set data.val_labels="$dir/own-labels$end" --until 1 || say "$kind: $(tail -1 "$dir/$kind.err")"
    "$kumi" eval "$dir/$kind" --data "$dir/held-images-idx3-ubyte$end" --json >"$dir/held.json" 2>"$dir/log"
    code=$?
    case $kind in
    idx) [ $code = 0 ] && grep -q '"samples":6,' "$dir/held.json" ;;
    npy) [ $code = 2 ] && grep -q 'a run of npy images is evaluated on its own data.val' "$dir/log" ;;
    esac || say "eval --data, $kind: code $code: $(cat "$dir/log" "$dir/held.json")"
done
# vectors
cat >"$dir/mlp.json" <<END
{"model": {"model_type": "mlp", "input": [7], "hidden": [4], "num_classes": 2},
 "data": {"kind": "npy", "train": "$dir/vectors.npy", "train_labels": "$dir/vector-labels.npy", "val_fraction": 0.25},
 "train": {"steps": 1, "global_batch": 4, "threads": 1}}
END
"$kumi" train "$dir/mlp.json" --out "$dir/mlp" >"$dir/log" 2>&1 && [ -e "$dir/mlp/checkpoints/step-00000001" ] || say "an MLP on vectors: $(cat "$dir/log")"
refuses() { # CODE TEXT ARGS..
    local code=$1 text=$2 got
    shift 2
    got=$("$kumi" train "$dir/c.json" --out "$dir/x" --overwrite "$@" 2>&1)
    [ $? = "$code" ] && [[ $got == *"$text"* ]] || say "wanted $code, $text: $got"
}
refuses 3 "data_batch_1.bin" --set data.train="$dir/short"
refuses 3 "bad.bin" --set data.train="$dir/bad.bin"
refuses 3 "label.bin" --set data.train="$dir/label.bin" --set train.global_batch=1 --set train.virtual_shards=1
refuses 3 "hollow/red" --set data.kind=folder --set data.train="$dir/hollow" --set data.val=null --set train.global_batch=1 --set train.virtual_shards=1
refuses 3 "nowhere" --set data.train="$dir/nowhere"
refuses 3 "label 1; the labels are 0 to 0" --set model.num_classes=1
exit $failed
