//! NVIDIA's own driver on a made-up GPU (tests/real-driver), loaded and unloaded; and which stories cannot be played on it, and why.
//!
//! Only an open one can be overridden, and so has a GPU that is started. Knows nothing of releases: what a driver of an era does is foretold by
//! the stories.

use std::fs::File;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::command::{must, run};

/// The made-up GPU's node.
const GPU: &str = "/dev/nvidia0";
const NODES: [(&str, &str); 2] = [("/dev/nvidiactl", "255"), (GPU, "0")];

/// Of a GPU that the driver does not have: a closed one would start the made-up GPU for whoever opens it, and does not survive (460) that
/// there are no engines.
const CLOSED_NODES: [(&str, &str); 2] = [("/dev/nvidiactl", "255"), (GPU, "77")];

/// There is no interrupt.
const PARAMETER: &str = "NVreg_EnableMSI=0";
/// The chip is none for workstations.
const OPEN_PARAMETER: &str = "NVreg_OpenRmEnableUnsupportedGpus=1";

/// How often the driver is tried to be unloaded.
const PATIENCE: u32 = 100;

/// A driver that is loaded. An open one has its GPU.
pub struct Loaded {
    is_open: bool,
    /// The GPU is started when it is first opened, and stopped when it is last closed.
    gpu: Option<File>,
}

