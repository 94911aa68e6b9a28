#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi tokenizer: what is learnt encodes and decodes; each verb's own options; one error line.
. "$2/tests/cli/begin.sh"
text=$source/tests/fixtures/tokenizer_train/words.txt

out=$("$kumi" tokenizer train --vocab 350 --special '<s>' --out "$dir/t" "$text" 2>"$dir/err") || say "train: exit $?"
case $out in "$dir/t/tokenizer.json: 350 tokens, 93 merges; "*) ;; *) say "train says: $out" ;; esac
[ -s "$dir/err" ] && say "train on stderr: $(cat "$dir/err")"
"$kumi" tokenizer encode --tokenizer "$dir/t" <"$text" >"$dir/ids" || say "encode: exit $?"
"$kumi" tokenizer decode --tokenizer "$dir/t" <"$dir/ids" >"$dir/back" || say "decode: exit $?"
cmp -s "$text" "$dir/back" || say "the text does not come back"
[ "$(wc -w <"$dir/ids")" -lt "$(($(wc -c <"$text") / 2))" ] || say "fewer tokens than bytes are expected"
"$kumi" tokenizer train --vocab 350 --special '<s>' --out "$dir/again.json" "$text" >/dev/null
cmp -s "$dir/t/tokenizer.json" "$dir/again.json" || say "not the same file twice"
(cd "$dir" && "$kumi" tokenizer train --vocab 300 --json "$text") | grep -q '"vocab_size": 300' || say "--json"
[ -f "$dir/tokenizer.json" ] || say "no tokenizer.json without --out"

# special tokens beside vocab.json and merges.txt, and GPT-2's own
small=$source/tests/fixtures/tokenizer/small
mkdir "$dir/pair" "$dir/plain"
cp "$small/vocab.bpe" "$dir/pair/merges.txt"
sed 's/}$/, "<|endoftext|>": 656}/' "$small/encoder.json" >"$dir/pair/vocab.json"
cp "$dir"/pair/* "$dir/plain"
printf '{"eos_token": "</s>"}' >"$dir/pair/special_tokens_map.json"
got=$(printf 'a<|endoftext|>b</s>' | "$kumi" tokenizer encode --tokenizer "$dir/pair")
[ "$got" = '64 656 65 657' ] || say "special tokens: $got"

# a token before a whole text, not before a text that is streamed into a file
cp -r "$dir/plain" "$dir/bos"
printf '{"add_bos_token": true}' >"$dir/bos/tokenizer_config.json"
got=$(printf a | "$kumi" tokenizer encode --tokenizer "$dir/bos")
[ "$got" = '656 64' ] || say "add_bos_token: $got"
got=$(printf a | "$kumi" tokenizer encode --tokenizer "$dir/bos" --to "$dir/bos.bin")
[ "$got" = "$dir/bos.bin: 1 tokens" ] || say "add_bos_token, token file: $got"

# token files: the numbers that go to stdout without --to
"$kumi" tokenizer encode --tokenizer "$dir/plain" --to "$dir/ids.bin" <"$text" >"$dir/out" || say "encode --to: exit $?"
ids=$("$kumi" tokenizer encode --tokenizer "$dir/plain" <"$text")
[ "$(cat "$dir/out")" = "$dir/ids.bin: $(wc -w <<<"$ids") tokens" ] || say "encode --to: $(cat "$dir/out")"
python3 -c 'import struct, sys
data = open(sys.argv[1] + "/ids.bin", "rb").read()
ids = list(map(int, sys.argv[2].split()))
assert struct.unpack("<3i", data[:12]) == (20240520, 1, len(ids)) and not any(data[12:1024])
assert data[1024:] == struct.pack(f"<{len(ids)}H", *ids)' "$dir" "$ids" || say "token file"
printf 'x' | "$kumi" tokenizer encode --tokenizer byte --to "$dir/ids.bin" --overwrite >/dev/null || say "encode --overwrite"
[ "$(wc -c <"$dir/ids.bin")" = 1026 ] || say "encode --overwrite: not replaced"

expect() { # code text command..
    local code=$1 part=$2 got is
    shift 2
    got=$("$kumi" tokenizer "$@" 2>&1 >/dev/null </dev/null)
    is=$?
    [ $is -eq "$code" ] && [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" = 1 ] &&
        printf '%s' "$got" | grep -qF -- "$part" || say "tokenizer $*: wanted $code: $part; got $is: $got"
}
expect 2 'learn: unknown; give encode, decode or train' learn
expect 2 '--tokenizer is missing' encode
expect 2 'no text to learn from' train --vocab 300
expect 2 'a vocabulary of 200 tokens; give 256' train --vocab 200 "$text"
expect 2 'does not apply to it' train --tokenizer byte "$text"
expect 2 'does not apply to it' encode --tokenizer byte --vocab 300
expect 2 'does not apply to it' encode --tokenizer byte "$text"
expect 2 'does not apply to it' encode --tokenizer byte --overwrite
expect 2 'does not apply to it' decode --tokenizer byte --to "$dir/x.bin"
expect 2 '--to: ids.txt: give a name that ends in .bin' encode --tokenizer byte --to ids.txt
expect 11 "$dir/ids.bin: the file exists; --overwrite replaces it" encode --tokenizer byte --to "$dir/ids.bin"
expect 5 "$dir/none/x.bin: No such file" encode --tokenizer byte --to "$dir/none/x.bin"
expect 2 'give 1 or more' train --vocab -5 "$text"
expect 2 "special token '': empty" train --special '' "$text"
expect 3 "data: $dir/none: No such file" train "$dir/none"
got=$("$kumi" tokenizer encode --tokenizer byte 2>&1 <"$dir")
[ $? = 3 ] && [ "$got" = 'kumi: error: tokenizer: standard input: Is a directory' ] || say "input that cannot be read: $got"
printf 'a\n\xff\n' >"$dir/bad.txt"
expect 3 "data: $dir/bad.txt:2: byte 1 (0xff) is not valid UTF-8" train "$dir/bad.txt"
expect 5 "$text/x" train --out "$text/x" "$text"
exit $failed
