# The stories, in the order in which they are played; sourced by stories.sh.

insmod $here/nvidia.ko
gpu-hold --mem 300 &
container_start
depmod -a

say "a package's life"
wrong container_is_wrong_before_anything_is_installed
snapshot >/tmp/before
dpkg -i $here/mpu.deb >/tmp/dpkg 2>&1 || verdict package_installs fail "$(tail -n 4 /tmp/dpkg | tr '\n' ';')"
dkms status | grep -q "^mpu/.*$release.*installed" && verdict package_builds_by_dkms pass || verdict package_builds_by_dkms fail "$(dkms status; tail -n 3 /tmp/dpkg | tr '\n' ';')"
systemctl is-active --quiet mpu && systemctl is-enabled --quiet mpu && verdict package_starts_its_unit pass || verdict package_starts_its_unit fail "$(systemctl status mpu --no-pager | tail -n 4 | tr '\n' ';')"
right package_makes_the_container_right
mpu up | grep -q 'updates/dkms' || mpu status | grep -q armed && verdict package_is_up_by_status pass || verdict package_is_up_by_status fail "$(mpu status | head -n 3 | tr '\n' ';')"
systemctl stop mpu
wrong unit_stopped_is_wrong_again
systemctl start mpu
right unit_started_is_right_again

say "another version"
stays_right package_upgrade_loses_no_answer dpkg -i $here/mpu-next.deb
[ "$(cat /sys/module/mpu/version)" = "$(dpkg-query -W -f '${Version}' mpu)" ] && verdict package_upgrade_runs_the_new_module pass || verdict package_upgrade_runs_the_new_module fail "the module is $(cat /sys/module/mpu/version)"
right package_upgrade_is_right

say "purge"
dpkg --purge mpu >/tmp/dpkg 2>&1 || verdict package_purges fail "$(tail -n 4 /tmp/dpkg | tr '\n' ';')"
[ -d /sys/module/mpu ] && verdict package_purge_unloads fail "the module is still loaded" || verdict package_purge_unloads pass
wrong purged_is_wrong_again
same package_purge_leaves_nothing /tmp/before

say "by hand"
$here/mpu install >/tmp/said 2>&1 || verdict install_installs fail "$(tail -n 3 /tmp/said | tr '\n' ';')"
right install_makes_the_container_right
systemctl is-active --quiet mpu && verdict install_starts_its_unit pass || verdict install_starts_its_unit fail "$(systemctl status mpu --no-pager | tail -n 4 | tr '\n' ';')"
$here/mpu install | grep -q 'nothing was changed' && verdict install_twice_changes_nothing pass || verdict install_twice_changes_nothing fail "it did something"
stays_right upgrade_loses_no_answer $here/mpu-next upgrade
right upgrade_is_right
mpu uninstall >/tmp/said 2>&1 || verdict uninstall_uninstalls fail "$(tail -n 3 /tmp/said | tr '\n' ';')"
wrong uninstalled_is_wrong_again
same uninstall_leaves_nothing /tmp/before

say "half-way"
mv /usr/bin/make /usr/bin/make.gone
if $here/mpu install >/tmp/said 2>&1; then verdict a_failed_install_says_so fail "it succeeded without make"; else verdict a_failed_install_says_so pass "$(tail -n 2 /tmp/said | tr '\n' ';')"; fi
mv /usr/bin/make.gone /usr/bin/make
same a_failed_install_leaves_the_node_as_it_was /tmp/before
$here/mpu install >/tmp/said 2>&1 &
victim=$!
for _ in $(seq 200); do
	[ -d /var/lib/dkms/mpu ] && break
	sleep 0.1
done
kill -9 $victim
pkill -9 dkms
sleep 1
[ -f /var/lib/mpu/journal/log ] && verdict a_killed_install_is_half_way pass || verdict a_killed_install_is_half_way fail "there is no journal: it was killed too late, or too early"
$here/mpu install >/tmp/said 2>&1 && right an_install_after_a_killed_one_is_right || verdict an_install_after_a_killed_one_is_right fail "$(tail -n 3 /tmp/said | tr '\n' ';')"
mpu uninstall >/tmp/said 2>&1
same a_killed_install_leaves_nothing_in_the_end /tmp/before

say "a kernel that takes signed modules only"
$here/mpu up --build-only >/tmp/said 2>&1
echo integrity >/sys/kernel/security/lockdown
$here/mpu up >/tmp/said 2>&1
rc=$?
[ $rc -eq 4 ] && grep -q '^fix: ' /tmp/said && ! [ -d /sys/module/mpu ] && verdict lockdown_refuses_an_unsigned_module pass "$(head -n 1 /tmp/said)" || verdict lockdown_refuses_an_unsigned_module fail "exit code $rc: $(tail -n 2 /tmp/said | tr '\n' ';')"
