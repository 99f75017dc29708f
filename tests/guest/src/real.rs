//! NVIDIA's own open driver on a made-up GPU (tests/real-driver), loaded and unloaded; and which stories cannot be played on it, and why.
//!
//! Knows nothing of releases: what a driver of an era does is foretold by the stories.

use std::fs::File;

use anyhow::{ensure, Context, Result};

use crate::command::{must, run};

/// The made-up GPU's node.
const GPU: &str = "/dev/nvidia0";
const NODES: [(&str, &str); 2] = [("/dev/nvidiactl", "255"), (GPU, "0")];

/// There is no interrupt, and the chip is none for workstations.
const PARAMETERS: [&str; 2] = ["NVreg_EnableMSI=0", "NVreg_OpenRmEnableUnsupportedGpus=1"];

/// A driver that is loaded and has its GPU.
pub struct Loaded {
    /// The GPU is started when it is first opened, and stopped when it is last closed.
    gpu: File,
}

/// Loads the driver of a release, and has it start the GPU.
pub fn load(release: &str) -> Result<Loaded> {
    let module = |name: &str| format!("/real/{release}/{name}.ko");
    if run(&["grep", "-q", "^made_up_gpu ", "/proc/modules"])?.status != 0 {
        must(&["insmod", &module("made_up_gpu")]).context("no made-up GPU")?;
    }
    must(&[&["insmod", &module("nvidia")][..], &PARAMETERS].concat()).context("cannot load NVIDIA's driver")?;
    must(&["insmod", &module("made_up_overrides")]).context("NVIDIA's driver cannot be overridden")?;
    for (node, minor) in NODES {
        if !std::path::Path::new(node).exists() {
            must(&["mknod", "-m", "666", node, "c", "195", minor])?;
        }
    }
    let gpu = File::options().read(true).write(true).open(GPU).context("NVIDIA's driver does not start the GPU")?;
    Ok(Loaded { gpu })
}

impl Loaded {
    /// Stops the GPU and unloads the driver.
    pub fn unload(self) -> Result<()> {
        drop(self.gpu);
        must(&["rmmod", "nvidia"]).context("cannot unload NVIDIA's driver")?;
        must(&["rmmod", "made_up_overrides"]).map(drop)
    }
}

/// Says who kept the GPU how busy, in percent, by the host's numbers: the made-up GPU cannot be kept busy.
pub fn keep_busy(samples: &[(u32, u32)]) -> Result<()> {
    let told: Vec<String> = samples.iter().map(|(pid, percent)| format!("{pid},{percent}")).collect();
    ensure!(samples.len() <= 16, "the overrides take 16 samples");
    std::fs::write("/sys/module/made_up_overrides/parameters/samples", told.join(",")).context("no samples")
}

/// Why a story is not played on a real driver; none if it is.
pub fn lack(story: &str, has_client: bool) -> Option<&'static str> {
    let (_, reason) = LACKS.iter().find(|(stories, _)| stories.contains(&story)).copied().unwrap_or_default();
    match reason {
        "" if !has_client && CLIENTS.contains(&story) => Some("the real driver: there is no nvidia-smi of its release"),
        "" => None,
        reason => Some(reason),
    }
}

/// Stories that want what only a simulated driver, or a real GPU, can do.
const LACKS: [(&[&str], &str); 0] = [];

/// Stories that run NVIDIA's clients, which want a driver of their own release.
const CLIENTS: [&str; 0] = [];
