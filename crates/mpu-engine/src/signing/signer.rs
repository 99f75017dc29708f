//! Signs a module with the kernel's own tool, if the kernel demands signatures.

use super::keys::{Key, PKCS11, has_pin};
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_host::host::{Host, Lockdown};
use mpu_os::child;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Whether Secure Boot is on: the UEFI specification's variable (section 3.3), four bytes of attributes and then 0 or 1.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// shim's flag that validation is off (`mokutil --disable-validation`): 1 after the attributes.
const VALIDATION_OFF: &str = "/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23";

/// Whether this host booted with Secure Boot; none without EFI firmware.
pub fn secure_boot(host: &Host) -> Option<bool> {
    let flag = |path: &str| host.bounded(path, 64).and_then(|bytes| bytes.get(4).copied());
    Some(flag(SECURE_BOOT)? == 1 && flag(VALIDATION_OFF) != Some(1))
}

/// Whether the kernel refuses unsigned modules. Secure Boot alone does not decide that: only some kernels lock down under it.
pub fn demanded(host: &Host) -> bool {
    host.lockdown() != Lockdown::None || host.enforces_signatures()
}

/// The kernel looks for this at the end of a signed module.
const SIGNATURE_MARK: &[u8] = b"~Module signature appended~\n";

#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("cannot run {}", tool.display())]
    Tool { tool: PathBuf, source: io::Error },
    #[error("the module cannot be signed with {private}: {line}")]
    Failed { private: String, certificate: String, line: String },
    #[error("cannot read {}", path.display())]
    Key { path: PathBuf, source: io::Error },
    #[error("the address of the signing key carries a PIN (pin-value)")]
    Pin,
    #[error("there is no program here that signs modules (sign-file, kmodsign)")]
    NoTool { hint: String },
}

impl Explain for SignError {
    fn facts(&self) -> Facts {
        let (code, fix) = match self {
            SignError::Tool { .. } => ("sign_tool_unusable", "reinstall the headers of this kernel".to_string()),
            SignError::Key { .. } => {
                ("sign_key_unreadable", "name a private key (or a pkcs11: address) and its certificate".to_string())
            }
            SignError::Pin => (
                "pin_in_address",
                "take pin-value out of the address: every user of this machine can read a command line; name a file that holds the \
                 PIN, with pin-source=file:FILE in the address, or in the file of the environment variable OPENSSL_CONF \
                 (docs/prebuilt.md has one)"
                    .to_string(),
            ),
            SignError::NoTool { hint } => ("no_sign_tool", hint.clone()),
            SignError::Failed { private, certificate, .. } => {
                let how = match private.starts_with(PKCS11) {
                    true => {
                        "name the token's library and PIN in the file of the environment variable OPENSSL_CONF \
                         (docs/prebuilt.md has one)"
                    }
                    false => "give the password of an encrypted key in the environment variable KBUILD_SIGN_PIN",
                };
                ("sign_failed", format!("check that {private} is the key of {certificate}; {how}"))
            }
        };
        (code, Exit::Failed, fix)
    }
}

/// Environment variables for the tool and the token's library: the token, and its password.
const TOKEN_VARIABLES: [&str; 5] =
    ["KBUILD_SIGN_PIN", "OPENSSL_CONF", "PKCS11_MODULE_PATH", "PKCS11_PROVIDER_MODULE", "SOFTHSM2_CONF"];

/// The limit for the tool: a network token may be slow, and a tool that waits for input is ended.
const SIGN_TIMEOUT: Duration = Duration::from_secs(120);

/// The limit for a program that prints its usage.
const USAGE_TIMEOUT: Duration = Duration::from_secs(10);

const MAX_OUTPUT: u64 = 1 << 20;

/// A tool and a key, for a kernel that demands signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    tool: PathBuf,
    digest: String,
    key: Key,
    private: PathBuf,
    certificate: PathBuf,
    identity: Vec<u8>,
    search_path: std::ffi::OsString,
    token_variables: Vec<(&'static str, OsString)>,
}

/// This process's environment variables for tokens and passwords.
fn token_variables() -> Vec<(&'static str, OsString)> {
    TOKEN_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))).collect()
}

