#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi translate and kumi eval --bleu: lines in, lines out, whatever the batch; the figure is that of what is printed; bad use and bad input in one line.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
python3 - "$dir" <<'P'
import random, sys
random.seed(6)
dir = sys.argv[1]
for split, n in ("train", 150), ("val", 37):
    with open(f"{dir}/{split}.en", "w") as en, open(f"{dir}/{split}.ja", "w", encoding="utf-8") as ja:
        for _ in range(n):
            words = [random.randrange(8) for _ in range(random.randint(1, 6))]
            en.write(" ".join(f"e{w}" for w in words) + "\n")
            ja.write(" ".join(f"日{w * 7 % 31}" for w in words for _ in range(1 + w % 2)) + "\n")
for split, n in ("train", 16), ("val", 4):
    with open(f"{dir}/{split}.bin", "wb") as f:
        f.write(b"".join(bytes([i % 2] + [random.randrange(256) for _ in range(3072)]) for i in range(n)))
P
cat >"$dir/pairs.json" <<J
{ "model": {"model_type": "transformer", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 4, "ffn_dim": 40, "max_positions": 32, "dropout": 0},
  "data": {"train": "$dir/train.en", "train_target": "$dir/train.ja", "val": "$dir/val.en", "val_target": "$dir/val.ja",
           "tokenizer": "word", "target_tokenizer": "word", "batch_tokens": 200, "shapes": 3, "last_batch": "short", "max_source_len": 12, "max_target_len": 31},
  "train": {"steps": 400, "log_every": 0, "eval_every": 0, "threads": 1, "ema": 0.999},
  "optimizer": {"type": "adam", "lr": 0.01}, "schedule": {"type": "constant"}, "checkpoint": {"every": 200, "keep": 2} }
J
cat >"$dir/text.json" <<J
{ "model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 8, "vocab_size": 256},
  "data": {"train": "data/tinyshakespeare.txt"}, "train": {"steps": 1, "global_batch": 4, "eval_tokens": 64, "threads": 1} }
J
cat >"$dir/image.json" <<J
{ "model": {"model_type": "resnet", "depth": 8, "width": 4, "num_classes": 2},
  "data": {"kind": "cifar10", "train": "$dir/train.bin", "val": "$dir/val.bin"}, "train": {"steps": 1, "global_batch": 4, "threads": 1} }
J
for run in pairs text image; do
    timeout 120 "$kumi" train "$dir/$run.json" --out "$dir/$run" >"$dir/log" 2>&1 || say "$run: $(tail -1 "$dir/log")"
done
translate() { timeout 60 "$kumi" translate "$dir/pairs" "$@" 2>"$dir/log"; }

# an exported directory translates as its run does, with the vocabularies of the run
"$kumi" ckpt export "$dir/pairs" --to "$dir/hf" >"$dir/log" 2>&1 || say "export: $(cat "$dir/log")"
words=(--tokenizer "$dir/pairs/source.vocab" --target-tokenizer "$dir/pairs/target.vocab")
timeout 60 "$kumi" translate "$dir/hf" "${words[@]}" <"$dir/val.en" 2>"$dir/log" >"$dir/exported" || say "exported: $(cat "$dir/log")"
translate <"$dir/val.en" | cmp -s - "$dir/exported" || say 'exported: another text'

