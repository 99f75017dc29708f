//! Reads a tree of the driver's open modules: exported controls, allocation parameters, escapes, shared memory, events, functions.
//!
//! Methods are in `src/nvidia/generated/g_*_nvoc.c`, parameters in `src/common/sdk/nvidia/inc`, the meaning of a method's flags in
//! `rmapi/control.h`, the classes' allocation parameters in `resource_list.h`, escapes in `escape.c`, `osapi.c` and
//! `kernel-open/nvidia/nv.c`.

mod functions;
mod methods;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::c::Headers;
use super::c::tokens::{Token, is_word, lines, tokens};
use crate::files;
use functions::{bodies, calls, prototypes};
use methods::methods;

/// Where a call of a control may come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    Anybody,
    Root,
    /// The driver itself only.
    Kernel,
    /// The headers name it, the open tables do not.
    Declared,
}

#[derive(Clone, Debug)]
pub struct Control {
    pub cmd: u32,
    /// The name in the headers, or the method's where no header has one.
    pub name: String,
    pub reach: Reach,
    /// The parameters' type; none for a control without.
    pub parameters: Option<String>,
}

/// What the bits of a method's flags mean.
#[derive(Clone, Copy)]
pub struct Flags {
    pub any: u64,
    pub root: u64,
    pub internal: u64,
}

impl Flags {
    /// Who may call a method.
    pub fn reach(self, flags: u64, access_right: u64) -> Reach {
        match flags {
            flags if flags & self.internal != 0 => Reach::Kernel,
            flags if flags & self.any != 0 => Reach::Anybody,
            flags if flags & self.root != 0 || access_right != 0 => Reach::Root,
            _ => Reach::Kernel,
        }
    }
}

/// A structure that another way than a control's parameters brings to programs.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// `allocation`, `escape` or `class`.
    pub way: &'static str,
    /// The class, the escape, or the header.
    pub by: String,
    pub structure: String,
}

impl Carrier {
    pub fn new(way: &'static str, by: impl Into<String>, structure: impl Into<String>) -> Carrier {
        Carrier { way, by: by.into(), structure: structure.into() }
    }
}

/// A PID that a call hands on: a notification in its 32-bit word, or a function that prints it into a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The notifier, or the function.
    pub name: String,
    pub place: String,
    pub pid: String,
}

#[derive(Default)]
pub struct Tree {
    pub release: Option<String>,
    pub headers: Headers,
    pub controls: Vec<Control>,
    /// Whether method tables were there; without them controls are those that headers name.
    pub has_tables: bool,
    pub carriers: Vec<Carrier>,
    pub events: Vec<Use>,
    /// Notifications that were looked at.
    pub notifications: usize,
    /// Escapes whose argument is known.
    pub escapes: usize,
    /// Declared escapes whose argument is not.
    pub escapes_unread: Vec<String>,
    /// PIDs that a file of `/proc` or debugfs shows.
    pub prints: Vec<Use>,
    /// Messages of dumps with a process's id, and the field.
    pub streams: Vec<(String, String)>,
    /// Prototypes by function: return type and parameters, without names.
    pub functions: HashMap<String, BTreeSet<String>>,
    /// Whether functions were looked for: `kernel-open` was there, or an object.
    pub has_functions: bool,
    /// Whether all of the driver was there, so that what is not here is not in the driver.
    pub is_whole: bool,
    /// Whether every type that the driver declares was there, used or not.
    pub declares_all: bool,
    /// What this source cannot tell, in sentences.
    pub cannot_tell: Vec<String>,
    /// Whether there are the controls of a whole driver, and fields of each that programs may call; else that nothing is new
    /// cannot be determined.
    pub has_fields: bool,
}

const SDK: &str = "src/common/sdk/nvidia/inc";

