# Starts the service that keeps the CDI description true. Engines are told of the runtime by their administrator:
# `nvidia-ctk runtime configure`.
service_starts() {
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
        unit_restarts mpu-cdi-refresh.service || true
    fi
}

# Before the program goes: its service, and the description that nobody would keep true any more.
service_stops() {
    if systemd_runs; then
        units_stop mpu-cdi-refresh.service || true
    fi
    # The machine's own /run may be mounted in a chroot.
    ! kernel_is_ours || mpu-container refresh --remove || true
}

# Before the program goes for good: an engine whose default runtime is not there starts no container. Docker reads its file again while
# containers run; the others do with their next start. A package that comes in place of this one brings the same names.
engines_are_left() {
    for engine in $(mpu-container leave); do
        if [ "$engine" = docker ] && systemd_runs && systemctl --quiet is-active docker.service; then
            systemctl reload docker.service || true
        fi
    done
}

units_are_read_anew() {
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
    fi
}