# a line of output for each of input, in order, whatever stands side by side
translate <"$dir/val.en" >"$dir/greedy" || say "translate: $(cat "$dir/log")"
grep -qE '^37 sentences, [0-9]+ tokens, [0-9.]+ sentences/s, [0-9.]+ tokens/s$' "$dir/log" || say "speed: $(cat "$dir/log")"
for batch in 1 5 64; do translate --batch $batch <"$dir/val.en" | cmp -s - "$dir/greedy" || say "batch $batch: another text"; done
translate --beam 1 --alpha 3 <"$dir/val.en" | cmp -s - "$dir/greedy" || say 'beam 1: not greedy'
translate --beam 4 <"$dir/val.en" >"$dir/beam" || say "beam: $(cat "$dir/log")"
translate --beam 4 --batch 3 <"$dir/val.en" | cmp -s - "$dir/beam" || say 'beam 4: another text in other batches'
translate --beam 4 --n-best 3 <"$dir/val.en" >"$dir/best" || say "n-best: $(cat "$dir/log")"
awk 'NR % 3 == 1' "$dir/best" | cmp -s - "$dir/beam" || say 'n-best: the first is not the one'
[ "$(wc -l <"$dir/best")" = 111 ] || say 'n-best: not 3 lines each'
[ "$(awk 'NR % 3 == 2' "$dir/best")" != "$(cat "$dir/beam")" ] || say 'n-best: all are alike'
[ "$(printf 'e1 e2\n\n   \r\ne3 unheard e4' | translate | awk '{ print (NF > 0) }' | tr -d '\n')" = 1001 ] || say 'empty lines, no newline at the end'
[ "$(printf 'e1 e2\n' | translate)" = "$(printf ' e1   e2 \r' | translate)" ] || say 'blanks'
got=$(translate </dev/null) && [ -z "$got$(cat "$dir/log")" ] || say "no input: $got $(cat "$dir/log")"

# one rank translates what a pipeline or tensor-parallel ranks trained: of a pipeline the same text, as it changes no bit
for layout in pp tp; do
    timeout 120 "$kumi" train "$dir/pairs.json" -n 2 --set parallel.$layout=2 --out "$dir/$layout" >"$dir/log" 2>&1 || say "$layout 2: $(tail -1 "$dir/log")"
    timeout 60 "$kumi" translate "$dir/$layout" --beam 4 <"$dir/val.en" >"$dir/$layout.text" 2>"$dir/log" || say "$layout 2: $(cat "$dir/log")"
done
cmp -s "$dir/pp.text" "$dir/beam" || say 'pp 2: another text'
"$kumi" ckpt export "$dir/tp" --to "$dir/hf-tp" >"$dir/log" 2>&1 || say "export, tp 2: $(cat "$dir/log")"
timeout 60 "$kumi" translate "$dir/hf-tp" --beam 4 "${words[@]}" <"$dir/val.en" 2>"$dir/log" | cmp -s - "$dir/tp.text" || say "tp 2, exported: $(cat "$dir/log")"
[ "$(wc -l <"$dir/tp.text")" = 37 ] || say 'tp 2: not a line for each'

# ids that pad the model's vocabulary are no words, however likely an untrained model finds them
timeout 60 "$kumi" train "$dir/pairs.json" --set model.tgt_vocab_size=96 --set train.steps=1 --out "$dir/padded" >"$dir/log" 2>&1 || say "padded: $(tail -1 "$dir/log")"
timeout 60 "$kumi" translate "$dir/padded" --beam 4 --n-best 4 <"$dir/val.en" >"$dir/out" 2>"$dir/log" || say "padded: $(cat "$dir/log")"
[ "$(wc -l <"$dir/out")" = 148 ] && ! tr ' ' '\n' <"$dir/out" | grep -v '^$' | grep -vqxFf "$dir/padded/target.vocab" || say 'padded: words that are not in the vocabulary'

# the figure is that of the printed lines: BLEU with exponential smoothing, words between blanks
for how in '' '--beam 4 --alpha 1.5'; do
    # shellcheck disable=SC2086
    translate $how <"$dir/val.en" >"$dir/out"
    for files in '' "--source $dir/val.en --reference $dir/val.ja"; do
        # shellcheck disable=SC2086
        got=$("$kumi" eval "$dir/pairs" --bleu --json $how $files) || say "eval --bleu $how $files"
        python3 - "$dir/out" "$dir/val.ja" "$got" <<'P' || say "eval --bleu $how $files: $got"
import collections, json, math, sys
out, ref = ([line.split() for line in open(path)] for path in sys.argv[1:3])
got, p, smooth = json.loads(sys.argv[3]), [], 1
grams = lambda words, n: collections.Counter(zip(*(words[i:] for i in range(n))))
for n in range(1, 5):
    total = sum(sum(grams(a, n).values()) for a in out)
    right = sum(sum((grams(a, n) & grams(b, n)).values()) for a, b in zip(out, ref))
    smooth *= 2 if right == 0 else 1
    p.append(100 * right / total if right else 100 / (smooth * total))
