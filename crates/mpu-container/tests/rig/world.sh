#!/bin/sh
# A prestart hook, before any of ours: shows the host's made-up /proc/driver in the container's new procfs, as the kernel does on a host
# whose driver is real. The container's state comes on standard input.
set -eu
state=$(cat)
pid=$(printf '%s' "$state" | jq -r .pid)
bundle=$(printf '%s' "$state" | jq -r .bundle)
# crun starts a prestart hook in the container's user namespace, where the bundle may be unreachable. Its state has the root's path.
root=$(printf '%s' "$state" | jq -r '.root // empty')
[ -n "$root" ] || root=$(jq -r .root.path "$bundle/config.json")
case $root in /*) ;; *) root=$bundle/$root ;; esac
[ -d /proc/driver/nvidia ] || exit 0
exec nsenter --target "$pid" --mount -- sh -eu -c '
    [ -d "$1/proc/driver" ] || exit 0
    mount -t tmpfs driver "$1/proc/driver"
    cp -a /proc/driver/. "$1/proc/driver/"
    mount -o remount,ro,bind "$1/proc/driver"' sh "$root"
