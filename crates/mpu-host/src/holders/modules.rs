//! Kernel modules that use the driver, and how often each is used.
//!
//! Source: `/sys/module/*/refcnt` and `/sys/module/*/holders` (kernel/module/sysfs.c, kernel/module/main.c).

use crate::host::Host;

/// A module that is used, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Its references, each of which keeps it loaded. None on a kernel that unloads no module.
    pub references: Option<u32>,
    /// The modules that use it; each has one of its references.
    pub holders: Vec<String>,
}

impl Module {
    fn read(host: &Host, name: &str) -> Module {
        let folder = format!("/sys/module/{name}");
        let entries = std::fs::read_dir(host.at(format!("{folder}/holders"))).into_iter().flatten().flatten();
        let mut holders: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        holders.sort();
        // A module that is being unloaded has -1.
        let references = host.text(format!("{folder}/refcnt")).and_then(|text| text.parse::<i64>().ok());
        Module { name: name.to_string(), references: references.map(|count| count.max(0) as u32), holders }
    }

    /// References that are no other module's: open files, mappings, and what the kernel itself uses.
    pub fn used(&self) -> Option<u32> {
        Some(self.references?.saturating_sub(self.holders.len() as u32))
    }
}

/// The driver's module and all that use it, also through others; a user comes before what it uses, as they have to be unloaded.
pub fn modules(host: &Host) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    let mut next = vec!["nvidia".to_string()];
    for _ in 0..MOST {
        let Some(name) = next.pop() else { break };
        // Of one that several use, the last place counts.
        found.retain(|module| module.name != name);
        let module = Module::read(host, &name);
        next.extend(module.holders.iter().cloned());
        found.push(module);
    }
    found.reverse();
    found
}

/// Modules that are looked at: more than any host has around its GPU driver.
const MOST: usize = 256;

/// Whether the kernel would unload the driver, once the modules that use it are unloaded. None if it does not count.
pub fn is_free(modules: &[Module]) -> Option<bool> {
    modules.iter().map(|module| module.used().map(|used| used == 0)).try_fold(true, |all, free| Some(all && free?))
}
