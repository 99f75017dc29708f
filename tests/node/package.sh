# The package on a node: installed, upgraded, purged; sourced by stories.sh.

dkms_module_is_up() { mpu status && journalctl -u mpu --no-pager -o cat | grep updates/dkms/mpu.ko; }

new_module_runs() {
	cat /sys/module/mpu/version
	[ "$(cat /sys/module/mpu/version)" = "$(dpkg-query -W -f '${Version}' mpu)" ]
}

# Exit code 2, with a container's wrong view among the reasons.
doctor_finds_containers_broken() {
	$here/mpu doctor >/tmp/doctor
	rc=$?
	cat /tmp/doctor
	[ $rc -eq 2 ] && grep -q '^broken  containers: ' /tmp/doctor && grep -q 'fix: sudo mpu up' /tmp/doctor
}

# Nothing broken; this node has no kernel but the running one, and no libnvidia-ml where the doctor looks.
doctor_finds_nothing_broken() {
	mpu doctor >/tmp/doctor
	rc=$?
	cat /tmp/doctor
	[ $rc -lt 2 ] && grep -q '  ok         containers ' /tmp/doctor && grep -q '  ok         engine  ' /tmp/doctor
}

# The hardened unit is ready without a container engine, and reports that by systemctl and `mpu status`.
nri_unit_waits() {
	systemctl start mpu-nri
	systemctl show --property=StatusText,ActiveState,NRestarts mpu-nri | tee /tmp/nri
	mpu status | tee -a /tmp/nri
	systemctl stop mpu-nri
	grep -q '^ActiveState=active' /tmp/nri && grep -q '^NRestarts=0' /tmp/nri &&
		[ "$(grep -c 'waiting for a container engine at /var/run/nri/nri.sock' /tmp/nri)" -eq 2 ] && ! ls /run/mpu/nri/*.json
}

insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
container_start
depmod -a

log "a package's life"
wrong container_is_wrong_before_install
check doctor_calls_the_container_broken doctor_finds_containers_broken
snapshot >/tmp/before
check package_installs dpkg -i $here/mpu.deb
check package_builds_by_dkms built_for $release
check package_starts_its_unit unit_is_up
check package_brings_the_folder_for_modules ls -ld /usr/lib/mpu/modules
check unit_files_are_sound systemd-analyze --man=no verify mpu.service mpu-notify.service mpu-metrics.service mpu-nri.service
right package_makes_the_container_right
check package_is_up_by_status dkms_module_is_up
check doctor_finds_it_mended doctor_finds_nothing_broken
check metrics_unit_serves metrics_unit_answers
check nri_unit_is_ready_without_an_engine nri_unit_waits
systemctl stop mpu
wrong unit_stopped_is_wrong_again
systemctl start mpu
right unit_started_is_right_again

log "another version"
check_stays_right package_upgrade_loses_no_answer dpkg -i $here/mpu-next.deb
check package_upgrade_runs_the_new_module new_module_runs
right package_upgrade_is_right

log "purge"
check package_purges dpkg --purge mpu
check package_purge_unloads not test -d /sys/module/mpu
wrong purged_is_wrong_again
same package_purge_leaves_nothing /tmp/before
