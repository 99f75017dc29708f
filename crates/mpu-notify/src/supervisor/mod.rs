//! The process that answers all listeners of a host, its file descriptor store, and its keeper.

pub mod daemon;
pub(crate) mod fd_store;
pub mod keeper;
pub(crate) mod registry;
