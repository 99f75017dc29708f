//! The supported processor architectures: the names that tools use for each, and the tools that build for it here.
//!
//! This machine must be x86-64: programs for another architecture are cross-built, and run emulated.

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
    /// The name that RPM, the kernel and QEMU use.
    pub machine_name: &'static str,
    /// The machine name that readelf prints.
    pub elf: &'static str,
    /// Additional arguments for kbuild.
    pub kbuild: &'static [&'static str],
    pub target: &'static str,
    pub kernel_target: &'static str,
    /// Debian's name of its library folder.
    pub multiarch: &'static str,
    /// The prefix of binutils' programs.
    pub tools: &'static str,
    pub cc: &'static str,
    /// The same for 32-bit processes.
    pub cc32: &'static str,
    pub qemu: &'static str,
    /// QEMU's options for machine and processor.
    pub machine: &'static [&'static str],
    /// Where a kernel's messages go.
    pub console: &'static str,
    /// The default kernel, of kernels.toml.
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
    // On Ubuntu, 32-bit builds find the kernel's headers only in the 64-bit folder.
    cc: "gcc-12 -idirafter /usr/include/x86_64-linux-gnu",
    cc32: "gcc-12 -m32 -idirafter /usr/include/x86_64-linux-gnu",
    qemu: "qemu-system-x86_64",
    // With ERMS or FSRM, kernels clear and copy pages by `rep` instructions. Emulated, these work byte by byte: a third of a program's start.
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
    // Segments must not share a page, for any page size of the kernel.
    cc32: "arm-linux-gnueabihf-gcc -Wl,-z,max-page-size=65536",
    qemu: "qemu-system-aarch64",
    // The kernel is built with PAC. QEMU's own hash for it is cheap; the architecture's hash takes most of the time. SVE and SME are unused,
    // and each task switch would save their registers.
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

    /// The environment variable and linker by which cargo links for it.
    pub fn linker(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Arm64).then_some(("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"))
    }

    /// A kernel's name in kernels.toml; the default one's unless named.
    pub fn kernel(self, name: Option<&str>) -> String {
        self.named(name.unwrap_or(self.facts().kernel))
    }

    /// Appends the architecture to a name, unless it is this machine's.
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