a, b = sum(map(len, out)), sum(map(len, ref))
brevity = 1 if a > b else math.exp(1 - b / a)
bleu = brevity * math.exp(sum(map(math.log, p)) / 4)
assert bleu > 10, bleu  # it learned something
assert got["sentences"] == 37 and abs(got["bleu"] - bleu) < 1e-9 and abs(got["brevity_penalty"] - brevity) < 1e-12, (bleu, brevity)
assert all(abs(x - y) < 1e-9 for x, y in zip(got["precision"], p)), p
P
    done
done
"$kumi" eval "$dir/pairs" --bleu | grep -q '^BLEU: [0-9.]*$' || say 'eval --bleu: no line'

# averages over the whole of training: another text, other figures, and those of eval
translate --ema <"$dir/val.en" >"$dir/ema" || say "translate --ema: $(cat "$dir/log")"
cmp -s "$dir/ema" "$dir/greedy" && say 'averages translate as the weights do'
bleu_of() { "$kumi" eval "$dir/pairs" --bleu --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["bleu"])'; }
[ "$(bleu_of --ema)" = "$(bleu_of --ema --source "$dir/val.en" --reference "$dir/val.ja")" ] && [ "$(bleu_of --ema)" != "$(bleu_of)" ] || say "eval --bleu --ema: $(bleu_of --ema), $(bleu_of)"

# sentences end as those of training do, without blanks; BLEU of the run's own split leaves out what training leaves out
{ cat "$dir/val.en"; echo; echo 'e1 e2'; echo 'e3'; } >"$dir/odd.en"
{ cat "$dir/val.ja"; echo '日7'; echo; echo '日21 日21'; } >"$dir/odd.ja"
paste -d '\t' "$dir/odd.en" "$dir/odd.ja" | awk -F '\t' 'length($1) > 0 && length($1) <= 12 && length($2) > 0' >"$dir/kept"
cut -f 1 "$dir/kept" >"$dir/kept.en"
cut -f 2 "$dir/kept" >"$dir/kept.ja"
timeout 60 "$kumi" train "$dir/pairs.json" --set data.val="$dir/odd.en" --set data.val_target="$dir/odd.ja" --set data.tokenizer=byte --set data.target_tokenizer=null \
    --set data.batch_tokens=2000 --set data.max_target_len=90 --set model.max_positions=91 --set train.steps=2 --out "$dir/bytes" >"$dir/log" 2>&1 || say "bytes: $(tail -1 "$dir/log")"
printf '%s\n' 'e1 e2 e3 e44' | timeout 60 "$kumi" translate "$dir/bytes" >"$dir/out" 2>"$dir/log" || say "bytes: $(cat "$dir/log")"
printf '%s\n' $'e1 e2 e3 e44 \t\r' | timeout 60 "$kumi" translate "$dir/bytes" 2>"$dir/log" | cmp -s - "$dir/out" || say "blanks at the end: $(cat "$dir/log")"
own=$("$kumi" eval "$dir/bytes" --bleu --json 2>"$dir/log") || say "BLEU of a split with odd pairs: $(cat "$dir/log")"
[ "$(grep -cE "$dir/odd.en: [0-9]+ of 40 pairs are skipped: (empty lines|above the length limit)" "$dir/log")" = 2 ] || say "skipped pairs: $(cat "$dir/log")"
kept=$("$kumi" eval "$dir/bytes" --bleu --json --source "$dir/kept.en" --reference "$dir/kept.ja")
python3 - "$own" "$kept" "$(wc -l <"$dir/kept")" <<'P' || say "BLEU of a split with odd pairs: $own, without them $kept"
import json, sys
own, kept = map(json.loads, sys.argv[1:3])
assert own["sentences"] == kept["sentences"] == int(sys.argv[3]) < 38
assert all(own[key] == kept[key] for key in ("bleu", "chrf", "brevity_penalty", "precision"))
P

