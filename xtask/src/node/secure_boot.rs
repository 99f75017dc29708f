//! A machine with UEFI Secure Boot: Debian's OVMF with a test key as platform key, as key exchange key and in db; and a second key that is
//! not enrolled.
//!
//! QEMU passes the kernel with a changed header to the firmware, which accepts it unverified: the firmware's check is not tested. The rest is
//! real: the kernel finds Secure Boot on, locks down, and trusts the keys in db for modules, as Debian's kernels do with a machine owner's key.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::kernels::Kernel;
use crate::run::{output, run};

/// The firmware that enforces Secure Boot, and an empty variable store.
pub const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd";
const VARS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// The owner GUID of the test keys in the variable store.
const OWNER: &str = "6d70752d-7269-4700-8000-000000000001";

/// A key pair: `<name>.key`, `<name>.pem` and `<name>.der` in a folder.
pub struct Key {
    stem: PathBuf,
}

impl Key {
    /// An existing key pair.
    pub fn of(dir: &Path, name: &str) -> Self {
        Self { stem: dir.join(name) }
    }

    pub fn make(dir: &Path, name: &str) -> Result<Self> {
        let key = Self::of(dir, name);
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-new", "-x509", "-nodes", "-days", "36500", "-newkey", "rsa:2048", "-subj"]);
        openssl.arg(format!("/CN={name}")).arg("-keyout").arg(key.private()).arg("-out").arg(key.pem());
        run(openssl.stderr(Stdio::null())).context("openssl makes no key")?;
        let mut convert = Command::new("openssl");
        convert.args(["x509", "-outform", "DER", "-in"]).arg(key.pem()).arg("-out").arg(key.der());
        run(&mut convert)?;
        Ok(key)
    }

    pub fn private(&self) -> PathBuf {
        self.stem.with_extension("key")
    }

    pub fn pem(&self) -> PathBuf {
        self.stem.with_extension("pem")
    }

    /// The certificate in the kernel's format.
    pub fn der(&self) -> PathBuf {
        self.stem.with_extension("der")
    }

    /// Copies a module, and signs the copy with the kernel's sign-file.
    pub fn sign(&self, kernel: &Kernel, module: &Path, to: &Path) -> Result<()> {
        fs_err::copy(module, to)?;
        let series = kernel.release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
        let tool = kernel.root().join(format!("usr/lib/linux-kbuild-{series}/scripts/sign-file"));
        run(Command::new(tool).arg("sha256").arg(self.private()).arg(self.pem()).arg(to)).context("cannot sign")
    }
}

/// Writes a variable store with Secure Boot on, which trusts this key only.
pub fn variables(key: &Key, to: &Path) -> Result<()> {
    let mut tool = Command::new("virt-fw-vars");
    tool.args(["--input", VARS, "--output"]).arg(to);
    for option in ["--set-pk", "--add-kek", "--add-db"] {
        tool.args([option, OWNER]).arg(key.pem());
    }
    tool.args(["--no-microsoft", "--sb"]);
    // The tool prints every variable to standard error.
    output(tool.stderr(Stdio::null())).map(drop).context("cannot enrol the key")
}

/// QEMU's options for a machine with that firmware. SMM keeps the guest from changing the store.
pub fn machine(command: &mut Command, variables: &Path) {
    command.args(["-machine", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"]);
    command.args(["-drive", &format!("if=pflash,format=raw,unit=0,readonly=on,file={CODE}")]);
    command.args(["-drive", &format!("if=pflash,format=raw,unit=1,file={}", variables.display())]);
}
