//! A client of a cluster's API server: it reads the labels of the pod's node, finds pods on it and makes Events on it.
//!
//! It uses hyper, which the exporter needs anyway, and rustls. The smallest Kubernetes client crate has a hundred
//! dependencies.

mod api;
mod event;

pub use api::{ApiServer, ClusterError};
pub use event::Event;

use std::collections::BTreeMap;

/// The requests of an agent to its cluster. Each fails if the API server cannot be reached, or refuses.
pub trait Cluster {
    /// The labels of this node.
    fn labels(&self) -> Result<BTreeMap<String, String>, ClusterError>;

    /// The uids of the pods on this node that are in the namespace and have the labels (`KEY=VALUE,…`).
    fn pods(&self, namespace: &str, label: &str) -> Result<Vec<String>, ClusterError>;

    /// The count and the first time of this reason's Event, which any agent of this node may have sent. None without
    /// such an Event.
    fn find_event(&self, reason: &str) -> Result<Option<(u64, u64)>, ClusterError>;

    /// Creates an Event on this node, or updates the one of the same reason.
    fn apply_event(&self, event: &Event) -> Result<(), ClusterError>;
}

#[cfg(test)]
pub mod fake {
    use super::{BTreeMap, Cluster, ClusterError, Event};
    use std::cell::{Cell, RefCell};

    /// An API server that records its requests.
    #[derive(Default)]
    pub struct FakeCluster {
        pub labels: RefCell<BTreeMap<String, String>>,
        pub events: RefCell<Vec<Event>>,
        pub requests: Cell<usize>,
        pub is_down: Cell<bool>,
        /// The agent's role permits reading nodes only.
        pub denies_events: Cell<bool>,
        pub event_requests: Cell<usize>,
        /// By namespace and label; another namespace may not be read.
        pub pods: RefCell<BTreeMap<(String, String), Vec<String>>>,
    }

    impl FakeCluster {
        fn answer(&self) -> Result<(), ClusterError> {
            self.requests.set(self.requests.get() + 1);
            if self.is_down.get() { Err(ClusterError::TimedOut) } else { Ok(()) }
        }

        pub fn reasons(&self) -> Vec<&'static str> {
            self.events.borrow().iter().map(|event| event.reason).collect()
        }

        /// Reasons and messages since the last call.
        pub fn take_events(&self) -> Vec<(&'static str, String)> {
            self.events.borrow_mut().drain(..).map(|event| (event.reason, event.message)).collect()
        }
    }

    impl Cluster for FakeCluster {
        fn labels(&self) -> Result<BTreeMap<String, String>, ClusterError> {
            self.answer().map(|()| self.labels.borrow().clone())
        }

        fn pods(&self, namespace: &str, label: &str) -> Result<Vec<String>, ClusterError> {
            let pods = self.pods.borrow().get(&(namespace.to_string(), label.to_string())).cloned();
            let message = format!("pods is forbidden in {namespace}");
            self.answer()?;
            pods.ok_or(ClusterError::Refused { action: "to list pods", status: 403, message })
        }

        fn find_event(&self, reason: &str) -> Result<Option<(u64, u64)>, ClusterError> {
            let events = self.events.borrow();
            let last = events.iter().rev().find(|event| event.reason == reason);
            if self.is_down.get() {
                Err(ClusterError::TimedOut)
            } else {
                Ok(last.map(|event| (event.count, event.first)))
            }
        }

        fn apply_event(&self, event: &Event) -> Result<(), ClusterError> {
            self.event_requests.set(self.event_requests.get() + 1);
            if self.denies_events.get() {
                let (action, message) = ("an Event", "forbidden".to_string());
                return Err(ClusterError::Refused { action, status: 403, message });
            }
            self.answer().map(|()| self.events.borrow_mut().push(event.clone()))
        }
    }
}
