#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Language models from files: evaluation on a held-out stream against a computation by hand, weights with frozen parts, documents, what the options of
# kumi sample do to the text of a model that knows it.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
hand() { python3 -B "$source/tests/cli/language.py" "$@"; }
ok() { "$kumi" "$@" >"$dir/log" 2>&1 || say "$*: $(tail -1 "$dir/log")"; }
no() { # code words command..
    local code=$1 words=$2 got
    shift 2
    got=$("$kumi" "$@" 2>&1)
    [ $? = "$code" ] && [[ $got == *"$words"* ]] || say "$*: $got"
}
field() { sed -n "s/.*\"$2\":\([-+.e0-9]*\).*/\1/p" <<<"$1"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(b > 0 && d < 1e-6 * b && d > -1e-6 * b) }'; }

head -c 4000 "$source/data/tinyshakespeare.txt" >"$dir/train.txt"
tail -c 53 "$source/data/tinyshakespeare.txt" >"$dir/held.txt"
cat >"$dir/gpt2.json" <<J
{"model":{"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":8,"n_positions":8,"vocab_size":256,"initializer_range":0.3},
 "data":{"train":"$dir/train.txt"},"train":{"steps":6,"global_batch":4,"micro_batch":2,"eval_tokens":64,"threads":1},"optimizer":{"lr":0.01}}
J

# every target once, with and without documents; whatever the rank count
for docs in no yes; do
    some=() and=()
    [ $docs = yes ] && some=(--set data.segments=true --set data.separator=10) and=(10)
    ok train "$dir/gpt2.json" "${some[@]}" --out "$dir/run-$docs"
    ok ckpt export "$dir/run-$docs" --to "$dir/hf-$docs"
    for stride in 1 3 8; do
        got=$("$kumi" eval "$dir/run-$docs" --data "$dir/held.txt" --stride $stride --json 2>&1)
        read -r loss count < <(hand loss "$dir/hf-$docs" "$dir/held.txt" $stride "${and[@]}")
        near "$(field "$got" val_loss)" "$loss" && [ "$(field "$got" tokens)" = "$count" ] && [ "$count" = 52 ] && [ "$(field "$got" bytes)" = 52 ] ||
            say "documents: $docs, stride $stride: by hand $loss of $count, got $got"
        near "$(field "$got" bits_per_byte)" "$(awk -v l="$loss" 'BEGIN { print l / log(2) }')" || say "bits: $got"
        [ "$("$kumi" eval "$dir/run-$docs" -n 2 --data "$dir/held.txt" --stride $stride --json 2>&1)" = "$got" ] || say "2 ranks: not $got"
    done
done
# of the run's own split, all of it: 400 bytes
got=$("$kumi" eval "$dir/run-no" --stride 8 --json)
[ "$(field "$got" tokens)" = 399 ] || say "own split: $got"
got=$("$kumi" eval "$dir/run-no" --json)
[ "$(field "$got" tokens)" = 64 ] || say "as in training: $got"
got=$("$kumi" eval "$dir/run-no" --data "$dir/held.txt")
[[ $got == *"step 6, 48 tokens"*"per byte (48 bytes): perplexity "*" bits"* ]] || say "side by side: $got"

# bytes of a BPE's tokens; those of a file of numbers are not known
words=$source/tests/fixtures/tokenizer/small
ok train "$dir/gpt2.json" --set model.vocab_size=1024 --set data.tokenizer="$words" --out "$dir/bpe"
got=$("$kumi" eval "$dir/bpe" --data "$dir/held.txt" --stride 4 --json)
"$kumi" tokenizer encode --tokenizer "$words" <"$dir/held.txt" | tr ' ' '\n' | grep . >"$dir/ids"
first=$(head -1 "$dir/ids" | "$kumi" tokenizer decode --tokenizer "$words" | wc -c)
[ "$(field "$got" tokens)" = $(($(wc -l <"$dir/ids") - 1)) ] && [ "$(field "$got" bytes)" = $((53 - first)) ] || say "bpe: $first: $got"
near "$(field "$got" bits_per_byte)" "$(awk -v l="$(field "$got" val_loss)" -v t="$(field "$got" tokens)" -v b="$(field "$got" bytes)" 'BEGIN { print l * t / b / log(2) }')" || say "bpe: $got"
python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<90H", *range(90)))' >"$dir/ids.bin"
got=$("$kumi" eval "$dir/run-no" --data "$dir/ids.bin" 2>&1)
[[ $got == *"no llm.c header"* ]] || say "raw tokens: $got"
ok train "$dir/gpt2.json" --set data.format=u16 --set data.train="$dir/ids.bin" --set data.val="$dir/ids.bin" --out "$dir/raw"
got=$("$kumi" eval "$dir/raw" --stride 8 --json)
[ "$(field "$got" tokens)" = 89 ] && [[ $got != *bytes* ]] || say "raw tokens: $got"

