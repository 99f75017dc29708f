//! What an installation consists of: one table of files, for two places to put them.
//!
//! Owns the paths and contents. A package's build and `mpu install` both read this table, so they cannot differ; how
//! files get there, and what runs afterwards, is `plan`'s.

use mpu_engine::module::prebuilt;
use mpu_engine::module::sources::Sources;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// This executable's version: what it installs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where things go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// As a distribution's package: below /usr.
    Package,
    /// By hand: below /usr/local and /etc, which no package touches.
    Local,
}

impl Layout {
    /// Where the executable is.
    pub fn executable(self) -> PathBuf {
        self.prefix().join("bin/mpu")
    }

    fn prefix(self) -> &'static Path {
        Path::new(match self {
            Layout::Package => "/usr",
            Layout::Local => "/usr/local",
        })
    }

    fn units(self) -> &'static Path {
        Path::new(match self {
            Layout::Package => "/usr/lib/systemd/system",
            Layout::Local => "/etc/systemd/system",
        })
    }

    fn zsh_functions(self) -> &'static str {
        match self {
            Layout::Package => "zsh/vendor-completions/_mpu",
            Layout::Local => "zsh/site-functions/_mpu",
        }
    }

    fn rules(self) -> &'static Path {
        Path::new(match self {
            Layout::Package => "/usr/lib/udev/rules.d",
            Layout::Local => "/etc/udev/rules.d",
        })
    }
}

/// Where DKMS looks for the sources of a version.
pub fn dkms_sources(version: &str) -> PathBuf {
    PathBuf::from(format!("/usr/src/mpu-{version}"))
}

/// Folders of an installation that are empty at first, and root's alone to write to: where modules that were built elsewhere are brought.
/// They are in one place, whatever the layout.
pub const FOLDERS: [&str; 1] = [prebuilt::FOLDERS[0]];

/// A file of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Where it goes.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// What it is for, in a few words.
    pub what: &'static str,
    /// Whether it is the administrator's to change: then one that was changed stays as it is.
    pub is_config: bool,
}

/// What the command line says of itself, rendered: an installation knows no grammar.
#[derive(Debug, Clone, Default)]
pub struct Documents {
    /// The completion script for Bash.
    pub bash: Vec<u8>,
    /// For Zsh.
    pub zsh: Vec<u8>,
    /// For Fish.
    pub fish: Vec<u8>,
    /// The manual pages, each with its name.
    pub pages: Vec<(String, Vec<u8>)>,
}

