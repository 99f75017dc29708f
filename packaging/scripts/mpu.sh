# An engine of the running kernel that must go on, or go. Another project's module has no such file.
engine_is_up() { [ -e /sys/module/mpu/parameters/state ] || [ -e /sys/module/mpu_next/parameters/state ] || [ -S /run/mpu/notify/control.sock ]; }

# Builds the module, and starts the engine; over an older version ($1), lets it take over without a gap.
engine_starts() {
    # A kernel without headers here is no reason to fail: `mpu up` says what is missing when it is asked to start.
    if [ -d /usr/src/mpu-@VERSION@ ]; then
        module_is_built "$1" || echo "mpu: DKMS has not built the module for every kernel with headers" >&2
    fi
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
        udevadm control --reload 2>/dev/null || true
        # An engine that is up goes on until the new one has taken over.
        if kernel_is_ours && engine_is_up; then
            mpu up --replace || true
        fi
        # Only those that run: it is the administrator who has them started.
        systemctl --quiet try-restart mpu-nri.service mpu-metrics.service || true
        unit_starts mpu.service || echo "mpu: it is not up: \`mpu doctor\` or \`journalctl -u mpu\` says why" >&2
    fi
}

# Fails where the engine is held: a package that goes then would leave it without the program that takes it down.
engine_stops() {
    if systemd_runs; then
        units_stop mpu-metrics.service mpu-nri.service mpu.service || true
    fi
    ! kernel_is_ours || mpu down --wait 30 >/dev/null
}

module_goes() { dkms remove -m mpu -v @VERSION@ --all >/dev/null 2>&1 || true; }

nothing_is_left() {
    # `mpu install` keeps its own record there.
    for name in /var/lib/mpu/*; do
        [ "$name" = /var/lib/mpu/install.json ] || rm -rf "$name"
    done
    rmdir /var/lib/mpu 2>/dev/null || true
    # The machine's own /run may be mounted in a chroot.
    kernel_is_ours || return 0
    # Agents and NRI plugins in pods live on without this package, and have their names there.
    rmdir /run/mpu/agents /run/mpu/nri 2>/dev/null || true
    # The notify engine may still be there, for the containers that have its filter; it ends with the last of them. What an
    # agent has brought up is recorded beside it.
    if [ -S /run/mpu/notify/control.sock ] || [ -d /run/mpu/agents ]; then
        return 0
    fi
    for name in /run/mpu/*; do
        [ "$name" = /run/mpu/nri ] || rm -rf "$name"
    done
    rmdir /run/mpu 2>/dev/null || true
}

units_are_read_anew() {
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
    fi
}
