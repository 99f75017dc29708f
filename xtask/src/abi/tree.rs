//! A tree of the driver's open modules, read: exported controls, allocation parameters, escapes, shared memory, events,
//! functions.
//!
//! Knows nothing of MPU's rows, and judges nothing. Where facts stand in the tree: methods in
//! `src/nvidia/generated/g_*_nvoc.c`, parameters in `src/common/sdk/nvidia/inc`, the meaning of a method's flags in
//! `rmapi/control.h`, the classes' allocation parameters in `resource_list.h`, escapes in `escape.c`, `osapi.c` and
//! `kernel-open/nvidia/nv.c`.

mod functions;
mod methods;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

use super::c::tokens::{between_commas, closing, tokens, without_comments, Token};
use super::c::Headers;
use super::names::names_pid;
use functions::{bodies, prototypes};
use methods::methods;

/// Where a call of a control may come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Any process.
    Anybody,
    /// A privileged process.
    Root,
    /// The driver itself only.
    Kernel,
    /// The headers name it, the open tables do not.
    Declared,
}

/// A control.
#[derive(Clone, Debug)]
pub struct Control {
    pub cmd: u32,
    /// The name in the headers, or the method's where no header has one.
    pub name: String,
    pub reach: Reach,
    pub flags: u64,
    pub access_right: u64,
    /// The parameters' type; none for a control without.
    pub parameters: Option<String>,
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

/// A notification with a PID in its 32-bit word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    pub notifier: String,
    pub place: String,
    pub pid: String,
}

/// A PID that is printed into a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Print {
    pub function: String,
    pub place: String,
    pub pid: String,
}