no() { # code text input command..: one line
    local code=$1 text=$2 input=$3 got is
    shift 3
    got=$(printf "$input" | timeout 60 "$kumi" "$@" 2>&1 >"$dir/out")
    is=$?
    [ $is = "$code" ] && [[ $got == "kumi: error: $text"* ]] && [ "$(wc -l <<<"$got")" = 1 ] && [ ! -s "$dir/out" ] ||
        say "kumi $*: wanted $code: $text; got $is: $got"
}
pairs=(translate "$dir/pairs") bleu=(eval "$dir/pairs" --bleu)
no 2 'kumi translate: --beam: 0; give 1 or more' 'e1\n' "${pairs[@]}" --beam 0
no 2 'translate: beam: 65; give 1 to 64' 'e1\n' "${pairs[@]}" --beam 65
no 2 "kumi translate: --beam: two: not an integer" 'e1\n' "${pairs[@]}" --beam two
no 2 'translate: n-best: 2; give 1 to the beam, 1' 'e1\n' "${pairs[@]}" --n-best 2
no 2 'translate: threads: 4097; give 1 to 4096' 'e1\n' "${pairs[@]}" --threads 4097
no 2 'translate: n-best: -1; give 1 to the beam, 3' 'e1\n' "${pairs[@]}" --beam 3 --n-best -1
no 2 'translate: batch: 1025; give 1 to 1024' 'e1\n' "${pairs[@]}" --beam 4 --batch 1025
for alpha in -1 100.1; do no 2 "translate: alpha: $alpha; give 0 to 100" 'e1\n' "${pairs[@]}" --alpha $alpha; done
for alpha in nan inf; do no 2 "kumi translate: --alpha: $alpha: not a finite number" 'e1\n' "${pairs[@]}" --alpha $alpha; done
no 2 "kumi translate: --alpha: x: not a number" 'e1\n' "${pairs[@]}" --alpha x
no 3 'translate: line 2: 13 tokens; at most 12 (data.max_source_len) are allowed: shorten it' 'e1\n1 2 3 4 5 6 7 8 9 10 11 12 13\n' "${pairs[@]}"
no 3 'translate: NUL byte in the input' 'e1\n\0e2\n' "${pairs[@]}"
no 3 'data: sentences:2: byte 4 (0xff) is not valid UTF-8' 'e1\ne2 \xff\n' "${pairs[@]}"
no 4 "checkpoint: $dir/none: there is no such directory" 'e1\n' translate "$dir/none"
no 3 "translate: $dir/hf: no tokenizer beside the model; name it" 'e1\n' translate "$dir/hf"
no 2 "ema: $dir/hf: a directory of weights has no averages; give a run, or leave out --ema" 'e1\n' translate "$dir/hf" "${words[@]}" --ema
no 2 "translate: --target-tokenizer: has 259 tokens, the model's vocabulary" 'e1\n' translate "$dir/hf" "${words[@]}" --target-tokenizer byte
no 2 "ema: $dir/text/checkpoints/step-00000001: this run keeps no averages of its weights; train with train.ema above 0" '' sample "$dir/text" --ema
no 2 "translate: $dir/text: a model of type gpt2 cannot translate" 'e1\n' translate "$dir/text"
no 2 "translate: $dir/image: a model of type resnet cannot translate" 'e1\n' translate "$dir/image"
for files in '' "--source $dir/val.en --reference $dir/val.ja"; do
    # shellcheck disable=SC2086
    no 2 "eval: $dir/text: a model of type gpt2 cannot translate; --bleu is for runs of sentence pairs" '' eval "$dir/text" --bleu $files
    # shellcheck disable=SC2086
    no 2 "eval: $dir/image: a model of type resnet cannot translate; --bleu is for runs of sentence pairs" '' eval "$dir/image" --bleu $files
