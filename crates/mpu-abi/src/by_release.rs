//! Finds the row of a control for a release.

use crate::release::Release;
use crate::rows::{Control, ROWS, RowId, history};

/// The row of a control that a release has.
pub fn row_of(control: Control, release: Release) -> Option<RowId> {
    rows_of(control).find(|id| history(*id).releases.iter().any(|some| some.has(release)))
}

/// Every row of a control.
fn rows_of(control: Control) -> impl Iterator<Item = RowId> {
    (0..ROWS.len()).filter_map(RowId::at).filter(move |id| ROWS[id.index()].control == control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Releases;
    use crate::rows::row;

    fn releases(control: Control) -> impl Iterator<Item = &'static Releases> {
        rows_of(control).flat_map(|id| history(id).releases)
    }

    #[test]
    fn no_release_has_two_rows_of_control() {
        for control in Control::ALL {
            for some in releases(control) {
                assert!(some.until.is_none_or(|until| some.since <= until), "{control:?}: {some:?}");
                let others = releases(control).filter(|other| *other != some);
                assert_eq!(others.filter(|other| other.has(some.since)).count(), 0, "{control:?}: {some:?}");
            }
        }
    }

    #[test]
    fn every_row_is_the_one_of_its_releases() {
        for id in (0..ROWS.len()).filter_map(RowId::at) {
            assert!(!history(id).releases.is_empty(), "{:?}", row(id));
            for some in history(id).releases {
                for release in [Some(some.since), some.until].into_iter().flatten() {
                    assert_eq!(row_of(ROWS[id.index()].control, release), Some(id), "{release}");
                }
            }
        }
    }

    #[test]
    fn release_layout_follows_its_headers() {
        let size = |control, release: &str| {
            let found = row_of(control, release.parse().unwrap()).and_then(row);
            found.map(|row| (row.cmd.0, row.params_size))
        };
        use Control::{GpuGetPidInfo, GpuGetPids, NvencSessionsV2, PerfGpumonUtil, PerfGpumonUtilV2};
        assert_eq!(size(GpuGetPids, "418.226.00"), Some((0x0080_0202, 0xee4)));
        assert_eq!(size(GpuGetPids, "440.33.01"), Some((0x0080_0202, 0xee4)), "not examined: as before");
        assert_eq!(size(GpuGetPids, "999.1"), Some((0x2080_018d, 0xee4)), "newer than all: as the newest");
        assert_eq!(size(GpuGetPidInfo, "510.47.03"), Some((0x2080_018e, 0x2588)), "not examined: as before");
        assert_eq!(size(PerfGpumonUtilV2, "450.248.02"), None, "not there yet");
        assert_eq!(size(PerfGpumonUtilV2, "515.76"), Some((0x2080_2096, 0xb870)));
        assert_eq!(size(PerfGpumonUtilV2, "515.86.01"), Some((0x2080_2096, 0x84d0)));
        assert_eq!(size(PerfGpumonUtilV2, "520.61.05"), Some((0x2080_2096, 0xb870)), "a branch that went another way");
        assert_eq!(size(PerfGpumonUtil, "580.159.04"), None, "gone");
        assert_eq!(size(NvencSessionsV2, "525.60.11"), None, "between two that have it");
        assert_eq!(size(NvencSessionsV2, "525.105.17"), Some((0x2080_01a9, 0x4004)));
        assert_eq!(size(NvencSessionsV2, "595.45.04"), Some((0x2080_01af, 0x4004)));
    }

    /// The entry is as long as its row says.
    #[test]
    fn entries_end_where_next_begins() {
        let mut seen = 0;
        for id in (0..ROWS.len()).filter_map(RowId::at) {
            let (Some(entry), crate::Layout::Query(rows)) = (history(id).entry, ROWS[id.index()].layout) else {
                continue;
            };
            seen += 1;
            assert!(
                rows.pid + 4 <= entry.index && entry.index + 4 <= entry.result && entry.result + 4 <= entry.amounts
            );
            let end = entry.instances.unwrap_or(rows.stride);
            assert_eq!((end - entry.amounts) % 8, 0, "{entry:?}");
            assert_eq!(entry.instances.map_or(rows.stride, |at| at + 8), rows.stride, "{entry:?}");
        }
        assert!(seen > 0);
    }
}
