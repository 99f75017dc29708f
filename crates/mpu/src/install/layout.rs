//! The table of files of an installation, for packages and for `mpu install`.

use mpu_engine::module::prebuilt;
use mpu_engine::module::sources::Sources;
use std::path::{Path, PathBuf};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As a distribution's package: below /usr.
    Package,
    /// By `mpu install`: below /usr/local and /etc, which no package touches.
    Local,
}

impl Layout {
    pub fn executable(self) -> PathBuf {
        Path::new(self.paths()[0]).join("bin/mpu")
    }

    /// The prefix, the folders of units and of udev's rules, and Zsh's completion below share.
    fn paths(self) -> [&'static str; 4] {
        match self {
            Layout::Package => {
                ["/usr", "/usr/lib/systemd/system", "/usr/lib/udev/rules.d", "zsh/vendor-completions/_mpu"]
            }
            Layout::Local => ["/usr/local", "/etc/systemd/system", "/etc/udev/rules.d", "zsh/site-functions/_mpu"],
        }
    }
}

/// The folder in which DKMS expects the sources of a version.
pub fn dkms_sources(version: &str) -> PathBuf {
    PathBuf::from(format!("/usr/src/mpu-{version}"))
}

/// A file of an installation, or a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub path: PathBuf,
    pub mode: u32,
    /// None: a folder.
    pub bytes: Option<Vec<u8>>,
    pub what: &'static str,
}

impl Item {
    pub fn file(path: impl Into<PathBuf>, mode: u32, bytes: impl Into<Vec<u8>>, what: &'static str) -> Item {
        Item { path: path.into(), mode, bytes: Some(bytes.into()), what }
    }
}

/// The documents made from the command line's definition.
#[derive(Debug, Clone, Default)]
pub struct Documents {
    /// The completion scripts for Bash, Zsh and Fish.
    pub completions: [Vec<u8>; 3],
    /// The manual pages, each with its name.
    pub pages: Vec<(String, Vec<u8>)>,
}

macro_rules! packaged {
    ($name:literal) => {
        include_str!(concat!("../../../../packaging/", $name))
    };
}

/// All items of an installation; without the module's sources if `sources` has none.
pub fn items(layout: Layout, executable: Vec<u8>, sources: &Sources, documents: &Documents) -> Vec<Item> {
    let [prefix, units, rules, zsh] = layout.paths().map(Path::new);
    let (dkms, share) = (dkms_sources(VERSION), prefix.join("share"));
    // Modules built elsewhere go there in any layout.
    let modules = prebuilt::FOLDERS[0].into();
    let mut items = vec![
        Item { path: modules, mode: 0o755, bytes: None, what: "modules that were built elsewhere" },
        Item::file(layout.executable(), 0o755, executable, "the command"),
        Item::file(mpu_host::config::FILE, 0o644, mpu_host::config::DEFAULT, "the configuration"),
    ];
    let from =
        |(name, bytes): &(String, Vec<u8>)| Item::file(dkms.join(name), 0o644, bytes.clone(), "the module's sources");
    items.extend(sources.files.iter().map(from));
    for (folder, name, template, what) in [
        (&*dkms, "dkms.conf", packaged!("dkms/dkms.conf"), "how DKMS builds it"),
        (units, "mpu.service", packaged!("systemd/mpu.service"), "starts it at boot"),
        (
            units,
            "mpu-notify.service",
            packaged!("systemd/mpu-notify.service"),
            "the notify engine, for `mpu up` to start",
        ),
        (
            units,
            "mpu-nri.service",
            packaged!("systemd/mpu-nri.service"),
            "the container engine's plugin, if you enable it",
        ),
        (units, "mpu-metrics.service", packaged!("systemd/mpu-metrics.service"), "metrics, if you enable it"),
        (rules, "71-mpu.rules", packaged!("udev/71-mpu.rules"), "retries when the driver is loaded"),
    ] {
        let filled =
            template.replace("@BIN@", &layout.executable().display().to_string()).replace("@VERSION@", VERSION);
        items.push(Item::file(folder.join(name), 0o644, filled, what));
    }
    let places = [Path::new("bash-completion/completions/mpu"), zsh, Path::new("fish/vendor_completions.d/mpu.fish")];
    for (script, place) in documents.completions.iter().zip(places) {
        items.push(Item::file(share.join(place), 0o644, script.clone(), "completions"));
    }
    for (name, page) in &documents.pages {
        items.push(Item::file(share.join(format!("man/man1/{name}.1")), 0o644, page.clone(), "manual pages"));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::exit::Exit;
    use std::collections::BTreeSet;

    fn all(layout: Layout) -> Vec<(String, String)> {
        let sources = Sources { files: vec![("Kbuild".into(), b"obj-m := mpu.o".to_vec())] };
        let documents = Documents { pages: vec![("mpu-up".into(), b".TH".to_vec())], ..Documents::default() };
        let text = |item: Item| String::from_utf8(item.bytes.unwrap_or_default()).expect("text");
        let items = items(layout, b"ELF".to_vec(), &sources, &documents).into_iter();
        items.map(|item| (item.path.display().to_string(), text(item))).collect()
    }

    fn unit(layout: Layout, name: &str) -> String {
        all(layout).into_iter().find(|(path, _)| path.ends_with(name)).expect("a unit").1
    }

    #[test]
    fn layouts_have_same_files() {
        let names = |layout| -> Vec<String> {
            all(layout).iter().map(|(path, _)| path.rsplit('/').next().unwrap_or_default().to_string()).collect()
        };
        assert_eq!(names(Layout::Package), names(Layout::Local));
        for (path, _) in all(Layout::Local) {
            let places = ["/usr/local/", "/etc/", "/usr/src/mpu-", "/usr/lib/mpu/modules"];
            assert!(places.iter().any(|place| path.starts_with(place)), "{path}");
        }
        let paths: BTreeSet<_> = all(Layout::Package).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths.len(), all(Layout::Package).len(), "no file twice");
        let count = |part| paths.iter().filter(|path| path.contains(part)).count();
        assert_eq!((count("/man1/mpu-up.1"), count("completions")), (1, 3));
    }

    #[test]
    fn units_start_before_every_kubelet() {
        for name in ["mpu.service", "mpu-notify.service", "mpu-nri.service"] {
            let text = unit(Layout::Package, name);
            let before = text.lines().filter_map(|line| line.strip_prefix("Before=")).flat_map(|line| line.split(' '));
            let before: BTreeSet<&str> = before.collect();
            for kubelet in ["kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"] {
                assert!(before.contains(&*format!("{kubelet}.service")), "{name}: {kubelet}");
            }
        }
    }

    #[test]
    fn plugin_unit_does_not_restart_after_lasting_errors() {
        let line = format!("\nRestartPreventExitStatus={} {}\n", Exit::Usage.code(), Exit::Refused.code());
        assert!(unit(Layout::Package, "mpu-nri.service").contains(&line), "{line}");
    }

    #[test]
    fn templates_are_filled() {
        for (path, text) in [Layout::Package, Layout::Local].into_iter().flat_map(all) {
            assert!(!text.contains("@BIN@") && !text.contains("@VERSION@"), "{path}");
        }
        assert!(unit(Layout::Local, "mpu.service").contains("ExecStart=/usr/local/bin/mpu up"));
    }
}
