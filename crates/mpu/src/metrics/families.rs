//! The list of metrics: names, types, units, labels and help. The page is made from it, and a test looks for each name
//! in `docs/metrics.md`.
//!
//! Names and labels are stable: none is renamed or removed.

/// What kind of number a metric is, with its word in the exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    Gauge,
    /// Only rises, or restarts at zero.
    Counter,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// The name, with the unit at its end.
    pub name: &'static str,
    pub kind: Kind,
    /// The labels, in the order of the values.
    pub labels: &'static [&'static str],
    /// The meaning, as one sentence without its full stop.
    pub help: &'static str,
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, labels, help }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, labels, help }
}

/// The labels of a user of a GPU. Labels of `--label` follow these.
pub const USER_LABELS: &[&str] = &["gpu", "uuid", "mig", "container", "container_name", "pod", "namespace", "runtime"];

macro_rules! families {
    ($($name:ident = $family:expr;)*) => {
        $(pub static $name: Family = $family;)*

        /// Every metric.
        pub static ALL: &[&Family] = &[$(&$name),*];
    };
}

// In the page's order.
families! {
    BUILD = gauge("mpu_build_info", &["version"], "The exporter's version; always 1");
    STARTED = gauge("mpu_exporter_start_time_seconds", &[], "When the exporter began, in seconds since 1970");
    UP = gauge("mpu_engine_up", &[], "1 if an engine is armed or placed: it handles containers' calls");
    STATE = gauge(
        "mpu_engine_state",
        &["engine", "version", "state"],
        "1 for the state that a loaded engine is in, 0 for the others",
    );
    REFUSED = gauge(
        "mpu_engine_refused_info",
        &["engine", "symbol", "errno"],
        "The driver's function that could not be redirected and the kernel's answer; always 1, absent unless refused",
    );
    SINCE = gauge(
        "mpu_engine_start_time_seconds",
        &["engine"],
        "When mpu up started the engine, in seconds since 1970; absent if something else did",
    );
    INSIDE = gauge("mpu_engine_callers", &["engine"], "Callers inside the engine now");
    ORPHANS = gauge(
        "mpu_engine_orphans",
        &["engine"],
        "Callers whose task died inside the driver since the engine was loaded: each is a crash of the driver; absent \
            for the notify engine",
    );
    CLAIMED = gauge(
        "mpu_engine_argument_claimed",
        &["engine"],
        "1 if the module uses the caller's copy of a call's argument, 0 if it uses the driver's; absent while no redirect \
            is placed, and for the notify engine",
    );
    TRACING = gauge(
        "mpu_engine_function_tracing",
        &["engine"],
        "1 if function tracing is on, 0 if kernel.ftrace_enabled is 0; the module's redirects need it; absent for the \
            notify engine",
    );
    CONTAINERS = gauge(
        "mpu_engine_containers",
        &["engine"],
        "Containers that the notify engine answers for; absent for the module, which answers for all",
    );
    FORWARDED = counter(
        "mpu_forwarded_total",
        &["engine"],
        "Calls without PIDs that the notify engine passed on to the driver; absent for the module, which does not receive them",
    );
    RESTARTS = counter(
        "mpu_restarts_total",
        &["engine"],
        "How often a supervisor of the notify engine replaced one that had died; absent for the module, which has no process",
    );
    CPU = counter(
        "mpu_engine_cpu_seconds_total",
        &["engine", "container"],
        "Processor time of the notify engine for a container's calls; absent for the module, because its work counts as the caller's time",
    );
    HELD_BACK = counter(
        "mpu_engine_held_back_seconds_total",
        &["engine", "container"],
        "Time for which the notify engine held a container's calls back because it had spent its budget (notify_cpu_percent)",
    );
    TRANSLATED = counter(
        "mpu_translated_total",
        &["engine", "control"],
        "Answers translated for callers in containers, by the driver's control, since the engine was loaded",
    );
    PASSED = counter(
        "mpu_passed_total",
        &["engine", "reason"],
        "Calls not translated in the usual way, by reason, since the engine was loaded",
    );
    MISSED = counter(
        "mpu_missed_total",
        &["engine", "reason"],
        "Passed calls (mpu_passed_total) that left a caller in a container with an untranslated answer",
    );
    DRIVER = gauge(
        "mpu_driver_info",
        &["version", "flavour", "era"],
        "The loaded NVIDIA driver; era is empty for a release that this version does not know; absent without a driver",
    );
    GPU = gauge("mpu_gpu_info", &["gpu", "uuid", "name"], "A GPU that the driver shows; always 1");
    GPU_UP = gauge("mpu_gpu_up", &["gpu", "uuid"], "1 if the GPU's processes could be read, 0 if not");
    SIZE = gauge("mpu_gpu_memory_size_bytes", &["gpu", "uuid"], "The GPU's whole memory");
    PROCESSES = gauge("mpu_gpu_processes", USER_LABELS, "Processes that use the GPU or MIG instance");
    DEVICE_MEMORY = gauge(
        "mpu_gpu_device_memory_used_bytes",
        &["gpu", "uuid"],
        "The GPU's memory in use as the driver counts it, whoever uses it; absent if the driver does not report it",
    );
    RESIDUE = gauge(
        "mpu_gpu_memory_residue_bytes",
        &["gpu", "uuid"],
        "GPU memory of no known process: mpu_gpu_device_memory_used_bytes minus the GPU's rows of mpu_gpu_memory_used_bytes",
    );
    MEMORY = gauge(
        "mpu_gpu_memory_used_bytes",
        USER_LABELS,
        "GPU memory of these processes; absent if the driver does not report it",
    );
    SM = gauge(
        "mpu_gpu_sm_utilization_ratio",
        USER_LABELS,
        "Part of the last second in which these processes kept the multiprocessors busy, 0 to 1; absent if the driver does not report it",
    );
    TRANSFER = gauge(
        "mpu_gpu_memory_utilization_ratio",
        USER_LABELS,
        "Part of the last second in which these processes kept the GPU's memory busy, 0 to 1; absent if the driver does not report it",
    );
    ENCODER = gauge(
        "mpu_gpu_encoder_utilization_ratio",
        USER_LABELS,
        "Part of the last second in which these processes kept the video encoders busy, 0 to 1; absent if the driver does not report it",
    );
    DECODER = gauge(
        "mpu_gpu_decoder_utilization_ratio",
        USER_LABELS,
        "Part of the last second in which these processes kept the video decoders busy, 0 to 1; absent if the driver does not report it",
    );
    BYTE_SECONDS = counter(
        "mpu_gpu_memory_used_byte_seconds_total",
        USER_LABELS,
        "GPU memory of these processes multiplied by time, since the exporter began",
    );
    IDLE = counter(
        "mpu_gpu_idle_seconds_total",
        USER_LABELS,
        "Time in which these processes held the GPU without work on it, since the exporter began; absent if the driver does not report their work",
    );
    SM_SECONDS = counter(
        "mpu_gpu_sm_seconds_total",
        USER_LABELS,
        "Time in which these processes kept the multiprocessors busy by the driver's samples, since the exporter began; absent without samples",
    );
    ENDED = counter(
        "mpu_gpu_processes_ended_total",
        USER_LABELS,
        "Processes that used the GPU at one reading and not at the next, since the exporter began",
    );
    DEVICE_BYTE_SECONDS = counter(
        "mpu_gpu_device_memory_used_byte_seconds_total",
        &["gpu", "uuid"],
        "The GPU's memory in use multiplied by time, whoever uses it, since the exporter began",
    );
    OBSERVED = counter(
        "mpu_gpu_observed_seconds_total",
        &["gpu", "uuid"],
        "Time that the byte-seconds cover; a gap of more than 300 s between readings counts as 300 s",
    );
    SUCCESS = gauge("mpu_scrape_success", &["part"], "1 if this part (engine or gpu) could be read for this page");
    DURATION = gauge("mpu_scrape_duration_seconds", &["part"], "How long reading this part took for this page");
    ERRORS = counter("mpu_scrape_errors_total", &["part"], "How often this part could not be read since the exporter began");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_prometheus_rules() {
        let mut seen = BTreeSet::new();
        for family in ALL {
            assert!(seen.insert(family.name), "{} twice", family.name);
            assert!(family.name.starts_with("mpu_"), "{}", family.name);
            let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(plain(family.name) && family.labels.iter().all(|label| plain(label)), "{}", family.name);
            assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter, "{}", family.name);
            assert!(family.help.len() > 20 && !family.help.ends_with('.'), "{}", family.name);
        }
    }

    #[test]
    fn metric_labels_name_no_user_or_command() {
        for label in ALL.iter().flat_map(|family| family.labels) {
            assert!(!["pid", "user", "uid", "command", "comm", "cmdline"].contains(label), "{label}");
        }
    }
}
