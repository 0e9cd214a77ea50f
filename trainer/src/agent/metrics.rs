//! What an agent knows, in the text format of Prometheus.

use std::fmt::Write;

use muster_proto::v1::Progress;

/// Name, help and value of a number that every rank has, or that is not known yet.
type Gauge = (&'static str, &'static str, fn(&Progress) -> Option<f64>);

/// Metrics of a node: of each rank its name, its run and its last step.
pub(super) fn text<'a>(
    node: &str,
    connected: bool,
    ranks: impl Iterator<Item = (&'a str, &'a str, Option<&'a Progress>)>,
) -> String {
    let ranks: Vec<_> = ranks.collect();
    let mut text = String::new();
    let mut head = |name: &str, help: &str| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        std::mem::take(&mut text)
    };
    let mut all = head("muster_agent_connected", "1 while there is a session with the coordinator.");
    let _ = writeln!(all, "muster_agent_connected{{node=\"{node}\"}} {}", u8::from(connected));
    all += &head("muster_agent_ranks", "Rank processes on the node.");
    let _ = writeln!(all, "muster_agent_ranks{{node=\"{node}\"}} {}", ranks.len());
    let metrics: [Gauge; 11] = [
        ("muster_rank_step", "Optimizer steps done.", |p| Some(p.step as f64)),
        ("muster_rank_step_seconds", "Time of the last step.", |p| seconds(p.step_us)),
        ("muster_rank_compute_seconds", "Computing in the last step.", |p| seconds(p.compute_us)),
        ("muster_rank_exposed_seconds", "Waiting for reductions in the last step.", |p| {
            seconds(p.exposed_us)
        }),
        ("muster_rank_data_seconds", "Waiting for data in the last step.", |p| seconds(p.data_us)),
        ("muster_rank_cores", "Physical cores that the rank may use.", |p| Some(f64::from(p.place?.cores))),
        ("muster_rank_threads", "Compute threads of the rank.", |p| Some(f64::from(p.place?.threads))),
        ("muster_rank_memory_bytes", "Memory of the rank's own.", |p| {
            p.place.map(|place| place.memory_bytes as f64).filter(|&bytes| bytes > 0.0)
        }),
        ("muster_rank_numa_local_ratio", "Share of that memory on the NUMA nodes of the rank's CPUs.", |p| {
            let place = p.place.filter(|place| place.memory_bytes > 0)?;
            Some(place.local_bytes as f64 / place.memory_bytes as f64)
        }),
        (
            "muster_rank_throttled_seconds",
            "Time that a CPU quota stopped the rank's group since it began.",
            |p| seconds(p.place?.throttled_us),
        ),
        ("muster_rank_rebinds", "Times that the rank was bound to other CPUs.", |p| {
            Some(f64::from(p.place?.rebinds))
        }),
    ];
    for (name, help, value) in metrics {
        all += &head(name, help);
        for (member, run, progress) in &ranks {
            if let Some(value) = progress.and_then(value) {
                let _ = writeln!(all, "{name}{{run=\"{run}\",member=\"{member}\"}} {value}");
            }
        }
    }
    all
}

fn seconds(us: u64) -> Option<f64> {
    Some(us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::Place;

    use super::*;

    #[test]
    fn ranks_with_a_step_have_lines() {
        let place = Place { cores: 4, memory_bytes: 1000, local_bytes: 990, ..Place::default() };
        let progress = Progress { step: 7, step_us: 1_500_000, place: Some(place), ..Progress::default() };
        let ranks = [("n/0#1", "r", Some(&progress)), ("n/1#2", "r", None)];
        let text = text("n", true, ranks.into_iter());
        for line in [
            "muster_agent_connected{node=\"n\"} 1",
            "muster_agent_ranks{node=\"n\"} 2",
            "muster_rank_step{run=\"r\",member=\"n/0#1\"} 7",
            "muster_rank_step_seconds{run=\"r\",member=\"n/0#1\"} 1.5",
            "muster_rank_cores{run=\"r\",member=\"n/0#1\"} 4",
            "muster_rank_numa_local_ratio{run=\"r\",member=\"n/0#1\"} 0.99",
            "muster_rank_throttled_seconds{run=\"r\",member=\"n/0#1\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("n/1#2"), "{text}");
    }
}
