//! Measures what mpu-container adds to a container's start: `./x bench --containers`. No test run includes it.

use crate::container::Container;
use crate::host::{Driver, Host, R550};
use crate::listener::Engine;
use crate::notify::SOCKET;
use crate::wrapper::{WRAPPER, configure};

const STARTS: u32 = 100;

/// The kind with an engine that listens; containers have no profile of their own then.
const WITH_ENGINE: &str = "the same, with a notify engine";

/// The baseline of a start: the runtime alone, or the runtime alone with the driver's mounts and nodes, whose cost is the
/// runtime's own.
#[derive(Clone, Copy, PartialEq)]
enum Base {
    Plain,
    Mounts,
}

/// A kind of start: its name, the mode, whether it requests a GPU, and the program that creates it; the permitted
/// addition in milliseconds, and its baseline.
type Kind = (&'static str, &'static str, bool, &'static str, Option<(u32, Base)>);

const KINDS: [Kind; 7] = [
    ("runc alone", "auto", false, "rig-runc", None),
    ("wrapper, no GPU requested", "auto", false, WRAPPER, Some((1, Base::Plain))),
    (MOUNTS, "jit-cdi", true, "rig-runc", None),
    ("wrapper, CDI edits made at once", "jit-cdi", true, WRAPPER, Some((10, Base::Mounts))),
    (WITH_ENGINE, "jit-cdi", true, WRAPPER, Some((10, Base::Mounts))),
    ("wrapper, CDI file", "cdi", true, WRAPPER, Some((10, Base::Mounts))),
    // The prestart hook makes the mounts, not runc.
    ("wrapper, hook and container CLI", "legacy", true, WRAPPER, Some((10, Base::Mounts))),
];

/// The kind with runc's own cost of a GPU.
const MOUNTS: &str = "runc alone, with the driver's mounts";

#[test]
#[ignore = "a measurement: `./x bench --containers`"]
fn starts() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    let (mut plain, mut mounts) = (None, None);
    for (name, mode, asks, program, goal) in KINDS {
        configure(&host, mode, "rig-runc");
        let mut container = Container::new(&host, "glibc", &["/bin/true"]);
        if asks {
            container = container.env(&["NVIDIA_VISIBLE_DEVICES=all"]);
        }
        if name == MOUNTS {
            let hooks = container.config["hooks"].clone();
            container.config = container.run(WRAPPER).config;
            assert!(container.config["mounts"].as_array().is_some_and(|mounts| mounts.len() > 20), "no driver");
            container.config["hooks"] = hooks;
        }
        let engine = (name == WITH_ENGINE).then(|| Engine::at(&host.path(SOCKET)));
        let [low, took, high] = percentiles(&host, &container, program);
        assert_eq!(
            engine.map_or(0, |engine| engine.containers().len()),
            if name == WITH_ENGINE { STARTS as usize } else { 0 }
        );
        let plain = *plain.get_or_insert(took);
        if name == MOUNTS {
            mounts = Some(took);
        }
        let comparison = match goal {
            None => String::new(),
            Some((goal, base)) => {
                let base = if base == Base::Plain { plain } else { mounts.expect("measured before") };
                format!("adds {} (goal {goal} ms)", ms(took.saturating_sub(base)))
            }
        };
        let within = format!("{} to {}", ms(low), ms(high));
        println!("start: {name:<36} {:>9} ({within:>18}) {comparison}", ms(took));
    }
}

fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// The 10th, 50th and 90th percentile of the time to create a container, in microseconds. All of our work is done by then.
fn percentiles(host: &Host, container: &Container, program: &str) -> [u64; 3] {
    let folder = container.folder();
    host.write(&format!("{folder}/request.json"), &container.config.to_string());
    let script = format!(
        "cd {folder}; for i in $(seq {STARTS}); do cp request.json config.json; began=$(date +%s%N)
         {program} create --bundle {folder} bench > /dev/null 2> err < /dev/null || {{ cat err >&2; exit 1; }}
         ended=$(date +%s%N); echo $(((ended - began) / 1000)); {program} delete --force bench; done"
    );
    let text = host.ok(&script);
    let mut all: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(all.len(), STARTS as usize, "{text}");
    all.sort_unstable();
    [10, 50, 90].map(|part| all[all.len() * part / 100])
}
