//! The eras of the driver: how a release numbers processes by itself. sim/README.md describes each.

use crate::Release;

/// The era from a release on, up to the next row. Two branches break the order of time: 535.43.24 to .28 is a beta that already had the
/// code of 535.113, and 570.148 is younger than 575.51.
const ERAS: &[(Release, u8)] = &[
    (Release::new(0, 0, 0), 0),
    (Release::new(535, 43, 24), 1),
    (Release::new(535, 44, 0), 0),
    (Release::new(535, 113, 0), 1),
    (Release::new(565, 0, 0), 2),
    (Release::new(570, 0, 0), 3),
    (Release::new(570, 148, 0), 4),
    (Release::new(571, 0, 0), 3),
    (Release::new(575, 52, 0), 4),
];

/// The era of a release, 0 to 4.
pub fn era(release: Release) -> u8 {
    ERAS.iter().rev().find(|(from, _)| *from <= release).map_or(0, |(_, era)| *era)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_order_from_beginning_of_time() {
        assert_eq!(ERAS[0].0, Release::new(0, 0, 0));
        for [(earlier, before), (later, after)] in ERAS.windows(2).map(|pair| [pair[0], pair[1]]) {
            assert!(earlier < later, "{earlier} is not before {later}");
            assert_ne!(before, after, "{later} changes nothing");
        }
    }

    #[test]
    fn releases_fall_into_their_eras() {
        let eras: [&[&str]; 5] = [
            &["390.157", "470.256.02", "535.43.23", "535.54.03", "535.104.12"],
            &[
                "535.43.24",
                "535.43.28",
                "535.113.01",
                "535.261.03",
                "545.29.06",
                "550.163.01",
                "555.58.02",
                "560.35.03",
            ],
            &["565.57.01"],
            &["570.86.15", "570.144", "575.51.02", "575.51.03"],
            &["570.148.08", "575.57.08", "580.159.04", "590.44.01", "595.45.04", "610.43.03"],
        ];
        for (expected, releases) in (0..).zip(eras) {
            for release in releases {
                assert_eq!(era(release.parse().unwrap()), expected, "{release}");
            }
        }
    }
}
