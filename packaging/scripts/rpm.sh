# Words of RPM's family. Distributions' macros for units differ, and Debian, where this is built, has none: so plain commands.
systemd_runs() { [ -d /run/systemd/system ]; }

# As the presets say: ours is beside the unit, and an administrator's own comes before it.
unit_is_enabled_at_first() {
    ! command -v systemctl >/dev/null || systemctl --no-reload preset "$1" >/dev/null 2>&1 || true
}

unit_starts() { ! systemctl --quiet is-enabled "$1" 2>/dev/null || systemctl start "$1"; }
unit_restarts() { ! systemctl --quiet is-enabled "$1" 2>/dev/null || systemctl restart "$1"; }
units_stop() { systemctl stop "$@" 2>/dev/null; }

# Their links would outlive the package.
units_are_forgotten() {
    ! command -v systemctl >/dev/null || systemctl --no-reload disable "$@" >/dev/null 2>&1 || true
}

module_is_built() {
    dkms add -m mpu -v @VERSION@ >/dev/null 2>&1 || true
    dkms install -m mpu -v @VERSION@ --force
}

# Rules for the notify engine. A policy that has no such engines takes them, too, and they say nothing there.
policy_is_taken() {
    if command -v selinuxenabled >/dev/null && selinuxenabled && command -v semodule >/dev/null; then
        semodule -X 200 -i /usr/share/selinux/packages/mpu.cil || echo "mpu: SELinux's policy has not taken mpu.cil" >&2
    fi
}

policy_is_as_before() {
    if command -v selinuxenabled >/dev/null && selinuxenabled && command -v semodule >/dev/null; then
        semodule -X 200 -r mpu >/dev/null 2>&1 || true
    fi
}
