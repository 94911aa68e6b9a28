# SPDX-License-Identifier: Apache-2.0
# slurm.sh starts two nodes, and the suite of the engine mpi runs over them under srun --mpi=pmi2 with MPICH.
build=$1 source=$2
slurm=$source/tests/hosts/slurm.sh
program=$build/tests/comm_test_net_mpi
export program KUMI_PLUGINS=$build UCX_TLS=tcp,self UCX_NET_DEVICES=lo
unset PMI_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK
said=$(timeout -k 5 120 bash "$slurm" with 2 timeout -k 5 90 bash -c '
    srun -n4 -m block sh -c "echo rank \$SLURM_PROCID \$SLURM_LOCALID \$SLURM_NODEID" | sort
    [ ! -x "$program" ] || [ ! -e "$KUMI_PLUGINS/libkumi-mpi-mpich.so" ] || srun --mpi=pmi2 -n4 -m block "$program" suite' 2>&1 </dev/null)
code=$?
[ $code != 77 ] || { echo "$said"; exit 77; }
places=$(sed -n 's/^rank \([0-9] [0-9] [0-9]\)$/\1/p' <<<"$said" | tr '\n' ' ')
fine=$(grep -c ': fine$' <<<"$said")
[ $code = 0 ] && [ "$places" = "0 0 0 1 1 0 2 0 1 3 1 1 " ] && { [ "$fine" = 4 ] || [ ! -e "$build/libkumi-mpi-mpich.so" ]; } && exit 0
echo "exit code $code"
echo "$said"
exit 1
