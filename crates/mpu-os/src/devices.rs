//! Character devices by name, as `/proc/devices` lists them.

/// Major numbers of character devices, each with the name that a driver registered.
pub fn character_majors(text: &str) -> impl Iterator<Item = (u32, &str)> {
    let characters = text.split("Block devices:").next().unwrap_or_default();
    let pairs = characters.lines().filter_map(|line| line.trim().split_once(' '));
    pairs.filter_map(|(major, name)| Some((major.parse().ok()?, name.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_devices_are_ignored() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n259 blkext\n";
        assert_eq!(character_majors(text).collect::<Vec<_>>(), [(1, "mem"), (195, "nvidia"), (510, "nvidia-uvm")]);
    }
}
