//! Makes guests from xtask/matrix.toml. `full` crosses what the quick matrix covers once.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use mpu_guest::stories;
use serde::Deserialize;

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Tally};
use crate::guest::{Job, Row};
use crate::test::selection::Shard;
use crate::{kernels, real_driver, skips};

#[derive(Deserialize)]
pub struct Matrix {
    engines: Vec<String>,
    /// Stories of the engine in user space in cells with `notify_briefly`.
    brief: Vec<String>,
    minutes: u64,
    reloads: u32,
    /// The time of a row that was not measured.
    pub row_seconds: u32,
    /// The time of a row with every story and `reloads`.
    whole_seconds: u32,
    pub plays: BTreeMap<String, u32>,
    pair: Vec<Pair>,
    quick: Vec<Cell>,
    /// Cells on kernels with debugging checks, or on kernels of the full run only.
    watched: Vec<Cell>,
    real: Vec<Real>,
}

/// NVIDIA's own driver, on a GPU that is made up.
#[derive(Deserialize)]
struct Real {
    /// Several releases run in one guest, one after the other.
    releases: Vec<String>,
    #[serde(default)]
    closed: bool,
    kernel: String,
    /// The stories of the quick run.
    quick: Vec<String>,
    #[serde(default)]
    seconds: u32,
}

impl Real {
    fn name(&self, release: &str) -> String {
        format!("NVIDIA's {} driver {release}", if self.closed { "closed" } else { "open" })
    }
}

/// The clients that are used with drivers of an era.
#[derive(Deserialize)]
struct Pair {
    era: String,
    /// Each kernel gets the next client. There are at least as many kernels.
    clients: Vec<String>,
    /// Whether its rows have kernel stories, too.
    #[serde(default)]
    whole: bool,
    /// Whether the guest ends with the story after which no other can run.
    #[serde(default)]
    last: bool,
}

#[derive(Deserialize)]
struct Cell {
    kernel: String,
    rows: Vec<[String; 2]>,
    /// Eras whose first row also runs with the engine in user space.
    #[serde(default)]
    notify: Vec<String>,
    /// Eras whose first row is followed by one with that engine and the stories of `brief`.
    #[serde(default)]
    notify_briefly: Vec<String>,
    #[serde(default)]
    last: bool,
    /// The module's parameter `redirect`, if it is set.
    redirect: Option<String>,
    /// Eras whose rows have every story; rows of others have no kernel stories. If empty, all rows have every story.
    #[serde(default)]
    whole: Vec<String>,
    /// The only stories of the quick run; all if empty.
    #[serde(default)]
    stories: Vec<String>,
    #[serde(default)]
    seconds: u32,
}

/// One guest, and its processor time in seconds: the longest are booted first.
pub struct Guest {
    pub job: Job,
    pub seconds: u32,
}

impl Cell {
    fn is_whole(&self, era: &str) -> bool {
        self.whole.is_empty() || self.whole.iter().any(|whole| whole == era)
    }
}

/// The engine in user space.
const NOTIFY: &str = "notify";
/// The engine in the kernel.
const MODULE: &str = "module";
/// Reloads of the module under load, except in the full run's whole rows.
const FEW_RELOADS: u32 = 2;
const BARE: &str = "none";

impl Matrix {
    /// Parses matrix.toml.
    pub fn read() -> Result<Self> {
        toml::from_str(include_str!("../../matrix.toml")).context("matrix.toml")
    }
}

/// The story after which no other can run in a guest.
pub fn last_story() -> &'static str {
    stories::LAST[0].name
}

/// The stories without kernel stories.
fn driver_stories() -> Vec<String> {
    stories::usual().filter(|story| !story.is_kernel_story).map(|story| story.name.to_owned()).collect()
}

