//! The process that answers all listeners of a host, what it keeps, and what keeps it alive.

pub mod daemon;
pub(crate) mod fd_store;
pub mod keeper;
pub(crate) mod registry;
