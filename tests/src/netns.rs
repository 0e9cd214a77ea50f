//! Machines as network namespaces: each with a link of its own to a switch, beside which a fifth one coordinates.
//!
//! Needs root and `ip`; `tc` limits the links. What is missing is said, and the test is skipped.

use std::process::{Command, Stdio};

/// Speed of a link, as `tc` writes it.
pub const RATE: &str = "1gbit";

/// Namespaces joined by a bridge; gone when this is dropped.
pub struct Net {
    name: String,
    nodes: usize,
    /// Third number of all addresses: tests of one machine may run at once.
    subnet: u8,
}

impl Net {
    /// A switch with an address, and so many nodes. None where this machine or user can't.
    pub fn new(name: &str, nodes: usize) -> Option<Self> {
        let id = std::process::id();
        let net = Self { name: format!("mst{}{name}", id % 100_000), nodes, subnet: (id % 250) as u8 + 1 };
        let switch = net.switch();
        // A bridge that learns and listens first would drop the first seconds of traffic.
        let bridge = ["br0", "type", "bridge", "forward_delay", "0", "stp_state", "0", "mcast_snooping", "0"];
        let made = ip(&["netns", "add", &switch])
            && ip(&[&["-n", &switch, "link", "add"], &bridge[..]].concat())
            && ip(&["-n", &switch, "addr", "add", &format!("{}/24", net.switch_ip()), "dev", "br0"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"])
            && ip(&["-n", &switch, "link", "set", "lo", "up"])
            && (0..nodes).all(|node| net.plug(node));
        if !made {
            eprintln!("skipped: this user can't make network namespaces (ip netns, root)");
            return None;
        }
        let limited = (0..nodes).all(|node| net.limit(node));
        if !limited {
            eprintln!("links are not limited to {RATE}: tc or this kernel's tbf queue is missing");
        }
        Some(net)
    }

    /// The namespace beside the switch.
    pub fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    /// The namespace of a node.
    pub fn node(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    /// The address of the switch's namespace.
    pub fn switch_ip(&self) -> String {
        format!("10.78.{}.1", self.subnet)
    }

    /// The address of a node: its `life` changes with [`Net::renumber`].
    pub fn ip(&self, node: usize, life: usize) -> String {
        format!("10.78.{}.{}", self.subnet, 10 * (node + 1) + life)
    }

    fn plug(&self, node: usize) -> bool {
        let (switch, space, port) = (self.switch(), self.node(node), format!("p{node}"));
        let veth =
            ["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space];
        ip(&["netns", "add", &space])
            && ip(&veth)
            && ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])
            && ip(&["-n", &space, "addr", "add", &format!("{}/24", self.ip(node, 0)), "dev", "eth0"])
            && ip(&["-n", &space, "link", "set", "lo", "up"])
            && ip(&["-n", &space, "link", "set", "eth0", "up"])
    }

    fn limit(&self, node: usize) -> bool {
        let queue = ["root", "tbf", "rate", RATE, "burst", "256kb", "latency", "50ms"];
        let (switch, space, port) = (self.switch(), self.node(node), format!("p{node}"));
        let to_node = ["-n", &switch, "qdisc", "add", "dev", &port];
        let from_node = ["-n", &space, "qdisc", "add", "dev", "eth0"];
        [to_node, from_node].iter().all(|begin| run("tc", &[&begin[..], &queue[..]].concat()))
    }

    /// Cuts the link of a node: packets both ways are lost, and nobody is told.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn cut(&self, node: usize) {
        assert!(ip(&["-n", &self.switch(), "link", "set", &format!("p{node}"), "down"]), "a link is cut");
    }

    /// Gives a node another address and joins its link again.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn renumber(&self, node: usize, life: usize) {
        let space = self.node(node);
        let address = format!("{}/24", self.ip(node, life));
        let done = ip(&["-n", &space, "addr", "flush", "dev", "eth0"])
            && ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])
            && ip(&["-n", &self.switch(), "link", "set", &format!("p{node}"), "up"]);
        assert!(done, "a node comes back");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Namespaces that were never made are an error that doesn't matter.
        let nodes = (0..self.nodes).map(|node| self.node(node));
        nodes.chain([self.switch()]).for_each(|space| {
            ip(&["netns", "del", &space]);
        });
    }
}

/// The same command, inside a namespace. `ip` becomes the program, so the process is that of the command.
pub fn inside(space: &str, command: &Command) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", space]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

fn ip(args: &[&str]) -> bool {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
