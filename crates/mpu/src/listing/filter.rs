//! Filters of processes.

use crate::processes::{Gpu, GpuProcess, ProcessError};
use mpu_host::containers::{Container, Runtime};

/// Conditions for a process: all must match; of several values of one condition, one.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Which processes")]
pub struct Filter {
    /// On these GPUs: by index, UUID or bus address; the beginning or the end of a UUID or address is enough
    #[arg(long, value_delimiter = ',', value_name = "GPU,…")]
    pub gpu: Vec<String>,

    /// In these containers: by name, where * matches anything, or by the beginning of the id
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub container: Vec<String>,

    /// In these pods: by name, where * matches anything, or by the beginning of the uid
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub pod: Vec<String>,

    /// In pods of these namespaces; * matches anything
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub namespace: Vec<String>,

    /// Of these users, by name or number
    #[arg(long, value_delimiter = ',', value_name = "USER,…")]
    pub user: Vec<String>,

    /// In containers of these runtimes
    #[arg(long, value_enum, value_delimiter = ',', value_name = "RUNTIME,…")]
    pub runtime: Vec<Runtime>,
}

impl Filter {
    /// Checks that each named GPU exists.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self, gpus: &[Gpu]) -> Result<(), ProcessError> {
        let is_there = |value: &&String| gpus.iter().any(|gpu| gpu_matches(gpu, value));
        let Some(missing) = self.gpu.iter().find(|value| !is_there(value)) else { return Ok(()) };
        let indices: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        let has = if indices.is_empty() { "none".to_string() } else { indices.join(", ") };
        Err(ProcessError::NoSuchGpu { requested: missing.clone(), has })
    }

    /// Whether a process matches.
    pub fn matches(&self, process: &GpuProcess, gpus: &[Gpu]) -> bool {
        let containers = || std::iter::successors(process.facts.container.as_ref(), |c| c.outer.as_deref());
        let gpu = || gpus.iter().find(|gpu| gpu.index == process.gpu);
        any(&self.gpu, |value| process.gpu.to_string() == value || gpu().is_some_and(|gpu| gpu_matches(gpu, value)))
            && any(&self.container, |value| containers().any(|container| is_container(container, value)))
            && any(&self.pod, |value| containers().any(|container| is_pod(container, value)))
            && any(&self.namespace, |value| containers().any(|container| is_namespace(container, value)))
            && any(&self.user, |value| is_user(process, value))
            && (self.runtime.is_empty() || containers().any(|container| self.runtime.contains(&container.runtime)))
    }
}

/// Whether a value matches; no values match everything.
fn any(values: &[String], is: impl Fn(&str) -> bool) -> bool {
    values.is_empty() || values.iter().any(|value| is(value))
}

/// The shortest accepted prefix of an id. A shorter text is probably a name.
const MIN_PREFIX: usize = 4;

fn has_prefix(id: &str, value: &str) -> bool {
    value.len() >= MIN_PREFIX && id.to_ascii_lowercase().starts_with(&value.to_ascii_lowercase())
}

/// Whether the value names the GPU: by index, by the beginning of its UUID or by the end of its bus address.
pub fn gpu_matches(gpu: &Gpu, value: &str) -> bool {
    let bus = |id: &String| value.len() >= MIN_PREFIX && id.to_ascii_lowercase().ends_with(&value.to_ascii_lowercase());
    gpu.index.to_string() == value
        || gpu.uuid.as_ref().is_some_and(|uuid| has_prefix(uuid, value))
        || gpu.bus_id.as_ref().is_some_and(bus)
}

fn is_container(container: &Container, value: &str) -> bool {
    container.name.as_ref().is_some_and(|name| matches_pattern(value, name))
        || has_prefix(&container.id, value)
        || container.id == value
}

fn is_pod(container: &Container, value: &str) -> bool {
    let Some(pod) = &container.pod else { return false };
    pod.name.as_ref().is_some_and(|name| matches_pattern(value, name))
        || pod.uid.as_ref().is_some_and(|uid| has_prefix(uid, value))
}

fn is_namespace(container: &Container, value: &str) -> bool {
    let namespace = container.pod.as_ref().and_then(|pod| pod.namespace.as_ref());
    namespace.is_some_and(|namespace| matches_pattern(value, namespace))
}

fn is_user(process: &GpuProcess, value: &str) -> bool {
    process.facts.user.as_deref() == Some(value) || process.facts.uid.is_some_and(|uid| uid.to_string() == value)
}

/// Whether a text matches a pattern, in which `*` stands for anything.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((start, pattern)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(start) else { return false };
    let mut pieces: Vec<&str> = pattern.split('*').collect();
    let end = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn star_matches_any_text() {
        for (pattern, text) in
            [("a", "a"), ("*", ""), ("a*", "abc"), ("*c", "abc"), ("a*c", "abc"), ("*b*", "abc"), ("a**c", "ac")]
        {
            assert!(matches_pattern(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("", "a"), ("a*", "ba"), ("*c", "cb"), ("ab*bc", "abc"), ("a*b*c", "acb")]
        {
            assert!(!matches_pattern(pattern, text), "{pattern} {text}");
        }
    }
}
