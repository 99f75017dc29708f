# A driver that loads late or again, the boot, and a kernel update. Sourced by stories.sh.

log "the engine before the driver"
next=$(cat $here/next-kernel)

is_for() {
	modinfo -F vermagic /lib/modules/$1/updates/dkms/mpu.ko
	[ "$(modinfo -F vermagic /lib/modules/$1/updates/dkms/mpu.ko | cut -d' ' -f1)" = "$1" ]
}

no_module_is_left() {
	find /lib/modules/ /usr/lib/modules/ -name 'mpu*.ko*'
	[ -z "$(find /lib/modules/ /usr/lib/modules/ -name 'mpu*.ko*')" ]
}

check package_installs_without_a_driver dpkg -i $here/mpu.deb
check unit_is_up_without_a_driver systemctl is-active mpu
insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
holder=$!
container_start
right late_driver_is_translated

log "the driver again"
container_stop
kill $holder
wait $holder
check driver_unloads_under_the_engine rmmod nvidia
insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
container_start
right reloaded_driver_is_translated

log "boot"
systemctl stop mpu
wrong stopped_before_the_boot_target_is_wrong
systemctl start multi-user.target
# The target wants the unit. If the target is up already, `start` does not wait for the unit.
wait_for systemctl is-active --quiet mpu
right boot_target_starts_it

log "another kernel comes"
mkdir -p /lib/modules/$next
ln -s /usr/src/linux-headers-$next /lib/modules/$next/build
check kernel_update_begins_without_a_module not built_for $next
# The new kernel's header package runs this after unpacking.
run-parts --arg=$next /etc/kernel/header_postinst.d
check kernel_update_builds_by_itself built_for $next
check kernel_update_builds_for_that_kernel is_for $next
right kernel_update_leaves_the_running_one_alone
check package_purges_from_all_kernels dpkg --purge mpu
check purge_takes_every_kernels_module no_module_is_left