/// Interfaces of the driver's other modules: how a finding names them, and their headers.
const OTHERS: [(&str, &str); 9] = [
    ("uvm", "kernel-open/nvidia-uvm/uvm_types.h"),
    ("uvm", "kernel-open/nvidia-uvm/uvm_ioctl.h"),
    ("uvm", "kernel-open/nvidia-uvm/uvm_linux_ioctl.h"),
    ("modeset", "kernel-open/nvidia-modeset/nvkms-ioctl.h"),
    ("modeset", "src/nvidia-modeset/interface"),
    ("drm", "kernel-open/nvidia-drm/nvidia-drm-ioctl.h"),
    ("drm", "kernel-open/nvidia-drm/nv_drm_common_ioctl.h"),
    ("caps", "kernel-open/common/inc/nv-caps.h"),
    ("caps", "kernel-open/nvidia/nv-caps-imex.h"),
];

impl Tree {
    /// Reads a tree, or a folder of headers alone.
    pub fn read(root: &Path) -> Result<Tree> {
        let sdk = [root.join(SDK), root.join("common/sdk/nvidia/inc"), root.to_owned()];
        let Some(sdk) = sdk.iter().find(|dir| dir.join("ctrl").is_dir()) else {
            bail!("{} has neither {SDK} nor a folder ctrl: name the top of the open modules' source", root.display())
        };
        let mut headers = Headers::default();
        let more = [
            "src/nvidia/arch/nvalloc/unix/include",
            "src/nvidia/inc/kernel/rmapi/control.h",
            "kernel-open/common/inc/nv-ioctl.h",
            "kernel-open/common/inc/nv-ioctl-numbers.h",
            "kernel-open/common/inc/nv-ioctl-numa.h",
        ];
        let more = more.into_iter().chain(OTHERS.map(|(_, file)| file));
        let files = below(sdk, ".h")?.into_iter().chain(more.flat_map(|file| {
            let file = root.join(file);
            if file.is_file() { vec![file] } else { below(&file, ".h").unwrap_or_default() }
        }));
        for file in files {
            let name = within(sdk, &file).or(within(root, &file)).unwrap_or_default();
            // What these two define is the parser's own: alignment, bits, the processor. `nvtypes.h` has structures beside that.
            if !["nvmisc.h", "cpuopsys.h"].contains(&name.as_str()) {
                headers.read(&name, read(&file)?);
            }
        }
        let mut tree = Tree::of(headers);
        tree.release = release(root);
        tree.has_functions = root.join("kernel-open").is_dir();
        tree.is_whole = true;
        tree.read_controls(root)?;
        tree.read_allocations(root)?;
        tree.read_escapes(root)?;
        tree.read_classes();
        tree.read_prints(root)?;
        tree.read_events(root)?;
        tree.read_streams(root)?;
        tree.read_functions(root)?;
        Ok(tree)
    }

    /// A tree of declarations alone.
    pub fn of(headers: Headers) -> Tree {
        Tree { headers, declares_all: true, has_fields: true, ..Tree::default() }
    }

    /// The structures that stand between this one and the parameters declared before it in the same header: what a pointer in
    /// these parameters points to is declared there, as nothing in the pointer's type says.
    pub fn declared_with(&self, parameters: &str) -> Vec<&str> {
        let records = &self.headers.records;
        let Some(at) = records.iter().position(|(name, _)| name == parameters) else { return Vec::new() };
        let is_before = |(name, file): &(String, String)| {
            *file != records[at].1 || name.ends_with("_PARAMS") || name.ends_with("_PARAM")
        };
        let from = records[..at].iter().rposition(is_before).map_or(0, |before| before + 1);
        records[from..at].iter().map(|(name, _)| name.as_str()).collect()
    }

