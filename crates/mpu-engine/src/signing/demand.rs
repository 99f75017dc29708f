//! Whether this kernel demands signed modules, and whether the firmware checked what it booted.
//!
//! Owns where both are told.

use mpu_host::host::{Host, Lockdown};

/// Whether the firmware checks what it boots: the UEFI specification's variable (section 3.3), four bytes of attributes
/// and then 0 or 1.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// shim's word that its owner switched validation off (`mokutil --disable-validation`): 1 after the attributes.
const VALIDATION_OFF: &str = "/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23";

/// Whether this host booted with Secure Boot; none where there is no EFI firmware to ask.
pub fn secure_boot(host: &Host) -> Option<bool> {
    let flag = |path: &str| host.bounded(path, 64).and_then(|bytes| bytes.get(4).copied());
    Some(flag(SECURE_BOOT)? == 1 && flag(VALIDATION_OFF) != Some(1))
}

/// Whether the kernel refuses unsigned modules. Secure Boot alone does not decide it: kernels lock themselves down under
/// it, or do not.
pub fn demanded(host: &Host) -> bool {
    host.lockdown() != Lockdown::None || host.enforces_signatures()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn secure_boot_is_what_the_firmware_and_shim_say() {
        let fake = FakeHost::in_order();
        let check = |variables: &[(&str, &str)], expect| {
            for (path, value) in variables {
                fake.write(path, value);
            }
            assert_eq!(secure_boot(&fake.host()), expect, "{variables:?}");
        };
        check(&[], None);
        check(&[(SECURE_BOOT, "\x06\0\0")], None);
        check(&[(SECURE_BOOT, "\x06\0\0\0\x01")], Some(true));
        check(&[(VALIDATION_OFF, "\x06\0\0\0\0")], Some(true));
        check(&[(VALIDATION_OFF, "\x06\0\0\0\x01")], Some(false));
        check(&[(SECURE_BOOT, "\x06\0\0\0\0"), (VALIDATION_OFF, "")], Some(false));
    }

    #[test]
    fn lockdown_and_enforcement_demand_signatures_and_secure_boot_alone_does_not() {
        let fake = FakeHost::in_order();
        fake.write(SECURE_BOOT, "\x06\0\0\0\x01");
        assert!(!demanded(&fake.host()));
        fake.write("/sys/module/module/parameters/sig_enforce", "Y\n");
        assert!(demanded(&fake.host()));
        fake.write("/sys/module/module/parameters/sig_enforce", "N\n");
        fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        assert!(demanded(&fake.host()));
    }
}
