# Words of dpkg's family. What an administrator disabled stays disabled, also over a removal and a new installation.

unit_is_enabled_at_first() {
    command -v deb-systemd-helper >/dev/null || return 0
    deb-systemd-helper unmask "$1" >/dev/null || true
    if deb-systemd-helper --quiet was-enabled "$1"; then
        deb-systemd-helper enable "$1" >/dev/null || true
    else
        deb-systemd-helper update-state "$1" >/dev/null || true
    fi
}

unit_starts() { deb-systemd-invoke start "$1"; }
unit_restarts() { deb-systemd-invoke restart "$1"; }
units_stop() { deb-systemd-invoke stop "$@"; }

module_is_built() { /usr/lib/dkms/common.postinst mpu @VERSION@ /usr/share/mpu "" "$1"; }
