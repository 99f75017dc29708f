//! `mpu module-image`: the report of an image of modules.
//!
//! Owns the words. What is done is `mpu_engine::module::image`'s.

use crate::error::Error;
use crate::report::{Lines, Report, Style};
use mpu_engine::error::EngineError;
use mpu_engine::module::image::{self, Image, ImageOptions};
use mpu_host::exit::Exit;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// What was made.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Image")]
pub struct Done {
    /// The file: a tar of an OCI image layout.
    pub image: PathBuf,
    /// The digest of its manifest.
    pub digest: String,
    /// The processor, as images name it.
    pub arch: &'static str,
    /// Its modules, by release.
    pub modules: Vec<InImage>,
    /// Whether KMM can copy the modules out of it.
    pub for_kmm: bool,
}

/// A kernel's module in the image.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct InImage {
    /// The kernel's release.
    pub kernel: String,
    /// Whether the module carries a signature.
    pub signed: bool,
}

/// Makes it.
pub fn make(host: &Host, options: &ImageOptions) -> Result<Done, Error> {
    let Image { path, digest, arch, modules, kmm } = image::make(host, options).map_err(EngineError::from)?;
    let modules = modules.into_iter().map(|one| InImage { kernel: one.release, signed: one.signed }).collect();
    Ok(Done { image: path, digest, arch, modules, for_kmm: kmm })
}

impl Report for Done {
    const COMMAND: &'static str = "module-image";

    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        lines.plain(format!("made {} for {}", self.image.display(), self.arch));
        lines.put("digest", &self.digest);
        for (i, one) in self.modules.iter().enumerate() {
            let signed = if one.signed { "signed" } else { "not signed" };
            lines.put(if i == 0 { "kernels" } else { "" }, format!("{}, {signed}", one.kernel));
        }
        if !self.for_kmm {
            lines.put("note", "KMM cannot use it: it runs sh, mkdir and cp in the image (--busybox)");
        }
        lines
            .put("next", format!("skopeo copy oci-archive:{} docker://REGISTRY/mpu-modules:TAG", self.image.display()));
        lines.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_documented_and_the_text_says_what_the_image_is_good_for() {
        let mut done = Done {
            image: "mpu-modules.tar".into(),
            digest: "sha256:0".to_string(),
            arch: "amd64",
            modules: vec![InImage { kernel: "6.1.0".to_string(), signed: true }],
            for_kmm: false,
        };
        crate::report::documented::check("`mpu module-image --json`", &crate::report::json(&done));
        assert!(done.text(Style::Plain).contains("6.1.0, signed") && done.text(Style::Plain).contains("--busybox"));
        done.for_kmm = true;
        assert!(!done.text(Style::Plain).contains("--busybox"));
    }
}
