#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Slurm on one machine, for the time of a command: munged, slurmctld and one slurmd per node n1, n2, .. with two CPUs
# each, from a temporary folder with ports of their own. Root only; ends with 77 where Slurm is not installed
# (slurmctld, slurmd, slurm-client, munge) or does not start.
#
#     slurm.sh with N CMD ..      the command's environment has SLURM_CONF, so that srun and sinfo find the nodes
#
# KUMI_SLURM_ROOT: folder in which those packages are unpacked rather than installed.
set -u
skip() {
    echo "slurm.sh: $*; skipped" >&2
    [ -z "${dir:-}" ] || for log in "$dir"/*.log; do [ ! -e "$log" ] || tail -n 3 "$log" >&2; done
    exit 77
}
[ $# -ge 3 ] && [ "$1" = with ] || { sed -n '3,10s/^# \?//p' "$0"; exit 2; }
n=$2
shift 2
case $n in [1-9] | 1[0-6]) ;; *) echo "slurm.sh: $n: give a number of nodes from 1 to 16" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || skip "nodes of one machine need root"

root=${KUMI_SLURM_ROOT:-}
PATH=$root/usr/sbin:$root/usr/bin:$PATH
first_of() { # the first of these programs that is there
    local name
    for name; do
        command -v "$name" && return
    done
    return 1
}
ctld=$(first_of slurmctld slurmctld-wlm) && slurmd=$(first_of slurmd slurmd-wlm) && stepd=$(first_of slurmstepd slurmstepd-wlm) &&
    munged=$(first_of munged) && command -v srun >/dev/null || skip "Slurm or munge is not installed"
plugins=
if [ -n "$root" ]; then
    plugins=$(dirname "$(find "$root" -name auth_munge.so | head -1)")
    export LD_LIBRARY_PATH=$plugins:$(dirname "$plugins")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

dir=$(mktemp -d) || exit 2
pids=()
clean() {
    local pid
    for pid in "${pids[@]}"; do
        kill -TERM "$pid" 2>/dev/null
    done
    for pid in "${pids[@]}"; do # with a deadline for each
        for ((i = 0; i < 100; i++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    # a slurmstepd outlives its slurmd; those of this folder have it in their environment
    for pid in $(grep -lsz "^SLURM_CONF=$dir/" /proc/[0-9]*/environ | cut -d/ -f3); do
        [ "$pid" = $$ ] || ! grep -qs slurmstepd "/proc/$pid/cmdline" || kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

is_free() { ! (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
# Below the ports that the system gives to connections, from 32768 on.
for ((port = 15000 + ($$ * 37) % 17000, i = 0; i <= n && port < 32700; i++)); do
    is_free $((port + i)) || { port=$((port + i + 1)); i=-1; }
done
host=$(hostname -s)
mkdir "$dir/state"
chmod 755 "$dir"
dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 2>/dev/null
chmod 400 "$dir/munge.key"
cat >"$dir/slurm.conf" <<C
ClusterName=kumi$$
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
SlurmctldPort=$port
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
${plugins:+PluginDir=$plugins}
NodeName=n[1-$n] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + n))] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
C
[ "$n" -gt 1 ] || sed -i "s/n\[1-1\]/n1/; s/Port=\[\([0-9]*\)-[0-9]*\]/Port=\1/" "$dir/slurm.conf"
export SLURM_CONF=$dir/slurm.conf

"$munged" --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" \
    --seed-file="$dir/munge.seed" --log-file="$dir/munge.log" >"$dir/munged.log" 2>&1 &
pids+=($!)
for ((i = 0; i < 200; i++)); do
    [ -S "$dir/munge.socket" ] && break
    sleep 0.05
done
[ -S "$dir/munge.socket" ] || skip "munged does not start"
"$ctld" -D -c >"$dir/ctld.log" 2>&1 &
pids+=($!)
for ((i = 1; i <= n; i++)); do
    mkdir "$dir/spool-n$i"
    "$slurmd" -D -N "n$i" -d "$stepd" >"$dir/slurmd-n$i.log" 2>&1 &
    pids+=($!)
done
for ((end = SECONDS + 40; SECONDS < end;)); do
    kill -0 "${pids[1]}" 2>/dev/null || skip "slurmctld has ended"
    [ "$(timeout -k 1 3 sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = "$n" ] && break
    sleep 0.1
done
[ $SECONDS -lt $end ] || skip "the nodes do not come up"
"$@" <&0 & # so that a signal ends the wait
wait $!
