# Words of RPM's family. Distributions' macros for units differ, and Debian, where this is built, has none: so plain commands.

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

# For every kernel with headers: an older version's script has removed the modules of all of them, and in an image that
# is being built, the running kernel is another machine's. 77 says that dkms.conf leaves a kernel out.
module_is_built() {
    dkms add -m mpu -v @VERSION@ >/dev/null 2>&1 || true
    built=0
    failed=0
    for kernel in /lib/modules/*; do
        if ! [ -d "$kernel/build/include" ]; then
            continue
        elif dkms install -m mpu -v @VERSION@ -k "${kernel#/lib/modules/}" --force; then
            built=1
        elif [ $? != 77 ]; then
            failed=1
        fi
    done
    [ $built$failed = 10 ]
}

# Rules for the notify engine. A policy that has no such engines takes them, too, and they say nothing there. SELinux is off
# while an image is built, and on when that starts: so the policy is changed wherever it can be, and loaded only where it is in force.
policy_is_taken() {
    if command -v semodule >/dev/null; then
        semodule -n -X 200 -i /usr/share/selinux/packages/mpu.cil || echo "mpu: SELinux's policy has not taken mpu.cil" >&2
        policy_is_loaded
    fi
}

policy_is_as_before() {
    if command -v semodule >/dev/null; then
        semodule -n -X 200 -r mpu >/dev/null 2>&1 || true
        policy_is_loaded
    fi
}

policy_is_loaded() {
    if command -v selinuxenabled >/dev/null && selinuxenabled && kernel_is_ours; then
        load_policy || true
    fi
}

# In a transaction that has one variant replace the other (`dnf swap mpu mpu-nodkms`), scripts of the one that goes run after those
# of the one that comes: a note says so to them, and to the last script what they did. rpm's process is in it: a note of a
# transaction that was killed means nothing to the next. Under rpm-ostree each script has a /run of its own: nothing but the replacement,
# which does not happen there, may depend on the note.
variant_is() { echo "$PPID $1" >/run/mpu-variant || true; }
is_variant() { [ "$(cat /run/mpu-variant 2>/dev/null)" = "$PPID $1" ]; }
