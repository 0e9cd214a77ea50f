//! What the coordinator knows, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

use muster_proto::v1::NodeState;

use super::Owner;

impl Owner {
    /// All metrics.
    pub(super) fn metrics(&self) -> String {
        let mut text = String::new();
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for node in self.node_list() {
            let state = NodeState::try_from(node.state).unwrap_or_default();
            *states.entry(word(state.as_str_name(), "NODE_STATE_")).or_default() += 1;
        }
        head(&mut text, "muster_nodes", "gauge", "Nodes by state.");
        line_per_state(&mut text, "muster_nodes", &states);
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for entry in self.runs.values() {
            *states.entry(word(entry.row.state.as_str_name(), "RUN_STATE_")).or_default() += 1;
        }
        head(&mut text, "muster_runs", "gauge", "Runs by state, those in history included.");
        line_per_state(&mut text, "muster_runs", &states);
        head(&mut text, "muster_state_writable", "gauge", "1 while the state can be stored.");
        let _ = writeln!(text, "muster_state_writable {}", u8::from(self.storage_error.is_none()));
        self.discovery_metrics(&mut text);
        self.run_metrics(&mut text);
        text
    }

    fn discovery_metrics(&self, text: &mut String) {
        let name = "muster_discovery_last_sync_timestamp_seconds";
        head(
            text,
            name,
            "gauge",
            "When it was last known for sure which agents there are, by way of discovery.",
        );
        let ways = self.options.discovery.iter();
        for (mode, age) in ways.filter_map(|way| Some((way.mode(), way.age()?))) {
            let at = super::wall_ms() as f64 / 1_000.0 - age.as_secs_f64();
            let _ = writeln!(text, "{name}{{mode=\"{mode}\"}} {at:.3}");
        }
        let name = "muster_discovery_trouble";
        head(text, name, "gauge", "1 while a way of discovery can't be asked.");
        for way in &self.options.discovery {
            let _ =
                writeln!(text, "{name}{{mode=\"{}\"}} {}", way.mode(), u8::from(!way.reason().is_empty()));
        }
    }

    fn run_metrics(&self, text: &mut String) {
        let live: Vec<_> =
            self.runs.values().filter(|entry| entry.live.is_some()).map(|e| e.message()).collect();
        type Value = fn(&muster_proto::v1::Run) -> f64;
        let metrics: [(&str, &str, &str, Value); 6] = [
            ("muster_run_ranks", "gauge", "Processes of a run.", |run| run.ranks.len() as f64),
            ("muster_run_generation", "gauge", "Version of a run's membership.", |run| run.generation as f64),
            ("muster_run_step", "gauge", "Optimizer steps done.", |run| {
                run.progress.map_or(0.0, |p| p.step as f64)
            }),
            ("muster_run_loss", "gauge", "Mean loss of the last step.", |run| {
                run.progress.map_or(f64::NAN, |p| p.loss)
            }),
            ("muster_run_recoveries_total", "counter", "Broken generations that were replaced.", |run| {
                f64::from(run.recoveries)
            }),
            ("muster_run_last_recovery_seconds", "gauge", "Time from the last break to training.", |run| {
                run.last_recovery_ms as f64 / 1_000.0
            }),
        ];
        for (name, kind, help, value) in metrics {
            head(text, name, kind, help);
            for run in &live {
                let _ = writeln!(
                    text,
                    "{name}{{run=\"{}\",name=\"{}\"}} {}",
                    run.id,
                    escape(&run.name),
                    value(run)
                );
            }
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line_per_state(text: &mut String, name: &str, states: &BTreeMap<String, usize>) {
    for (state, count) in states {
        let _ = writeln!(text, "{name}{{state=\"{state}\"}} {count}");
    }
}

fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
