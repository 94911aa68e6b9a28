#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bad input: the exact line on standard error, and the exit code.
. "$2/tests/cli/begin.sh"
config=configs/shakespeare-fast.json
expect() { # code text command..
    local code=$1 text=$2 got
    shift 2
    got=$(timeout 120 "$kumi" "$@" 2>&1 >/dev/null)
    local is=$?
    if [ $is -ne "$code" ] || ! printf '%s' "$got" | grep -qF -- "$text"; then
        printf 'kumi %s\n  wanted %s: %s\n  got    %s: %s\n' "$*" "$code" "$text" $is "$got"
        failed=1
    fi
    if [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" != 1 ] || [[ $got == 'kumi: error: '*$'\n'* ]]; then
        printf 'kumi %s: not one error line: %s\n' "$*" "$got"
        failed=1
    fi
}
printf '{"model":{"model_type":"gpt2"},\n "data":{"train":"x"},\n "train":{"stepz":1}}' >"$dir/key.json"
printf '{"model":{"model_type":"gpt2"},\n "data":{"train":"x"},\n "train":{"steps":"x"}}' >"$dir/type.json"
printf '{"model":' >"$dir/syntax.json"
printf '{"model":{},"model":{}}' >"$dir/twice.json"
printf 'short' >"$dir/short.txt"
: >"$dir/empty.txt"

expect 2 'command: trian: unknown; did you mean train?' trian
expect 2 'kumi train: --ou: unknown option; did you mean --out?' train --ou x
expect 2 'kumi run: -n: a value is missing' run -n
expect 2 'kumi bench: --steps: x: not an integer' bench scaling --steps=x
expect 2 'kumi eval: --alpha: nan: not a finite number' eval x --bleu --alpha nan
expect 2 'kumi eval: --alpha: -inf: not a finite number' eval x --bleu --alpha -inf
expect 2 'kumi bench: --threads: 4294967297; give a smaller number' bench peak --threads 4294967297
expect 2 'kumi train: --until: 1e3: not an integer' train $config --until 1e3
expect 2 'kumi train: --until: -4; give a step' train $config --until -4
expect 2 'kumi train: --max-time: inf: not a time above 0; give it as [[HH:]MM:]SS' train $config --max-time inf
expect 2 'kumi train: --max-time: 0: not a time above 0; give it as [[HH:]MM:]SS' train $config --max-time 0
expect 2 'kumi train: --profile-rows: -3; give 1 or more' train $config --profile --profile-rows -3
expect 2 'kumi train: --profile-by, --profile-sort and --profile-rows go only with --profile' train $config --profile-by path
expect 2 'kumi train: --profile-by, --profile-sort and --profile-rows go only with --profile' train $config --profile-rows 3
expect 2 'kumi train: --: takes no program; leave it out' train $config -- --set train.steps=5
expect 2 'kumi bench peak: -n does not apply to it' bench peak -n 2
expect 2 'kumi bench op: -n does not apply to it' bench op gelu -n 2
expect 2 'kumi train: an argument is missing; see `kumi help train`' train
expect 2 'kumi train: an extra argument b; see `kumi help train`' train $config b
expect 2 'kumi train: an extra argument auto; a value of --resume stands after =: --resume=auto' train $config --resume auto
expect 2 'kumi train: an extra argument 5-9; a value of --profile stands after =: --profile=5-9' train --profile 5-9 $config
expect 2 'kumi train: --until: 0; give a step, from 1' train $config --until 0
expect 2 'kumi run: --threads: -1; give 1 to 4096' run --threads -1 -n 2 -- true
expect 2 'kumi run: --nproc-per-node: gpu; give 1 to 512, auto or cpu' run --nproc-per-node gpu -- true
expect 2 'nodes: --nnodes: 0; give a number from 1 to' run --nnodes 0 --nproc-per-node 1 -- true
expect 2 'nodes: --master-port: 70000; give a number' run --nproc-per-node 1 --nnodes 2 --master-addr a --master-port 70000 -- true
expect 2 'rank count: --replicate: -1; give a number' plan --params 1e9 --replicate -1
expect 2 'config: --set parallel.pp_schedule=foo: parallel.pp_schedule: "foo"; one of gpipe' plan $config -n 2 --set parallel.pp=2 --set parallel.pp_schedule=foo
schedule() { printf "$2" >"$dir/schedule.csv"; expect 2 "$1" plan $config -n 2 --set parallel.pp=2 --set parallel.pp_schedule="$dir/schedule.csv"; } # SAYS TEXT
schedule 'row 1, cell 4: 0F0: the next F of stage 0 is that of micro-batch 1' '0F0,,,0F0,0B0\n1F0,1B0\n'
schedule 'row 1, cell 1: 0B0: comes before the F that it needs' '0B0,0F0\n1F0,1B0\n'
schedule 'row 2: 1B1 is missing' '0F0,0F1,0B0,0B1\n,1F0,1F1,1B0\n'
schedule 'has 1 rows and 1 micro-batches; this run needs 2 rows (parallel.pp)' '0F0,0B0\n'
expect 3 'schedule: ./none.csv: No such file' plan $config -n 2 --set parallel.pp=2 --set parallel.pp_schedule=./none.csv
stages() { # text list
    expect 2 "$1" plan configs/shakespeare-char.json -n 2 --schedule --set parallel.pp=2 --set parallel.stages="$2"
}
stages 'parallel.stages: 3 entries, but parallel.pp and its schedule have 2 stages' '[1, 1, 2]'
stages "parallel.stages: 5: stage 1 may have 1 to 3 layers, as 1 of the model's 4 (h.0 to h.3) are in stages before" '[1, 5]'
stages "parallel.stages: 1: no layer is left for stage 1 of the model's 4 layers (h.0 to h.3)" '[4, 1]'
stages 'parallel.stages: layers.0-1: neither a number of layers nor layers of the model (h.0 to h.3)' '["layers.0-1", "h.2-3"]'
stages 'parallel.stages: h.2-3: stage 1 must begin with h.1; stages have consecutive layers' '["h.0", "h.2-3"]'
stages 'parallel.stages: h.1-3: stage 1 must begin with h.2; stages have consecutive layers' '["h.0-1", "h.1-3"]'
stages 'parallel.stages: layer h.3 is in no stage' '[1, 2]'
stages "parallel.stages: 0: stage 1 may have 1 to 1 layers, as 3 of the model's 4 (h.0 to h.3) are in stages before" '[3, 0]'
stages 'config: --set parallel.stages=[0, 4]: parallel.stages: [0,4]; a list of numbers of layers' '[0, 4]'
expect 2 'parallel.pp: 8 stages, but the model has 4 layers (h.0 to h.3); at most one stage per layer' plan configs/shakespeare-char.json -n 8 --schedule --set parallel.pp=8
expect 2 'rank count: -n: 3000000000; give a number from 1 to 1048576' plan $config -n 3000000000
expect 2 'kumi ckpt: foo: unknown; give list, verify, digest, export or import' ckpt foo
expect 2 'kumi ckpt verify: a run or a directory is missing' ckpt verify
expect 2 'kumi ckpt import: --ema does not go with import; see `kumi help ckpt`' ckpt import x --to y --ema
expect 2 'kumi ckpt export: --map does not go with export; see `kumi help ckpt`' ckpt export x --to y --map a=b
expect 2 'kumi ckpt digest: --json does not go with digest; see `kumi help ckpt`' ckpt digest x --json
expect 2 'kumi ckpt export: --to DIR is missing; see `kumi help ckpt`' ckpt export x
expect 2 'kumi eval: --bleu takes --source and --reference, not --data, --stride, --tokenizer, --seq-len' eval x --bleu --tokenizer byte
expect 2 'kumi plan: --params replaces the configuration;' plan --params 1e9 --strict
expect 2 'train.freeze: nomatch*: no parameter name matches; a name is for example ' plan $config --set 'train.freeze=["nomatch*"]'
expect 2 'optimizer.decay: ln: no parameter name matches; ' plan $config --set 'optimizer.decay=["*.weight","ln"]'
expect 2 'optimizer.adapt: ln: no parameter name matches; ' plan $config --set optimizer.type=lamb --set 'optimizer.adapt=["ln"]'
expect 2 'memory.recompute.match: h.99: no module path matches; ' plan $config --set 'memory.recompute={"policy":"full","match":["h.99"]}'
expect 2 'parallel.wrap: h.99: no module matches; a parameter is for example ' plan $config -n 2 --set parallel.zero=3 --set 'parallel.wrap=["h.*","h.99"]'
expect 2 'kumi data: foo: unknown; give verify' data foo
expect 2 'kumi data verify: a configuration is missing' data verify
expect 2 'kumi tokenizer train: --min-frequency: -1; give 1 or more' tokenizer train --min-frequency -1 a
expect 2 'kumi help: an extra argument b; see `kumi help`' help a b
KUMI_THREADS=x expect 2 'KUMI_THREADS: x; give a number from 1 to 4096' train $config --out "$dir/threads"
KUMI_THREADS=x expect 2 'KUMI_THREADS: x; give a number from 1 to 4096' run -n 1 -- true
KUMI_PIN=yes expect 2 'KUMI_PIN: yes; give 0 or 1' run -n 1 -- true
[ "$(KUMI_THREADS=3 "$kumi" run -n 2 -- sh -c 'echo $KUMI_THREADS' 2>/dev/null | sort -u)" = 3 ] || { echo 'kumi run does not keep KUMI_THREADS'; failed=1; }
for command in train ckpt tokenizer info; do
    cmp <("$kumi" $command -h) <("$kumi" $command --help) || say "kumi $command -h is not --help"
done
"$kumi" help --help | grep -q '^usage: kumi help ' || say 'kumi help --help prints no usage'
expect 2 'kumi run: -m: unknown option; did you mean -n?' run -m 2
expect 2 "json: $dir/none.json: cannot be read: No such file or directory" train "$dir/none.json"
expect 2 "json: $dir: cannot be read: Is a directory" train "$dir"
expect 2 "json: $dir/syntax.json:1:9: unexpected token near end of file" train "$dir/syntax.json"
expect 2 "json: $dir/twice.json:1:19: duplicate object key near '\"model\"'" train "$dir/twice.json"
printf '[1]' >"$dir/array.json"
expect 2 "config: $dir/array.json:1:1: [1]; a DeepSpeed configuration is an object" train $config --deepspeed "$dir/array.json"
expect 2 'train: --out: empty; name a directory' train "$dir/key.json" --out ''
expect 2 'run directory: a path of 8000 bytes; at most' train "$dir/key.json" --out "$(printf "y/%.0s" {1..4000})"
# names that JSON files would contain must be UTF-8
latin=$dir/$(printf 'r\xe9')
expect 2 ': not UTF-8; rename it' train $config --out "$latin"
expect 2 "config: $dir/key.json:3:11: train.stepz: unknown key; did you mean steps?" train "$dir/key.json" --out "$dir/o"
expect 2 "config: $dir/type.json:3:11: train.steps: \"x\"; an integer from 1 to 1e+15" train "$dir/type.json" --out "$dir/o"
expect 2 'config: --set train.steps=0: train.steps: 0;' train $config --set train.steps=0 --out "$dir/o"
expect 2 'config: --set model.n_layer=1000000000: model.n_layer: 1000000000; an integer from 1 to 16384, the limit' \
    train $config --set model.n_layer=1000000000 --out "$dir/o"
expect 2 'shape: h.0.attn.c_attn.weight: more than 2^48 elements' plan $config --set model.n_embd=1073741824
expect 2 'it must be divisible by n_head, 3' train $config --set model.n_head=3 --out "$dir/o"
expect 2 'rank count: -n: 0; give a number from 1 to 512, or auto' train $config -n 0
for command in plan graph; do
    for n in 0 1048577 x; do expect 2 "rank count: -n: $n; give a number from 1 to 1048576, or auto" $command $config -n $n; done
done
expect 2 'rank count: --replicate: 0; give a number from 1 to 1048576, or auto' plan --params 1e9 -n 8 --replicate 0
expect 2 'kumi graph: --rank: 2; give a number from 0 to 1' graph $config -n 2 --rank 2
expect 2 'kumi graph: --rank: -1; give a number from 0 to 0' graph $config --rank=-1
expect 2 'kumi graph: --rank: the ranks have one graph; omit --dot and --after' graph $config --rank 0 --after build
expect 2 'kumi graph: --program: prints a whole program; omit --rank' graph $config --program eval --rank 0
expect 2 'kumi graph: --coordinate: prints a whole program; omit --rank, --dot and --after' graph $config --coordinate 0 --after build
expect 2 'kumi graph: --coordinate: -1; give a number below parallel.pp' graph $config --coordinate=-1
expect 2 'graph: --coordinate: 1; give a number from 0 to 0' graph $config -n 2 --coordinate 1
expect 2 'graph: --program: walk; give train, eval, init or derive' graph $config --program walk
expect 2 'kumi train: --until: 99999999999999999999: not below 2^63; give a smaller number' train $config --until 99999999999999999999
expect 2 'rank count: -n: 100000; give a number from 1 to 512, or auto' train $config -n 100000
expect 2 'train.virtual_shards: 2 on 3 ranks' train $config -n 3 --out "$dir/o"
expect 2 'batch: train.global_batch: 4 is less than virtual_shards = 8; give at least 8, or fewer ranks' \
    train $config --set train.virtual_shards=8 --set train.global_batch=4 -n 8 --out "$dir/o"
expect 2 'batch: train.global_batch: 32 is no multiple of virtual_shards x micro_batch = 6; nearest: 30, 36' \
    train $config --set train.micro_batch=3 --out "$dir/o"
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 expect 2 'rank count: -n: 2, but the environment (RANK and WORLD_SIZE) says 4; use one of the two' \
    train $config -n 2 --out "$dir/o"
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 expect 2 'rank count: -n: 1, but the environment (openmpi) says 4; use one of the two' \
    train $config -n 1 --out "$dir/o"
PMI_RANK=0 PMI_SIZE=4 MPI_LOCALRANKID=0 expect 2 'rank count: -n: 1, but the environment (mpich) says 4; use one of the two' \
    train $config -n 1 --out "$dir/o"
SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=4 expect 2 'rank count: -n: 1, but the environment (slurm) says 4; use one of the two' \
    train $config -n 1 --out "$dir/o"
expect 3 "data: $dir/none.txt: No such file or directory" train $config --set data.train="$dir/none.txt" --out "$dir/o"
(
    failed=0 # where our configurations' data are not, the page that tells where to get them
    cd "$dir" || exit 1
    expect 3 'data: data/tinyshakespeare.txt: No such file or directory; give a file with text or tokens (docs/reference/text.md tells where to get it)' train "$source/$config" --out o
    expect 3 'data: data/small_parallel_enja/train.en: No such file or directory; give a file with text or tokens (docs/reference/translation.md tells where to get it)' train "$source/configs/enja.json" --out o
    expect 3 'data: data/cifar-10-batches-bin: No such file or directory; give a file with CIFAR records, or the folder with them (docs/reference/workloads.md)' train "$source/configs/resnet20-cifar10.json" --out o
    exit $failed
) || failed=1
expect 3 "data: $dir/short.txt: 4 tokens for training, a sample of data.seq_len 64 takes 65; give more data or a shorter seq_len" \
    train $config --set data.train="$dir/short.txt" --out "$dir/o"
expect 3 "data: $dir/empty.txt: empty; give a file with text or tokens" \
    train $config --set data.train="$dir/empty.txt" --out "$dir/o"
expect 3 'the model'"'"'s vocabulary has 40 (model.vocab_size)' train $config --set model.vocab_size=40 --out "$dir/v"
expect 3 'the model'"'"'s vocabulary has 40 (model.vocab_size)' train $config --set model.vocab_size=40 --out "$dir/v" # it left no run
[ ! -e "$dir/v" ] || { echo "a run that failed before its first step left its directory"; failed=1; }
grep -qw amx_bf16 /proc/cpuinfo || expect 14 "parallel.isa: amx: this CPU has" train $config --set parallel.isa=amx --out "$dir/o"
expect 4 "no checkpoint; start a new run with --overwrite or --resume=auto" train $config --out "$dir/fresh" --resume
[ ! -e "$dir/fresh" ] || { echo 'a resume of nothing made its directory'; failed=1; }
expect 4 "checkpoint: $dir/empty.txt: not a directory; give a run, its checkpoints or one of them" ckpt list "$dir/empty.txt"
expect 5 'cannot be created:' train $config --out /proc/x/y
# 1.3e12 parameters: 20 TB of state
expect 13 'short of' train configs/gpt2-124m.json --set model.n_layer=100 --set model.n_embd=32768 --set model.n_head=256 --out "$dir/o"
mkdir -p "$dir/run/checkpoints"
thread=(--set parallel.transport=thread)
expect 2 'shm serves the ranks of one host; one of: auto shm thread' train $config -n 2 --set parallel.transport=nccl
expect 2 'rank count: -n: 0; give a number from 1 to 512, or auto' train $config "${thread[@]}" -n 0
expect 2 'train.virtual_shards: 2 on 3 ranks' train $config "${thread[@]}" -n 3 --out "$dir/o"
expect 3 "data: $dir/none.txt: No such file or directory" train $config "${thread[@]}" -n 2 --set data.train="$dir/none.txt" --out "$dir/o"
expect 11 'holds a run already' train $config "${thread[@]}" -n 2 --out "$dir/run"
expect 2 'parallel.transport: thread: kumi started 2 processes; set auto, or start the ranks with -n' \
    run -n 2 -- "$kumi" train $config "${thread[@]}" --out "$dir/o"
expect 9 'not finite: step 2: loss nan, first in the gradient of wpe.weight on rank 0; there is no checkpoint yet; lower optimizer.lr' train $config "${thread[@]}" -n 2 --out "$dir/nan2" --set optimizer.lr=1e30 --set train.clip_norm=0 \
    --set train.steps=9 --set train.log_every=0 --set train.global_batch=4
expect 11 'holds a run already; --resume continues it, --overwrite replaces it' train $config --out "$dir/run"
expect 9 'not finite: step 2: loss nan, first in the gradient of wpe.weight on rank 0; there is no checkpoint yet; lower optimizer.lr' train $config --out "$dir/nan" --set optimizer.lr=1e30 --set train.clip_norm=0 \
    --set train.steps=9 --set train.log_every=0 --set train.global_batch=4
"$kumi" train $config --out "$dir/seed" --set train.steps=2 --set train.eval_tokens=64 >/dev/null 2>&1 || { echo 'no run to resume'; failed=1; }
cp -r "$dir/seed" "$latin"
for command in eval sample; do
    expect 2 '/checkpoints/step-00000002: not UTF-8; rename it' $command "$latin"
done
expect 2 ': not UTF-8; rename it' ckpt list "$latin" --json
expect 2 ': not UTF-8; rename it' ckpt import "$dir/seed/checkpoints/step-00000002/model" --to "$dir/x" --map "$(printf '\xe9=x')"
cp -r "$dir/seed/checkpoints/step-00000002/model" "$latin/weights"
expect 2 '/weights; the string is not UTF-8' eval "$latin/weights" --data "$dir/empty.txt"
expect 2 '/weights; the string is not UTF-8' translate "$latin/weights" --tokenizer "$dir/x.vocab" </dev/null
# a message that is cut within a character
for pad in '' x xx; do
    run=$dir/$pad$(printf 'ん%.0s' {1..80})
    mkdir -p "$run/checkpoints/step-00000001"
    echo '{' >"$run/checkpoints/step-00000001/manifest.json"
    "$kumi" ckpt list "$run" --json | grep -q '"usable": false' || { echo "ckpt list --json: no row for $run"; failed=1; }
done
expect 2 'train.seed (was 1337, is 1) differs from the checkpoint' train $config --out "$dir/seed" --set train.steps=3 --set train.seed=1 --resume
# a resume: other keys, other data
head -c 20000 data/tinyshakespeare.txt >"$dir/text"
run=(train $config --out "$dir/resumed" --set data.train="$dir/text" --set model.n_layer=1 --set train.eval_tokens=64)
"$kumi" "${run[@]}" --set train.steps=2 >/dev/null 2>&1 || { echo 'the run to resume failed'; failed=1; }
expect 2 "resume: $dir/resumed/checkpoints/step-00000002: optimizer.lr (was 0.004, is 3)" "${run[@]}" --set train.steps=3 --set optimizer.lr=3 --resume
echo more >>"$dir/text"
expect 2 'the data differ from the checkpoint'"'"'s (fingerprint was' "${run[@]}" --set train.steps=3 --resume
"$kumi" "${run[@]}" --set train.steps=3 --resume --allow-change >/dev/null 2>&1 || { echo '--allow-change did not go on'; failed=1; }
got=$(KUMI_FAULT=bug:5 "$kumi" plan $config 2>&1)
[ $? = 70 ] && [[ $got == 'kumi: bug: '* ]] || { echo "a bug of ours: $got"; failed=1; }
"$kumi" help | grep -q 'kumi train' || { echo 'help lists no commands'; failed=1; }
"$kumi" --version | grep -q '^kumi [0-9]' || { echo 'no version'; failed=1; }
"$kumi" info --json | python3 -m json.tool >/dev/null || { echo 'info --json is no JSON'; failed=1; }
exit $failed
