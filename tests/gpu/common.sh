# Functions that tests on a real GPU share: output, checks, and containers made of this host's programs. Sourced with the arguments
# PATH-TO-MPU, PATH-TO-MPU-CONTAINER and optionally WORK-FOLDER. Changes into the work folder.
set -u
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1
mpu=$(readlink -f "$1")
container=$(readlink -f "$2")
work=${3:-/run/mpu-gpu}
python=$(command -v "${PYTHON:-python3}") || { echo "${PYTHON:-python3} is missing: name it in PYTHON" >&2; exit 3; }
. "$here/toolkit.sh"

ln -sf "$mpu" bin/mpu
cp "$here"/*.py .
configuration jit-cdi

# shown BUNDLE FOLDER: prints the OCI mount of a host folder: a read-only bind mount; with $writable an overlay, as an engine makes
# over an image. Mode legacy creates its files there.
writable=
shown() {
	local layers=$work/$1/layers$2
	if [ -n "$writable" ]; then
		mkdir -p "$layers/upper" "$layers/work"
		printf '{"destination": "%s", "type": "overlay", "source": "overlay", "options": ["lowerdir=%s", "upperdir=%s", "workdir=%s"]}' \
			"$2" "$2" "$layers/upper" "$layers/work"
	else
		printf '{"destination": "%s", "type": "bind", "source": "%s", "options": ["rbind", "ro"]}' "$2" "$2"
	fi
}

# bundle NAME ENV...: writes a bundle with this host's programs and Python. Only ENV requests the driver.
bundle() {
	local name=$1
	shift
	mkdir -p "$name"/rootfs/{etc,proc,dev,tmp,usr/bin,usr/lib,usr/local,opt,gpu,py}
	ln -sfn usr/bin "$name/rootfs/bin"
	ln -sfn usr/lib "$name/rootfs/lib"
	ln -sfn usr/lib64 "$name/rootfs/lib64"
	mkdir -p "$name/rootfs/usr/lib64" "$name/rootfs$(dirname "$(dirname "$(dirname "$python")")")"
	env=$(printf ',"%s"' "$@")
	mounts=
	for folder in /usr/bin /usr/lib /usr/lib64 "$(dirname "$(dirname "$(dirname "$python")")")"; do
		# A distribution's own Python is in /usr.
		[ "$folder" != / ] || continue
		mounts="$mounts,$(shown "$name" "$folder")"
	done
	mounts="$mounts,{\"destination\": \"/gpu\", \"type\": \"bind\", \"source\": \"$work\", \"options\": [\"bind\", \"ro\"]}"
	[ -n "${PYTHONPATH-}" ] &&
		mounts="$mounts,{\"destination\": \"/py\", \"type\": \"bind\", \"source\": \"$PYTHONPATH\", \"options\": [\"bind\", \"ro\"]}"
	cat >"$name/config.json" <<JSON
{"ociVersion": "1.0.2", "hostname": "$name", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/usr/bin/sleep", "1000000"],
  "env": ["PATH=/usr/bin:/usr/local/nvidia/bin", "HOME=/tmp", "TERM=xterm", "PYTHONPATH=/py", "PYTHONDONTWRITEBYTECODE=1"$env],
  "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]}},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
  {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs"},
  {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}$mounts],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}],
  "resources": {"devices": [{"allow": false, "access": "rwm"}]}}}
JSON
}
# start NAME: starts it through our wrapper, which injects the GPU and, if the engine is up, the listener.
start() {
	show nvidia-container-runtime create --bundle "$1" "$1" </dev/null >"$1.out"
	cat "$1.out"
	show runc start "$1"
}

# train FILE COMMAND...: starts a GPU process. $trained is its PID in its own namespace.
train() {
	local file=$1
	shift
	"$@" >"$file" 2>&1 &
	for _ in $(seq 150); do
		grep -q ^process "$file" 2>/dev/null && break
		sleep 0.2
	done
	echo "\$ $* &"
	cat "$file"
	trained=$(sed -n 's/^process //p' "$file")
}
