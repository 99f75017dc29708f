//! `list`: the parts of the driver, one path per line, relative to the driver's root.

use super::args::{Global, List};
use super::error::CliError;
use super::mig::{self, CAPABILITIES};
use crate::capability::{Capabilities, Capability};
use crate::driver::files::{File, Files};
use crate::driver::{Driver, Gpu, Selection};
use std::path::Path;

pub fn page(driver: &Driver, list: &List, global: &Global) -> Result<String, CliError> {
    let mut page = Page::default();
    let device_ids = list.device.clone().unwrap_or_default();
    let selection = driver.select(&device_ids).map_err(CliError::Device)?;
    let mig = |option, values: &[String]| {
        mig::gpus(option, values, driver, &selection, &device_ids).map_err(|source| CliError::Mig { option, source })
    };
    let config = mig("mig-config", &list.mig_config)?;
    let monitor = mig("mig-monitor", &list.mig_monitor)?;
    if list.device.is_some() {
        // A container that may configure or watch all of MIG needs no capabilities of single devices.
        let all_of_mig = !list.mig_config.is_empty() || !list.mig_monitor.is_empty();
        devices(driver, &selection, all_of_mig, &mut page);
    }
    for channel in &list.imex_channel {
        page.path(format!("/dev/nvidia-caps-imex-channels/channel{channel}"));
    }
    for (file, gpus) in [("mig/config", config), ("mig/monitor", monitor)] {
        capability(driver, file, &gpus, &mut page);
    }
    if list.binaries || list.libraries || list.ipcs || list.firmwares {
        let found = driver.files_by_cache(Capabilities::ALL, global.ldcache.as_deref());
        files(found.map_err(CliError::Files)?, list, &mut page);
    }
    Ok(page.0)
}

fn devices(driver: &Driver, selection: &Selection<'_>, all_of_mig: bool, page: &mut Page) {
    let gpus = Selection { gpus: selection.gpus.clone(), migs: Vec::new() };
    let capabilities = Capabilities::NONE.with(Capability::Compute).with(Capability::Display);
    let nodes = driver.nodes(&gpus, capabilities);
    let driver_nodes = nodes.iter().filter(|node| !node.container.starts_with("/dev/dri"));
    driver_nodes.for_each(|node| page.path(&node.container));
    for (gpu, mig) in selection.migs.iter().filter(|_| !all_of_mig) {
        let files = mig.access_files(gpu);
        files.iter().for_each(|file| page.path(format!("/{CAPABILITIES}/{file}")));
        files.iter().filter_map(|file| driver.capability_node(file)).for_each(|node| page.path(node.container));
    }
}

fn capability(driver: &Driver, file: &str, gpus: &[&Gpu], page: &mut Page) {
    if gpus.is_empty() {
        return;
    }
    page.path(format!("/{CAPABILITIES}/{file}"));
    let node = driver.capability_node(file);
    node.iter().for_each(|node| page.path(&node.container));
    for gpu in gpus {
        page.path(format!("/{CAPABILITIES}/{}", mig::mig_path(gpu)));
        if node.is_some() {
            page.path("/dev/nvidia-caps");
            mig::capability_minors(driver, gpu)
                .iter()
                .for_each(|minor| page.path(format!("/dev/nvidia-caps/nvidia-cap{minor}")));
        }
    }
}

fn files(files: Files, list: &List, page: &mut Page) {
    let mut print = |is_requested: bool, files: &[File]| {
        files.iter().filter(|_| is_requested).for_each(|file| page.path(&file.container));
    };
    let libraries =
        |compat32| files.libraries.iter().filter(move |one| one.compat32 == compat32).map(|one| one.file.clone());
    print(list.binaries, &files.programs);
    print(list.libraries, &libraries(false).collect::<Vec<_>>());
    print(list.libraries && list.compat32, &libraries(true).collect::<Vec<_>>());
    let sockets: Vec<File> =
        files.sockets.iter().filter(|one| list.exclusions.includes_socket(&one.container)).cloned().collect();
    print(list.ipcs, &sockets);
    print(list.firmwares && !list.exclusions.no_gsp_firmware, &files.firmware);
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn path(&mut self, path: impl AsRef<Path>) {
        self.0 += &format!("{}\n", path.as_ref().display());
    }
}
