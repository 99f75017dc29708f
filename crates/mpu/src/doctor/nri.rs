//! The container engine's plugin: whether it runs where it is wanted, and whether the engine lets it serve.

use super::seen::{CheckRow, Group, Seen};
use crate::nri::presence::{self, Plugin, Standing};
use mpu_engine::module::state;
use mpu_engine::up::PLUGIN;
use mpu_host::config::Config;
use mpu_host::host::Host;

pub const CHECKS: &[CheckRow] = &[(
    "notify_nri",
    Group::Engine,
    "whether the container engine's plugin, `mpu nri`, is registered and can serve, where it runs or is asked for",
    nri,
)];

/// What becomes of containers where the plugin can do nothing for them.
const WRAPPER: &str =
    "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default   # or containerd 2.3 or later";

/// Whether all plugins stand well; without one, whether one is wanted.
fn nri(host: &Host) -> Seen {
    if matches!(state::read(host), Ok(Some(state)) if state.phase.is_placed()) {
        return Seen::skipped("the module serves every container");
    }
    if presence::are_hidden(host) {
        return Seen::skipped("only root can see the plugins");
    }
    let plugins = presence::plugins(host);
    let of = |standing| plugins.iter().find(|plugin: &&Plugin| plugin.standing == standing);
    if let Some(plugin) = of(Standing::Serves) {
        return Seen::fine(&plugin.words);
    }
    if let Some(plugin) = of(Standing::Partly) {
        let what =
            format!("{}, which tells no profiles: only containers without a seccomp profile are served", plugin.words);
        return Seen::attention(what, WRAPPER);
    }
    if let Some(plugin) = of(Standing::Useless) {
        return Seen::attention(format!("{}, which lets no plugin set a seccomp profile", plugin.words), WRAPPER);
    }
    if let Some(plugin) = of(Standing::Waits) {
        return Seen::attention(
            plugin.words.clone(),
            "sudo journalctl -u containerd | grep -i nri   # NRI is on by default since containerd 2.0: [plugins.'io.containerd.nri.v1.nri']",
        );
    }
    match Config::of(host) {
        Ok(config) if config.nri && super::taken::uses_notify(host) => Seen::attention(
            format!(
                "the configuration says nri = true, and no `mpu nri` runs: new containers start without MPU ({PLUGIN})"
            ),
            format!("sudo systemctl enable --now {PLUGIN}"),
        ),
        _ => Seen::skipped("no plugin runs here, and none is asked for"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::seen::Level;
    use super::*;
    use crate::nri::presence::{Presence, FOLDER};
    use mpu_host::host::fake::FakeHost;
    use std::path::Path;

    #[test]
    fn how_a_plugin_stands_is_how_bad_it_is() {
        let fake = FakeHost::in_order();
        let host = fake.host();
        assert_eq!(nri(&host).level, Level::Skipped);
        let mut presence = Presence::new(&host.at(FOLDER), Path::new("/run/nri.sock"), &|line| panic!("{line}"));
        for (standing, level, fix) in [
            (Standing::Waits, Level::Attention, "journalctl"),
            (Standing::Useless, Level::Attention, "configure"),
            (Standing::Partly, Level::Attention, "configure"),
            (Standing::Serves, Level::Ok, ""),
        ] {
            presence.say(standing, "registered with containerd v1 as 90-mpu");
            let seen = nri(&host);
            assert_eq!(seen.level, level, "{standing:?}");
            assert!(seen.what.contains("90-mpu") && seen.fix.unwrap_or_default().contains(fix), "{standing:?}");
        }
        drop(presence);
        fake.write(mpu_host::config::FILE, "engine = \"notify\"\nnri = true\n");
        let seen = nri(&host);
        assert_eq!(
            (seen.level, seen.fix.as_deref()),
            (Level::Attention, Some("sudo systemctl enable --now mpu-nri.service"))
        );
        fake.write(mpu_host::config::FILE, "engine = \"notify\"\n");
        assert_eq!(nri(&host).level, Level::Skipped);
    }
}
