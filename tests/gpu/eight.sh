#!/bin/bash
# The exporter's memory figures on a real GPU, with eight containers. Four end while it is scraped, and two hide that they use the
# driver. At each scrape, their memory and the residue add up to the GPU's. Over the whole time, they agree with nvidia-smi, which is
# read once a second, within 1 % of the GPU's memory.
#
#   sudo tests/gpu/eight.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER [WORK-FOLDER]
#
# Needs: an NVIDIA GPU with its driver and about 20 GiB free, runc, Python, root; no engine. Takes two to three minutes (SECONDS_LONG
# is the time of the scrapes, at least 60: fewer than ten scrapes prove nothing). Ends with 1 if an answer is wrong.
here=$(dirname "$(readlink -f "$0")")
# Containers get the folder three levels above this program: /usr has all that they need.
: "${PYTHON:=/usr/local/bin/python3}"
. "$here/common.sh"
long=${SECONDS_LONG:-120} every=5 port=19568
[ "$long" -ge 60 ] || { echo "SECONDS_LONG is $long: give 60 or more" >&2; exit 64; }
rm -f scrape.* smi.csv t?.out t?.held t?.end
page() {
	exec 7<>"/dev/tcp/127.0.0.1/$port" || return 1
	printf 'GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n' >&7
	sed '1,/^\r$/d' <&7
	exec 7>&-
}
# rows METRIC FILE: container and figure of GPU 0; the container is "-" where the metric has none or it is the host.
rows() {
	awk -v metric="$1{" 'index($0, metric) == 1 && /[{,]gpu="0"/ {
		who = "-"
		if (match($0, /[{,]container="[^"]+"/)) { who = substr($0, RSTART, RLENGTH); gsub(/.*="|"$/, "", who) }
		print who, $NF
	}' "$2"
}
# sum METRIC FILE: the sum of the rows, as a whole number.
sum() { rows "$1" "$2" | awk '{ s += $2 } END { printf "%.0f\n", s }'; }
# tenant METRIC NAME FILE: one container's figure.
tenant() { rows "$1" "$3" | awk -v who="$2" '$1 == who { printf "%.0f\n", $2 }'; }
true_that() { awk "BEGIN { exit !($1) }"; }
clean() {
	for task in $exporter $sampler; do kill "$task" 2>/dev/null; done
	for i in 1 2 3 4 5 6 7 8; do runc delete --force "t$i" 2>/dev/null; done
}
exporter='' sampler=''
trap clean EXIT

headline "this machine"
show cat /proc/driver/nvidia/version
show mpu --version
show nvidia-smi --query-gpu=name,memory.total,memory.used,accounting.mode --format=csv -i 0

headline "1. the exporter, before any container of ours"
mpu metrics --listen "127.0.0.1:$port" 2>exporter.log &
exporter=$!
for _ in $(seq 50); do
	page >scrape.0 2>/dev/null && grep -q mpu_gpu_memory_residue_bytes scrape.0 && break
	sleep 0.2
done
size=$(sum mpu_gpu_memory_size_bytes scrape.0)
before=$(sum mpu_gpu_memory_residue_bytes scrape.0)
show sh -c 'grep "^mpu_gpu_.*memory" scrape.0'
check "it tells of the GPU's memory" "[ '${size:-0}' -gt 0 ]"

headline "2. eight containers: two end after a third of the time, two after two thirds; two hide"
hidden=([7]=threads [8]=nodes)
nvidia-smi --query-gpu=timestamp,memory.used --format=csv,noheader,nounits -i 0 -l 1 >smi.csv &
sampler=$!
began=$(date +%s)
ends() { case $1 in 1 | 2) echo $((long / 3)) ;; 3 | 4) echo $((long * 2 / 3)) ;; *) echo $((long * 2)) ;; esac; }
for i in 1 2 3 4 5 6 7 8; do
	bundle "t$i" NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
	start "t$i" >"t$i.out" 2>&1
	{
		runc exec "t$i" "$python" /gpu/holders.py use $((i * 512)) "$(ends "$i")" ${hidden[i]-} >"t$i.held" 2>&1
		date +%s >"t$i.end"
	} &
done
for _ in $(seq 100); do
	[ "$(cat t?.held | grep -c '^process')" = 8 ] && break
	sleep 0.2
done
show sh -c 'cat t?.held | sort | uniq -c | head'
check "all eight have their memory" "[ \"\$(cat t?.held | grep -c '^process')\" = 8 ]"
show mpu ps

headline "3. scrapes every $every s, for $long s"
scrapes=0 first='' last='' half=''
while [ $(($(date +%s) - began)) -lt "$long" ]; do
	scrapes=$((scrapes + 1))
	page >"scrape.$scrapes"
	last=scrape.$scrapes ended_at=$(date +%s)
	[ -z "$first" ] && first=$last first_at=$ended_at
	[ $((ended_at - began)) -ge $((long / 2)) ] && [ -z "$half" ] && half=$last
	sleep "$every"
