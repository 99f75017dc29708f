//! A cluster's API server, as a pod speaks with it: the labels of the pod's node, and Events on it.
//!
//! Owns the connection, the credentials and the two requests. Decides nothing: what a label means and when an Event is due is the agent's.
//!
//! No client library: the smallest of Kubernetes' own brings a hundred crates. hyper is here for the exporter; rustls is added to it.

mod api;
mod event;

pub use api::{ApiServer, ClusterError};
pub use event::Event;

use std::collections::BTreeMap;

/// What the agent wants of a cluster.
pub trait Cluster {
    /// The labels of this node.
    ///
    /// # Errors
    /// When the API server cannot be reached, or refuses.
    fn labels(&self) -> Result<BTreeMap<String, String>, ClusterError>;

    /// Makes an Event on this node, or brings the one of the same reason up to date.
    ///
    /// # Errors
    /// When the API server cannot be reached, or refuses.
    fn event(&self, event: &Event) -> Result<(), ClusterError>;
}
