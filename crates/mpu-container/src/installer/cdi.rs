//! The CDI file for management containers: one device with all nodes of the driver.

use super::error::InstallError;
use super::flags::Options;
use super::note::note;
use crate::cdi::extra::Mode;
use crate::cdi::file::{self, Format};
use crate::cdi::transform::{self, Relative};
use crate::cdi::{Kind, Options as Edits, Request, generate};
use crate::ctk::nodes;
use crate::driver::DriverRoot;
use std::path::{Path, PathBuf};

pub fn kind(options: &Options) -> Result<Kind, InstallError> {
    options.text("cdi-kind").parse::<Kind>().map_err(|error| InstallError::Usage(format!("--cdi-kind: {error}")))
}

pub fn write(folder: &Path, options: &Options) -> Result<(), InstallError> {
    let option_or = |flag: &str, fallback: &str| match options.text(flag) {
        "" => PathBuf::from(options.text(fallback)),
        path => PathBuf::from(path),
    };
    let files = PathBuf::from(options.text("driver-root-ctr-path"));
    let devices = option_or("dev-root-ctr-path", "driver-root-ctr-path");
    let root = DriverRoot::at(&files, Some(&devices));
    if nodes(options)? {
        nodes::create_control_nodes(&root, false, &mut note)?;
    }
    let kind = kind(options)?;
    let path = Path::new(options.text("cdi-output-dir")).join(format!("{}-{}.yaml", kind.vendor(), kind.class()));
    let request = Request {
        kind,
        mode: Mode::Management,
        names: Vec::new(),
        devices: vec!["all".into()],
        all: false,
        edits: Edits::new(folder.join("nvidia-cdi-hook")),
    };
    let mut spec = generate::generate(&root, &request).map_err(|source| InstallError::Cdi(source.into()))?;
    generate::warnings(&spec, request.mode).into_iter().for_each(note);
    transform::change_root(&mut spec, &files, Path::new(options.text("driver-root")), Relative::Host);
    if devices != files {
        transform::change_root(&mut spec, &devices, &option_or("dev-root", "driver-root"), Relative::Host);
    }
    file::write(&path, file::serialize(&spec, Format::Yaml).as_bytes())
        .map_err(|source| InstallError::Cdi(source.into()))?;
    note(format!("wrote {}", path.display()));
    Ok(())
}

pub fn nodes(options: &Options) -> Result<bool, InstallError> {
    let values = options.list("create-device-nodes");
    if let Some(unknown) = values.iter().find(|value| !matches!(value.as_str(), "control" | "none")) {
        return Err(InstallError::Usage(format!("--create-device-nodes={unknown} is neither control nor none")));
    }
    Ok(values.iter().any(|value| value == "control") && !values.iter().any(|value| value == "none"))
}
