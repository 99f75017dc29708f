# MPU beside another project's modules, by hand, interrupted, and with the notify engine. Sourced by stories.sh.

# The installation fails, names the step and a fix, and leaves no engine up.
install_fails_for_make() {
	$here/mpu install >/tmp/failed 2>&1
	rc=$?
	cat /tmp/failed
	[ $rc -eq 1 ] && grep 'dkms build' /tmp/failed && grep '^fix: ' /tmp/failed && ! [ -d /sys/module/mpu ] && ! [ -d /run/mpu/notify ]
}

install_plans_no_module() {
	$here/mpu install --dry-run >/tmp/planned
	cat /tmp/planned
	grep -q 'the notify engine is used' /tmp/planned && ! grep -q 'dkms build' /tmp/planned
}

foreign_stays() {
	for name in mpu mpu_next; do
		cat /sys/module/$name/initstate /sys/module/$name/version
		[ "$(cat /sys/module/$name/version)" = 0.1-pre ] && ! [ -e /sys/module/$name/parameters ] || return 1
	done
}
# names_foreign RC COMMAND…: ends with RC, and names the module, its file and the commands that remove it.
names_foreign() {
	rc=$1
	shift
	"$@" >/tmp/named 2>&1
	got=$?
	cat /tmp/named
	[ $got -eq "$rc" ] && grep -q 'an older MPU (matpool, lengrongfu or biubushy) is loaded as mpu and mpu_next' /tmp/named &&
		grep -q 'sudo rm /etc/modules-load.d/mpu.conf.* && sudo rmmod mpu && sudo rmmod mpu_next' /tmp/named && foreign_stays
}
down_leaves_foreign() { mpu down && foreign_stays; }
purge_leaves_foreign() { dpkg --purge mpu && foreign_stays; }
named_commands_remove_foreign() {
	$here/mpu status >/tmp/named
	sed -n 's/^  \(sudo rm .*\) && sudo mpu up.*/\1/p' /tmp/named | sed 's/sudo //g' >/tmp/remove
	cat /tmp/remove
	sh -ex /tmp/remove && ! [ -d /sys/module/mpu ] && ! [ -d /sys/module/mpu_next ]
}

install_changes_nothing() { $here/mpu install | grep 'nothing was changed'; }

mv $here/gcc-12 /usr/bin/gcc-12
insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
container_start
depmod -a
wrong container_is_wrong_at_first
snapshot >/tmp/before

log "another project's modules of our names"
mkdir /lib/modules/$release/extra
cp $here/foreign/mpu.ko /lib/modules/$release/extra/mpu.ko
echo mpu >/etc/modules-load.d/mpu.conf
depmod -a
modprobe mpu
insmod $here/foreign/mpu_next.ko
check foreign_modules_are_loaded foreign_stays
snapshot >/tmp/before.foreign
check foreign_package_installs dpkg -i $here/mpu.deb
hash -r
check foreign_up_is_refused names_foreign 4 mpu up --engine module
check foreign_up_takes_the_other_engine names_foreign 0 mpu up
check foreign_status_names_it names_foreign 0 mpu status
check foreign_doctor_names_it names_foreign 2 mpu doctor
check foreign_down_leaves_it down_leaves_foreign
check foreign_purge_leaves_it purge_leaves_foreign
hash -r
same foreign_purge_leaves_nothing_else /tmp/before.foreign
check foreign_commands_remove_it named_commands_remove_foreign
rmdir /lib/modules/$release/extra

log "by hand"
check install_installs $here/mpu install
hash -r # mpu is elsewhere now
right install_makes_the_container_right
check install_starts_its_unit unit_is_up
check install_twice_changes_nothing install_changes_nothing
check_stays_right upgrade_loses_no_answer $here/mpu-next upgrade
right upgrade_is_right
check uninstall_uninstalls mpu uninstall
wrong uninstalled_is_wrong_again
same uninstall_leaves_nothing /tmp/before

log "half-way"
# `install` knows beforehand that make is missing, and plans the notify engine. A failed build is a failure, without another engine.
mv /usr/bin/make /usr/bin/make.gone
check install_without_make_plans_notify install_plans_no_module
printf '#!/bin/sh\necho "No space left on device" >&2\nexit 2\n' >/usr/bin/make
chmod 755 /usr/bin/make
check failed_install_names_step_and_fix install_fails_for_make
mv /usr/bin/make.gone /usr/bin/make
same failed_install_leaves_the_node_unchanged /tmp/before
$here/mpu install >/tmp/output 2>&1 &
victim=$!
wait_for test -d /var/lib/dkms/mpu
kill -9 $victim
for name in dkms make gcc-12 cc1 as; do
	pkill -9 -x $name