done
kill "$sampler"
exact=0 largest=$before residue=0
for file in $(seq -f 'scrape.%g' "$scrapes"); do
	theirs=$(sum mpu_gpu_memory_used_bytes "$file") unowned=$(sum mpu_gpu_memory_residue_bytes "$file")
	[ $((theirs + unowned)) = "$(sum mpu_gpu_device_memory_used_bytes "$file")" ] && exact=$((exact + 1))
	[ "${unowned#-}" -gt "${largest#-}" ] && largest=$unowned
	residue=$((residue + unowned))
done
residue=$((residue / scrapes))
check "containers and residue are the GPU's memory, to the byte, in $exact of $scrapes scrapes" \
	"[ $exact = $scrapes ] && [ $scrapes -ge 10 ]"
check "the residue was $before bytes before, and at most $largest: within 1 % of $size" "true_that '(${largest#-}) <= $size / 100'"
check "no PID is a label" "! grep -q 'pid=\"' $last"

headline "4. each container's memory, and those that ended"
for i in 1 2 3 4 5 6 7 8; do
	has=$(tenant mpu_gpu_memory_used_bytes "t$i" "$first")
	check "t$i: ${has:-nothing}, which is its $((i * 512)) MiB and a context" \
		"true_that '${has:-0} >= $((i * 512)) * 2^20 && ${has:-0} <= $((i * 512 + 1024)) * 2^20'"
	ended=$(tenant mpu_gpu_processes_ended_total "t$i" "$last")
	check "t$i: ended ${ended:-unknown}" "[ '$ended' = $([ "$i" -le 4 ] && echo 1 || echo 0) ]"
	lived=$(($(cat "t$i.end" 2>/dev/null || echo "$ended_at") - first_at))
	used=$(tenant mpu_gpu_memory_used_byte_seconds_total "t$i" "$last")
	# From the first scrape to its end. The tolerance is the time between two scrapes, and that of the scrapes.
	check "t$i: $(awk "BEGIN { printf \"%.0f\", ${used:-0} / ${has:-1} }") s of its memory, of about $lived" \
		"true_that '${used:-0} >= ${has:-1} * ($lived - 5) && ${used:-0} <= ${has:-1} * ($lived + $every + 5)'"
done
check "half of the way two had ended, and their rows of memory with them" \
	"[ -z \"\$(tenant mpu_gpu_memory_used_bytes t1 $half)\" ] && [ -n \"\$(tenant mpu_gpu_memory_used_bytes t3 $half)\" ]"

headline "5. over the whole time, beside nvidia-smi once a second"
# The mean of nvidia-smi's figures, in MiB, from the first scrape to the last, by their own timestamps.
smi=$(awk -F', ' -v from="$(date -d "@$first_at" '+%Y/%m/%d %H:%M:%S')" -v to="$(date -d "@$ended_at" '+%Y/%m/%d %H:%M:%S')" \
	'$1 >= from && $1 < to { s += $2; n++ } END { if (n) printf "%.0f\n", s / n * 2^20 }' smi.csv)
observed() { rows mpu_gpu_observed_seconds_total "$1" | awk '{ printf "%s\n", $2 }'; }
seconds=$(awk "BEGIN { printf \"%.3f\", $(observed "$last") - $(observed "$first") }")
# mean METRIC: its growth per second.
mean() { awk "BEGIN { printf \"%.0f\", ($(sum "$1" "$last") - $(sum "$1" "$first")) / ${seconds:-1} }"; }
whole=$(mean mpu_gpu_device_memory_used_byte_seconds_total)
theirs=$(mean mpu_gpu_memory_used_byte_seconds_total)
echo "mean bytes over $seconds s: nvidia-smi $smi, the GPU's row $whole, the processes' rows $theirs, the residue $residue"
awk "BEGIN { printf \"off by %.3f %% of the GPU's memory (%.2f %% of what was used); the processes alone by %.3f %%\n\",
	($whole - ${smi:-0}) * 100 / $size, ($whole - ${smi:-0}) * 100 / ${smi:-1}, ($theirs - ${smi:-0}) * 100 / $size }"
check "the GPU's row is nvidia-smi's within 1 % of its memory" "true_that '($whole - ${smi:-0})^2 <= ($size / 100)^2'"
check "so are the processes' rows and the residue" "true_that '($theirs + $residue - ${smi:-0})^2 <= ($size / 100)^2'"

headline "6. the exporter ends"
kill "$exporter" && wait "$exporter"
check "with 0" "[ $? = 0 ]"
exporter=
headline "$([ "$failed" = 0 ] && echo "all is right" || echo "something is WRONG")"
exit "$failed"