/// What was read.
pub struct Tree {
    pub release: Option<String>,
    pub headers: Headers,
    pub controls: Vec<Control>,
    /// Whether method tables were there; without them controls are those that headers name.
    pub has_tables: bool,
    pub carriers: Vec<Carrier>,
    pub events: Vec<Event>,
    /// Notifications that were looked at.
    pub notifications: usize,
    /// Escapes whose argument is known.
    pub escapes: usize,
    /// Declared escapes whose argument is not.
    pub escapes_unread: Vec<String>,
    /// PIDs that a file of `/proc` or debugfs shows.
    pub prints: Vec<Print>,
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
    /// cannot be said.
    pub has_fields: bool,
    /// Macro and structure names by header, where a control's number and its parameters meet.
    order: HashMap<String, Vec<String>>,
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
        let files = below(sdk, "h")?.into_iter().chain(more.flat_map(|file| {
            let file = root.join(file);
            if file.is_dir() {
                below(&file, "h").unwrap_or_default()
            } else {
                vec![file]
            }
        }));
        for file in files.filter(|file| file.is_file()) {
            let text = read(&file)?;
            let name =
                file.strip_prefix(sdk).or(file.strip_prefix(root)).unwrap_or(&file).to_string_lossy().into_owned();
            // What these two define is the parser's own: alignment, bits, the processor. `nvtypes.h` has structures beside that.
            if !["nvmisc.h", "cpuopsys.h"].contains(&name.as_str()) {
                headers.read(&name, &text);
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
        let mut order: HashMap<String, Vec<String>> = HashMap::new();
        for (name, file) in &headers.records {
            order.entry(file.clone()).or_default().push(name.clone());
        }
        Tree {
            release: None,
            headers,
            controls: Vec::new(),
            has_tables: false,
            carriers: Vec::new(),
            events: Vec::new(),
            notifications: 0,
            escapes: 0,
            escapes_unread: Vec::new(),
            prints: Vec::new(),
            streams: Vec::new(),
            functions: HashMap::new(),
            has_functions: false,
            is_whole: false,
            declares_all: true,
            cannot_tell: Vec::new(),
            has_fields: true,
            order,
        }
    }

    /// The structures that stand between this one and the parameters declared before it in the same header: what a pointer in
    /// these parameters points to is declared there, as nothing in the pointer's type says.
    pub fn declared_with(&self, parameters: &str) -> Vec<&str> {
        for records in self.order.values() {
            let Some(at) = records.iter().position(|name| name == parameters) else { continue };
            let ends = |name: &&String| name.ends_with("_PARAMS") || name.ends_with("_PARAM");
            let from = records[..at].iter().rposition(|name| ends(&name)).map_or(0, |before| before + 1);
            return records[from..at].iter().map(String::as_str).collect();
        }
        Vec::new()
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
        let (any, root_only, internal) = self.flags();
        let generated = root.join("src/nvidia/generated");
        let mut seen = BTreeSet::new();
        if generated.is_dir() {
            for file in below(&generated, "c")?.iter().filter(|file| file.to_string_lossy().ends_with("_nvoc.c")) {
                for method in methods(&read(file)?).with_context(|| format!("{}", file.display()))? {
                    self.has_tables = true;
                    if !seen.insert((method.cmd, method.parameters.clone())) {
                        continue;
                    }
                    let reach = match method.flags {
                        flags if flags & internal != 0 => Reach::Kernel,
                        flags if flags & any != 0 => Reach::Anybody,
                        flags if flags & root_only != 0 || method.access_right != 0 => Reach::Root,
                        _ => Reach::Kernel,
                    };
                    let name = named.get(&method.cmd).cloned().unwrap_or_else(|| method.name.clone());
                    self.controls.push(Control { reach, name, ..method });
                }
            }
            if !self.has_tables {
                bail!("{} has no method table that can be read: has their form changed?", generated.display());
            }
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
            self.controls.push(Control { cmd, name, reach, flags: 0, access_right: 0, parameters });
        }
        self.controls.sort_by_key(|control| control.cmd);
        Ok(())
    }

    /// Bits of a method's flags: anybody, root, internal. They moved between releases, so the tree's own header says which
    /// they are.
    fn flags(&self) -> (u64, u64, u64) {
        let bit = |name: &str| self.headers.constant(&format!("RMCTRL_FLAGS_{name}")).unwrap_or(0) as u64;
        let root = bit("PRIVILEGED") | bit("PRIVILEGED_IF_RS_ACCESS_DISABLED");
        match bit("NON_PRIVILEGED") {
            // Without that header nothing can be ruled out.
            0 => (u64::MAX, 0, 0),
            any => (any, root, bit("INTERNAL")),
        }
    }

    fn read_allocations(&mut self, root: &Path) -> Result<()> {
        let Some(file) = find(&root.join("src/nvidia"), "resource_list.h") else { return Ok(()) };
        let tokens = tokens(&without_comments(&read(&file)?));
        let mut at = 0;
        while let Some(next) = tokens[at..].iter().position(|token| is(token, "RS_ENTRY")) {
            at += next + 1;
            let Some(end) = closing(&tokens, at).filter(|_| tokens.get(at) == Some(&Token::Mark("("))) else {
                continue;
            };
            let items = between_commas(&tokens[at + 1..end - 1]);
            let class = items.first().and_then(|item| named(item.first()?)).map(str::to_owned);
            let structure = items.iter().find_map(|item| match item {
                [Token::Word(sort), Token::Mark("("), Token::Word(name), Token::Mark(")")]
                    if ["RS_OPTIONAL", "RS_REQUIRED"].contains(&sort.as_str()) =>
                {
                    Some(name.clone())
                }
                _ => None,
            });
            if let (Some(class), Some(structure)) = (class, structure) {
                self.carriers.push(Carrier { way: "allocation", by: class, structure });
            }
            at = end;
        }
        Ok(())
    }

    /// What an escape's branch names, and what the functions name that the branch calls: its argument, and what that points to.
    fn read_escapes(&mut self, root: &Path) -> Result<()> {
        let unix = root.join("src/nvidia/arch/nvalloc/unix/src");
        let files = [unix.join("escape.c"), unix.join("osapi.c"), root.join("kernel-open/nvidia/nv.c")];
        let mut texts = Vec::new();
        for file in files.iter().filter(|file| file.is_file()) {
            texts.push(tokens(&without_comments(&read(file)?)));
        }
        let argument = |name: &str| ["nv_ioctl", "NVOS", "NvUnix"].iter().any(|start| name.starts_with(start));
        let mut named_by: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (function, body) in texts.iter().flat_map(|tokens| bodies(tokens)) {
            named_by.entry(function).or_default().extend(body.iter().filter_map(named));
        }
        // A function that is called names what it calls, too: two steps reach from the escape to the copy.
        let reached = |function: &str| -> BTreeSet<&str> {
            let near = named_by.get(function).cloned().unwrap_or_default();
            let far = near.iter().filter_map(|name| named_by.get(name)).flatten().copied();
            far.chain(near.iter().copied()).filter(|name| argument(name)).collect()
        };
        let mut found: BTreeSet<(&str, &str)> = BTreeSet::new();
        for tokens in &texts {
            let mut escape = None;
            for (i, name) in tokens.iter().enumerate().filter_map(|(i, token)| Some((i, named(token)?))) {
                if name.starts_with("NV_ESC_") {
                    // A branch, an entry of a table, or a comparison.
                    let before = i.checked_sub(1).map(|before| &tokens[before]);
                    let names =
                        |token: &Token| is(token, "case") || [Token::Mark("("), Token::Mark("==")].contains(token);
                    escape = before.is_some_and(names).then_some(name);
                } else if name == "case" || name == "default" {
                    escape = None;
                } else if let Some(escape) = escape {
                    if tokens.get(i + 1) == Some(&Token::Mark("(")) {
                        found.extend(reached(name).into_iter().map(|structure| (escape, structure)));
                    }
                    let own = |name: &str| name.starts_with("NV_") && name.ends_with("_PARAMS");
                    found.extend((argument(name) || own(name)).then_some((escape, name)));
                }
            }
        }
        for (escape, structure) in found {
            if self.headers.layout(structure).is_ok() {
                self.carriers.push(Carrier { way: "escape", by: escape.to_owned(), structure: structure.to_owned() });
            }
        }
        self.escapes = self
            .carriers
            .iter()
            .filter(|carrier| carrier.way == "escape")
            .map(|carrier| &carrier.by)
            .collect::<BTreeSet<_>>()
            .len();
        let read: BTreeSet<&String> = self.carriers.iter().map(|carrier| &carrier.by).collect();
        let declared = self.headers.defines.iter().map(|(name, _, _)| name);
        let unread = declared.filter(|name| name.starts_with("NV_ESC_") && !read.contains(name));
        self.escapes_unread = unread.cloned().collect::<BTreeSet<_>>().into_iter().collect();
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
                self.carriers.push(Carrier { way, by: file.clone(), structure: structure.clone() });
            }
        }
    }

    /// PIDs in what functions print into files, by name or by way of a variable.
    fn read_prints(&mut self, root: &Path) -> Result<()> {
        for folder in ["kernel-open", "src/nvidia-modeset/src"].map(|folder| root.join(folder)) {
            if !folder.is_dir() {
                continue;
            }
            for file in below(&folder, "c")? {
                let tokens = tokens(&without_comments(&read(&file)?));
                for (function, body) in bodies(&tokens) {
                    let prints = |name: &str| name.starts_with("seq_") || name.starts_with("nvEvoLogInfoString");
                    for (i, _) in body.iter().enumerate().filter(|(_, token)| named(token).is_some_and(prints)) {
                        let Some(end) = closing(body, i + 1).filter(|_| body[i + 1] == Token::Mark("(")) else {
                            continue;
                        };
                        let arguments = between_commas(&body[i + 2..end - 1]);
                        let pid = arguments
                            .iter()
                            .find_map(|argument| pid_in(argument).or_else(|| assigned_pid(argument, &body[..i])));
                        if let Some(pid) = pid {
                            let place = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
                            self.prints.push(Print { function: function.to_owned(), place, pid });
                        }
                    }
                }
            }
        }
        self.prints.sort();
        self.prints.dedup_by(|a, b| a.function == b.function);
        Ok(())
    }

    /// Notifications whose arguments name a PID, or a variable that was given one shortly before.
    fn read_events(&mut self, root: &Path) -> Result<()> {
        let source = root.join("src/nvidia/src");
        if !source.is_dir() {
            return Ok(());
        }
        for file in below(&source, "c")? {
            let text = read(&file)?;
            if !text.contains("otif") {
                continue;
            }
            let tokens = tokens(&without_comments(&text));
            for (i, token) in tokens.iter().enumerate() {
                let Token::Word(function) = token else { continue };
                if !function.contains("Notif") && !function.contains("notif")
                    || tokens.get(i + 1) != Some(&Token::Mark("("))
                {
                    continue;
                }
                let Some(end) = closing(&tokens, i + 1) else { continue };
                // A body or a prototype is no call.
                if tokens.get(end) == Some(&Token::Mark("{")) {
                    continue;
                }
                let arguments = between_commas(&tokens[i + 2..end - 1]);
                let notifier = arguments.iter().flat_map(|argument| argument.iter()).find_map(|token| match token {
                    Token::Word(word) if word.contains("_NOTIFI") || word.contains("_EVENT_") => Some(word.clone()),
                    _ => None,
                });
                let notifier = notifier.unwrap_or_else(|| function.clone());
                self.notifications += 1;
                let pid = arguments
                    .iter()
                    .find_map(|argument| pid_in(argument).or_else(|| assigned_pid(argument, &tokens[..i])));
                if let Some(pid) = pid {
                    let place = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
                    self.events.push(Event { notifier, place, pid });
                }
            }
        }
        self.events.sort();
        self.events.dedup();
        Ok(())
    }

    /// Fields of dumps, which are protobuf: the generated headers name each as a macro.
    fn read_streams(&mut self, root: &Path) -> Result<()> {
        let generated = root.join("src/nvidia/generated");
        if !generated.is_dir() {
            return Ok(());
        }
        for file in below(&generated, "h")?.iter().filter(|file| file.to_string_lossy().ends_with("_pb.h")) {
            for line in read(file)?.lines() {
                let mut words = line.split_whitespace();
                let (Some("#define"), Some(name), Some(place)) = (words.next(), words.next(), words.next()) else {
                    continue;
                };
                if !place.starts_with("(&prb_fields_") {
                    continue;
                }
                if let Some(message) = name.strip_suffix("_PROCESS_ID").or(name.strip_suffix("_PID")) {
                    self.streams.push((message.to_owned(), name[message.len() + 1..].to_lowercase()));
                }
            }
        }
        Ok(())
    }

    fn read_functions(&mut self, root: &Path) -> Result<()> {
        let places = ["kernel-open/common/inc", "kernel-open/nvidia"];
        for place in places.iter().map(|place| root.join(place)).filter(|place| place.is_dir()) {
            for file in below(&place, "h")?.into_iter().chain(below(&place, "c")?) {
                let text = read(&file)?;
                if !["os_", "ioctl"].iter().any(|part| text.contains(part)) {
                    continue;
                }
                // Directives end no statement; what is behind them is a declaration of its own.
                let code: String = without_comments(&text)
                    .lines()
                    .map(|line| if line.trim_start().starts_with('#') { ";" } else { line })
                    .collect::<Vec<_>>()
                    .join("\n");
                for (name, prototype) in prototypes(&tokens(&code)) {
                    self.functions.entry(name).or_default().insert(prototype);
                }
            }
        }
        Ok(())
    }
}

