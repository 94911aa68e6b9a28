# SPDX-License-Identifier: Apache-2.0
# slurm.sh starts two nodes. Over them run the suite of the engine mpi, under srun --mpi=pmi2 with MPICH; a training under srun, also with
# --mpi=pmi2; and the sbatch script of docs/guide/clusters.md, which an early signal ends and requeues. All with the digest of one host.
build=$1 source=$2
slurm=$source/tests/hosts/slurm.sh
program=$build/tests/comm_test_net_mpi
export program KUMI_PLUGINS=$build UCX_TLS=tcp,self UCX_NET_DEVICES=lo
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
export kumi=$build/kumi work PATH=$build:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 20000 "$source/docs/internals/numerics.md" >"$work/text" # any text
sed -n '/<!-- script:slurm -->/,/<!-- \/script -->/p' "$source/docs/guide/clusters.md" | sed '/^<!--/d; /^```/d' >"$work/train.sbatch"
grep -q '^srun .* kumi train' "$work/train.sbatch" || { echo "docs/guide/clusters.md: no sbatch script"; exit 1; }
export KUMI_CACHE=$work/cache KUMI_SECRET=$(printf '%064d' 7)
config="$source/configs/shakespeare-fast.json --set data.train=$work/text --set data.val_fraction=0.1 --set model.n_layer=1 --set model.n_embd=32
    --set model.n_head=2 --set train.threads=1 --set train.virtual_shards=4 --set train.micro_batch=1 --set train.global_batch=4
    --set train.eval_tokens=128 --set data.seq_len=32 --set checkpoint.every=0 --set train.log_every=10"
export short="$config --set train.steps=3" long="$config --set train.steps=2000 --set train.eval_every=0"
said=$(timeout -k 5 170 bash "$slurm" with 2 timeout -k 5 140 bash -c '
    export KUMI_RENDEZVOUS=127.0.0.1:$((21000 + $$ % 9000))+16
    cd "$work" || exit 1
    srun -n4 -m block sh -c "echo rank \$SLURM_PROCID \$SLURM_LOCALID \$SLURM_NODEID" | sort
    has_mpich=
    [ ! -e "$KUMI_PLUGINS/libkumi-mpi-mpich.so" ] || has_mpich=1
    [ ! -x "$program" ] || [ ! $has_mpich ] || srun --mpi=pmi2 -n4 -m block "$program" suite
    srun -n4 -m block "$kumi" train $short --out "$work/slurm" || exit
    [ ! $has_mpich ] || srun --mpi=pmi2 -n4 -m block "$kumi" train $short --set parallel.transport=mpi --out "$work/pmi2" || exit

    job=$(sbatch --parsable --ntasks-per-node=2 --cpus-per-task=1 train.sbatch $long --out "$work/sbatch") || exit
    # await WORDS: in the log of the job, a minute at most
    await() { for _ in $(seq 600); do grep -q "$1" "kumi-$job.log" 2>/dev/null && return; sleep 0.1; done; echo "no $1"; return 1; }
    await "^step 10/" && scancel --signal=USR1 "$job"
    await "Exited with exit code 10" # a requeued job waits for two minutes, unless it is told to start
    for _ in $(seq 100); do [ "$(squeue -h -j "$job" -o %T)" != PENDING ] || break; sleep 0.1; done
    # A job that started again while its first processes were there may have failed; without this update Slurm waits two minutes.
    for _ in $(seq 100); do pgrep -f "^slurmstepd: \[$job\." >/dev/null || break; sleep 0.1; done
    scontrol update "JobId=$job" StartTime=now
    await "^digest: .*" && await "^step 2000/"
    cat "kumi-$job.log"
    for _ in $(seq 100); do squeue -h -j "$job" | grep -q . || break; sleep 0.1; done
    sacct=$(scontrol show job "$job" | grep -o "JobState=[A-Z]* \|Restarts=[0-9]*\|ExitCode=[0-9:]*" | tr "\n" " ")
    echo "job: $sacct"
    case $sacct in *COMPLETED*) ;; *) tail -n 15 "${SLURM_CONF%/*}"/ctld.log "${SLURM_CONF%/*}"/slurmd-*.log ;; esac' 2>&1 </dev/null)
code=$?
[ $code != 77 ] || { echo "$said"; exit 77; }
failed=0
fail() { echo "$*"; failed=1; }
digest() { "$kumi" ckpt digest "$work/$1" 2>/dev/null | tail -1; }
# shellcheck disable=SC2086
"$kumi" train $short -n 1 --out "$work/one" >/dev/null 2>&1 && "$kumi" train $long -n 1 --out "$work/whole" >/dev/null 2>&1 || fail "one host: no digest"
[ "$code" = 0 ] || fail "exit code $code"
[ "$(sed -n 's/^rank \([0-9] [0-9] [0-9]\)$/\1/p' <<<"$said" | tr '\n' ' ')" = "0 0 0 1 1 0 2 0 1 3 1 1 " ] || fail "places of the ranks"
[ "$(digest slurm)" = "$(digest one)" ] || fail "srun: another digest"
[ ! -e "$build/libkumi-mpi-mpich.so" ] || {
    [ "$(grep -c ': fine$' <<<"$said")" = 4 ] || fail "the suite of mpi"
    [ "$(digest pmi2)" = "$(digest one)" ] || fail "srun --mpi=pmi2: another digest"
}
[ "$(digest sbatch)" = "$(digest whole)" ] || fail "sbatch: another digest"
grep -q '^kumi: stopped: signal 10' <<<"$said" && grep -q '^kumi: resumed ' <<<"$said" && grep -q '^job: JobState=COMPLETED .*Restarts=1 ' <<<"$said" || fail "sbatch: not requeued"
[ $failed = 0 ] || echo "$said"
exit $failed
