"""Compares a container's samples with the host's: compare_samples.py HOST-FILE CONTAINER-FILE HOST-PID CONTAINER-PID

Each NVML client computes times and percentages from the driver's clock and cycles. Two clients on one host differ, too: by less than a
millisecond, and by 1 %.
"""

import sys

MICROSECONDS, PERCENT = 1000, 1


def rows(path, pid):
    lines = (line.split() for line in open(path))
    return [(int(words[1]), [int(word) for word in words[2:]]) for words in lines if words and words[0] == pid]


def is_equal(container, host):
    return all(abs(one - other) <= PERCENT for one, other in zip(container, host))


host, own = rows(sys.argv[1], sys.argv[3]), rows(sys.argv[2], sys.argv[4])
found = [(used, [on_host for then, on_host in host if abs(then - at) < MICROSECONDS]) for at, used in own]
shared = [(used, on_host) for used, on_host in found if on_host]
others = [(used, on_host) for used, on_host in shared if not any(is_equal(used, one) for one in on_host)]
equal = len(shared) - len(others)
print(f"{len(shared)} samples of a moment that the host has, too; {equal} of them the same")
for used, on_host in others:
    print(f"{used} in the container, {on_host} on the host")
sys.exit(0 if shared and equal == len(shared) else 1)
