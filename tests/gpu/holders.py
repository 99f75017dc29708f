"""Holds the driver in one way, or finds the processes that hold it: holders.py hold KIND | use MIB SECONDS [HIDDEN] | find

`use` holds memory of the first GPU. HIDDEN makes its use of the driver hard to find in /proc: with `threads`, another thread uses it and
the first one has ended; with `nodes`, the device nodes are renamed.

`find` prints the PID of each process that has a node of the driver open or mapped. It compares device numbers, in the descriptor tables
of all threads.
"""

import array
import ctypes
import glob
import os
import socket
import stat
import sys
import threading
import time

NODE = "/dev/nvidiactl"
RENAMED = "/dev/other-name"
O_PATH = 0o10000000
CLONE_FILES = 0x400


def cuda(size=1 << 20):
    library, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    for wrong in (library.cuInit(0), library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                  library.cuCtxSetCurrent(context), library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size))):
        assert wrong == 0, f"CUDA returned {wrong}"


def mapped():
    cuda()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                os.close(int(fd))
        except OSError:
            pass


def renamed():
    os.mknod(RENAMED, stat.S_IFCHR | 0o600, os.stat(NODE).st_rdev)
    os.open(RENAMED, os.O_RDWR)
    os.unlink(RENAMED)


def send(to):
    node = os.open(NODE, os.O_RDWR)
    to.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [node]))])
    os.close(node)


def passed():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        send(theirs)
        os._exit(0)
    ours.recvmsg(1, socket.CMSG_SPACE(4))
    os.wait()


def waiting():
    sockets = socket.socketpair()
    send(sockets[0])
    return sockets


def thread_table():
    opened = threading.Event()

    def own_table():
        assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
        os.open(NODE, os.O_RDWR)
        opened.set()
        time.sleep(600)

    threading.Thread(target=own_table, daemon=True).start()
    assert opened.wait(10)


def use(mib, seconds, hidden=None):
    cuda(mib << 20)
    for number, node in enumerate(["nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-uvm-tools"] if hidden == "nodes" else []):
        # There may be no second GPU, and no uvm-tools.
        if number < 2 or os.path.exists(f"/dev/{node}"):
            os.rename(f"/dev/{node}", f"/dev/other-{number}")
    print("process", os.getpid(), flush=True)
    time.sleep(seconds)
    os._exit(0)


KINDS = {
    "control": lambda: os.open(NODE, os.O_RDWR),
    "gpu": lambda: os.open("/dev/nvidia0", os.O_RDWR),
    "uvm": lambda: os.open("/dev/nvidia-uvm", os.O_RDWR),
    "caps": lambda: os.open(sorted(glob.glob("/dev/nvidia-caps/nvidia-cap*"))[0], os.O_RDONLY),
    "renamed": renamed,
    "passed": passed,
    "thread_table": thread_table,
    "cuda": cuda,
    "mapped": mapped,
    # /proc shows neither of these two: a path, and a descriptor in a socket's queue.
    "path": lambda: os.open(NODE, O_PATH),
    "waiting": waiting,
}


def holds(pid, majors):
    for fd in glob.glob(f"/proc/{pid}/task/*/fd/*"):
        try:
            node = os.stat(fd)
            flags = open(fd.replace("/fd/", "/fdinfo/")).read().split("flags:")[1].split()[0]
        except (OSError, IndexError):
            continue
        if stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) in majors and not int(flags, 8) & O_PATH:
            return True
    try:
        return any(line.split(None, 5)[5:][:1] and line.split(None, 5)[5].startswith("/dev/nvidia")
                   for line in open(f"/proc/{pid}/maps"))
    except OSError:
        return False


if sys.argv[1] == "find":
    rows = [line.split() for line in open("/proc/devices").read().split("Block devices:")[0].splitlines()]
    majors = {int(row[0]) for row in rows if len(row) == 2 and row[1].startswith("nvidia")}
    print(*[pid for pid in sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit()) if holds(pid, majors)])
elif sys.argv[1] == "use":
    words = int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    if "threads" in words:
        threading.Thread(target=use, args=words).start()
        # exit(2) on x86-64, of this thread alone
        ctypes.CDLL(None).syscall(60, 0)
    use(*words)
else:
    kept = KINDS[sys.argv[2]]()
    print("holds", sys.argv[2], os.getpid(), flush=True)
    time.sleep(600)