impl Signer {
    /// The signer of modules built for a kernel; none if signatures are not demanded, or without a key or tool.
    pub fn find(host: &Host, release: &str) -> Option<Signer> {
        if !demanded(host) {
            return None;
        }
        let (key, tool, digest) = (Key::find(host)?, tool(host, release)?, digest(host, release));
        let private = match key.private.starts_with(PKCS11) {
            true => PathBuf::from(&key.private),
            false => host.at(&key.private),
        };
        let certificate = host.at(&key.certificate);
        let identity = [digest.as_bytes(), &key.certificate_bytes(host)].concat();
        let (search_path, token_variables) = (host.search_path(), token_variables());
        Some(Signer { tool, digest, key, private, certificate, identity, search_path, token_variables })
    }

    /// A signer with this key and the tool of these headers, independent of the running kernel.
    ///
    /// # Errors
    /// If the key or its certificate cannot be read, an address carries a PIN, or no tool signs.
    pub fn with_key(host: &Host, headers: &Path, release: &str, key: Key) -> Result<Signer, SignError> {
        // First, because all other messages name the key.
        if [&key.private, &key.certificate].into_iter().any(|name| has_pin(name)) {
            return Err(SignError::Pin);
        }
        let files = [&key.private, &key.certificate].into_iter().filter(|name| !name.starts_with(PKCS11));
        for path in files.map(PathBuf::from) {
            File::open(&path).map_err(|source| SignError::Key { path, source })?;
        }
        let of_headers = Some(headers.join("scripts/sign-file")).filter(|tool| tool.is_file() && can_run(tool));
        let of_host = || host.release().ok().and_then(|running| tool(host, &running));
        let Some(tool) = of_headers.or_else(|| tool(host, release)).or_else(of_host) else {
            return Err(SignError::NoTool { hint: host.headers_hint(release) });
        };
        let config = fs::read_to_string(headers.join(".config")).unwrap_or_default();
        let (private, certificate) = (PathBuf::from(&key.private), PathBuf::from(&key.certificate));
        let (digest, identity) = (digest_in(&config), Vec::new());
        let (search_path, token_variables) = (host.search_path(), token_variables());
        Ok(Signer { tool, digest, key, private, certificate, identity, search_path, token_variables })
    }

    /// Bytes that identify the signature.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    pub fn sign(&self, module: &Path) -> Result<(), SignError> {
        let mut command = Command::new(&self.tool);
        command.arg(&self.digest).arg(&self.private).arg(&self.certificate).arg(module);
        command.env_clear().env("PATH", &self.search_path).env("LC_ALL", "C").stdin(Stdio::null());
        command.envs(self.token_variables.iter().map(|(name, value)| (name, value)));
        let ended = child::run(&mut command, SIGN_TIMEOUT, MAX_OUTPUT);
        let ended = ended.map_err(|source| SignError::Tool { tool: self.tool.clone(), source })?;
        if ended.is_success() && is_signed(module) {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let line = match ended.status {
            None => format!("the tool did not end within {} s, or printed too much", SIGN_TIMEOUT.as_secs()),
            Some(_) => {
                let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
                lines.next().unwrap_or("the tool printed nothing").to_string()
            }
        };
        let Key { private, certificate } = self.key.clone();
        Err(SignError::Failed { private, certificate, line })
    }
}

/// Whether a module has a signature, of any key.
pub fn is_signed(module: &Path) -> bool {
    let mut end = Vec::new();
    let read = File::open(module).and_then(|mut file| {
        file.seek(SeekFrom::End(-(SIGNATURE_MARK.len() as i64)))?;
        file.read_to_end(&mut end)
    });
    read.is_ok() && end == SIGNATURE_MARK
}

pub fn has_signature(module: &[u8]) -> bool {
    module.ends_with(SIGNATURE_MARK)
}

/// The first tool that runs: the kernel's own `sign-file`, from its headers or from Debian's package of build programs, or Ubuntu's
/// `kmodsign`, with the same arguments. Headers older than the distribution may need libraries that are gone.
pub(super) fn tool(host: &Host, release: &str) -> Option<PathBuf> {
    let short: Vec<&str> = release.splitn(3, '.').take(2).collect();
    let places = [
        format!("/lib/modules/{release}/build/scripts/sign-file"),
        format!("/usr/lib/linux-kbuild-{}/scripts/sign-file", short.join(".")),
        "kmodsign".to_string(),
    ];
    places.iter().filter_map(|place| host.tool(place)).find(|tool| can_run(tool))
}