# documents: labels of -100 do not count, and evaluation takes other files
printf '{"input_ids":[1,2,3,4,5],"labels":[-100,-100,3,4,5]}\n{"input_ids":[7,8,9]}\n' >"$dir/docs.jsonl"
for pack in true false; do
    ok train "$dir/gpt2.json" --set data.train="$dir/docs.jsonl" --set data.val="$dir/docs.jsonl" --set data.pack=$pack --set data.last_batch=wrap --out "$dir/docs-$pack"
    got=$("$kumi" eval "$dir/docs-$pack" --data "$dir/docs.jsonl" --json)
    [ "$(field "$got" tokens)" = 5 ] || say "documents: $got"
done

# texts as documents train as their tokens do
mkdir "$dir/pair"
cp "$words/vocab.bpe" "$dir/pair/merges.txt"
sed 's/}$/, "<|endoftext|>": 656}/' "$words/encoder.json" >"$dir/pair/vocab.json"
pair=(--set model.vocab_size=657 --set data.tokenizer="$dir/pair")
hand texts "$kumi" "$dir" || say "texts"
for form in texts ids; do
    ok train "$dir/gpt2.json" "${pair[@]}" --set data.train="$dir/$form.jsonl" --set data.segments=true --out "$dir/of-$form"
done
[ "$("$kumi" ckpt digest "$dir/of-texts")" = "$("$kumi" ckpt digest "$dir/of-ids")" ] || say "texts and their tokens train differently"
# documents of a text: a text without the token that ends one is named, a tokenizer without such a token refused
ok train "$dir/gpt2.json" "${pair[@]}" --set data.train="$dir/texts.txt" --set data.segments=true --out "$dir/with"
grep -q 'data.segments' "$dir/log" && say "segments: $(cat "$dir/log")"
ok train "$dir/gpt2.json" "${pair[@]}" --set data.train="$dir/texts.txt" --out "$dir/without"
[ "$("$kumi" ckpt digest "$dir/with")" != "$("$kumi" ckpt digest "$dir/without")" ] || say "segments have no effect"
ok train "$dir/gpt2.json" "${pair[@]}" --set data.segments=true --out "$dir/unseparated"
grep -q 'no token 656 (data.separator) among the first [0-9]*: data.segments has no effect on them' "$dir/log" || say "segments: $(cat "$dir/log")"
no 2 'data.separator: null; the tokenizer has no end-of-text token' train "$dir/gpt2.json" --set data.segments=true --out "$dir/x"
# a token file has the tokens of its text
"$kumi" tokenizer encode --tokenizer "$dir/pair" --to "$dir/texts.bin" <"$dir/texts.txt" >/dev/null || say "encode --to"
ok train "$dir/gpt2.json" "${pair[@]}" --set data.train="$dir/texts.bin" --out "$dir/bin"
[ "$("$kumi" ckpt digest "$dir/bin")" = "$("$kumi" ckpt digest "$dir/without")" ] || say "a text and its token file train differently"

# ids are not printed as bytes, those of documents as little as those of token files; texts under "byte" are
ok train "$dir/gpt2.json" --set model.vocab_size=657 --set data.train="$dir/id?.jsonl" --out "$dir/numbers"
no 2 "trained on token ids ($dir/id?.jsonl), and data.tokenizer does not name their tokenizer; name it with --tokenizer" sample "$dir/numbers" --tokens 3
ok sample "$dir/numbers" --tokens 3 --tokenizer "$dir/pair"
ok train "$dir/gpt2.json" --set model.vocab_size=657 --set data.train="$dir/texts.jsonl" --out "$dir/letters"
ok sample "$dir/letters" --tokens 3

