# Under UEFI Secure Boot, with a machine owner's key that DKMS signs with; sourced by stories.sh.

ko=/lib/modules/$release/updates/dkms/mpu.ko
sign=/usr/lib/linux-kbuild-$(echo $release | cut -d. -f1-2)/scripts/sign-file

# resign KEY|unsigned: replaces the signature of the modules that DKMS built.
resign() {
	for module in mpu mpu_next; do
		file=/tmp/signed/$module.ko
		# The file ends in the signature, 12 bytes that end in its length, and a mark of 28 bytes.
		length=$(tail -c 32 $file | od -An -tu4 -N4 --endian=big)
		head -c $(($(stat -c %s $file) - 40 - length)) $file >${ko%/*}/$module.ko
		[ "$1" = unsigned ] || $sign sha256 $here/keys/$1.key $here/keys/$1.pem ${ko%/*}/$module.ko
	done
}

signed_by() {
	modinfo -F signer $ko
	[ "$(modinfo -F signer $ko)" = "$1" ]
}

is_by_notify() {
	mpu status >/tmp/status
	cat /tmp/status
	grep -q '^engine  *notify' /tmp/status && systemctl is-active mpu mpu-notify && ! [ -d /sys/module/mpu ]
}

mount -t securityfs none /sys/kernel/security 2>/dev/null
state="$(dmesg | grep -i -e 'secure boot' -e 'locked down' | head -n 3 | cut -c1-120 | tr '\n' ';')"
check secure_boot_locks_the_kernel_down grep -q '\[integrity\]' /sys/kernel/security/lockdown
echo "node: $state"
check an_unsigned_driver_is_refused not insmod $here/nvidia-unsigned.ko
check a_driver_signed_by_the_owner_is_loaded insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
container_start
wrong secure_boot_container_is_wrong_before

mkdir -p /var/lib/dkms
cp $here/keys/owner.key /var/lib/dkms/mok.key
cp $here/keys/owner.der /var/lib/dkms/mok.pub
check secure_boot_package_installs dpkg -i $here/mpu.deb
check dkms_signs_with_the_owners_key signed_by owner
right signed_by_the_owner_is_right
systemctl stop mpu
wrong secure_boot_stopped_is_wrong_again

mkdir /tmp/signed && cp ${ko%/*}/mpu*.ko /tmp/signed
resign unsigned
refused an_unsigned_module_is_refused
wrong unsigned_leaves_the_container_wrong
resign unenrolled
check unenrolled_signature_is_present signed_by unenrolled
refused unenrolled_signed_module_is_refused
# Only the kernel can verify a signature: the unit tries the module, then starts the engine that needs none.
systemctl start mpu
check unenrolled_signed_module_leaves_notify is_by_notify
supervised_start
check notify_container_is_right_under_secure_boot supervised_is_right
supervised_stop
systemctl stop mpu
resign owner
check signed_anew_starts systemctl start mpu
right signed_anew_is_right

log "a node without headers and compiler"
mpu=$here/mpu
place() {
	rm -rf /usr/lib/mpu/modules
	mkdir -p /usr/lib/mpu/modules/$release
	cp $here/$1/*.ko /usr/lib/mpu/modules/$release/
}
is_by_the_prebuilt_module() {
	$mpu status >/tmp/status
	cat /tmp/status
	grep -q "^file .*/usr/lib/mpu/modules/$release/mpu.ko (built elsewhere)" /tmp/status
}
doctor_names_the_prebuilt_module() {
	$mpu doctor >/tmp/doctor
	cat /tmp/doctor
	grep -q 'ok  *module_file  */usr/lib/mpu/modules/.*built elsewhere' /tmp/doctor && grep -q 'ok  *headers  *not needed' /tmp/doctor
}
says_what_was_passed_over() { grep 'passed over: /usr/lib/mpu/modules/.*carries no signature' /tmp/unsigned; }
is_notify_by_hand() {
	$mpu up >/tmp/status
	cat /tmp/status
	grep -q '^engine  *notify' /tmp/status && ! [ -d /sys/module/mpu ] && $mpu down
}
systemctl stop mpu
dpkg --purge mpu >/dev/null 2>&1
rm -rf /var/lib/mpu /var/lib/dkms/mok.* /usr/bin/make /usr/bin/gcc* /lib/modules/$release/build /lib/modules/$release/updates
refused nothing_to_load_is_refused
place prebuilt-unsigned
refused an_unsigned_prebuilt_module_is_refused
cp /tmp/output /tmp/unsigned
check the_unsigned_prebuilt_module_is_named says_what_was_passed_over
check unsigned_prebuilt_module_leaves_notify is_notify_by_hand
wrong without_the_prebuilt_module_is_wrong
place prebuilt
chmod o+w /usr/lib/mpu/modules/$release/mpu.ko
refused writable_prebuilt_module_is_refused
chmod o-w /usr/lib/mpu/modules/$release/mpu.ko
check a_signed_prebuilt_module_is_loaded $mpu up --engine module
check status_names_the_prebuilt_module is_by_the_prebuilt_module
right signed_prebuilt_is_right
check doctor_is_content_with_the_prebuilt_module doctor_names_the_prebuilt_module
check the_prebuilt_module_goes $mpu down
wrong without_the_prebuilt_module_is_wrong_again