/// Whether a program can be started: without arguments, it prints its usage.
pub(crate) fn can_run(tool: &Path) -> bool {
    /// The exit code of loader and shell if something is missing.
    const NOT_FOUND: i32 = 127;
    let done = child::run(Command::new(tool).stdin(Stdio::null()), USAGE_TIMEOUT, MAX_OUTPUT);
    done.is_ok_and(|ended| ended.status.and_then(|status| status.code()).is_some_and(|code| code != NOT_FOUND))
}

/// The digest of the kernel's configuration: the kernel refuses one that it cannot compute.
pub(super) fn digest(host: &Host, release: &str) -> String {
    let in_headers = fs::read_to_string(host.at(format!("/lib/modules/{release}/build/.config"))).ok();
    let config = in_headers.or_else(|| host.kernel_config(release).map(|(_, text)| text)).unwrap_or_default();
    digest_in(&config)
}

fn digest_in(config: &str) -> String {
    let value = config.lines().find_map(|line| line.strip_prefix("CONFIG_MODULE_SIG_HASH="));
    value.map(|value| value.trim_matches('"')).filter(|value| !value.is_empty()).unwrap_or("sha512").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::{FakeHost, RELEASE};

    fn locked() -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        fake.write("/var/lib/dkms/mok.key", "private");
        fake.write("/var/lib/dkms/mok.pub", "certificate");
        fake
    }

    const SIGNS: &str =
        "[ $# = 4 ] || exit 2; echo \"$1 $2 $3\" >>\"$0.args\"; printf '~Module signature appended~\\n' >>\"$4\"";

    fn module(fake: &FakeHost) -> PathBuf {
        fake.write("/m.ko", "module");
        fake.host().at("/m.ko")
    }

    #[test]
    fn signer_takes_demand_key_and_tool() {
        let fake = locked();
        let found = || Signer::find(&fake.host(), RELEASE).is_some();
        assert!(!found(), "no tool");
        fake.tool("kmodsign", SIGNS);
        assert!(found());
        fake.remove("/var/lib/dkms/mok.key");
        assert!(!found(), "no key");
        fake.write("/var/lib/dkms/mok.key", "private");
        fake.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        assert!(!found(), "no demand");
    }

    #[test]
    fn signer_uses_kernels_tool_and_digest() {
        let fake = locked();
        fake.tool("kmodsign", SIGNS);
        for place in [String::from("/usr/lib/linux-kbuild-6.1"), format!("/lib/modules/{RELEASE}/build")] {
            let path = format!("{place}/scripts/sign-file");
            fake.program(&path, SIGNS);
            assert_eq!(tool(&fake.host(), RELEASE), Some(fake.host().at(&path)));
        }
        fake.program(&format!("/lib/modules/{RELEASE}/build/scripts/sign-file"), "exit 127");
        let next = fake.host().at("/usr/lib/linux-kbuild-6.1/scripts/sign-file");
        assert_eq!(tool(&fake.host(), RELEASE), Some(next), "the first does not run");
        assert_eq!(digest(&fake.host(), RELEASE), "sha512");
        fake.write(&format!("/lib/modules/{RELEASE}/build/.config"), "CONFIG_MODULE_SIG_HASH=\"sha256\"\n");
        assert_eq!(digest(&fake.host(), RELEASE), "sha256");
    }

    /// The kernel alone judges a signature: neither keys nor tools are needed.
    #[test]
    fn module_with_trailing_signature_mark_is_signed() {
        let fake = FakeHost::in_order();
        let with = |end: &[u8]| {
            let path = module(&fake);
            std::fs::write(&path, [b"module", b"\0no signature\xff".as_slice(), end].concat()).expect("a file");
            is_signed(&path)
        };
        assert!(with(SIGNATURE_MARK), "bytes that no kernel would take for a signature");
        assert!(!with(b"") && !with(&SIGNATURE_MARK[1..]) && !with(&[SIGNATURE_MARK, b"\n"].concat()));
    }

    #[test]
    fn tool_leaving_module_unsigned_fails() {
        let fake = locked();
        fake.tool("kmodsign", SIGNS);
        let path = module(&fake);
        Signer::find(&fake.host(), RELEASE).expect("a signer").sign(&path).expect("signed");
        assert!(is_signed(&path));
        let root = fake.dir.path().display();
        let expect = format!("sha512 {root}/var/lib/dkms/mok.key {root}/var/lib/dkms/mok.pub");
        assert_eq!(fake.host().text("/usr/bin/kmodsign.args"), Some(expect));

        for (body, stderr) in
            [("exit 0", "the tool printed nothing"), ("echo 'bad decrypt' >&2; exit 1", "bad decrypt")]
        {
            fake.tool("kmodsign", body);
            let path = module(&fake);
            let error = Signer::find(&fake.host(), RELEASE).expect("a signer").sign(&path).expect_err("unsigned");
            assert_eq!((error.code(), error.exit()), ("sign_failed", Exit::Failed));
            assert!(error.to_string().ends_with(stderr) && error.fix().contains("KBUILD_SIGN_PIN"), "{error}");
        }
    }

    /// The kernel's own `sign-file`, if this machine has headers of any kernel.
    fn real_tool() -> Option<PathBuf> {
        let folders =
            ["/usr/lib", "/lib/modules", "/usr/src"].map(fs::read_dir).into_iter().flatten().flatten().flatten();
        let tools =
            folders.flat_map(|dir| ["scripts/sign-file", "build/scripts/sign-file"].map(|t| dir.path().join(t)));
        let with_key = std::env::var_os("MPU_SIGN_FILE").map(PathBuf::from);
        with_key.into_iter().chain(tools).find(|tool| can_run(tool))
    }

    fn openssl(dir: &Path, arguments: &str) -> bool {
        let run = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).stderr(Stdio::null()).output();
        run.is_ok_and(|done| done.status.success())
    }

    #[test]
    fn sign_file_signature_verifies_with_openssl() {
        let Some(tool) = real_tool() else {
            return eprintln!("skipped: no kernel headers with sign-file, no MPU_SIGN_FILE");
        };
        if !openssl(Path::new("/"), "version") {
            return eprintln!("skipped: no openssl");
        }
        let fake = locked();
        let keys = fake.host().at("/var/lib/dkms");
        let pair = "req -new -x509 -newkey rsa:2048 -subj /CN=test -keyout mok.key -outform DER -out mok.pub";
        assert!(openssl(&keys, &format!("{pair} -nodes")));
        fake.link("/usr/bin/kmodsign", tool);
        let path = module(&fake);
        Signer::find(&fake.host(), RELEASE).expect("a signer").sign(&path).expect("signed");

        // The module, its signature, twelve bytes with the signature's length at the end, the mark.
        let bytes = fs::read(&path).expect("a module");
        let (rest, _) = bytes.split_at(bytes.len() - SIGNATURE_MARK.len());
        let (rest, trailer) = rest.split_at(rest.len() - 12);
        let length = u32::from_be_bytes(trailer[8..].try_into().expect("four bytes"));
        let (content, signature) = rest.split_at(rest.len() - length as usize);
        assert_eq!(content, b"module");
        fs::write(keys.join("signature"), signature).expect("written");
        assert!(openssl(&keys, "x509 -inform DER -in mok.pub -out mok.pem"));
        let verifies = |content: &[u8]| {
            fs::write(keys.join("content"), content).expect("written");
            let of = "cms -verify -binary -inform DER -in signature -content content -certfile mok.pem -noverify";
            openssl(&keys, of)
        };
        assert!(verifies(content) && !verifies(b"another"));

        // A key with a missing password neither waits for one nor signs.
        assert!(openssl(&keys, &format!("{pair} -passout pass:secret")));
        let path = module(&fake);
        let error = Signer::find(&fake.host(), RELEASE).expect("a signer").sign(&path).expect_err("no password");
        assert_eq!((error.code(), is_signed(&path)), ("sign_failed", false), "{error}");
    }

    /// A key that never leaves its token: SoftHSM's, through OpenSSL's provider for PKCS#11.
    #[test]
    fn key_in_token_signs() {
        const LIBRARY: &str = "/usr/lib/softhsm/libsofthsm2.so";
        const PROVIDER: &str = "/usr/lib/x86_64-linux-gnu/ossl-modules/pkcs11.so";
        let Some(tool) =
            real_tool().filter(|tool| fs::read(tool).is_ok_and(|bytes| contains(&bytes, b"OSSL_PROVIDER")))
        else {
            return eprintln!(
                "skipped: no kernel headers with a sign-file that knows OpenSSL's providers, no MPU_SIGN_FILE"
            );
        };
        if let Some(missing) = [LIBRARY, PROVIDER].into_iter().find(|path| !Path::new(path).is_file()) {
            return eprintln!("skipped: no {missing}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(at("tokens")).expect("a folder");
        fs::write(at("pin"), "1234").expect("written");
        fs::write(at("softhsm.conf"), format!("directories.tokendir = {}\n", at("tokens"))).expect("written");
        let settings = format!(
            "openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\npkcs11 = k\n[d]\nactivate = 1\n[k]\nactivate = 1\n\
             pkcs11-module-path = {LIBRARY}\npkcs11-module-token-pin = file:{}\npkcs11-module-quirks = no-deinit\n",
            at("pin")
        );
        fs::write(at("openssl.cnf"), settings).expect("written");
        let softhsm = |arguments: &str| {
            let mut command = Command::new("softhsm2-util");
            command.args(arguments.split(' ')).env("SOFTHSM2_CONF", at("softhsm.conf")).current_dir(dir.path());
            assert!(command.output().expect("softhsm2-util").status.success(), "{arguments}");
        };
        assert!(openssl(
            dir.path(),
            "req -new -x509 -newkey rsa:2048 -nodes -subj /CN=token -keyout key -out certificate"
        ));
        softhsm("--init-token --free --label mpu --pin 1234 --so-pin 5678");
        softhsm("--import key --token mpu --label mok --id 01 --pin 1234");
        fs::remove_file(at("key")).expect("removed: the token alone has it now");

        let fake = FakeHost::in_order();
        fake.link("/usr/bin/kmodsign", tool);
        let sign = |object: &str| {
            let private = format!("pkcs11:token=mpu;object={object};type=private");
            let key = Key { private, certificate: at("certificate") };
            let mut signer = Signer::with_key(&fake.host(), dir.path(), RELEASE, key).expect("a signer");
            signer.token_variables =
                vec![("OPENSSL_CONF", at("openssl.cnf").into()), ("SOFTHSM2_CONF", at("softhsm.conf").into())];
            let path = module(&fake);
            signer.sign(&path).map(|()| is_signed(&path)).map_err(|error| (error.code(), error.fix()))
        };
        assert_eq!(sign("mok"), Ok(true));
        let (code, fix) = sign("another").expect_err("no such key");
        assert!(code == "sign_failed" && fix.contains("OPENSSL_CONF"), "{fix}");
    }

    #[test]
    fn pin_in_address_is_refused_and_not_repeated() {
        let fake = FakeHost::in_order();
        fake.tool("kmodsign", SIGNS);
        for address in [
            "pkcs11:token=t;object=k?pin-value=4711",
            "PKCS11:token=t?PIN-Value=4711",
            "pkcs11:token=t?module-path=/x&%70in%2dvalue=4711",
            " pkcs11%3Atoken=t?pin%252Dvalue=4711",
        ] {
            for (private, certificate) in [(address, "/dev/null"), ("/dev/null", address)] {
                let key = Key { private: private.to_string(), certificate: certificate.to_string() };
                let error = Signer::with_key(&fake.host(), Path::new("/"), RELEASE, key).expect_err(address);
                assert_eq!((error.code(), error.exit()), ("pin_in_address", Exit::Failed), "{address}");
                assert!(error.fix().contains("pin-source") && error.fix().contains("OPENSSL_CONF"), "{}", error.fix());
                assert!(![error.to_string(), error.fix(), format!("{error:?}")].concat().contains("4711"), "{error:?}");
            }
        }
    }

    fn contains(bytes: &[u8], word: &[u8]) -> bool {
        bytes.windows(word.len()).any(|part| part == word)
    }

    #[test]
    fn file_shorter_than_signature_is_unsigned() {
        let fake = FakeHost::in_order();
        assert!(!is_signed(&module(&fake)) && !is_signed(Path::new("/nowhere")));
    }

    #[test]
    fn secure_boot_follows_firmware_and_shim_variables() {
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
    fn secure_boot_alone_requires_no_signature() {
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
