//! Reading, writing and changing config.toml.

use super::*;
use std::fmt::Write as _;

fn read(text: &str) -> Config {
    Config::parse(text, Config::default()).expect("sound").0
}

#[test]
fn key_defaults_equal_config_defaults() {
    let mut text = String::new();
    for key in KEYS {
        writeln!(text, "{} = {}", key.name, key.default).expect("a string");
    }
    assert_eq!(Config::parse(&text, Config::default()), Ok((Config::default(), Vec::new())));
    // Every key sets a field of its own: each value that is not the default gives another configuration.
    let mut seen: Vec<Config> = vec![Config::default()];
    for key in KEYS {
        let value = match (key.default, key.name.rsplit_once('.').map_or(key.name, |(_, word)| word)) {
            ("true", _) => "false",
            ("false", _) => "true",
            (_, "supported-driver-capabilities") => "'video'",
            (_, "log-level") => "'debug'",
            (_, "mode" | "cuda-compat-mode") if key.name.ends_with(".mode") => "'csv'",
            (_, "cuda-compat-mode") => "'mount'",
            (_, "notify") => "'off'",
            (_, "notify-socket") => "'/a'",
            (list, _) if list.starts_with('[') => "['@a']",
            _ => "'@a'",
        };
        let config = read(&format!("{} = {value}", key.name));
        assert!(!seen.contains(&config), "{}", key.name);
        seen.push(config);
    }
}

#[test]
fn shipped_config_equals_defaults() {
    let text = keys::default_text(&Config::default());
    assert_eq!(Config::parse(&text, Config::default()), Ok((Config::default(), Vec::new())));
    let shown: String = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line).to_string() + "\n")
        .collect();
    let (config, notes) = Config::parse(&shown, Config::default()).expect("sound");
    assert_eq!((config.cli.root, notes.len()), (Some("/run/nvidia/driver".into()), 0));
    let lines = shown.lines().filter(|line| line.contains(" = ") && !line.starts_with("# ")).count();
    assert_eq!(lines, KEYS.len());
}

#[test]
fn file_overrides_only_named_keys() {
    let text = "disable-require = true\n[nvidia-container-cli]\nroot = \"/run/nvidia/driver\"\nload-kmods = false\n\
                user = \"\"\n[nvidia-container-runtime]\nmode = \"legacy\"\nruntimes = [\"/opt/crun\"]\n\
                [nvidia-container-runtime.modes.cdi]\nspec-dirs = [\"/a\", \"/b\"]\n[features]\nignore-imex-channel-requests = true\n";
    let mut expected = Config { disable_require: true, ..Config::default() };
    expected.cli.root = Some("/run/nvidia/driver".into());
    expected.cli.load_kmods = false;
    expected.runtime.mode = Mode::Legacy;
    expected.runtime.runtimes = vec!["/opt/crun".into()];
    expected.runtime.cdi_spec_dirs = vec!["/a".into(), "/b".into()];
    expected.features.ignore_imex_channel_requests = true;
    assert_eq!(read(text), expected);
    let inline = "disable-require = true\nnvidia-container-cli = {root = '/run/nvidia/driver', load-kmods = false, user = ''}\n\
                  features.ignore-imex-channel-requests = true\nnvidia-container-runtime = {mode = 'legacy', runtimes = ['/opt/crun'], \
                  modes.cdi.spec-dirs = ['/a', '/b']}";
    assert_eq!(read(inline), expected, "other forms of the same");
}

#[test]
fn environment_selects_config_file() {
    let with = |set: &[(&str, &str)]| {
        let set: Vec<(String, String)> = set.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        path(move |name| set.iter().find(|(n, _)| n == name).map(|(_, v)| v.into()))
    };
    let usual = PathBuf::from("/etc/nvidia-container-runtime/config.toml");
    assert_eq!(with(&[]), (usual.clone(), false));
    assert_eq!(with(&[("XDG_CONFIG_HOME", ""), ("NVIDIA_CTK_CONFIG_FILE_PATH", "")]), (usual, false));
    assert_eq!(with(&[("XDG_CONFIG_HOME", "/x")]), ("/x/nvidia-container-runtime/config.toml".into(), false));
    assert_eq!(with(&[("XDG_CONFIG_HOME", "/x"), ("NVIDIA_CTK_CONFIG_FILE_PATH", "/y")]), ("/y".into(), true));
}