/// The guests with simulated drivers.
pub fn simulated(matrix: &Matrix, full: bool) -> Result<Vec<Guest>> {
    let row = |era: &str, client: &str| Row {
        era: era.to_owned(),
        client: client.to_owned(),
        engines: matrix.engines.clone(),
        stories: vec![],
        reloads: FEW_RELOADS,
    };
    let job = |kernel: &str, rows: Vec<Row>| Job {
        kernel: kernel.to_owned(),
        cpus: 2,
        // Under four callers a reload of the module takes two to four seconds in a guest, a supervisor's end about one, twice each.
        limit: Duration::from_secs(matrix.minutes * 60 + if full { u64::from(matrix.reloads) * 30 } else { 0 }),
        redirect: None,
        rows,
    };
    let with_notify = |mut row: Row| {
        row.engines.push(NOTIFY.to_owned());
        row
    };
    let rows_and_last = |mut rows: Vec<Row>, last: bool| {
        let again = rows.last().filter(|_| last).map(|row| Row {
            engines: vec![BARE.to_owned(), NOTIFY.to_owned()],
            stories: vec![self::last_story().to_owned()],
            ..row.clone()
        });
        rows.extend(again);
        rows
    };
    let once = |cell: &Cell, rows: &[[String; 2]]| {
        let rows = rows.iter().enumerate().flat_map(|(at, [era, client])| {
            let is_first = rows[..at].iter().all(|[other, _]| other != era);
            let stories = match (full, cell.is_whole(era)) {
                (false, _) if !cell.stories.is_empty() => cell.stories.clone(),
                (_, true) => vec![],
                (_, false) => driver_stories(),
            };
            let row = Row { stories, ..row(era, client) };
            if is_first && cell.notify.contains(era) {
                return vec![with_notify(row)];
            }
            let brief = Row { engines: vec![NOTIFY.to_owned()], stories: matrix.brief.clone(), ..row.clone() };
            if is_first && cell.notify_briefly.contains(era) { vec![row, brief] } else { vec![row] }
        });
        let rows = rows_and_last(rows.collect(), cell.last);
        Guest { job: Job { redirect: cell.redirect.clone(), ..job(&cell.kernel, rows) }, seconds: cell.seconds }
    };
    if !full {
        return Ok(matrix.quick.iter().map(|cell| once(cell, &cell.rows)).collect());
    }
    // One row per guest: guests run in parallel if there are processors.
    let short = matrix.quick.iter().filter(|cell| !cell.stories.is_empty());
    let cells = matrix.watched.iter().chain(short);
    let mut guests: Vec<Guest> = cells.flat_map(|cell| cell.rows.chunks(1).map(|row| once(cell, row))).collect();
    for (at, kernel) in kernels::debian(Arch::Amd64)?.into_iter().enumerate() {
        for pair in &matrix.pair {
            let row = with_notify(row(&pair.era, &pair.clients[at % pair.clients.len()]));
            let (row, seconds) = match pair.whole {
                true => (Row { reloads: matrix.reloads, ..row }, matrix.whole_seconds),
                false => (Row { stories: driver_stories(), ..row }, matrix.row_seconds),
            };
            guests.push(Guest { job: job(&kernel, rows_and_last(vec![row], pair.last)), seconds });
        }
    }
    Ok(guests)
}

/// The guests with NVIDIA's own drivers, built now unless the cache has them. If an archive is unreachable, its release is skipped and counted.
pub fn real(matrix: &Matrix, full: bool, shard: Shard, tally: &mut Tally) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    let engines = [BARE, MODULE, NOTIFY].map(str::to_owned);
    for real in shard.share(matrix.real.iter().filter(|real| full || !real.quick.is_empty())) {
        let mut rows = Vec::new();
        for release in &real.releases {
            let tried = real_driver::fetch(release, real.closed).map_err(|error| (skips::ending(&error), error));
            let made = || real_driver::ready(&real.kernel, release, real.closed).map_err(|error| (Ending::Fail, error));
            match tried.and_then(|()| made()) {
                Ok(name) => rows.push(real_driver::row(&name, &engines, None)?),
                Err((ending, error)) => tally.check(&real.name(release), ending, &format!("{error:#}")),
            }
        }
        if !full {
            rows.iter_mut().for_each(|row| row.stories.clone_from(&real.quick));
        }
        if rows.is_empty() {
            continue;
        }
        let limit = Duration::from_secs(matrix.minutes * 60);
        let seconds = if full { matrix.row_seconds * rows.len() as u32 } else { real.seconds };
        guests.push(Guest { job: Job { kernel: real.kernel.clone(), rows, cpus: 2, limit, redirect: None }, seconds });
    }
    Ok(guests)
}

#[cfg(test)]
mod tests {
    use super::{Cell, Guest, Job, MODULE, Matrix, NOTIFY};
    use super::{driver_stories, last_story, simulated, stories};

    /// A misspelled name would select nothing.
    #[test]
    fn every_name_of_matrix_is_known() {
        let matrix = Matrix::read().unwrap();
        let short = matrix.quick.iter().flat_map(|cell| &cell.stories);
        let named = matrix.real.iter().flat_map(|real| &real.quick).chain(short).chain(&matrix.brief);
        for story in named {
            assert!(stories::all().any(|known| known.name == story), "no story is called {story}");
        }
        let drivers = include_str!("../../drivers.toml");
        assert!(matrix.real.iter().any(|real| !real.quick.is_empty()), "the quick run plays none");
        for real in &matrix.real {
            let table = if real.closed { "closed" } else { "driver" };
            for release in &real.releases {
                assert!(drivers.contains(&format!("[[{table}]]\nrelease = \"{release}\"")), "{table} {release}");
            }
        }
    }

    /// With `--full`, a cell with few stories runs all of them, with all engines.
    #[test]
    fn full_run_plays_stories_omitted_by_quick() {
        let matrix = Matrix::read().unwrap();
        for cell in matrix.quick.iter().filter(|cell| !cell.stories.is_empty()) {
            let played = |full| {
                let guests = simulated(&matrix, full).unwrap();
                let is_it = |job: &Job| job.kernel == cell.kernel && job.redirect == cell.redirect;
                let rows = guests.into_iter().filter(|guest| is_it(&guest.job)).flat_map(|guest| guest.job.rows);
                rows.map(|row| (row.era, row.stories)).collect::<Vec<_>>()
            };
            let (quick, full) = (played(false), played(true));
            assert!(quick.iter().all(|(_, stories)| *stories == cell.stories), "{quick:?}");
            for (era, _) in quick {
                assert!(full.contains(&(era.clone(), Vec::new())), "{} era {era}: {full:?}", cell.kernel);
            }
        }
    }

