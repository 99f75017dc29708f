# What scripts of every family and package ask about where they run.
systemd_runs() { [ -d /run/systemd/system ]; }

# Whether the kernel that runs is this root's to change. In a container or a chroot it is not: there, /sys may show an engine that
# serves the machine on which an image is being built. The number is the first PID namespace's, on every kernel.
kernel_is_ours() {
    [ "$(readlink /proc/self/ns/pid)" = "pid:[4026531836]" ] && [ /proc/1/root -ef / ]
}
