//! Selects GPUs and MIG devices by name.
//!
//! Source: NVIDIA Container Toolkit, "Specialized Configurations", GPU enumeration; libnvidia-container for the names and for
//! ignoring their case.

use super::Driver;
use super::error::UnknownDevice;
use super::proc::PciAddress;
use super::types::{Gpu, Mig, Selection};

impl Driver {
    /// Selects devices by `all`, an index, a GPU's UUID, a PCI address, a MIG device's UUID, `gpu:mig` by indices, or
    /// `MIG-UUID/GI/CI` with the GPU's UUID and the numbers of both instances. `none` and empty words select nothing.
    pub fn select(&self, words: &[String]) -> Result<Selection<'_>, UnknownDevice> {
        let mut selection = Selection::default();
        for word in words.iter().map(|word| word.trim()).filter(|word| !word.is_empty()) {
            if word.eq_ignore_ascii_case("none") {
            } else if word.eq_ignore_ascii_case("all") {
                self.gpus.iter().for_each(|gpu| selection.add_gpu(gpu));
                let pairs = self.gpus.iter().flat_map(|gpu| gpu.mig.iter().map(move |mig| (gpu, mig)));
                pairs.for_each(|(gpu, mig)| selection.add_mig(gpu, mig));
            } else if let Some(gpu) = self.gpu_named(word) {
                selection.add_gpu(gpu);
            } else if let Some((gpu, mig)) = self.mig_named(word) {
                selection.add_mig(gpu, mig);
            } else {
                return Err(UnknownDevice { word: word.to_owned() });
            }
        }
        Ok(selection)
    }

    fn gpu_named(&self, word: &str) -> Option<&Gpu> {
        let address = PciAddress::parse(word);
        let index = number(word);
        self.gpus.iter().find(|gpu| {
            (has_prefix(word, "GPU-") && gpu.uuid.eq_ignore_ascii_case(word))
                || (address.is_some() && PciAddress::parse(&gpu.bus) == address)
                || index == Some(gpu.index)
        })
    }

    fn mig_named(&self, word: &str) -> Option<(&Gpu, &Mig)> {
        // The name from before MIG devices had UUIDs: the GPU's UUID and two numbers.
        let old = has_prefix(word, "MIG-GPU-").then(|| old_name(&word["MIG-".len()..])).flatten();
        let pair = word.split_once(':').and_then(|(gpu, mig)| Some((number(gpu)?, number(mig)?)));
        let mut all = self.gpus.iter().flat_map(|gpu| gpu.mig.iter().map(move |mig| (gpu, mig)));
        all.find(|(gpu, mig)| {
            (has_prefix(word, "MIG-") && mig.uuid.eq_ignore_ascii_case(word))
                || pair == Some((gpu.index, mig.index))
                || old.is_some_and(|(uuid, instances)| {
                    gpu.uuid.eq_ignore_ascii_case(uuid) && instances == [mig.gpu_instance, mig.compute_instance]
                })
        })
    }
}

/// Reads `GPU-UUID/gpu instance/compute instance`.
fn old_name(text: &str) -> Option<(&str, [u32; 2])> {
    let (uuid, rest) = text.split_once('/')?;
    let (whole, part) = rest.split_once('/')?;
    Some((uuid, [number(whole)?, number(part)?]))
}

fn has_prefix(word: &str, prefix: &str) -> bool {
    word.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn number(word: &str) -> Option<u32> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::DriverRoot;

    fn driver() -> Driver {
        let mig = |index, gpu_instance| Mig {
            index,
            uuid: format!("MIG-0000000{index}-1111-5222-8333-444444444444"),
            gpu_instance,
            compute_instance: 0,
        };
        let gpu = |index: u32, mig: Vec<Mig>| Gpu {
            index,
            minor: 7 - index,
            uuid: format!("GPU-{index}aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"),
            bus: format!("00000000:{:02X}:00.0", 0x1b + index),
            model: "NVIDIA H200".into(),
            mig_enabled: !mig.is_empty(),
            mig,
        };
        Driver {
            root: DriverRoot::host(),
            version: "580.159.04".into(),
            gpus: vec![gpu(0, vec![]), gpu(1, vec![mig(0, 1), mig(1, 5)]), gpu(2, vec![])],
        }
    }

    fn check(words: &str, expected: &str) {
        let driver = driver();
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        let found = match driver.select(&words) {
            Err(error) => error.to_string(),
            Ok(selection) => {
                let gpus = selection.gpus.iter().map(|gpu| gpu.index.to_string());
                let migs = selection.migs.iter().map(|(gpu, mig)| format!("{}:{}", gpu.index, mig.index));
                gpus.chain(migs).collect::<Vec<_>>().join(" ")
            }
        };
        assert_eq!(found, expected, "{words:?}");
    }

    #[test]
    fn every_kind_of_name_is_selected() {
        check("", "");
        check("none", "");
        check("all", "0 1 2 1:0 1:1");
        check("2,0,2", "2 0");
        check("ALL,2", "0 1 2 1:0 1:1");
        check("gpu-2AAAAAAA-bbbb-cccc-dddd-eeeeeeeeeeee", "2");
        check("0000:1d:00.0", "2");
        check("00000000:1D:00.0,,1", "2 1");
        check("1:1,1:0", "1 1:1 1:0");
        check("mig-00000001-1111-5222-8333-444444444444", "1 1:1");
        check("MIG-GPU-1aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/5/0", "1 1:1");
    }

    #[test]
    fn missing_devices_are_unknown() {
        check("3", "3: unknown device");
        check("0,GPU-2aaaaaaa", "GPU-2aaaaaaa: unknown device");
        check("GPU-", "GPU-: unknown device");
        check("+1", "+1: unknown device");
        check("0:0", "0:0: unknown device");
        check("1:2", "1:2: unknown device");
        check("MIG-", "MIG-: unknown device");
        check(
            "MIG-GPU-1aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/5/1",
            "MIG-GPU-1aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/5/1: unknown device",
        );
        check("MIG-GPU-/1/0", "MIG-GPU-/1/0: unknown device");
        check("0000:1f:00.0", "0000:1f:00.0: unknown device");
        check("über", "über: unknown device");
        check("99999999999999999999", "99999999999999999999: unknown device");
    }

    proptest::proptest! {
        #[test]
        fn any_word_is_device_or_error(word in "\\PC*|(GPU-|MIG-|MIG-GPU-)?[0-9a-f:./-]{0,12}") {
            let driver = driver();
            match driver.select(std::slice::from_ref(&word)) {
                Ok(selection) => assert!(selection.migs.len() <= 2 && selection.gpus.len() <= 3),
                Err(error) => assert_eq!(error.word, word.trim()),
            }
        }
    }

    #[test]
    fn empty_mig_uuid_matches_no_word() {
        let mut driver = driver();
        driver.gpus[1].mig[0].uuid.clear();
        assert!(driver.select(&["MIG-".to_owned()]).is_err());
    }
}
