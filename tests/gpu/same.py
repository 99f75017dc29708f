"""Whether a container's samples are the host's: same.py HOST-FILE CONTAINER-FILE HOST-PID CONTAINER-PID

NVML makes times and percentages anew in each client, out of the driver's own clock and cycles: those of two clients differ by less than a
millisecond, and by 1 %, on the host alone, too.
"""

import sys

MICROSECONDS, PERCENT = 1000, 1


def rows(path, pid):
    lines = (line.split() for line in open(path))
    return [(int(words[1]), [int(word) for word in words[2:]]) for words in lines if words and words[0] == pid]


def same(ours, theirs):
    return all(abs(one - other) <= PERCENT for one, other in zip(ours, theirs))


host, own = rows(sys.argv[1], sys.argv[3]), rows(sys.argv[2], sys.argv[4])
found = [(used, [there for then, there in host if abs(then - at) < MICROSECONDS]) for at, used in own]
shared = [(used, there) for used, there in found if there]
others = [(used, there) for used, there in shared if not any(same(used, one) for one in there)]
equal = len(shared) - len(others)
print(f"{len(shared)} samples of a moment that the host has, too; {equal} of them the same")
for used, there in others:
    print(f"{used} in the container, {there} on the host")
sys.exit(0 if shared and equal == len(shared) else 1)
