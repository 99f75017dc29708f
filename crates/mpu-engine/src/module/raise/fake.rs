//! A fake host in order, with sources.

use super::super::load::fake::FakeKernel;
use super::super::plan::ModuleOptions;
use super::super::sources;
use super::super::state::ARMED;
use mpu_host::host::fake::FakeHost;

const BUILDS: &str = r#"for a; do case $a in M=*) echo module >"${a#M=}/mpu.ko";; esac; done"#;
/// A `make` that builds both modules.
pub const BUILDS_BOTH: &str =
    r#"for a; do case $a in M=*) for m in mpu mpu_next; do echo $m >"${a#M=}/$m.ko"; done;; esac; done"#;

pub struct Setup {
    pub fake: FakeHost,
    pub sources: tempfile::TempDir,
}

impl Setup {
    // It makes a host on disk, so `Default` would surprise.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Setup {
        let fake = FakeHost::in_order();
        fake.tool("make", BUILDS);
        Setup { fake, sources: sources::fake::directory() }
    }

    pub fn options(&self) -> ModuleOptions {
        let source = Some(self.sources.path().to_path_buf());
        ModuleOptions { source, ..ModuleOptions::default() }
    }

    pub fn kernel(&self) -> FakeKernel<'_> {
        FakeKernel::taking(&self.fake, ARMED)
    }
}
