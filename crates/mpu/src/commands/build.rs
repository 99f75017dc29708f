//! `mpu build`: the report of a module that was built for another kernel.

use crate::report::{Lines, Report, Style};
use mpu_engine::module::other_kernel::OtherKernelModule;
use mpu_engine::module::prebuilt::FOLDERS;

impl Report for OtherKernelModule {
    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        lines.plain(format!("built {} after {:.1} s", self.module.display(), self.seconds));
        lines.put("kernel", format!("{} ({})", self.vermagic, self.arch));
        let unsigned = "none: a kernel under Secure Boot or lockdown refuses this module (--sign-key)";
        lines.put("signature", if self.signed { "appended" } else { unsigned });
        lines.put("log", self.log.display().to_string());
        let folder = self.module.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        let there = FOLDERS[0];
        let copy = format!("ssh root@NODE mkdir -p {there} && scp -r {folder} root@NODE:{there}/");
        lines.put("next", format!("{copy} && ssh root@NODE mpu up"));
        lines.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_report_names_next_step() {
        let mut done = OtherKernelModule {
            kernel: "6.1.0".to_string(),
            arch: "x86_64",
            vermagic: "6.1.0 SMP preempt mod_unload modversions".to_string(),
            module: "modules/6.1.0/mpu.ko".into(),
            next_module: "modules/6.1.0/mpu_next.ko".into(),
            log: "modules/6.1.0/build.log".into(),
            signed: false,
            seconds: 31.5,
        };
        crate::report::documented::check(&crate::report::json_of("build", &done));
        let text = done.text(Style::Plain);
        assert!(text.contains("(--sign-key)") && text.contains("scp -r modules/6.1.0 root@NODE:/usr/lib/mpu/modules/"));
        assert!(text.contains("ssh root@NODE mkdir -p /usr/lib/mpu/modules && scp"), "no package makes it: {text}");
        done.signed = true;
        assert!(!done.text(Style::Plain).contains("--sign-key"));
    }
}
