# SPDX-License-Identifier: Apache-2.0
# The suite of the engine mpi (tests/comm/test_net_mpi.c) on two hosts with two ranks each, with both makes.
build=$1 source=$2
program=$build/tests/comm_test_net_mpi
agent=$source/tests/hosts/agent
[ -x "$program" ] || { echo "$program is not built"; exit 77; }
bash "$source/tests/hosts/hosts.sh" with 1 true || exit 77
failed=0 n=0
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
export KUMI_PLUGINS=$build UCX_TLS=tcp,self

suite() { # make launcher options ..
    local make=$1 launcher=$2 said
    shift
    [ -e "$build/libkumi-mpi-$make.so" ] && command -v "$launcher" >/dev/null || { echo "$make: no plug-in or launcher; skipped"; return; }
    n=$((n + 1))
    said=$(bash "$source/tests/hosts/hosts.sh" with 2 timeout -k 5 90 "$@" "$program" suite 2>&1 </dev/null)
    [ "$(grep -c ': fine$' <<<"$said")" = 4 ] || { echo "$make:"; echo "$said"; failed=1; }
}
suite openmpi mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -np 4 --host h0:2,h1:2 --map-by slot \
    -x KUMI_PLUGINS --mca plm rsh --mca plm_rsh_agent "$agent" --mca pml ob1 --mca btl tcp,self,vader \
    --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include 10.77.0.0/24
suite mpich mpiexec.hydra -launcher ssh -launcher-exec "$agent" -iface br0 -hosts h0:2,h1:2 -n 4
[ $n -gt 0 ] || exit 77
exit $failed
