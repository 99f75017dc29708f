//! The pods of rules with a label. No cgroup's path has a label, so an agent asks the API server and writes the pods' uids into a
//! file. Every program that compiles rules reads it. A pod that is not in the file has the view of any other container.

use crate::containers::path::is_pod_uid;
use crate::host::Host;
use mpu_os::file::{Mode, replace_file_atomically};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

/// A reboot clears it, as it does the pods.
pub const FILE: &str = "/run/mpu/pods.json";
const MAX_SIZE: usize = 1 << 20;

/// The uids of the selected pods on this node, by namespace and by label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pods(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Pods {
    /// The pods that an agent wrote last; none if no agent did.
    pub fn of(host: &Host) -> Option<Pods> {
        serde_json::from_slice(&host.bounded(FILE, MAX_SIZE)?).ok()
    }

    /// Replaces the pods of a namespace and label. An id that is no uid is left out: it could match other pods.
    pub fn set(&mut self, namespace: &str, label: &str, uids: Vec<String>) {
        let uids = uids.into_iter().filter(|uid| is_pod_uid(uid)).collect();
        self.0.entry(namespace.to_string()).or_default().insert(label.to_string(), uids);
    }

    pub fn get(&self, namespace: &str, label: &str) -> impl Iterator<Item = &str> {
        self.0.get(namespace).and_then(|labels| labels.get(label)).into_iter().flatten().map(String::as_str)
    }

    /// Replaces the file, which only root can read.
    ///
    /// # Errors
    /// If it cannot be written. The old one is then unchanged.
    pub fn write(&self, host: &Host) -> io::Result<()> {
        let text = serde_json::to_string(self)?;
        replace_file_atomically(&host.at(FILE), text.as_bytes(), Mode::Of(0o600)).map(drop)
    }

    pub fn remove(host: &Host) {
        let _ = fs::remove_file(host.at(FILE));
    }

    /// Whether no agent wrote the file.
    pub fn are_missing(host: &Host) -> bool {
        fs::symlink_metadata(host.at(FILE)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    const UID: &str = "6b0f8a52-6f0b-4d0e-a9b3-2f1f3a0e7c11";

    #[test]
    fn written_pods_are_read_without_foreign_ids() {
        let fake = FakeHost::in_order();
        assert!(Pods::are_missing(&fake.host()) && Pods::of(&fake.host()).is_none());
        let mut pods = Pods::default();
        pods.set("monitoring", "app=dcgm", ["*", "", UID, "../x"].map(str::to_string).to_vec());
        fs::create_dir_all(fake.host().at("/run/mpu")).expect("a folder");
        pods.write(&fake.host()).expect("written");
        let read = Pods::of(&fake.host()).expect("pods");
        assert_eq!(read.get("monitoring", "app=dcgm").collect::<Vec<_>>(), [UID]);
        assert_eq!(read.get("other", "app=dcgm").count() + read.get("monitoring", "app=x").count(), 0);
        Pods::remove(&fake.host());
        assert!(Pods::are_missing(&fake.host()));
    }
}