    fn read_controls(&mut self, root: &Path) -> Result<()> {
        let mut named: BTreeMap<u32, String> = BTreeMap::new();
        let mut parameters_of: HashMap<String, String> = HashMap::new();
        for (name, comment, _) in &self.headers.defines {
            if !name.starts_with("NV") || !name.contains("_CTRL_") || name.ends_with("_MESSAGE_ID") {
                continue;
            }
            // Newer headers say in a comment what a control's number was made of; some names lack the CMD that the others have.
            let made_of =
                comment.split_once("_PARAMS_MESSAGE_ID").and_then(|(head, _)| head.rsplit(['|', ' ', '"']).next());
            if let Some(made_of) = made_of {
                parameters_of.insert(name.clone(), format!("{made_of}_PARAMS"));
            }
            if !name.contains("_CMD_") && made_of.is_none() {
                continue;
            }
            let Some(Ok(cmd)) = self.headers.constant(name).map(u32::try_from) else { continue };
            // A control's number begins with its class; a value of one of its fields seldom does.
            let class = u32::from_str_radix(name[2..].split('_').next().unwrap_or_default(), 16).unwrap_or(u32::MAX);
            if cmd >> 16 == class {
                named.entry(cmd).or_insert_with(|| name.clone());
            }
        }
        let flags = self.flags();
        let generated = root.join("src/nvidia/generated");
        let mut seen = BTreeSet::new();
        for file in below(&generated, "_nvoc.c")? {
            for method in methods(&read(&file)?, flags).with_context(|| format!("{}", file.display()))? {
                self.has_tables = true;
                if !seen.insert((method.cmd, method.parameters.clone())) {
                    continue;
                }
                let name = named.get(&method.cmd).cloned().unwrap_or(method.name);
                self.controls.push(Control { name, ..method });
            }
        }
        if generated.is_dir() && !self.has_tables {
            bail!("{} has no method table that can be read: has their form changed?", generated.display());
        }
        let in_tables: BTreeSet<u32> = self.controls.iter().map(|control| control.cmd).collect();
        for (cmd, name) in named.into_iter().filter(|(cmd, _)| !in_tables.contains(cmd)) {
            let plain = name.replacen("_CMD_", "_", 1);
            let guesses = [
                parameters_of.get(&name).cloned().unwrap_or_default(),
                format!("{plain}_PARAMS"),
                format!("{name}_PARAMS"),
                format!("{plain}_PARAM"),
            ];
            let parameters = guesses.into_iter().find(|guess| self.headers.has(guess));
            // The headers' own word for what only the driver itself may call.
            let reach = if name.contains("_INTERNAL_") { Reach::Kernel } else { Reach::Declared };
            self.controls.push(Control { cmd, name, reach, parameters });
        }
        self.controls.sort_by_key(|control| control.cmd);
        Ok(())
    }

    /// The bits of a method's flags moved between releases, so the tree's own header says which they are.
    fn flags(&self) -> Flags {
        let bit = |name: &str| self.headers.constant(&format!("RMCTRL_FLAGS_{name}")).unwrap_or(0) as u64;
        match bit("NON_PRIVILEGED") {
            // Without that header nothing can be ruled out.
            0 => Flags { any: u64::MAX, root: 0, internal: 0 },
            any => {
                let root = bit("PRIVILEGED") | bit("PRIVILEGED_IF_RS_ACCESS_DISABLED");
                Flags { any, root, internal: bit("INTERNAL") }
            }
        }
    }

    fn read_allocations(&mut self, root: &Path) -> Result<()> {
        let Some(file) = below(&root.join("src/nvidia"), "/resource_list.h")?.into_iter().next() else { return Ok(()) };
        let text = read(&file)?;
        for call in calls(&tokens(&text), |name| name == "RS_ENTRY") {
            let class = call.arguments.first().and_then(|item| item.first()).filter(|class| is_word(class));
            let structure = call.arguments.iter().find_map(|item| match item {
                ["RS_OPTIONAL" | "RS_REQUIRED", "(", name, ")"] => Some(*name),
                _ => None,
            });
            if let (Some(class), Some(structure)) = (class, structure) {
                self.carriers.push(Carrier::new("allocation", *class, structure));
            }
        }
        Ok(())
    }

