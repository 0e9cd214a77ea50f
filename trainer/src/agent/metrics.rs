//! What an agent knows, in the text format of Prometheus.

use std::fmt::Write;

use muster_proto::v1::Progress;

/// Name, help and value of a number that every rank has.
type Gauge = (&'static str, &'static str, fn(&Progress) -> f64);

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
    let metrics: [Gauge; 5] = [
        ("muster_rank_step", "Optimizer steps done.", |p| p.step as f64),
        ("muster_rank_step_seconds", "Time of the last step.", |p| p.step_us as f64 / 1e6),
        ("muster_rank_compute_seconds", "Computing in the last step.", |p| p.compute_us as f64 / 1e6),
        ("muster_rank_exposed_seconds", "Waiting for reductions in the last step.", |p| {
            p.exposed_us as f64 / 1e6
        }),
        ("muster_rank_data_seconds", "Waiting for data in the last step.", |p| p.data_us as f64 / 1e6),
    ];
    for (name, help, value) in metrics {
        all += &head(name, help);
        for (member, run, progress) in &ranks {
            if let Some(progress) = progress {
                let _ = writeln!(all, "{name}{{run=\"{run}\",member=\"{member}\"}} {}", value(progress));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_a_step_have_lines() {
        let progress = Progress { step: 7, step_us: 1_500_000, ..Progress::default() };
        let ranks = [("n/0#1", "r", Some(&progress)), ("n/1#2", "r", None)];
        let text = text("n", true, ranks.into_iter());
        for line in [
            "muster_agent_connected{node=\"n\"} 1",
            "muster_agent_ranks{node=\"n\"} 2",
            "muster_rank_step{run=\"r\",member=\"n/0#1\"} 7",
            "muster_rank_step_seconds{run=\"r\",member=\"n/0#1\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("n/1#2"), "{text}");
    }
}
