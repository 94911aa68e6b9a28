# SPDX-License-Identifier: Apache-2.0
# kumi info --hosts on two hosts that have a network between them: by kumi's own launcher, over a slow link, and by mpirun of both makes.
build=$1 source=$2
kumi=$build/kumi agent=$source/tests/hosts/agent
[ -x "$kumi" ] || exit 77
bash "$source/tests/hosts/hosts.sh" with 1 true || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
failed=0
export KUMI_CACHE=$dir/cache KUMI_PLUGINS=$build UCX_TLS=tcp,self kumi agent source
# on NAME TRANSPORT MAX CMD..: CMD prints the report of h0:2,h1:2 in the hub, whose transport begins with the regular expression; the
# vector of its all-reduce has at most MAX bytes
on() {
    local name=$1 transport=$2 max=$3
    shift 3
    bash "$source/tests/hosts/hosts.sh" with 2 timeout -k 5 120 bash -c "$*" >"$dir/out" 2>"$dir/err" </dev/null
    python3 - "$dir/out" "$transport" "$max" <<'P' || { echo "$name: $(cat "$dir/out" "$dir/err")"; failed=1; }
import json, re, sys
o = json.load(open(sys.argv[1]))
assert re.match(sys.argv[2], o["transport"]), o["transport"]
assert [(h["ranks"], h["address"], h["interface"]) for h in o["hosts"]] == [(2, "10.77.0.1", "eth0"), (2, "10.77.0.2", "eth0")]
assert [p["host"] for p in o["round_trip"]] == [1]
small, large = o["all_reduce"]
assert small["bytes"] == 8 and 1 << 16 <= large["bytes"] <= int(sys.argv[3])
P
}
own='$kumi info --hosts --json -H h0:2,h1:2 --rsh $agent'
on plain "tcp over eth0 10.77.0.1" $((16 << 20)) "$own"
on "100 Mbit/s" "tcp over eth0 10.77.0.1" $((4 << 20)) "bash \$source/tests/hosts/hosts.sh limit 100mbit; $own" # 16 MiB would take 1.3 s a call
[ ! -e "$build/libkumi-mpi-openmpi.so" ] || ! command -v mpirun.openmpi >/dev/null ||
    on "Open MPI" 'mpi \(openmpi\): Open MPI .*; pml ob1; btl .*tcp.*; RDMA none; OMPI_MCA_pml ob1; OMPI_MCA_btl tcp,self,vader' $((16 << 20)) 'mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -np 4 --host h0:2,h1:2 --map-by slot \
        -x KUMI_PLUGINS -x KUMI_CACHE --mca plm rsh --mca plm_rsh_agent $agent --mca pml ob1 --mca btl tcp,self,vader --mca btl_tcp_if_include eth0 \
        --mca oob_tcp_if_include 10.77.0.0/24 $kumi info --hosts --json'
[ ! -e "$build/libkumi-mpi-mpich.so" ] || ! command -v mpiexec.hydra >/dev/null ||
    on MPICH 'mpi \(mpich\): MPICH .*; ch[34]:.*; RDMA none; UCX_TLS tcp,self' $((16 << 20)) 'mpiexec.hydra -launcher ssh -launcher-exec $agent -iface br0 -hosts h0:2,h1:2 -n 4 $kumi info --hosts --json'
exit $failed
