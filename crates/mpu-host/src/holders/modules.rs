//! Kernel modules that use the driver, and how often each is used.
//!
//! Source: `/sys/module/*/refcnt` and `/sys/module/*/holders` (kernel/module/sysfs.c, kernel/module/main.c).

use crate::host::Host;

/// A kernel module and its users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Its reference count; any reference keeps it loaded. None on a kernel that cannot unload modules.
    pub references: Option<u32>,
    /// The modules that use it; each has one of its references.
    pub holders: Vec<String>,
}

impl Module {
    fn read(host: &Host, name: &str) -> Module {
        let folder = format!("/sys/module/{name}");
        let holders = host.names(format!("{folder}/holders"));
        // A module that is being unloaded has -1.
        let references = host.text(format!("{folder}/refcnt")).and_then(|text| text.parse::<i64>().ok());
        Module { name: name.to_string(), references: references.map(|count| count.max(0) as u32), holders }
    }

    /// References from other users than modules: open files, mappings, and the kernel itself.
    pub fn used(&self) -> Option<u32> {
        Some(self.references?.saturating_sub(self.holders.len() as u32))
    }
}

/// The driver's module and its direct and indirect users, in the order of unloading: users first.
pub fn modules(host: &Host) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    let mut next = vec!["nvidia".to_string()];
    for _ in 0..MAX_MODULES {
        let Some(name) = next.pop() else { break };
        // A module that is found again moves to the later place: it must be unloaded before every module that it uses.
        found.retain(|module| module.name != name);
        let module = Module::read(host, &name);
        next.extend(module.holders.iter().cloned());
        found.push(module);
    }
    found.reverse();
    found
}

/// Limit of modules to read. No host has as many around its GPU driver.
const MAX_MODULES: usize = 256;

/// Whether the kernel would unload the driver, once the modules that use it are unloaded. None without reference counts.
pub fn is_free(modules: &[Module]) -> Option<bool> {
    modules.iter().map(|module| module.used().map(|used| used == 0)).try_fold(true, |all, free| Some(all && free?))
}
