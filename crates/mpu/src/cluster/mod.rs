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

#[cfg(test)]
pub mod fake {
    use super::{BTreeMap, Cluster, ClusterError, Event};
    use std::cell::{Cell, RefCell};

    /// An API server that records its requests.
    #[derive(Default)]
    pub struct Heard {
        pub labels: RefCell<BTreeMap<String, String>>,
        pub events: RefCell<Vec<Event>>,
        pub asked: Cell<usize>,
        pub is_down: Cell<bool>,
        /// Its role lets the agent read nodes, and no more.
        pub denies_events: Cell<bool>,
        pub tried: Cell<usize>,
    }

    impl Heard {
        fn answer(&self) -> Result<(), ClusterError> {
            self.asked.set(self.asked.get() + 1);
            if self.is_down.get() { Err(ClusterError::Late) } else { Ok(()) }
        }

        pub fn reasons(&self) -> Vec<&'static str> {
            self.events.borrow().iter().map(|event| event.reason).collect()
        }

        /// Reasons and messages since it was asked last.
        pub fn told(&self) -> Vec<(&'static str, String)> {
            self.events.borrow_mut().drain(..).map(|event| (event.reason, event.message)).collect()
        }
    }

    impl Cluster for Heard {
        fn labels(&self) -> Result<BTreeMap<String, String>, ClusterError> {
            self.answer().map(|()| self.labels.borrow().clone())
        }

        fn event(&self, event: &Event) -> Result<(), ClusterError> {
            self.tried.set(self.tried.get() + 1);
            if self.denies_events.get() {
                let (what, message) = ("an Event", "forbidden".to_string());
                return Err(ClusterError::Refused { what, status: 403, message });
            }
            self.answer().map(|()| self.events.borrow_mut().push(event.clone()))
        }
    }
}
