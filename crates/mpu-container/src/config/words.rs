//! The words that some keys choose from.

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// As the request and the host suggest.
    Auto,
    /// By the prestart hook and the container CLI.
    Legacy,
    /// By lists of files (Tegra).
    Csv,
    Cdi,
    /// By CDI edits that are made when they are needed.
    JitCdi,
}

/// How CUDA's forward-compatibility libraries are found in mode `legacy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompatMode {
    /// Their folder is handed to ldconfig.
    Ldconfig,
    /// They are mounted over the driver's.
    Mount,
    /// A hook of the runtime does it.
    Hook,
    Disabled,
}

/// What goes into a log: this and what is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

impl LogLevel {
    /// Every word, as NVIDIA's logger knows them: an unknown one is `info` there, too.
    pub const ALL: [(&'static str, LogLevel); 8] = [
        ("error", LogLevel::Error),
        ("warning", LogLevel::Warning),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("warn", LogLevel::Warning),
        ("trace", LogLevel::Debug),
        ("fatal", LogLevel::Error),
        ("panic", LogLevel::Error),
    ];

    pub fn of_word(text: &str) -> LogLevel {
        let found = LogLevel::ALL.into_iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map_or(LogLevel::Info, |(_, level)| level)
    }
}
