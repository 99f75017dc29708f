//! The caller of an intercepted ioctl: its rights, memory, descriptors, and the PIDs of its namespace.

pub(crate) mod accounts;
pub(crate) mod memory;
pub(crate) mod namespace;
pub(crate) mod pid_lookup;
pub(crate) mod proc_folder;
pub(crate) mod process;
pub(crate) mod process_cache;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod thread;
pub(crate) mod threads;
pub(crate) mod view;
