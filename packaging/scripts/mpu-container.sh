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
    mpu-container refresh --remove || true
}

units_are_read_anew() {
    if systemd_runs; then
        systemctl --system daemon-reload >/dev/null || true
    fi
}
