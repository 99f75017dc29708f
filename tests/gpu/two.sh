#!/bin/bash
# A host with two GPUs: which of them a container gets, by each form of request; NCCL over both in a container; and which
# processes are listed at which GPU.
#
#   sudo tests/gpu/two.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER [WORK-FOLDER]
#
# Needs what tests/gpu/notify.sh needs, and a second GPU. Changes nothing outside of its folder, /run and /etc/cdi. Prints each command
# before its output; ends with 1 if an answer is wrong.
here=$(dirname "$(readlink -f "$0")")
. "$here/common.sh"

mapfile -t uuids < <(nvidia-smi --query-gpu=uuid --format=csv,noheader)
[ ${#uuids[@]} -eq 2 ] || {
	echo "this host has ${#uuids[@]} GPUs, not 2" >&2
	exit 3
}

listed() { runc exec "$1" nvidia-smi --query-gpu=uuid --format=csv,noheader | sort | xargs; }
# given WHO WANTED...: every client must show exactly these GPUs in the container.
given() {
	local who=$1 nodes
	shift
	check "$who: nvidia-smi lists $*" "[ \"\$(listed $who)\" = \"\$(printf '%s\n' $* | sort | xargs)\" ]"
	nodes=$(runc exec "$who" sh -c 'ls /dev | grep -c "^nvidia[0-9]"')
	check "$who: as many device nodes" "[ '$nodes' = $# ]"
	check "$who: as many folders in /proc/driver/nvidia/gpus" \
		"[ \"\$(runc exec $who ls /proc/driver/nvidia/gpus | wc -l)\" = $# ]"
	check "$who: CUDA counts as many" \
		"[ \"\$(runc exec $who $python -c 'import torch; print(torch.cuda.device_count())')\" = $# ]"
}
# asks NAME WORD MODE: starts a container whose environment requests a GPU by this value.
asks() {
	configuration "$3"
	rm -rf "$1"
	writable=
	[ "$3" = legacy ] && writable=yes
	bundle "$1" "NVIDIA_VISIBLE_DEVICES=$2" NVIDIA_DRIVER_CAPABILITIES=compute,utility
	show nvidia-container-runtime create --bundle "$1" "$1" </dev/null >"$1.out"
	cat "$1.out"
}
gone() { nvidia-container-runtime delete --force "$1" >/dev/null 2>&1; }

headline "this machine"
show uname -r
show cat /proc/driver/nvidia/version
show nvidia-smi -L
show nvidia-smi topo -m

# Restores the host's own CDI file on exit.
[ -e /etc/cdi/nvidia.yaml ] && cp -a /etc/cdi/nvidia.yaml cdi.before
trap 'if [ -e "$work/cdi.before" ]; then cp -a "$work/cdi.before" /etc/cdi/nvidia.yaml; else rm -f /etc/cdi/nvidia.yaml; fi' EXIT

headline "1. one word for each way to ask"
show nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
show nvidia-ctk cdi list
for mode in jit-cdi legacy cdi; do
	number=0
	for word in 0 1 0,1 1,0 all "${uuids[0]}" "${uuids[1]}" "${uuids[1]},${uuids[0]}"; do
		case $word in
		all | *,*) wanted="${uuids[*]}" ;;
		*0 | 0) wanted=${uuids[0]} ;;
		*) wanted=${uuids[1]} ;;
		esac
		[ "$word" = "${uuids[0]}" ] && wanted=${uuids[0]}
		[ "$word" = "${uuids[1]}" ] && wanted=${uuids[1]}
		number=$((number + 1))
		asks "$mode-$number" "$word" $mode
		show runc start "$mode-$number"
		# shellcheck disable=SC2086
		given "$mode-$number" $wanted
		gone "$mode-$number"
	done
	for word in 2 0,2 GPU-00000000-0000-0000-0000-000000000000; do
		asks "$mode-no" "$word" $mode
		check "$mode: $word is refused, and nothing is left" "! runc state $mode-no >/dev/null 2>&1"
		gone "$mode-no"
	done
done

headline "2. NCCL over both in one container"
cat >both.py <<'PY'
"""One process a GPU: an all-reduce over both must give the sum of the ranks."""
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world)
    x = torch.full((1 << 20,), float(rank + 1), device="cuda")
    for _ in range(50):
        y = x.clone()
        dist.all_reduce(y)
    torch.cuda.synchronize()
    print("rank", rank, "process", os.getpid(), "sum", y[0].item(), "right", bool((y == 3).all()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)
PY
for engine in none notify; do
	writable=
	[ $engine = notify ] && check "mpu up" "mpu up --engine notify || ! cat /run/mpu/notify/log"
	rm -rf nccl
	configuration jit-cdi
	bundle nccl NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NCCL_NVLS_ENABLE=0 \
		TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
	# NCCL and torch connect over the loopback, which is down in a network of the container's own.
	sed -i 's/, {"type": "network"}//' nccl/config.json
	start nccl
	echo "\$ runc exec nccl python both.py ($engine)"
	began=$(date +%s%N)
	runc exec nccl "$python" /gpu/both.py >"nccl.$engine" 2>&1
	echo "rc $?, $((($(date +%s%N) - began) / 1000000)) ms"
	tail -n 12 "nccl.$engine"
	check "$engine: both ranks have the right sum" "[ \$(grep -c 'right True' nccl.$engine) = 2 ]"
	gone nccl
done

headline "3. a tenant on each GPU and one on both: whose rows stand where"
for who in one two both; do
	rm -rf $who
	case $who in one) word=0 ;; two) word=1 ;; both) word=all ;; esac
	bundle $who NVIDIA_VISIBLE_DEVICES=$word NVIDIA_DRIVER_CAPABILITIES=compute,utility
	start $who
done
train one.out runc exec one "$python" /gpu/train.py 60 256
one=$trained
train two.out runc exec two "$python" /gpu/train.py 60 512
two=$trained
train both.out runc exec --env CUDA_VISIBLE_DEVICES=1 both "$python" /gpu/train.py 60 1024
both=$trained
rows() { runc exec "$1" nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader | tr -d , | sort | xargs; }
for who in one two both; do show runc exec $who nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv; done
check "one sees its process at GPU 0" "[ \"\$(rows one)\" = '${uuids[0]} $one' ]"
check "two sees its process at GPU 1" "[ \"\$(rows two)\" = '${uuids[1]} $two' ]"
check "both sees its process at GPU 1 and none at GPU 0" "[ \"\$(rows both)\" = '${uuids[1]} $both' ]"
show mpu ps
show mpu ps --gpu 0
show mpu ps --gpu 1
mpu ps --json >ps.json
check "mpu ps has one process at GPU 0 and two at GPU 1" \
	"[ \"\$($python -c 'import json; d = json.load(open(\"ps.json\")); print(sorted(p[\"gpu\"] for p in d[\"processes\"]))')\" = '[0, 1, 1]' ]"
show mpu ps --gpu 2
check "there is no GPU 2" "! mpu ps --gpu 2 >/dev/null 2>&1"
for who in one two both; do
	runc kill $who KILL
	gone $who
done
show mpu status
check "mpu down" "mpu down"

[ $failed = 0 ] && echo "all right"
exit $failed
