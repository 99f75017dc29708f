//! Loads and unloads NVIDIA's own driver on a made-up GPU (tests/real-driver), and decides which stories run on it. Only an open driver can
//! be overridden and so has a GPU.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::run_ok;
use crate::wait::unload_unused;

const GPU: &str = "/dev/nvidia0";
const NODES: [(&str, &str); 2] = [("/dev/nvidiactl", "255"), (GPU, "0")];

/// The minor does not exist in the driver: opening the GPU would start it, and release 460 does not survive a GPU without engines.
const CLOSED_NODES: [(&str, &str); 2] = [("/dev/nvidiactl", "255"), (GPU, "77")];

const PARAMETER: &str = "NVreg_EnableMSI=0";
/// The made-up chip is no workstation GPU.
const OPEN_PARAMETER: &str = "NVreg_OpenRmEnableUnsupportedGpus=1";

/// A driver that is loaded. An open one has its GPU.
pub struct Loaded {
    is_open: bool,
    /// The driver starts the GPU at the first open, and stops it at the last close.
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
            run_ok(&["insmod", &module(part)]).with_context(|| format!("no {part}"))?;
        }
    }
    let is_closed = is_closed(release);
    let more: &[&str] = if is_closed { &[] } else { &[OPEN_PARAMETER] };
    run_ok(&[&["insmod", &module("nvidia"), PARAMETER][..], more].concat())
        .context("cannot load NVIDIA's driver: dmesg says why")?;
    if !is_closed {
        run_ok(&["insmod", &overrides(release)]).context("NVIDIA's driver cannot be overridden")?;
    }
    for (node, minor) in if is_closed { CLOSED_NODES } else { NODES } {
        run_ok(&["rm", "-f", node])?;
        run_ok(&["mknod", "-m", "666", node, "c", "195", minor])?;
    }
    let start = || File::options().read(true).write(true).open(GPU).context("NVIDIA's driver does not start the GPU");
    Ok(Loaded { is_open: !is_closed, gpu: if is_closed { None } else { Some(start()?) } })
}

impl Loaded {
    /// Stops the GPU and unloads the driver. If that fails, it can be called again.
    pub fn unload(&mut self) -> Result<()> {
        self.gpu = None;
        unload_unused(c"nvidia")?;
        if self.is_open {
            run_ok(&["rmmod", "made_up_overrides"])?;
        }
        Ok(())
    }
}

/// Sets the utilisation samples: host PID and percent. A made-up GPU cannot be busy.
pub fn set_samples(samples: &[(u32, u32)]) -> Result<()> {
    let pairs: Vec<String> = samples.iter().map(|(pid, percent)| format!("{pid},{percent}")).collect();
    ensure!(samples.len() <= 16, "the overrides take 16 samples");
    std::fs::write("/sys/module/made_up_overrides/parameters/samples", pairs.join(",")).context("no samples")
}

/// Whether a story runs on NVIDIA's own driver with a made-up GPU, or what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Real {
    Played,
    /// Runs on a closed driver, too: it needs no GPU.
    WithoutGpu,
    /// Runs where NVIDIA's client works on the driver.
    Client,
    /// Needs an option of the simulated driver.
    Knob,
    /// Needs GPU engines that a made-up GPU lacks.
    Engines,
    /// Calls with the parameter sizes of several releases.
    Sizes,
    /// Switches off the kernel's probes.
    Probes,
}

/// Why a story does not run on a real driver; none if it runs. `has_client` starts nvidia-smi, which must not happen on a closed driver.
pub fn skip_reason(real: Real, is_closed: bool, has_client: impl FnOnce() -> bool) -> Option<&'static str> {
    Some(match real {
        Real::WithoutGpu => return None,
        _ if is_closed => {
            "a closed driver: it cannot be overridden, so that no GPU starts and no process is in any list"
        }
        Real::Played => return None,
        Real::Client if has_client() => return None,
        Real::Client => {
            "the real driver: no nvidia-smi at hand asks as its release does, starts on it, and shows processes of a made-up GPU"
        }
        Real::Knob => "the real driver: the story turns a knob of the simulated one",
        Real::Engines => "the real driver: a made-up GPU has no encoder, no capture, no profiler and no debugger",
        Real::Sizes => "the real driver: it takes the sizes of its own release alone",
        Real::Probes => {
            "the real driver: the story switches off the kernel's probes, by which the driver is overridden"
        }
    })
}

/// Releases whose nvidia-smi shows no process on a made-up GPU, with MPU or without. The reason is unknown.
const CLIENTS_WITHOUT_ROWS: &[&str] = &["535.261.03"];

/// The branches in which NVML changed the layout of memory or sample queries.
const LAYOUTS: &[u32] = &[515, 525, 550, 570];

/// Whether a client can work on a real driver: it uses the same layouts as that release, and shows processes.
pub fn is_usable_on(client: &str, release: &str) -> bool {
    let branch = |release: &str| release.split('.').next().and_then(|branch| branch.parse::<u32>().ok()).unwrap_or(0);
    let layout = |release| LAYOUTS.partition_point(|first| *first <= branch(release));
    layout(client) == layout(release) && !CLIENTS_WITHOUT_ROWS.contains(&client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_of_other_layouts_does_not_serve() {
        assert!(is_usable_on("555.58.02", "555.58.02") && is_usable_on("555.58.02", "560.35.03"));
        for (client, release) in [("555.58.02", "610.43.03"), ("470.256.02", "515.105.01"), ("535.261.03", "545.29.06")]
        {
            assert!(!is_usable_on(client, release), "{client} on {release}");
        }
    }

    #[test]
    fn skip_on_real_driver_has_its_reason() {
        let has = |real, is_closed, has_client, word: &str| {
            skip_reason(real, is_closed, || has_client).unwrap().contains(word)
        };
        assert!(has(Real::Knob, false, true, "knob"));
        assert!(has(Real::Client, false, false, "nvidia-smi"));
        assert_eq!(skip_reason(Real::Client, false, || true), None);
        assert!(has(Real::Client, true, true, "closed"));
        assert_eq!(skip_reason(Real::WithoutGpu, true, || panic!("nvidia-smi is not started")), None);
    }
}