    /// What an escape's branch names, and what the functions name that the branch calls: its argument, and what that points to.
    fn read_escapes(&mut self, root: &Path) -> Result<()> {
        const UNIX: &str = "src/nvidia/arch/nvalloc/unix/src";
        let files = [format!("{UNIX}/escape.c"), format!("{UNIX}/osapi.c"), "kernel-open/nvidia/nv.c".to_owned()];
        let files = files.map(|file| root.join(file)).into_iter().filter(|file| file.is_file());
        let texts = files.map(|file| read(&file)).collect::<Result<Vec<String>>>()?;
        let texts: Vec<Vec<Token>> = texts.iter().map(|text| tokens(text)).collect();
        let mut named_by: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (function, body) in texts.iter().flat_map(|tokens| bodies(tokens)) {
            named_by.entry(function).or_default().extend(body.iter().filter(|token| is_word(token)));
        }
        // A function that is called names what it calls, too: two steps reach from the escape to the copy.
        let reached = |function: &str| -> BTreeSet<&str> {
            let near = named_by.get(function).cloned().unwrap_or_default();
            let far = near.iter().filter_map(|name| named_by.get(name)).flatten().copied();
            far.chain(near.iter().copied()).filter(|name| is_escape(name)).collect()
        };
        let mut found: BTreeSet<(&str, &str)> = BTreeSet::new();
        for tokens in &texts {
            let mut escape = None;
            for (i, name) in tokens.iter().copied().enumerate().filter(|(_, token)| is_word(token)) {
                if name.starts_with("NV_ESC_") {
                    // A branch, an entry of a table, or a comparison.
                    let before = i.checked_sub(1).map(|before| tokens[before]);
                    escape = matches!(before, Some("case" | "(" | "==")).then_some(name);
                } else if name == "case" || name == "default" {
                    escape = None;
                } else if let Some(escape) = escape {
                    if tokens.get(i + 1) == Some(&"(") {
                        found.extend(reached(name).into_iter().map(|structure| (escape, structure)));
                    }
                    let own = |name: &str| name.starts_with("NV_") && name.ends_with("_PARAMS");
                    found.extend((is_escape(name) || own(name)).then_some((escape, name)));
                }
            }
        }
        let found = found.into_iter().filter(|(_, structure)| self.headers.layout(structure).is_ok());
        let found: Vec<Carrier> = found.map(|(escape, structure)| Carrier::new("escape", escape, structure)).collect();
        let read: BTreeSet<&str> = found.iter().map(|carrier| carrier.by.as_str()).collect();
        self.escapes = read.len();
        let declared = self.headers.defines.iter().map(|(name, _, _)| name);
        let unread = declared.filter(|name| name.starts_with("NV_ESC_") && !read.contains(name.as_str()));
        self.escapes_unread = unread.cloned().collect::<BTreeSet<_>>().into_iter().collect();
        self.carriers.extend(found);
        Ok(())
    }

    /// Structures that no other declaration uses: of class headers (what an object shows in memory that programs map, mostly)
    /// and of the other modules' interfaces.
    pub fn read_classes(&mut self) {
        for (structure, file) in &self.headers.records {
            let elsewhere = self.carriers.iter().any(|carrier| carrier.structure == *structure);
            let other = OTHERS.iter().find(|(_, of)| file.starts_with(of)).map(|(way, _)| *way);
            let way = other.or(file.starts_with("class/").then_some("class"));
            if let Some(way) = way.filter(|_| !elsewhere && !self.headers.used.contains(structure)) {
                self.carriers.push(Carrier::new(way, file, structure));
            }
        }
    }

    /// PIDs in what functions print into files, by name or by way of a variable.
    fn read_prints(&mut self, root: &Path) -> Result<()> {
        let prints = |name: &str| name.starts_with("seq_") || name.starts_with("nvEvoLogInfoString");
        for folder in ["kernel-open", "src/nvidia-modeset/src"] {
            for file in below(&root.join(folder), ".c")? {
                let text = read(&file)?;
                for (function, body) in bodies(&tokens(&text)) {
                    let pids = calls(body, prints).filter_map(|call| call.pid(body));
                    let place = within(root, &file).unwrap_or_default();
                    self.prints.extend(pids.map(|pid| Use { name: function.to_owned(), place: place.clone(), pid }));
                }
            }
        }
        self.prints.sort();
        self.prints.dedup_by(|a, b| a.name == b.name);
        Ok(())
    }