done
no 4 "checkpoint: $dir/none: there is no such directory" '' eval "$dir/none" --bleu
no 3 "data: $dir/none: No such file or directory" '' "${bleu[@]}" --source "$dir/val.en" --reference "$dir/none"
no 3 "data: $dir/none: No such file or directory" '' "${bleu[@]}" --source "$dir/none" --reference "$dir/val.ja"
no 3 "eval: $dir/val.en has 37 lines, $dir/train.ja 150; they must match" '' "${bleu[@]}" --source "$dir/val.en" --reference "$dir/train.ja"
printf 'a\nb\0c\n' >"$dir/zero"
no 3 "data: $dir/zero:2: NUL byte; give lines of text" '' "${bleu[@]}" --source "$dir/zero" --reference "$dir/val.ja"
no 2 'eval: give both files, source and reference, or none' '' "${bleu[@]}" --source "$dir/val.en"
no 2 'kumi eval: --beam: 0; give 1 to 64' '' "${bleu[@]}" --beam 0
no 2 'translate: beam: 65; give 1 to 64' '' "${bleu[@]}" --beam 65
no 2 'translate: alpha: -1; give 0 to 100' '' "${bleu[@]}" --alpha -1
no 2 'kumi eval: --bleu runs as one process; leave out -n' '' "${bleu[@]}" -n 2
no 2 'kumi eval: --bleu takes --source and --reference, not --data, --stride' '' "${bleu[@]}" --stride 2
for option in '--beam 4' '--alpha 1' '--source x' '--reference x'; do
    # shellcheck disable=SC2086
    no 2 'kumi eval: --beam, --alpha, --source, --reference go with --bleu' '' eval "$dir/pairs" $option
done
# files that changed after the training are named; a checkpoint of a run has the vocabularies of the run
step=$dir/pairs/checkpoints/step-00000400
"$kumi" eval "$dir/pairs" >"$dir/out" 2>"$dir/log" && [ ! -s "$dir/log" ] || say "eval: $(cat "$dir/log")"
for _ in {1..400}; do echo 'e7 e7 e6' >>"$dir/train.en" && echo '日18 日18 日11' >>"$dir/train.ja"; done
"$kumi" eval "$dir/pairs" >"$dir/out" 2>"$dir/log" && grep -q "^kumi: eval: $step: the data differ from the training's (fingerprint was " "$dir/log" || say "other data: $(cat "$dir/log")"
for of in "$dir/pairs" "$dir/pairs/checkpoints" "$step" "$step/"; do
    timeout 60 "$kumi" translate "$of" <"$dir/val.en" 2>"$dir/log" | cmp -s - "$dir/greedy" || say "translate $of: another text: $(cat "$dir/log")"
done
# damaged averages: those of the checkpoint before
timeout 60 "$kumi" translate "$dir/pairs/checkpoints/step-00000200" --ema <"$dir/val.en" >"$dir/ema" 2>"$dir/log" || say "step 200: $(cat "$dir/log")"
cp -r "$dir/pairs" "$dir/damaged"
python3 - "$dir/damaged/checkpoints/step-00000400/optimizer/optimizer.safetensors" <<'P'
import json, sys
file = bytearray(open(sys.argv[1], "rb").read())
begin = 8 + int.from_bytes(file[:8], "little")
header = json.loads(file[8:begin])
file[begin + next(v for k, v in header.items() if k.endswith(".ema"))["data_offsets"][0]] ^= 1
open(sys.argv[1], "wb").write(file)
P
timeout 60 "$kumi" translate "$dir/damaged" --ema <"$dir/val.en" 2>"$dir/log" | cmp -s - "$dir/ema" || say "damaged averages: another text: $(cat "$dir/log")"
grep -q 'step-00000400.*\.ema: .*; taking the previous checkpoint' "$dir/log" || say "damaged averages: $(cat "$dir/log")"
"$kumi" eval "$dir/damaged" --bleu --ema >"$dir/out" 2>"$dir/log" || say "BLEU with damaged averages: $(cat "$dir/log")"
cp -r "$step" "$dir/step"
timeout 60 "$kumi" translate "$dir/step" <"$dir/val.en" >"$dir/out" 2>"$dir/log"
grep -q "$dir/step: source.vocab of its run is not found: the words of data.train are counted again" "$dir/log" || say "a checkpoint alone: $(cat "$dir/log")"
mv "$dir/val.ja" "$dir/moved"
no 3 "data: $dir/val.ja: No such file or directory" '' "${bleu[@]}"
exit $failed
