# SPDX-License-Identifier: Apache-2.0
# slurm.sh starts two nodes. Over them run the suite of the engine mpi, under srun --mpi=pmi2 with MPICH, and a training with the digest of one host.
build=$1 source=$2
slurm=$source/tests/hosts/slurm.sh
program=$build/tests/comm_test_net_mpi
export program KUMI_PLUGINS=$build UCX_TLS=tcp,self UCX_NET_DEVICES=lo
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
export kumi=$build/kumi dir
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
head -c 20000 "$source/docs/internals/numerics.md" >"$dir/text" # any text
export KUMI_CACHE=$dir/cache
export config="$source/configs/shakespeare-fast.json --set data.train=$dir/text --set data.val_fraction=0.1 --set model.n_layer=1 --set model.n_embd=32
    --set model.n_head=2 --set train.threads=1 --set train.virtual_shards=4 --set train.micro_batch=1 --set train.global_batch=4
    --set train.steps=3 --set train.eval_tokens=128 --set data.seq_len=32 --set checkpoint.every=0"
said=$(timeout -k 5 120 bash "$slurm" with 2 timeout -k 5 90 bash -c '
    srun -n4 -m block sh -c "echo rank \$SLURM_PROCID \$SLURM_LOCALID \$SLURM_NODEID" | sort
    [ ! -x "$program" ] || [ ! -e "$KUMI_PLUGINS/libkumi-mpi-mpich.so" ] || srun --mpi=pmi2 -n4 -m block "$program" suite
    KUMI_RENDEZVOUS=127.0.0.1:$((21000 + $$ % 9000))+16 srun -n4 -m block "$kumi" train $config --out "$dir/slurm"' 2>&1 </dev/null)
code=$?
[ $code != 77 ] || { echo "$said"; exit 77; }
places=$(sed -n 's/^rank \([0-9] [0-9] [0-9]\)$/\1/p' <<<"$said" | tr '\n' ' ')
fine=$(grep -c ': fine$' <<<"$said")
one=$("$kumi" train $config -n 1 --out "$dir/one" 2>/dev/null | sed -n 's/^digest: //p')
[ -n "$one" ] && grep -qx "digest: $one" <<<"$said" || code="of the training, which has another digest than $one"
[ "$code" = 0 ] && [ "$places" = "0 0 0 1 1 0 2 0 1 3 1 1 " ] && { [ "$fine" = 4 ] || [ ! -e "$build/libkumi-mpi-mpich.so" ]; } && exit 0
echo "exit code $code"
echo "$said"
exit 1
