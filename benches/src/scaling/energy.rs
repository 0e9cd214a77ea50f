//! Energy counters of the CPU packages and their memory (RAPL), where the kernel shows them.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// Why there is no energy.
pub const NOT_MEASURED: &str = "not measured: no readable energy counter (RAPL) in /sys/class/powercap";

/// Counter of a zone, and how often it began again.
struct Zone {
    name: String,
    last_uj: u64,
    wraps: u64,
}

/// Joules since some moment; none without a readable counter. Counters that begin again are followed as long as this is
/// asked more often than they do, about once a minute under full load.
pub fn joules() -> Option<f64> {
    static ZONES: Mutex<Vec<Zone>> = Mutex::new(Vec::new());
    let mut zones = ZONES.lock().ok()?;
    read(Path::new("/sys/class/powercap"), &mut zones)
}

fn read(root: &Path, zones: &mut Vec<Zone>) -> Option<f64> {
    let number = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    let mut total = None;
    for entry in fs::read_dir(root).ok()?.flatten() {
        let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = fs::read_to_string(dir.join("name")).unwrap_or_default();
        // Cores and uncore are parts of their package, and the platform holds everything.
        if !(kind.starts_with("package") || kind.starts_with("dram")) || name.starts_with("intel-rapl-mmio") {
            continue;
        }
        let Some(now_uj) = number(&dir, "energy_uj") else { continue };
        let range = number(&dir, "max_energy_range_uj").unwrap_or(u64::MAX);
        let index = zones.iter().position(|zone| zone.name == name).unwrap_or_else(|| {
            zones.push(Zone { name, last_uj: now_uj, wraps: 0 });
            zones.len() - 1
        });
        let zone = &mut zones[index];
        zone.wraps += u64::from(now_uj < zone.last_uj);
        zone.last_uj = now_uj;
        *total.get_or_insert(0.0) += (zone.wraps as f64 * range as f64 + now_uj as f64) / 1e6;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_and_memory_count_and_counters_may_begin_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut zones = Vec::new();
        assert_eq!(read(&dir.path().join("nothing"), &mut zones), None);
        let zone = |name: &str, kind: &str, uj: u64| {
            let zone = dir.path().join(name);
            fs::create_dir_all(&zone).expect("made");
            fs::write(zone.join("name"), kind).expect("written");
            fs::write(zone.join("energy_uj"), uj.to_string()).expect("written");
            fs::write(zone.join("max_energy_range_uj"), "10000000").expect("written");
        };
        zone("intel-rapl:0", "package-0\n", 4_000_000);
        zone("intel-rapl:0:0", "core\n", 3_000_000);
        zone("intel-rapl:0:1", "dram\n", 1_000_000);
        assert_eq!(read(dir.path(), &mut zones), Some(5.0));
        zone("intel-rapl:0", "package-0\n", 2_000_000);
        assert_eq!(read(dir.path(), &mut zones), Some(13.0), "8 J more");
    }
}
