# Under UEFI Secure Boot, with a machine owner's key that DKMS signs with; sourced by stories.sh.

ko=/lib/modules/$release/updates/dkms/mpu.ko
sign=/usr/lib/linux-kbuild-$(echo $release | cut -d. -f1-2)/scripts/sign-file

# Another signature, or none, on the modules that DKMS built.
resign() {
	for module in mpu mpu_next; do
		file=/tmp/signed/$module.ko
		# Appended: the signature, 12 bytes that end in its length, and 28 of a mark.
		length=$(tail -c 32 $file | od -An -tu4 -N4 --endian=big)
		head -c $(($(stat -c %s $file) - 40 - length)) $file >${ko%/*}/$module.ko
		[ "$1" = nobody ] || $sign sha256 $here/keys/$1.key $here/keys/$1.pem ${ko%/*}/$module.ko
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
said="$(dmesg | grep -i -e 'secure boot' -e 'locked down' | head -n 3 | cut -c1-120 | tr '\n' ';')"
check secure_boot_locks_the_kernel_down grep -q '\[integrity\]' /sys/kernel/security/lockdown
echo "node: $said"
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
resign nobody
refused an_unsigned_module_is_refused
wrong unsigned_leaves_the_container_wrong
resign stranger
check the_strangers_signature_is_there signed_by stranger
refused a_module_signed_by_a_stranger_is_refused
# Only the kernel can judge a signature: the unit tries, and takes the engine that needs none.
systemctl start mpu
check the_strangers_module_leaves_the_notify_engine is_by_notify
supervised_start
check notify_container_is_right_under_secure_boot supervised_is_right
supervised_stop
systemctl stop mpu
resign owner
check signed_anew_starts systemctl start mpu
right signed_anew_is_right
