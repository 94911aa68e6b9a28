# SPDX-License-Identifier: Apache-2.0
# Training on two and four hosts that have a network between them: by kumi's own launcher, over links of 100 Mbit/s and of 10 ms, and by mpirun
# of both makes; every digest is that of one host. KUMI_TEST_ALL=1: also over a link that is down for 3 s, and one that stays down, which ends
# the job within 11 s.
build=$1 source=$2
kumi=$build/kumi agent=$source/tests/hosts/agent
[ -x "$kumi" ] || exit 77
bash "$source/tests/hosts/hosts.sh" with 1 true || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
failed=0
say() { echo "$*"; failed=1; }
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
export KUMI_CACHE=$dir/cache KUMI_PLUGINS=$build UCX_TLS=tcp,self kumi agent dir source
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=2 --set model.n_embd=96
    --set train.threads=1 --set train.virtual_shards=4 --set train.micro_batch=1 --set train.global_batch=12 --set train.eval_tokens=128
    --set data.seq_len=32 --set checkpoint.every=0)
# launch N CMD..: CMD runs in the hub of N hosts; config, steps and places are in the environment
launch() {
    local n=$1
    shift
    case $n in 2) places=h0:2,h1:2 ;; 4) places=h0:1,h1:1,h2:1,h3:1 ;; esac
    for _ in 1 2 3; do # MPICH 4.0 may hang in MPI_Finalize; after 5 s the ranks end without it, and its proxy fails
        rm -rf "$dir/run"
        places=$places steps=$steps config="${config[*]}" bash "$source/tests/hosts/hosts.sh" with "$n" timeout -k 5 120 bash -c "$*" >"$dir/log" 2>&1 </dev/null
        code=$?
        grep -q '^digest: ' "$dir/log" && grep -q HYDU_sock_write "$dir/log" || break
    done
    digest=$(sed -n 's/^digest: //p' "$dir/log")
}
# on N NAME CMD..: its digest is that of one host
on() {
    local n=$1 name=$2
    shift 2
    launch "$n" "$@"
    [ $code = 0 ] && [ "$digest" = "$one" ] || say "$n hosts, $name: exit $code: $(cat "$dir/log")"
}
# reference N: the digest of so many steps on N ranks of one host
reference() {
    rm -rf "$dir/one"
    one=$("$kumi" train "${config[@]}" --set train.steps=$steps -n "$1" --out "$dir/one" 2>/dev/null | sed -n 's/^digest: //p')
    [ -n "$one" ] || { say "one host: no digest"; exit 1; }
}
own='$kumi train $config --set train.steps=$steps -H $places --rsh $agent --out $dir/run'
hosts='bash $source/tests/hosts/hosts.sh'
steps=3
reference 1
for n in 2 4; do # the delay is that of chaos: not every kernel has netem
    on $n "10 ms" "KUMI_CHAOS=delay=10ms $own"
done
if [ -n "${KUMI_TEST_ALL:-}" ]; then # half a minute of waiting
    steps=800
    reference 2
    on 2 "3 s without a link" "{ sleep 2; $hosts link h1 down; sleep 3; $hosts link h1 up; } & $own"
    grep -q 'kumi: error' "$dir/log" && say "3 s without a link: $(cat "$dir/log")"
    steps=1000000
    launch 2 "{ sleep 3; $hosts link h1 down; date +%s%N >$dir/down; } & $own; code=\$?; date +%s%N >$dir/end; exit \$code"
    took_ms=$((($(cat "$dir/end") - $(cat "$dir/down")) / 1000000))
    { [ $code = 6 ] || [ $code = 7 ]; } && grep -q 'kumi: error' "$dir/log" && [ $took_ms -lt 11500 ] || # 0.5 s for the processes of the launcher
        say "a link that stays down: exit $code after $took_ms ms: $(cat "$dir/log")"
fi

steps=20
reference 1
for n in 2 4; do
    on $n plain "$own"
    on $n "100 Mbit/s" "$hosts limit 100mbit; $own"
done

# The script of docs/guide/clusters.md as it stands there. What it needs in namespaces is in the environment of both launchers.
sed -n '/<!-- script:mpi -->/,/<!-- \/script -->/p' docs/guide/clusters.md | sed '/^<!--/d; /^```/d' >"$dir/train-mpi.sh"
grep -q 'mpiexec -n .* kumi train' "$dir/train-mpi.sh" || say "docs/guide/clusters.md: no script of MPI"
mkdir "$dir/bin" && ln -s "$kumi" "$dir/bin/kumi"
export HOSTS=h0:2,h1:2 RANKS=4 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_plm=rsh \
    OMPI_MCA_plm_rsh_agent=$agent OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self,vader OMPI_MCA_btl_tcp_if_include=eth0 \
    OMPI_MCA_oob_tcp_if_include=10.77.0.0/24 HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$agent HYDRA_IFACE=br0
for make in openmpi:mpiexec.openmpi mpich:mpiexec.hydra; do
    [ -e "$build/libkumi-mpi-${make%%:*}.so" ] && command -v "${make#*:}" >/dev/null || continue
    printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "${make#*:}")" >"$dir/bin/mpiexec" # not a link: it looks for files beside itself
    chmod +x "$dir/bin/mpiexec"
    on 2 "${make%%:*}" 'PATH=$dir/bin:$PATH sh $dir/train-mpi.sh $config --set train.steps=$steps --out $dir/run'
done
exit $failed
