//! Processor architectures of the product, as one row of `TABLE` each: the names that tools use, and the tools that build for it here.
//!
//! This machine is assumed to be x86-64: other architectures are cross-built, and run emulated.

use std::fmt;

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, clap::ValueEnum)]
pub enum Arch {
    /// AMD's and Intel's
    #[default]
    #[serde(rename = "amd64")]
    #[value(name = "amd64")]
    Amd64,
    /// Arm's, of 64 bits
    #[serde(rename = "arm64")]
    #[value(name = "arm64")]
    Arm64,
}

pub struct Facts {
    pub debian: &'static str,
    /// RPM's, the kernel's and QEMU's.
    pub machine_name: &'static str,
    /// readelf's.
    pub elf: &'static str,
    /// Arguments for kbuild, besides those for every architecture.
    pub kbuild: &'static [&'static str],
    pub target: &'static str,
    pub kernel_target: &'static str,
    /// Its folder of libraries, in Debian.
    pub multiarch: &'static str,
    /// Before the name of each of binutils' programs.
    pub tools: &'static str,
    pub cc: &'static str,
    /// The same for 32-bit processes.
    pub cc32: &'static str,
    pub qemu: &'static str,
    /// The machine it emulates, the clock of this one's.
    pub machine: &'static [&'static str],
    /// Where a kernel's messages go.
    pub console: &'static str,
    /// Which kernel of kernels.toml is played if none is named.
    pub kernel: &'static str,
}

const AMD64: Facts = Facts {
    debian: "amd64",
    machine_name: "x86_64",
    elf: "Advanced Micro Devices X86-64",
    kbuild: &[],
    target: "x86_64-unknown-linux-gnu",
    kernel_target: "x86_64-unknown-none",
    multiarch: "x86_64-linux-gnu",
    tools: "",
    // Ubuntu's 32-bit headers find the kernel's own only where the 64-bit ones are.
    cc: "gcc-12 -idirafter /usr/include/x86_64-linux-gnu",
    cc32: "gcc-12 -m32 -idirafter /usr/include/x86_64-linux-gnu",
    qemu: "qemu-system-x86_64",
    // Kernels that see quick byte-wise copies (ERMS, FSRM) clear and copy pages by them, and emulated those go byte by byte: of a
    // program's start they are a third.
    machine: &["-cpu", "max,-erms,-fsrm"],
    console: "ttyS0",
    kernel: "6.1",
};

const ARM64: Facts = Facts {
    debian: "arm64",
    machine_name: "aarch64",
    elf: "AArch64",
    kbuild: &["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"],
    target: "aarch64-unknown-linux-gnu",
    kernel_target: "aarch64-unknown-none-softfloat",
    multiarch: "aarch64-linux-gnu",
    tools: "aarch64-linux-gnu-",
    cc: "aarch64-linux-gnu-gcc",
    // Segments of one program never share a page, however large the kernel makes its pages.
    cc32: "arm-linux-gnueabihf-gcc -Wl,-z,max-page-size=65536",
    qemu: "qemu-system-aarch64",
    // Signed return addresses (PAC), as the kernel is built with, by a cheap hash: the architecture's own takes most of the time. No vectors of
    // any length: nothing here uses them, and each switch of tasks would carry them.
    machine: &["-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on,sve=off,sme=off"],
    console: "ttyAMA0",
    kernel: "6.12",
};

impl Arch {
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    pub fn facts(self) -> &'static Facts {
        match self {
            Self::Amd64 => &AMD64,
            Self::Arm64 => &ARM64,
        }
    }

    pub fn tool(self, name: &str) -> String {
        format!("{}{name}", self.facts().tools)
    }

    /// By which environment cargo finds the linker of programs for it.
    pub fn linker(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Arm64).then_some(("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"))
    }

    /// A name that says which architecture it is of, unless that is this machine's.
    pub fn named(self, name: &str) -> String {
        match self {
            Self::Amd64 => name.to_owned(),
            other => format!("{name}-{other}"),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().debian)
    }
}
