//! The commands that make this kernel accept the module.

use super::keys::{DKMS_KEY, Enrolled, Key, MPU_KEY};
use super::signer::{digest, is_signed, tool};
use mpu_host::host::Host;
use std::path::Path;

/// Note on a key's import: the firmware asks for confirmation once, on its own screen.
const IMPORT_NOTE: &str = "# asks for a password; then reboot, choose `Enroll MOK`, give the password";

/// The commands for a module that this kernel accepts. `refused` is the module at hand, if it is unsigned, or signed with a key that
/// the kernel does not trust.
pub fn advice(host: &Host, release: &str, refused: Option<&Path>) -> String {
    let Some(key) = Key::find(host) else { return key_creation_commands(host) };
    let Some(tool) = tool(host, release) else {
        return format!("{}   # has the tool that signs; then `mpu up`", host.headers_hint(release));
    };
    let Key { private, certificate } = &key;
    let enrolled = key.enrolled(host);
    let enrol = (enrolled != Enrolled::Yes).then(|| format!("mokutil --import {certificate}   {IMPORT_NOTE}"));
    // A signed module was probably signed with the key that is to be enrolled.
    let sign = refused.filter(|module| !is_signed(module) || enrolled == Enrolled::Yes).map(|module| {
        if is_from_dkms(host, module) {
            let what = format!("mpu/{} -k {release}", env!("CARGO_PKG_VERSION"));
            return format!("dkms build --force {what} && dkms install --force {what}");
        }
        let call = format!("{} {} {private} {certificate}", tool.display(), digest(host, release));
        let twins = ["mpu.ko", "mpu_next.ko"].map(|name| module.with_file_name(name));
        let others = twins.iter().filter(|twin| *twin != module && twin.is_file()).map(|twin| twin.as_path());
        let calls = std::iter::once(module).chain(others).map(|file| format!("{call} {}", file.display()));
        calls.collect::<Vec<_>>().join(" && ")
    });
    match (sign, enrol) {
        (Some(sign), Some(enrol)) => format!("{sign} && {enrol}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "mpu up   # signs what it builds".to_string(),
    }
}

/// Whether the module is DKMS's, which may be packed; the file may be an unpacked copy.
fn is_from_dkms(host: &Host, module: &Path) -> bool {
    let copy = module.parent().is_some_and(|folder| folder.ends_with("installed"));
    module.starts_with(host.at("/lib/modules")) || copy && module.starts_with(host.at("/var/lib/mpu"))
}

/// The commands that make a key. DKMS's place comes first, as DKMS then signs with the same key. An existing half of a pair is never
/// overwritten: it may be enrolled, or sign other modules.
fn key_creation_commands(host: &Host) -> String {
    if !host.at("/sys/firmware/efi").is_dir() {
        return "run `mpu up --build-only`, sign the module it names with a key that this kernel trusts, then \
                `mpu up --module FILE.ko`; this host has no EFI firmware that could take a new key"
            .to_string();
    }
    let is_there = |path: &str| host.at(path).exists();
    let Some((key, certificate)) = [DKMS_KEY, MPU_KEY].into_iter().find(|(_, certificate)| !is_there(certificate))
    else {
        return format!(
            "put the private key of {} at {}, or that of {} at {}",
            MPU_KEY.1, MPU_KEY.0, DKMS_KEY.1, DKMS_KEY.0
        );
    };
    let folder = Path::new(key).parent().unwrap_or(Path::new("/"));
    let folder = match host.at(folder).is_dir() {
        true => String::new(),
        false => format!("mkdir -p {} && ", folder.display()),
    };
    let make = match is_there(key) {
        true => format!("-key {key}"),
        false => format!("-newkey rsa:2048 -nodes -keyout {key}"),
    };
    let signers = if key == DKMS_KEY.0 { "MPU and DKMS sign" } else { "MPU signs" };
    format!(
        "{folder}openssl req -new -x509 -days 36500 -subj '/CN=module signing key/' {make} -outform DER -out {certificate} && \
         mokutil --import {certificate}   {IMPORT_NOTE}; {signers} with it from then on"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::{FakeHost, RELEASE};
    use std::fs;

    const LIST: &str = "/sys/firmware/efi/mok-variables/MokListRT";

    #[test]
    fn signing_advice_follows_host_state() {
        let fake = FakeHost::in_order();
        let advise = |refused: Option<&Path>| advice(&fake.host(), RELEASE, refused);
        assert!(advise(None).contains("--build-only"), "{}", advise(None));
        fake.write(LIST, "");
        assert!(advise(None).starts_with("mkdir -p /var/lib/dkms && openssl req"), "{}", advise(None));
        fake.write("/var/lib/dkms/mok.key", "private");
        let half = advise(None);
        assert!(half.contains("openssl req") && half.contains("mokutil --import /var/lib/dkms/mok.pub"), "{half}");
        assert!(half.contains("-key /var/lib/dkms/mok.key") && !half.contains("-keyout"), "the key stays: {half}");

        fake.write("/var/lib/dkms/mok.pub", "");
        fs::write(fake.host().at("/var/lib/dkms/mok.pub"), [0x30, 0x82, 1]).expect("a certificate");
        assert!(advise(None).starts_with("apt-get install linux-headers-"), "{}", advise(None));
        fake.tool("kmodsign", "exit 0");
        assert!(advise(None).starts_with("mokutil --import /var/lib/dkms/mok.pub"), "{}", advise(None));

        fake.write("/m/mpu.ko", "module");
        fake.write("/m/mpu_next.ko", "module");
        let module = fake.host().at("/m/mpu.ko");
        let both = advise(Some(&module));
        assert!(both.contains("kmodsign sha512 /var/lib/dkms/mok.key") && both.contains("mpu_next.ko"), "{both}");
        assert!(both.contains("&& mokutil --import"), "{both}");

        fs::write(fake.host().at(LIST), [9, 0x30, 0x82, 1]).expect("a list");
        assert!(advise(None).starts_with("mpu up"), "{}", advise(None));
        assert!(!advise(Some(&module)).contains("mokutil"), "{}", advise(Some(&module)));
        let built = fake.host().at(format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko"));
        assert!(advise(Some(&built)).starts_with("dkms build --force mpu/"), "{}", advise(Some(&built)));
    }

    #[test]
    fn key_advice_never_overwrites_half_pair() {
        let fake = FakeHost::in_order();
        fake.write(LIST, "");
        let advise = || advice(&fake.host(), RELEASE, None);
        let writes =
            |file: &str| advise().contains(&format!("-keyout {file} ")) || advise().contains(&format!("-out {file} "));
        // The administrator keeps the private key elsewhere.
        fake.write("/var/lib/dkms/mok.pub", "certificate");
        assert!(!writes("/var/lib/dkms/mok.pub") && !writes("/var/lib/dkms/mok.key"), "{}", advise());
        assert!(writes("/etc/mpu/signing.key") && writes("/etc/mpu/signing.der"), "{}", advise());
        fake.write("/etc/mpu/signing.key", "private");
        assert!(!writes("/etc/mpu/signing.key") && writes("/etc/mpu/signing.der"), "{}", advise());
        fake.remove("/etc/mpu/signing.key");
        fake.write("/etc/mpu/signing.der", "certificate");
        assert!(!advise().contains("openssl") && advise().contains("private key"), "{}", advise());
    }

    #[test]
    fn advice_for_signed_module_is_key_enrolment() {
        let fake = FakeHost::in_order();
        fake.write("/var/lib/dkms/mok.key", "private");
        fake.write("/var/lib/dkms/mok.pub", "certificate");
        fake.tool("kmodsign", "exit 0");
        fake.write("/m/mpu.ko", "module~Module signature appended~\n");
        let advise = advice(&fake.host(), RELEASE, Some(&fake.host().at("/m/mpu.ko")));
        assert!(advise.starts_with("mokutil --import"), "{advise}");
    }
}