/// The PID that an argument names by itself.
fn pid_in(argument: &[Token]) -> Option<String> {
    argument.iter().find_map(|token| match token {
        Token::Word(word) if names_pid(word) || word == "osGetCurrentProcess" => Some(word.clone()),
        _ => None,
    })
}

/// The PID that a variable was given in the statements before, if the argument is a variable.
fn assigned_pid(argument: &[Token], before: &[Token]) -> Option<String> {
    let [Token::Word(variable)] = argument else { return None };
    if variable.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit()) {
        return None;
    }
    let recent = &before[before.len().saturating_sub(400)..];
    let at = recent.windows(2).rposition(|pair| is(&pair[0], variable) && pair[1] == Token::Mark("="))?;
    let end = recent[at..].iter().position(|token| *token == Token::Mark(";")).map_or(recent.len(), |n| at + n);
    pid_in(&recent[at + 2..end]).map(|pid| format!("{variable} = {pid}"))
}

fn is(token: &Token, text: &str) -> bool {
    matches!(token, Token::Word(word) if word == text)
}

fn named(token: &Token) -> Option<&str> {
    match token {
        Token::Word(word) => Some(word),
        _ => None,
    }
}

fn read(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Files below a folder with this ending, in an order that is always the same.
fn below(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() && entry.path().extension().is_some_and(|found| found == ending) {
                out.push(entry.path());
            }
        }
    }
    out.sort();
    Ok(out)
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let files = below(folder, "h").ok()?;
    files.into_iter().find(|file| file.file_name().is_some_and(|found| found == name))
}

/// The release that the tree says it is: `NVIDIA_VERSION = 595.45.04` in `version.mk`.
fn release(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("version.mk")).ok()?;
    let line = text.lines().find(|line| line.starts_with("NVIDIA_VERSION"))?;
    Some(line.split('=').nth(1)?.trim().to_owned())
}
