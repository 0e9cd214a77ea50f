//! Emulated nodes: network namespaces joined by a bridge, each behind a link of a given bandwidth both ways.
//!
//! Bandwidth is shaped by the kernel's token bucket (`tc` tbf). A delay needs `netem`, which many kernels lack; then it
//! is refused instead of being ignored. Needs root. Namespaces carry the number of the process that made them, and those
//! of processes that are gone are removed at the next start.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Error, Result, bail, ensure};

/// What the names of namespaces begin with.
const PREFIX: &str = "muster-bench-";
/// Most nodes: addresses of one small network.
const MOST_NODES: usize = 64;
/// Queue of a link in milliseconds: what does not fit is dropped, as by a switch.
const QUEUE_MS: f64 = 20.0;

/// What `--emulate` asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Emulation {
    /// Nodes.
    pub nodes: usize,
    /// Bandwidth of each node's link, both ways, in 1e9 bit/s.
    pub gbit: f64,
    /// One-way delay of each link.
    pub delay_us: f64,
}

impl FromStr for Emulation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mut nodes, mut gbit, mut delay_us) = (None, None, 0.0);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').with_context(|| format!("{part:?} is no key=value"))?;
            let number = || value.parse::<f64>().with_context(|| format!("{key}={value:?} is no number"));
            match key.trim() {
                "nodes" => {
                    nodes = Some(value.parse().with_context(|| format!("nodes={value:?} is no number"))?)
                }
                "gbit" => gbit = Some(number()?),
                "delay_us" => delay_us = number()?,
                other => bail!("there is no key {other:?}; there are nodes, gbit and delay_us"),
            }
        }
        let nodes = nodes.context("nodes= is missing, as in nodes=4,gbit=1")?;
        let gbit = gbit.context("gbit= is missing, as in nodes=4,gbit=1")?;
        ensure!((2..=MOST_NODES).contains(&nodes), "nodes={nodes}: 2 to {MOST_NODES} can be emulated");
        ensure!((0.001..=1000.0).contains(&gbit), "gbit={gbit}: 0.001 to 1000 can be emulated");
        ensure!((0.0..=1e6).contains(&delay_us), "delay_us={delay_us}: 0 to 1000000 can be emulated");
        Ok(Self { nodes, gbit, delay_us })
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes at {} Gbit/s", self.nodes, self.gbit)?;
        if self.delay_us > 0.0 { write!(f, " and {} us", self.delay_us) } else { Ok(()) }
    }
}

/// Namespaces that exist as long as this value.
pub struct Network {
    name: String,
    nodes: usize,
}

impl Network {
    /// Makes the namespaces and their links.
    ///
    /// # Errors
    /// No root, no tools, or a kernel that can't shape.
    pub fn build(emulation: &Emulation) -> Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        ensure!(
            rustix::process::geteuid().is_root(),
            "emulated nodes need root: namespaces and links are made; use sudo, or leave --emulate out"
        );
        for tool in ["ip", "tc", "nsenter"] {
            ensure!(
                Command::new(tool).arg("--version").output().is_ok(),
                "emulated nodes need `{tool}`: install iproute2 and util-linux, or leave --emulate out"
            );
        }
        remove_stale();
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let network = Self { name, nodes: emulation.nodes };
        network.make(emulation).with_context(|| format!("can't emulate {emulation}"))?;
        Ok(network)
    }

    fn make(&self, emulation: &Emulation) -> Result<()> {
        let hub = self.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/24", self.hub_address()), "dev", "br0"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        for node in 0..self.nodes {
            let (space, port) = (self.node(node), format!("port{node}"));
            ip(&["netns", "add", &space])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &space, "addr", "add", &format!("{}/24", self.address(node)), "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            shape(&space, "eth0", emulation)?;
            shape(&hub, &port, emulation)?;
        }
        Ok(())
    }

    /// The namespace of the bridge, where a coordinator runs.
    pub fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    /// The namespace of a node.
    pub fn node(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }

    /// Address of the bridge.
    pub fn hub_address(&self) -> IpAddr {
        Ipv4Addr::new(10, 113, 0, 254).into()
    }

    /// Address of a node.
    pub fn address(&self, node: usize) -> IpAddr {
        Ipv4Addr::new(10, 113, 0, node as u8 + 1).into()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let spaces = (0..self.nodes).map(|node| self.node(node)).chain([self.hub()]);
        // Links go with their namespaces; what was never made can't be removed.
        spaces.for_each(|space| drop(ip(&["netns", "del", &space])));
    }
}

/// A command inside a namespace, whose network ends on this machine: plaintext does not leave it. Unlike
/// `ip netns exec` it leaves `/sys` alone, where limits of the process are read.
pub fn inside(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/var/run/netns/{namespace}")).arg("--").arg(program);
    command.env("MUSTER_INSECURE", "1");
    for name in ["MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_COORDINATOR", "MUSTER_TOKEN"] {
        command.env_remove(name);
    }
    command
}

fn shape(space: &str, link: &str, emulation: &Emulation) -> Result<()> {
    let rate = format!("{}bit", (emulation.gbit * 1e9).round());
    // A bucket of one millisecond, and never less than the largest packet that the kernel builds.
    let burst = ((emulation.gbit * 1e9 / 8.0 * 1e-3) as u64).max(128 << 10).to_string();
    let latency = format!("{QUEUE_MS}ms");
    let bucket = ["tbf", "rate", &rate, "burst", &burst, "latency", &latency];
    let device = ["-n", space, "qdisc", "add", "dev", link];
    tc(&[&device[..], &["root", "handle", "1:"], &bucket].concat()).context(
        "this kernel or `tc` can't shape bandwidth (tbf: CONFIG_NET_SCH_TBF); without it emulated nodes would be as fast as memory",
    )?;
    if emulation.delay_us > 0.0 {
        let delay = format!("{}us", emulation.delay_us);
        tc(&[&device[..], &["parent", "1:1", "netem", "delay", &delay]].concat()).context(
            "this kernel or `tc` has no netem (CONFIG_NET_SCH_NETEM), so a delay can't be emulated: leave delay_us out",
        )?;
    }
    Ok(())
}

fn ip(args: &[&str]) -> Result<()> {
    run("ip", args)
}

fn tc(args: &[&str]) -> Result<()> {
    run("tc", args)
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("can't start {program}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{program} {}` failed: {}", args.join(" "), text.trim());
    Ok(())
}

/// Removes namespaces of processes that are gone.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir("/var/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Somebody else may have been faster.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulations_are_read_and_wrong_ones_name_the_key() {
        let read: Emulation = "nodes=4,gbit=2.5".parse().expect("valid");
        assert_eq!(read, Emulation { nodes: 4, gbit: 2.5, delay_us: 0.0 });
        assert_eq!(read.to_string(), "4 nodes at 2.5 Gbit/s");
        for (text, word) in [
            ("nodes=4", "gbit= is missing"),
            ("nodes=1,gbit=1", "2 to 64"),
            ("nodes=2,gbit=0", "0.001"),
            ("nodes=2,mbit=5", "there is no key \"mbit\""),
            ("nodes=x,gbit=1", "nodes=\"x\" is no number"),
            ("4", "no key=value"),
        ] {
            let error = format!("{:#}", text.parse::<Emulation>().expect_err(text));
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