#[test]
fn defaults_depend_on_distribution() {
    let host = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(host.path().join("etc")).expect("made");
    std::fs::create_dir_all(host.path().join("sbin")).expect("made");
    let release = |text: &str| {
        std::fs::write(host.path().join("etc/os-release"), text).expect("written");
        Config::of_host(host.path()).cli.user
    };
    assert_eq!(release("ID=debian\n"), "");
    assert_eq!(release("ID=x\nID_LIKE=\"suse opensuse\"\n"), "root:video");
    let suse = Config::of_host(host.path());
    assert!(keys::default_text(&suse).contains("\nuser = \"root:video\"\n"));
    assert_eq!(suse.ldconfig(host.path()).as_deref(), Some("@/sbin/ldconfig"));
    std::fs::write(host.path().join("sbin/ldconfig.real"), "").expect("written");
    assert_eq!(suse.ldconfig(host.path()).as_deref(), Some("@/sbin/ldconfig.real"));
}

mod edits {
    use super::super::{edit, keys};
    use super::*;

    const FILE: &str = "# ours\n#swarm-resource = \"X\"\ndisable-require = false # for now\n\n[nvidia-container-cli]\n# the log\n#debug = \"/d\"\n\
                        environment = []\n[nvidia-container-runtime]\nmode = \"auto\"\n";

    fn edited(text: &str, sets: &[&str]) -> Result<String, edit::EditError> {
        edit::set(text, &sets.iter().map(|set| set.to_string()).collect::<Vec<_>>(), ":")
    }

    #[test]
    fn edit_keeps_other_lines() {
        let changed = |set: &str, from: &str, to: &str| {
            assert_eq!(edited(FILE, &[set]).expect(set), FILE.replace(from, to), "{set}");
        };
        changed("disable-require", "= false #", "= true #");
        changed("nvidia-container-runtime.mode=cdi", "\"auto\"", "\"cdi\"");
        changed("nvidia-container-cli.debug=/var/log/x", "#debug = \"/d\"", "debug = \"/var/log/x\"");
        changed("swarm-resource=GPU=1", "#swarm-resource = \"X\"", "swarm-resource = \"GPU=1\"");
        changed("nvidia-container-cli.environment=A=1:B=2", "[]", "[\"A=1\", \"B=2\"]");
        changed("nvidia-container-cli.environment=A=1,B=2", "[]", "[\"A=1\", \"B=2\"]");
        changed("nvidia-container-runtime.runtimes=crun", "\"auto\"\n", "\"auto\"\nruntimes = [\"crun\"]\n");
        changed("features.allow-ldconfig-from-container=nil", "", "");
        changed("nvidia-container-cli.environment=", "[]", "[]");
        let none = edited(FILE, &["nvidia-container-runtime.modes.cdi.annotation-prefixes="]).expect("an empty list");
        assert!(read(&none).runtime.cdi_annotation_prefixes.is_empty(), "{none}");
        assert_eq!(edited(FILE, &["disable-require=1", "disable-require=F"]).expect("both"), FILE);
        let new = edited(FILE, &["features.ignore-imex-channel-requests", "nvidia-ctk.path=/c"]).expect("new tables");
        let config = read(&new);
        assert!(
            new.starts_with(FILE) && config.features.ignore_imex_channel_requests && config.ctk_path == "/c",
            "{new}"
        );
        let gone =
            edited(&new, &["features.ignore-imex-channel-requests=nil", "nvidia-ctk.path=nvidia-ctk"]).expect("gone");
        assert_eq!(read(&gone), read(FILE));
    }

    #[test]
    fn every_key_can_be_set_in_every_file() {
        for text in ["", FILE, &keys::default_text(&Config::default())] {
            for key in KEYS {
                let value =
                    toml_edit::Document::parse(format!("x = {}", key.example.unwrap_or(key.default))).expect("sound");
                let value = match value.get("x").expect("it") {
                    item if item.is_array() => {
                        item.as_array().expect("one").iter().filter_map(|v| v.as_str()).collect::<Vec<_>>().join(":")
                    }
                    item => item.as_str().map_or_else(|| item.to_string().trim().to_string(), str::to_string),
                };
                let set = format!("{}={value}", key.name);
                let changed = edited(text, &[&set]).unwrap_or_else(|error| panic!("{set}: {error}"));
                let lines = |text: &str| {
                    text.lines().filter(|line| line.starts_with("# ")).map(str::to_string).collect::<Vec<_>>()
                };
                assert_eq!(lines(&changed), lines(text), "{set}: a comment is lost");
                assert_eq!(edited(&changed, &[&set]).as_ref(), Ok(&changed), "{set}: once is enough");
            }
        }
    }
}

#[test]
fn config_page_examples_can_be_set() {
    let page = include_str!("../../../../docs/container/config.md");
    let examples = page.lines().filter_map(|line| line.split_once("--set ")).filter(|(_, set)| !set.starts_with("KEY"));
    let sets: Vec<String> =
        examples.map(|(_, set)| set.split_whitespace().next().unwrap_or_default().to_string()).collect();
    assert_eq!(sets.len(), 5, "{sets:?}");
    edit::set(&keys::default_text(&Config::default()), &sets, ":").expect("the page's examples can be set");
}