/// Releases that this guest has, as the plan names them, oldest first.
pub fn releases() -> Result<Vec<String>> {
    let names = std::fs::read_dir("/real").context("this guest has no real driver")?;
    let mut names: Vec<String> =
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn overrides(release: &str) -> String {
    format!("/real/{release}/made_up_overrides.ko")
}

/// Whether the driver of that release is a closed one.
pub fn is_closed(release: &str) -> bool {
    !Path::new(&overrides(release)).exists()
}

/// Loads the driver of a release, and has it start the GPU if it is open.
pub fn load(release: &str) -> Result<Loaded> {
    let module = |name: &str| format!("/real/{release}/{name}.ko");
    for part in ["made_up_gpu", "made_up_drm"] {
        if !Path::new(&format!("/sys/module/{part}")).exists() {
            must(&["insmod", &module(part)]).with_context(|| format!("no {part}"))?;
        }
    }
    let is_closed = is_closed(release);
    let more: &[&str] = if is_closed { &[] } else { &[OPEN_PARAMETER] };
    must(&[&["insmod", &module("nvidia"), PARAMETER][..], more].concat())
        .context("cannot load NVIDIA's driver: dmesg says why")?;
    if !is_closed {
        must(&["insmod", &overrides(release)]).context("NVIDIA's driver cannot be overridden")?;
    }
    for (node, minor) in if is_closed { CLOSED_NODES } else { NODES } {
        must(&["rm", "-f", node])?;
        must(&["mknod", "-m", "666", node, "c", "195", minor])?;
    }
    let start = || File::options().read(true).write(true).open(GPU).context("NVIDIA's driver does not start the GPU");
    Ok(Loaded { is_open: !is_closed, gpu: if is_closed { None } else { Some(start()?) } })
}

impl Loaded {
    /// Stops the GPU and unloads the driver. A driver that stays can be tried again.
    pub fn unload(&mut self) -> Result<()> {
        self.gpu = None;
        // Callers come and go; between two of them it is in nobody's hands.
        for _ in 0..PATIENCE {
            if run(&["rmmod", "nvidia"])?.status == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if Path::new("/sys/module/nvidia").exists() {
            must(&["rmmod", "nvidia"]).context("cannot unload NVIDIA's driver")?;
        }
        if self.is_open {
            must(&["rmmod", "made_up_overrides"])?;
        }
        Ok(())
    }
}

/// Says who kept the GPU how busy, in percent, by the host's numbers: the made-up GPU cannot be kept busy.
pub fn keep_busy(samples: &[(u32, u32)]) -> Result<()> {
    let told: Vec<String> = samples.iter().map(|(pid, percent)| format!("{pid},{percent}")).collect();
    ensure!(samples.len() <= 16, "the overrides take 16 samples");
    std::fs::write("/sys/module/made_up_overrides/parameters/samples", told.join(",")).context("no samples")
}

/// Why a story is not played on a real driver; none if it is.
pub fn lack(story: &str, is_closed: bool, has_client: bool) -> Option<&'static str> {
    if is_closed {
        return (!WITHOUT_A_GPU.contains(&story)).then_some(CLOSED);
    }
    let reason = LACKS.iter().find(|(stories, _)| stories.contains(&story)).map(|(_, reason)| *reason);
    reason.or_else(|| (!has_client && CLIENTS.contains(&story)).then_some(CLIENT))
}

const CLOSED: &str = "a closed driver: it cannot be overridden, so that no GPU starts and no process is in any list";

/// Stories that want no GPU: those that are played on a closed driver.
const WITHOUT_A_GPU: [&str; 4] = [
    "calls_that_need_no_gpu_are_the_drivers_own",
    "another_release_of_the_driver_is_followed",
    "a_driver_without_a_gpu_is_told_truthfully",
    "state_and_counters_can_be_read_at_any_time",
];

const KNOB: &str = "the real driver: the story turns a knob of the simulated one";
const ENGINES: &str = "the real driver: a made-up GPU has no encoder, no capture, no profiler and no debugger";
const CLIENT: &str = "the real driver: no nvidia-smi at hand asks as its release does, starts on it, and shows processes of a made-up GPU";

/// Releases whose nvidia-smi shows no process on a made-up GPU, with MPU or without: which control it misses is not known.
const BLIND: [&str; 1] = ["535.261.03"];

/// The branches from which on NVML asks for memory or samples by another layout.
const LAYOUTS: [u32; 4] = [515, 525, 550, 570];

/// Whether a client may be tried on a real driver: it asks as that release's own does, and is known to show something.
pub fn may_serve(client: &str, release: &str) -> bool {
    let branch = |release: &str| release.split('.').next().and_then(|branch| branch.parse::<u32>().ok()).unwrap_or(0);
    let layout = |release| LAYOUTS.partition_point(|first| *first <= branch(release));
    layout(client) == layout(release) && !BLIND.contains(&client)
}
const PROBES: &str = "the real driver: the story switches off the kernel's probes, by which the driver is overridden";
const SIZES: &str = "the real driver: it takes the sizes of its own release alone";

/// Stories that want what only a simulated driver, or a real GPU, can do.
const LACKS: [(&[&str], &str); 4] = [
    (
        &[
            "own_utilisation_equals_what_the_host_sees",
            "error_report_names_the_caller_by_its_own_number",
            "a_sample_of_an_ended_process_is_not_followed",
            "answer_past_the_drivers_copies_is_counted",
            "a_driver_that_miscounts_tells_no_foreign_pid",
            "no_caller_is_lent_a_right_or_loses_one",
            "rows_stay_on_their_gpu_and_instance",
            "armed_is_not_said_while_nothing_passes",
            "no_byte_that_comes_back_is_of_anybody_else",
            "an_event_of_the_memory_limit_names_own_processes_only",
            "an_oops_of_the_driver_does_not_take_the_module_along",
            "a_hand_over_while_the_driver_goes_leaves_nothing_behind",
            "module_and_driver_go_at_once",
            "a_driver_that_hangs_stops_nobody_else",
        ],
        KNOB,
    ),
    (
        &[
            "encoder_and_capture_sessions_are_own_only",
            "profiler_reservation_names_own_process_only",
            "the_count_of_encoder_sessions_is_ones_own",
            "a_thread_with_descriptors_of_its_own_is_shown_nobody_else",
            "other_controls_buffers_stay_untouched",
            "every_translated_control_is_counted_once",
            "a_caller_that_changed_its_user_is_shown_nobody_else",
            "reused_host_pid_inherits_no_row",
        ],
        ENGINES,
    ),
    (
        &[
            "every_layout_is_translated",
            "samples_beyond_the_usual_hundred_are_translated",
            "a_fault_in_the_argument_shows_nobody",
            "races_on_every_control_show_nobody",
        ],
        SIZES,
    ),
    (&["what_passes_is_counted_by_its_reason"], PROBES),
];

/// Stories that run NVIDIA's clients, which want a driver of their own release.
const CLIENTS: [&str; 13] = [
    "container_sees_its_own_processes",
    "container_of_runc_sees_its_own_processes",
    "exec_into_a_container_sees_process_1",
    "query_compute_apps_lists_own_processes_only",
    "pmon_shows_own_utilisation",
    "query_of_pids_and_accounting_names_own_processes_only",
    "containers_do_not_see_each_other",
    "pynvml_is_told_of_own_processes_only",
    "ps_names_every_process_and_its_container",
    "metrics_tell_who_uses_what_and_let_the_driver_go",
    "agent_in_a_container_keeps_the_node_right",
    "gpu_put_in_by_our_wrapper_is_seen_right",
    "nested_namespaces_2_deep_each_see_their_own_numbers",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_story_that_is_named_is_there_and_named_once() {
        let named: Vec<&str> = LACKS.iter().flat_map(|(stories, _)| *stories).chain(&CLIENTS).copied().collect();
        assert!(WITHOUT_A_GPU.iter().all(|name| crate::stories::ALL.iter().any(|story| story.name == *name)));
        for (at, name) in named.iter().enumerate() {
            assert!(crate::stories::ALL.iter().any(|story| story.name == *name), "{name}");
            assert!(!named[..at].contains(name), "{name} twice");
        }
    }

    #[test]
    fn client_of_other_layouts_does_not_serve() {
        assert!(may_serve("555.58.02", "555.58.02") && may_serve("555.58.02", "560.35.03"));
        for (client, release) in [("555.58.02", "610.43.03"), ("470.256.02", "515.105.01"), ("535.261.03", "545.29.06")]
        {
            assert!(!may_serve(client, release), "{client} on {release}");
        }
    }

    #[test]
    fn a_skip_has_its_reason() {
        assert_eq!(lack("rows_stay_on_their_gpu_and_instance", false, true), Some(KNOB));
        assert!(lack("pmon_shows_own_utilisation", false, false).is_some_and(|why| why.contains("nvidia-smi")));
        assert_eq!(lack("pmon_shows_own_utilisation", false, true), None);
        assert_eq!(lack("pmon_shows_own_utilisation", true, true), Some(CLOSED));
        assert_eq!(lack(WITHOUT_A_GPU[0], true, true), None);
    }
}
