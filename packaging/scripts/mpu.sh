# Builds the module, and starts the engine; over an older version ($1), lets it take over without a gap.
engine_starts() {
    # A kernel without headers here is no reason to fail: `mpu up` says what is missing when it is asked to start.
    if [ -d /usr/src/mpu-@VERSION@ ]; then
        module_is_built "$1" || echo "mpu: DKMS has built no module: see above" >&2
    fi
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
        udevadm control --reload 2>/dev/null || true
        # An engine that is up goes on until the new one has taken over.
        if [ -d /sys/module/mpu ] || [ -d /sys/module/mpu_next ] || [ -S /run/mpu/notify/control.sock ]; then
            mpu up --replace || true
        fi
        # Only one that runs: it is the administrator who has it started.
        systemctl --quiet try-restart mpu-nri.service || true
        unit_starts mpu.service || echo "mpu: it is not up: \`mpu doctor\` or \`journalctl -u mpu\` says why" >&2
    fi
}

engine_stops() {
    if systemd_runs; then
        units_stop mpu-metrics.service mpu-nri.service mpu.service || true
    fi
    mpu down --wait 30 >/dev/null
}

module_goes() { dkms remove -m mpu -v @VERSION@ --all >/dev/null 2>&1 || true; }

nothing_is_left() {
    rm -rf /var/lib/mpu
    # The notify engine may still be there, for the containers that have its filter; it ends with the last of them.
    [ -S /run/mpu/notify/control.sock ] || rm -rf /run/mpu
}

units_are_read_anew() {
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
    fi
}