/// Every file but the module's sources when `sources` has none.
pub fn items(layout: Layout, executable: Vec<u8>, sources: &Sources, documents: &Documents) -> Vec<Item> {
    let item = |path: PathBuf, mode, bytes: Vec<u8>, what| Item { path, mode, bytes, what, is_config: false };
    let text = |path: PathBuf, template: &str, what| {
        let filled = template
            .replace("@BIN@", &layout.executable().display().to_string())
            .replace("@VERSION@", VERSION)
            .into_bytes();
        item(path, 0o644, filled, what)
    };
    let dkms = dkms_sources(VERSION);
    let mut items = vec![item(layout.executable(), 0o755, executable, "the command")];
    for (name, bytes) in &sources.files {
        items.push(item(dkms.join(name), 0o644, bytes.clone(), "the module's sources"));
    }
    items.push(text(
        dkms.join("dkms.conf"),
        include_str!("../../../../packaging/dkms/dkms.conf"),
        "how DKMS builds it",
    ));
    let unit = |name: &str| layout.units().join(name);
    items.push(text(
        unit("mpu.service"),
        include_str!("../../../../packaging/systemd/mpu.service"),
        "starts it at boot",
    ));
    items.push(text(
        unit("mpu-notify.service"),
        include_str!("../../../../packaging/systemd/mpu-notify.service"),
        "the notify engine, for `mpu up` to start",
    ));
    items.push(text(
        unit("mpu-nri.service"),
        include_str!("../../../../packaging/systemd/mpu-nri.service"),
        "the container engine's plugin, if you enable it",
    ));
    items.push(text(
        unit("mpu-metrics.service"),
        include_str!("../../../../packaging/systemd/mpu-metrics.service"),
        "metrics, if you enable it",
    ));
    items.push(text(
        layout.rules().join("71-mpu.rules"),
        include_str!("../../../../packaging/udev/71-mpu.rules"),
        "retries when the driver is loaded",
    ));
    let share = layout.prefix().join("share");
    for (script, place) in [
        (&documents.bash, "bash-completion/completions/mpu"),
        (&documents.zsh, layout.zsh_functions()),
        (&documents.fish, "fish/vendor_completions.d/mpu.fish"),
    ] {
        items.push(item(share.join(place), 0o644, script.clone(), "completions"));
    }
    for (name, page) in &documents.pages {
        items.push(item(share.join("man/man1").join(format!("{name}.1")), 0o644, page.clone(), "manual pages"));
    }
    items.push(Item {
        is_config: true,
        ..item(PathBuf::from(mpu_host::config::FILE), 0o644, mpu_host::config::DEFAULT.into(), "the configuration")
    });
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::exit::Exit;
    use std::collections::BTreeSet;

    fn all(layout: Layout) -> Vec<Item> {
        let sources = Sources { files: vec![("Kbuild".into(), b"obj-m := mpu.o".to_vec())] };
        let documents = Documents { pages: vec![("mpu-up".into(), b".TH".to_vec())], ..Documents::default() };
        items(layout, b"ELF".to_vec(), &sources, &documents)
    }

    #[test]
    fn both_layouts_have_the_same_files_in_other_places() {
        let names = |layout| {
            all(layout).iter().map(|item| item.path.file_name().expect("a name").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(Layout::Package), names(Layout::Local));
        for item in all(Layout::Local) {
            let place = ["/usr/local/", "/etc/", "/usr/src/mpu-"];
            assert!(place.iter().any(|p| item.path.starts_with(p) || item.path.to_string_lossy().starts_with(p)));
        }
        let paths: BTreeSet<_> = all(Layout::Package).into_iter().map(|item| item.path).collect();
        assert_eq!(paths.len(), all(Layout::Package).len(), "no file twice");
    }

    #[test]
    fn every_kubelet_is_started_after_the_engine_and_its_plugin() {
        let items = all(Layout::Package);
        for unit in ["mpu.service", "mpu-notify.service", "mpu-nri.service"] {
            let unit = items.iter().find(|item| item.path.ends_with(unit)).expect("a unit");
            let text = String::from_utf8_lossy(&unit.bytes);
            let before: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Before=")).collect();
            for kubelet in ["kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"] {
                let named = before.iter().any(|line| line.split(' ').any(|word| word == format!("{kubelet}.service")));
                assert!(named, "{}: {kubelet}", unit.path.display());
            }
        }
    }

    #[test]
    fn the_plugin_is_not_started_again_after_what_does_not_cure_itself() {
        let items = all(Layout::Package);
        let unit = items.iter().find(|item| item.path.ends_with("mpu-nri.service")).expect("a unit");
        let (usage, refused) = (Exit::Usage.code(), Exit::Refused.code());
        let line = format!("\nRestartPreventExitStatus={usage} {refused}\n");
        assert!(String::from_utf8_lossy(&unit.bytes).contains(&line), "{line}");
    }

    #[test]
    fn templates_are_filled() {
        for layout in [Layout::Package, Layout::Local] {
            for item in all(layout) {
                let text = String::from_utf8_lossy(&item.bytes).into_owned();
                assert!(!text.contains("@BIN@") && !text.contains("@VERSION@"), "{}", item.path.display());
            }
        }
        let unit = all(Layout::Local).into_iter().find(|i| i.path.ends_with("mpu.service")).expect("a unit");
        assert!(String::from_utf8_lossy(&unit.bytes).contains("ExecStart=/usr/local/bin/mpu up"));
    }

    #[test]
    fn what_the_command_line_says_of_itself_has_its_places() {
        let all = all(Layout::Package);
        let pages = all.iter().filter(|item| item.path.extension().is_some_and(|e| e == "1")).count();
        let completions = all.iter().filter(|item| item.what == "completions").count();
        assert_eq!((pages, completions), (1, 3));
    }
}
