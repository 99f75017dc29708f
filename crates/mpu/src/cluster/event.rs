//! An Event on a Node, as the API server takes it.
//!
//! Each node and reason has one object. Later Events of the reason update it, so a node has only a few.
//!
//! Source: `EventSeries` and `ValidateEvent` of Kubernetes: an Event of a Node lives in the namespace `default`, a message has
//! 1,024 bytes at most, and an object's name is a DNS name.

use mpu_host::time;
use serde_json::{Value, json};

/// The longest message that the API server takes.
const MAX_MESSAGE: usize = 1024;

/// The longest name of an object.
const MAX_NAME: usize = 253;

/// An Event on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub reason: &'static str,
    /// Whether an administrator has to act.
    pub is_warning: bool,
    /// The state, and the fix.
    pub message: String,
    /// How often it was sent.
    pub count: u64,
    /// When it was sent first, in seconds since 1970.
    pub first: u64,
    /// When it was sent last.
    pub last: u64,
}

impl Event {
    /// The name of a reason's object. The node's name is cut, because it may already have the full length.
    pub fn name(reason: &str, node: &str) -> String {
        let reason = reason.to_ascii_lowercase();
        let room = MAX_NAME - reason.len() - 1;
        format!("{}.{reason}", node.get(..room).unwrap_or(node).trim_end_matches(['.', '-']))
    }

    /// The object, for an apply.
    pub fn object(&self, node: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": Self::name(self.reason, node), "namespace": "default"},
            // `kubectl describe node` finds a node's Events by this uid, as in the kubelet's Events.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": self.reason,
            "message": fit_message(&self.message),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "source": {"component": "mpu", "host": node},
            "reportingComponent": "mpu",
            "reportingInstance": node,
            "count": self.count,
            "firstTimestamp": time::stamp(self.first),
            "lastTimestamp": time::stamp(self.last),
        })
    }
}

/// Makes a message one printable line that the API server accepts.
fn fit_message(message: &str) -> String {
    let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= MAX_MESSAGE {
        return line;
    }
    let mut end = MAX_MESSAGE - "…".len();
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> Event {
        Event { reason: "MpuNotRight", is_warning: true, message: message.into(), count: 3, first: 0, last: 86_400 }
    }

    #[test]
    fn one_object_for_each_node_and_reason() {
        let object = event("why").object("gpu-1.example");
        assert_eq!(object["metadata"], json!({"name": "gpu-1.example.mpunotright", "namespace": "default"}));
        assert_eq!((&object["type"], &object["count"]), (&json!("Warning"), &json!(3)));
        assert_eq!(object["firstTimestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(object["lastTimestamp"], "1970-01-02T00:00:00Z");
        for node in [format!("{}a", "a.".repeat(126)), format!("a{}", ".a".repeat(126)), "a".repeat(253)] {
            let name = Event::name("MpuNotRight", &node);
            assert!(name.len() <= MAX_NAME && !name.contains("..") && name.ends_with(".mpunotright"), "{name}");
        }
    }

    #[test]
    fn long_message_is_truncated() {
        for text in ["ö".repeat(2000), "x".repeat(1025), "a\n\u{1b}[2Jb".to_string(), "short".to_string()] {
            let message = fit_message(&text);
            assert!(message.len() <= MAX_MESSAGE && !message.contains(|c: char| c.is_control()), "{message}");
        }
        assert_eq!(fit_message(&"x".repeat(1024)).len(), 1024);
        assert!(fit_message(&"ö".repeat(2000)).ends_with('…'));
    }
}