# evaluation, samples and exports skip a checkpoint whose tokenizer is damaged
ok train "$dir/gpt2.json" "${pair[@]}" --set data.train="$dir/texts.txt" --set checkpoint.every=3 --set checkpoint.keep=2 --out "$dir/two"
echo >>"$dir/two/checkpoints/step-00000006/model/vocab.json"
got=$("$kumi" eval "$dir/two" --json 2>"$dir/log")
[[ $got == *'"step":3,'* ]] && grep -q 'step-00000006.*vocab.json.*; taking the previous checkpoint' "$dir/log" || say "a damaged tokenizer: $got $(cat "$dir/log")"
skipped() { grep -q 'step-00000006.*vocab.json.*; taking the previous checkpoint' "$dir/log" || say "a damaged tokenizer: $(cat "$dir/log")"; }
ok sample "$dir/two" --tokens 3 && skipped
ok ckpt export "$dir/two" --to "$dir/hf-two" && skipped
ok ckpt export "$dir/two/checkpoints/step-00000003" --to "$dir/hf-three"
cmp "$dir/hf-two/model.safetensors" "$dir/hf-three/model.safetensors" || say "not the weights of step 3"
for command in eval sample; do no 4 'vocab.json' $command "$dir/two/checkpoints/step-00000006"; done

# a checkpoint has a copy of its tokenizer, and says which token ends a text
ok ckpt export "$dir/without" --to "$dir/hf-without"
grep -q '"eos_token_id": 656' "$dir/hf-without/config.json" || say "eos_token_id: $(cat "$dir/hf-without/config.json")"
cmp "$dir/pair/vocab.json" "$dir/hf-without/vocab.json" || say "tokenizer of a run"
# a prompt has the tokens that its tokenizer adds around a text
cp -r "$dir/pair" "$dir/bos"
printf '{"add_bos_token": true}' >"$dir/bos/tokenizer_config.json"
for row in pair,2 bos,3; do
    ok sample "$dir/without" --tokens 2 --prompt 'a<|endoftext|>' --tokenizer "$dir/${row%,*}"
    grep -q "^prefill: ${row#*,} tokens," "$dir/log" || say "a prompt of ${row%,*}: $(cat "$dir/log")"