    /// The paths of a guest's image and log have its name.
    #[test]
    fn full_run_names_each_guest_once() {
        let guests = simulated(&Matrix::read().unwrap(), true).unwrap();
        let names: std::collections::BTreeSet<String> = guests.iter().map(|guest| guest.job.name()).collect();
        assert_eq!(names.len(), guests.len());
    }

    /// Another row of the same guest runs the stories that a row leaves out, with every engine of the guest.
    #[test]
    fn each_guest_runs_every_story_and_engine() {
        let matrix = Matrix::read().unwrap();
        let guests = simulated(&matrix, false).unwrap();
        for (guest, cell) in guests.iter().zip(&matrix.quick).filter(|(_, cell)| cell.stories.is_empty()) {
            let whole: Vec<_> = guest.job.rows.iter().filter(|row| row.stories.is_empty()).collect();
            let name = guest.job.name();
            assert!(!whole.is_empty(), "{name} plays no row whole");
            assert!(guest.seconds > 0, "how long {name} takes is not known");
            let is_short = |row: &&crate::guest::Row| row.stories == matrix.brief || row.stories == [last_story()];
            let rows: Vec<_> = guest.job.rows.iter().filter(|row| !is_short(row)).collect();
            for engine in rows.iter().flat_map(|row| &row.engines) {
                assert!(
                    whole.iter().any(|row| row.engines.contains(engine)),
                    "{name}: {engine} is played in part only"
                );
            }
            let in_part = rows.into_iter().filter(|row| !whole.contains(row));
            assert!(in_part.clone().all(|row| row.stories == driver_stories()), "{name}");
            let eras = in_part.map(|row| row.era.as_str());
            assert!(eras.clone().all(|era| !cell.is_whole(era)), "{name}");
        }
        let redirected = |cell: &&Cell| cell.redirect.is_some();
        assert!(
            matrix.quick.iter().any(|cell| redirected(&cell)),
            "no way to redirect but the module's first is played"
        );
    }

    /// Another row of the same kernel runs the stories that a row leaves out, with every engine of the kernel.
    #[test]
    fn full_run_runs_every_story_and_engine_on_each_kernel() {
        let matrix = Matrix::read().unwrap();
        let guests = simulated(&matrix, true).unwrap();
        for (era, client) in matrix.pair.iter().flat_map(|pair| pair.clients.iter().map(|client| (&pair.era, client))) {
            let mut rows = guests.iter().flat_map(|guest| &guest.job.rows);
            assert!(rows.any(|row| (&row.era, &row.client) == (era, client)), "era {era} with {client}");
        }
        for Guest { job, seconds } in &guests {
            let name = job.name();
            assert!(*seconds > 0, "how long {name} takes is not known");
            let others = guests.iter().map(|guest| &guest.job);
            let others = others.filter(|other| (&other.kernel, &other.redirect) == (&job.kernel, &job.redirect));
            let whole: Vec<_> = others.flat_map(|other| &other.rows).filter(|row| row.stories.is_empty()).collect();
            for row in job.rows.iter().filter(|row| row.stories != [last_story()]) {
                assert!(row.stories.is_empty() || row.stories == driver_stories(), "{name}");
                for engine in &row.engines {
                    let is_played = whole.iter().any(|row| row.engines.contains(engine));
                    assert!(is_played, "{name}: {engine} is played in part only");
                }
            }
        }
    }

    /// The oldest and the newest kernel run the stories that the engine in user space leaves out on the others.
    #[test]
    fn oldest_and_newest_kernel_run_every_story_of_notify() {
        let matrix = Matrix::read().unwrap();
        let guests = simulated(&matrix, false).unwrap();
        let cells = guests.iter().zip(&matrix.quick).filter(|(_, cell)| cell.stories.is_empty());
        let mut kernels: Vec<(Vec<u32>, bool)> = Vec::new();
        for (guest, cell) in cells {
            let number = |part: &str| part.parse().expect("a kernel of Debian's is named by its version");
            let rows = guest.job.rows.iter().filter(|row| row.engines.contains(&NOTIFY.to_owned()));
            let rows: Vec<_> = rows.filter(|row| row.stories.is_empty() || row.stories == matrix.brief).collect();
            assert_eq!(rows.len(), cell.notify.len() + cell.notify_briefly.len(), "{}", cell.kernel);
            assert!(!rows.is_empty(), "{} plays nothing with {NOTIFY}", cell.kernel);
            kernels.push((cell.kernel.split('.').map(number).collect(), rows.iter().any(|row| row.stories.is_empty())));
        }
        assert!(kernels.is_sorted() && kernels.first().unwrap().1 && kernels.last().unwrap().1, "{kernels:?}");
        for name in &matrix.brief {
            let story = stories::usual().find(|story| story.name == name).expect("it is a usual story");
            assert_ne!(story.engines.names(), MODULE, "{name} is not of {NOTIFY}");
        }
    }
}