done
for name in dkms make gcc-12 cc1 as; do
	wait_for not pgrep -x $name >/dev/null
done
check killed_install_leaves_a_journal test -f /var/lib/mpu/journal/undo.json
$here/mpu install >/tmp/output 2>&1
right install_after_killed_install_succeeds
mpu uninstall >/tmp/output 2>&1
same killed_install_leaves_nothing /tmp/before

log "a kernel that takes signed modules only"
mpu=$here/mpu
$mpu up --build-only >/tmp/output 2>&1
echo integrity >/sys/kernel/security/lockdown
refused lockdown_refuses_an_unsigned_module

log "the notify engine, where the kernel takes no module"
rm -rf /var/lib/mpu
snapshot >/tmp/before
has() { mpu status >/tmp/status; cat /tmp/status; grep -q "$1" /tmp/status; }
gone_on() { has '^state  *armed.* by 1 listeners'; }
notify_units_are_up() { systemctl is-active mpu mpu-notify && systemctl show -p NFileDescriptorStore mpu-notify; }
a_kill_is_survived() {
	old=$(systemctl show -p MainPID --value mpu-notify)
	kill -9 "$old"
	wait_for another_goes_on
}
another_goes_on() {
	new=$(systemctl show -p MainPID --value mpu-notify)
	[ "$new" != "$old" ] && [ "$new" != 0 ] && gone_on
}
metrics_name_the_notify_engine() {
	metrics_unit_answers && grep 'mpu_engine_state{engine="notify".*state="armed"} 1' /tmp/page && grep '^mpu_engine_containers.* 1' /tmp/page
}
# There is no wrapper here, and the first container runs without it. The doctor must find everything else in order.
doctor_knows_the_notify_engine() {
	mpu doctor >/tmp/doctor
	cat /tmp/doctor
	for row in 'ok  *engine  .*notify' 'ok  *notify_kernel' 'ok  *notify_socket' 'ok  *notify_keeper  .*mpu-notify.service'; do
		grep -q "^  $row" /tmp/doctor || return 1
	done
	grep -q '^attention  notify_wrapper' /tmp/doctor && grep -q '^attention  notify_unserved.*: process [0-9]*$' /tmp/doctor
}
# A restart is a stop, too. mpu.service allows both, and `mpu down` lets the containers end first.
unit_refuses_to_be_stopped() { ! systemctl stop mpu-notify && ! systemctl restart mpu-notify && gone_on; }
no_supervisor_is_left() {
	pgrep -af 'mpu notify'
	find /run/mpu
	# systemd makes the empty folders, which the next boot removes.
	! pgrep -f 'mpu notify' && [ -z "$(find /run/mpu ! -type d)" ]
}
restart_is_survived() { systemctl restart mpu && gone_on; }
check install_takes_the_notify_engine $here/mpu install
hash -r
check notify_units_come_up notify_units_are_up
supervised_start
check notify_container_is_right supervised_is_right
check notify_supervisor_did_it has 'GPU_GET_PIDS'
check notify_metrics_unit_serves metrics_name_the_notify_engine
check notify_doctor_finds_it_in_order doctor_knows_the_notify_engine
check notify_container_outlives_a_kill a_kill_is_survived
check notify_killed_is_right supervised_is_right
check notify_unit_is_not_stopped_by_mistake unit_refuses_to_be_stopped
check notify_restart_keeps_the_container restart_is_survived
check notify_restarted_is_right supervised_is_right
check notify_upgrade_upgrades $here/mpu-next upgrade
check notify_upgrade_keeps_the_container gone_on
check notify_upgrade_runs_the_new_one has 'engine  *notify, MPU 0.9.9'
check notify_upgraded_is_right supervised_is_right
check notify_uninstalls mpu uninstall
check notify_goes_on_for_its_container pgrep -f 'mpu notify serve'
supervised_stop
check notify_ends_with_its_container wait_for no_supervisor_is_left
same notify_uninstall_leaves_nothing /tmp/before

log "the same by package"
check notify_package_installs dpkg -i $here/mpu.deb
hash -r
check notify_package_starts_its_units notify_units_are_up
supervised_start
check notify_package_container_is_right supervised_is_right
check notify_package_upgrades dpkg -i $here/mpu-next.deb
check notify_package_upgrade_keeps_the_container gone_on
check notify_package_upgrade_runs_the_new_one has 'engine  *notify, MPU 0.9.9'
check notify_package_upgraded_is_right supervised_is_right
check notify_package_purges dpkg --purge mpu
check notify_package_purge_leaves_the_supervisor pgrep -f 'mpu notify serve'
supervised_stop
check notify_package_supervisor_ends wait_for no_supervisor_is_left
same notify_package_purge_leaves_nothing /tmp/before