    /// Notifications whose arguments name a PID, or a variable that was given one shortly before.
    fn read_events(&mut self, root: &Path) -> Result<()> {
        for file in below(&root.join("src/nvidia/src"), ".c")? {
            let text = read(&file)?;
            if !text.contains("otif") {
                continue;
            }
            let tokens = tokens(&text);
            for call in calls(&tokens, |name| name.contains("Notif") || name.contains("notif")) {
                // A body or a prototype is no call.
                if tokens.get(call.end) == Some(&"{") {
                    continue;
                }
                self.notifications += 1;
                let is_notifier = |word: &str| is_word(word) && (word.contains("_NOTIFI") || word.contains("_EVENT_"));
                let notifier = call.arguments.concat().into_iter().find(|word| is_notifier(word));
                let name = notifier.unwrap_or(tokens[call.at]).to_owned();
                let place = within(root, &file).unwrap_or_default();
                self.events.extend(call.pid(&tokens).map(|pid| Use { name, place, pid }));
            }
        }
        self.events.sort();
        self.events.dedup();
        Ok(())
    }

    /// Fields of dumps, which are protobuf: the generated headers name each as a macro.
    fn read_streams(&mut self, root: &Path) -> Result<()> {
        for file in below(&root.join("src/nvidia/generated"), "_pb.h")? {
            for line in read(&file)?.lines() {
                let mut words = line.split_whitespace();
                let (Some("#define"), Some(name), Some(place)) = (words.next(), words.next(), words.next()) else {
                    continue;
                };
                let message = name.strip_suffix("_PROCESS_ID").or(name.strip_suffix("_PID"));
                if let Some(message) = message.filter(|_| place.starts_with("(&prb_fields_")) {
                    self.streams.push((message.to_owned(), name[message.len() + 1..].to_lowercase()));
                }
            }
        }
        Ok(())
    }

    fn read_functions(&mut self, root: &Path) -> Result<()> {
        for place in ["kernel-open/common/inc", "kernel-open/nvidia"].map(|place| root.join(place)) {
            for file in below(&place, ".h")?.into_iter().chain(below(&place, ".c")?) {
                let text = read(&file)?;
                if !["os_", "ioctl"].iter().any(|part| text.contains(part)) {
                    continue;
                }
                // Directives end no statement; what is behind them is a declaration of its own.
                let lines = lines(&text).into_iter();
                let code: Vec<Token> =
                    lines.flat_map(|line| if line.first() == Some(&"#") { vec![";"] } else { line }).collect();
                for (name, prototype) in prototypes(&code) {
                    self.functions.entry(name).or_default().insert(prototype);
                }
            }
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs_err::read(file)?).into_owned())
}

/// Files below a folder with this ending, in an order that is always the same; none if the folder is not there.
pub fn below(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = if folder.is_dir() { files::below(folder)? } else { Vec::new() };
    found.retain(|path| path.to_string_lossy().ends_with(ending) && !path.is_symlink());
    Ok(found)
}

/// Whether it names a structure that an escape carries.
pub fn is_escape(name: &str) -> bool {
    ["nv_ioctl", "NVOS", "NvUnix"].iter().any(|start| name.starts_with(start))
}

/// The path of a file from this folder on.
fn within(folder: &Path, file: &Path) -> Option<String> {
    Some(file.strip_prefix(folder).ok()?.to_string_lossy().into_owned())
}

/// The release that the tree says it is: `NVIDIA_VERSION = 595.45.04` in `version.mk`.
pub fn release(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("version.mk")).ok()?;
    let line = text.lines().find(|line| line.starts_with("NVIDIA_VERSION"))?;
    Some(line.split('=').nth(1)?.trim().to_owned())
}