done
mv "$dir/pair" "$dir/gone"
ok sample "$dir/without" --tokens 3
ok eval "$dir/without" --data "$dir/held.txt"
mv "$dir/gone" "$dir/pair"
cp "$dir"/pair/* "$dir/hf-without"
ok train "$dir/gpt2.json" --set model="{\"path\":\"$dir/hf-without\"}" --out "$dir/bytes-by-mistake"
grep -q 'data.tokenizer: "byte": text is read as bytes, although ' "$dir/log" || say "bytes: $(cat "$dir/log")"

# weights of a directory, some of them frozen
cat >"$dir/llama.json" <<J
{"model":{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"hidden_size":16,"intermediate_size":24,"max_position_embeddings":8,
 "vocab_size":256},"data":{"train":"$dir/train.txt"},"train":{"steps":3,"global_batch":4,"threads":1},"optimizer":{"lr":0.01}}
J
ok train "$dir/llama.json" --out "$dir/llama"
ok ckpt export "$dir/llama" --to "$dir/hf-llama"
for model in gpt2 llama; do
    case $model in
    gpt2) from=$dir/hf-no freeze='["wte.*","wpe.*","h.0.*"]' patterns=('wte.*' 'wpe.*' 'h.0.*') ;;
    llama) from=$dir/hf-llama freeze='["model.layers.*","model.norm.*"]' patterns=('model.layers.*' 'model.norm.*') ;;
    esac
    for n in 1 2; do
        ok train "$dir/$model.json" -n $n --set model="{\"path\":\"$from\"}" --set train.freeze="$freeze" --set train.virtual_shards=2 --set train.steps=3 --out "$dir/tuned-$model-$n"
        at=$dir/tuned-$model-$n/checkpoints/step-00000003
        hand frozen "$from/model.safetensors" "$at/model/model.safetensors" "$at/optimizer/optimizer.safetensors" "${patterns[@]}" || say "$model: frozen, $n ranks"
    done
    [ "$("$kumi" ckpt digest "$dir/tuned-$model-1")" = "$("$kumi" ckpt digest "$dir/tuned-$model-2")" ] || say "$model: frozen: 1 and 2 ranks differ"
done

ok sample "$dir/run-yes" --tokens 3
# a vocabulary of three tokens and 201 gaps: no id without a token is drawn
mkdir "$dir/gaps" && : >"$dir/gaps/merges.txt"
printf '{"a": 0, "b": 120, "\\u0120": 203}' >"$dir/gaps/vocab.json"
for _ in {1..60}; do printf 'ab a b ba '; done >"$dir/gaps.txt"
ok train "$dir/gpt2.json" --set model.vocab_size=204 --set data.train="$dir/gaps.txt" --set data.tokenizer="$dir/gaps" --set train.steps=1 --out "$dir/gapped"
ok sample "$dir/gapped" --tokens 12 --prompt a
ok sample "$dir/gapped" --tokens 12 --prompt a --temperature 0
# ten letters in a circle: the most likely text is known
circle=abcdefghijabcdefghijabcdefghij
for _ in {1..150}; do printf %s $circle; done >"$dir/circle.txt"
ok train "$dir/gpt2.json" --set model.n_embd=32 --set data.train="$dir/circle.txt" --set train.steps=200 --set train.eval_every=0 --set train.log_every=0 --out "$dir/circle"
text() { # to options..
    local to=$dir/$1
    shift
    "$kumi" sample "$dir/circle" "$@" >"$to" 2>"$dir/log" || say "sample $*: $(tail -1 "$dir/log")"
}
is() { # words, of the options that follow them
    local words=$1
    shift
    text got "$@"
    printf "$words\\n" | cmp - "$dir/got" || say "sample $*: $(cat "$dir/got")"
}
printf cd >"$dir/prompt"
printf 'a\nef\nj\n' >"$dir/prompts"
for options in '--temperature 0' '--temperature 0 --seed 2' '--temperature 9 --top-k 1 --seed 3' '--temperature 9 --top-p 1e-9 --seed 4'; do
    # shellcheck disable=SC2086
    is ${circle:2:8} --prompt cd --tokens 6 $options # 8 positions
done
for to in seed-2 seed-3 again-2; do text $to --prompt cd --tokens 20 --temperature 9 --seed ${to#*-}; done
cmp "$dir/seed-2" "$dir/again-2" || say 'one seed, two texts'
! cmp -s "$dir/seed-2" "$dir/seed-3" && ! cmp -s "$dir/seed-2" "$dir/got" || say 'another seed, or temperature 9, and the same text'
is ${circle:2:8} --prompt-file "$dir/prompt" --tokens 6 --temperature 0
is cdef --prompt cd --tokens 20 --temperature 0 --stop gh
is ${circle:2:8} --prompt cd --tokens 6 --temperature 0 --stop gx
is '==> 1 <==\nabcdefg\n==> 2 <==\nefghijab\n==> 3 <==\njabcdef' --prompts "$dir/prompts" --tokens 6 --temperature 0
is '==> 1 <==\nabcdefg\n==> 2 <==\nefg\n==> 3 <==\njabcdefg' --prompts "$dir/prompts" --tokens 12 --temperature 0 --stop h
is '==> 1 <==\ncdefg\n==> 2 <==\ncdefg' --prompt cd --batch 2 --tokens 3 --temperature 0
no 2 'stride 9: a window has 8 tokens' eval "$dir/run-no" --stride 9
no 2 'eval: stride: -1; give 1 or more, or 0 for adjacent windows' eval "$dir/run-no" --stride=-1
no 2 'a stride is for text files; evaluate documents without one' eval "$dir/docs-true" --stride 2
no 3 'missing.txt: No such file' eval "$dir/run-no" --data "$dir/missing.txt"
printf 'short' >"$dir/short.txt"
no 3 '5 tokens for validation, a sample of data.seq_len 8 takes 9' eval "$dir/run-no" --data "$dir/short.txt"
exit $failed
