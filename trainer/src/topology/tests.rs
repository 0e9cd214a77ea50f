//! Case 62: threads follow affinity, cpuset and quota, in fake trees of every kind of container.

use std::fs;
use std::path::Path;

use hwlocality::topology::builder::TopologyBuilder;
use muster_proto::run_spec::Pin;

use super::*;

/// A fake root with `proc` and `sys`.
struct Tree(tempfile::TempDir);

impl Tree {
    /// A machine of `cores` physical cores with two threads each, CPU n and n + cores being siblings.
    fn machine(cores: u32) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.put("proc/self/status", &format!("Name:\tmuster\nCpus_allowed_list:\t0-{}\n", 2 * cores - 1));
        tree.put("proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable: 8000000 kB\n");
        for cpu in 0..2 * cores {
            let core = cpu % cores;
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            tree.put(&format!("{topology}/core_cpus_list"), &format!("{core},{}\n", core + cores));
            tree.put(&format!("{topology}/physical_package_id"), &format!("{}\n", 2 * core / cores));
        }
        tree
    }

    fn put(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn v2(&self, own: &str, mount_root: &str) -> &Self {
        self.put("proc/self/cgroup", &format!("0::{own}\n"));
        let mount = format!("30 24 0:26 {mount_root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        self.put("proc/self/mountinfo", &format!("24 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mount}"))
    }

    fn v1(&self, own: &str) -> &Self {
        let controllers = [("cpu,cpuacct", 4), ("memory", 5), ("cpuset", 6)];
        let mut cgroup = String::new();
        let mut mounts = String::new();
        for (name, id) in controllers {
            cgroup.push_str(&format!("{id}:{name}:{own}\n"));
            mounts.push_str(&format!(
                "3{id} 24 0:2{id} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
            ));
        }
        mounts.push_str("39 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        self.put("proc/self/cgroup", &format!("{cgroup}0::{own}\n")).put("proc/self/mountinfo", &mounts)
    }

    fn facts(&self) -> HostFacts {
        HostFacts::read(self.0.path(), None)
    }

    fn threads(&self) -> usize {
        cpu_budget(&self.facts(), None).threads
    }
}

#[test]
fn case_62_without_limits_every_physical_core_gets_one_thread() {
    let tree = Tree::machine(4);
    let facts = tree.facts();
    assert_eq!((facts.allowed.len(), facts.cores.len(), facts.packages()), (8, 4, 2));
    let budget = cpu_budget(&facts, None);
    assert_eq!((budget.threads, budget.quota), (4, None));
    assert_eq!(budget.cpus, [0, 1, 2, 3], "one thread per core before any sibling");
    assert_eq!(budget.reason, "8 CPUs allowed (0-7) on 4 physical cores; no CPU quota");
}

#[test]
fn threads_that_fill_the_cores_are_pinned_and_fewer_are_left_to_the_scheduler() {
    let tree = Tree::machine(4);
    let pin = |wanted, threads| pinning(&cpu_budget(&tree.facts(), threads), wanted);
    let full = pin(Pin::Auto, None);
    assert_eq!((full.cpus.as_deref(), full.describe().as_str()), (Some(&[0, 1, 2, 3][..]), "CPUs 0-3"));
    assert_eq!(pin(Pin::Auto, Some(8)).cpus, Some((0..8).collect()), "siblings too");
    assert_eq!(pin(Pin::Auto, Some(3)).cpus, None, "a second run may count on the fourth core");
    assert_eq!(pin(Pin::Always, Some(3)).cpus, Some(vec![0, 1, 2]));
    assert_eq!(pin(Pin::Never, None).cpus, None);
    assert_eq!(pin(Pin::Always, Some(1)).cpus, None);
    let crowd = pin(Pin::Auto, Some(9));
    assert_eq!((crowd.cpus, crowd.warning), (None, None), "threads beyond the CPUs have their own warning");
    let crowd = pin(Pin::Always, Some(9));
    assert!(crowd.cpus.is_none() && crowd.warning.unwrap().contains("9 threads have only 8 CPUs"));
    tree.v2("/", "/").put("sys/fs/cgroup/cpu.max", "350000 100000\n");
    let quota = pinning(&cpu_budget(&tree.facts(), Some(4)), Pin::Auto);
    assert!(quota.cpus.is_none() && quota.reason.contains("quota"), "{quota:?}");
}

#[test]
fn case_62_affinity_narrows_the_threads() {
    let tree = Tree::machine(8);
    let facts = HostFacts::read(tree.0.path(), Some(&[2, 3, 10]));
    let budget = cpu_budget(&facts, None);
    assert_eq!(budget.threads, 2, "CPUs 2 and 10 are one core");
    assert_eq!(budget.cpus, [2, 3]);
    assert_eq!(budget.reason, "3 CPUs allowed (2-3,10) on 2 physical cores; no CPU quota");
    assert_eq!(cpu_budget(&facts, Some(3)).cpus, [2, 3, 10], "siblings come last");
}

#[test]
fn case_62_v2_quota_is_rounded_down_and_its_file_named() {
    let tree = Tree::machine(8);
    tree.v2("/", "/").put("sys/fs/cgroup/cpu.max", "350000 100000\n");
    let budget = cpu_budget(&tree.facts(), None);
    assert_eq!((budget.threads, budget.quota), (3, Some(3.5)));
    assert!(
        budget.reason.contains("quota of 3.5 CPUs is tighter (/sys/fs/cgroup/cpu.max)"),
        "{}",
        budget.reason
    );
    tree.put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_eq!(tree.threads(), 1, "half a CPU still needs a thread");
    tree.put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_eq!(tree.threads(), 8);
    assert_eq!(tree.facts().quota, None);
}

#[test]
fn case_62_v2_the_tightest_of_nested_groups_counts() {
    let tree = Tree::machine(8);
    tree.v2("/kubepods/pod1/c1", "/")
        .put("sys/fs/cgroup/kubepods/pod1/c1/cpu.max", "max 100000")
        .put("sys/fs/cgroup/kubepods/pod1/cpu.max", "200000 100000")
        .put("sys/fs/cgroup/kubepods/cpu.max", "600000 100000")
        .put("sys/fs/cgroup/kubepods/pod1/c1/cpuset.cpus.effective", "1-6\n")
        .put("sys/fs/cgroup/kubepods/pod1/memory.max", "2000000000")
        .put("sys/fs/cgroup/kubepods/pod1/memory.current", "1500000000")
        .put("sys/fs/cgroup/kubepods/pod1/memory.stat", "anon 1\ninactive_file 500000000\n")
        .put("sys/fs/cgroup/kubepods/memory.max", "max");
    let facts = tree.facts();
    assert_eq!(facts.allowed, [1, 2, 3, 4, 5, 6]);
    let quota = facts.quota.clone().unwrap();
    assert_eq!((quota.cpus, quota.place.as_str()), (2.0, "/sys/fs/cgroup/kubepods/pod1/cpu.max"));
    assert_eq!(cpu_budget(&facts, None).threads, 2);
    assert_eq!(facts.memory.limit, Some(2_000_000_000));
    assert_eq!(facts.memory.usable(), 1_000_000_000, "limit - used + file cache that can be dropped");
    assert!(facts.memory.describe().contains("limit 2.0 GB (/sys/fs/cgroup/kubepods/pod1/memory.max)"));
}

#[test]
fn case_62_v2_inside_a_cgroup_namespace_or_a_bind_mount_the_mount_is_the_group() {
    for (own, mount_root) in
        [("/", "/"), ("/docker/abc", "/docker/abc"), ("/../../other", "/"), ("/x", "/docker/abc")]
    {
        let tree = Tree::machine(8);
        tree.v2(own, mount_root).put("sys/fs/cgroup/cpu.max", "400000 100000");
        assert_eq!(tree.threads(), 4, "{own} under {mount_root}");
    }
}

#[test]
fn case_62_v1_quota_cpuset_and_memory_are_read_at_every_level() {
    let tree = Tree::machine(8);
    tree.v1("/docker/abc")
        .put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n")
        .put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n")
        .put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "250000\n")
        .put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "50000\n")
        .put(
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.stat",
            "nr_periods 10\nnr_throttled 4\nthrottled_time 7000\n",
        )
        .put("sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus", "0-6\n")
        .put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n")
        .put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "256000000\n")
        .put("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "6000000\n");
    let facts = tree.facts();
    assert_eq!(facts.quota.clone().unwrap().cpus, 5.0);
    assert_eq!(cpu_budget(&facts, None).threads, 5);
    assert_eq!(facts.allowed.len(), 7);
    assert_eq!((facts.memory.limit, facts.memory.usable()), (Some(256_000_000), 250_000_000));
    assert_eq!(facts.throttling, Some(Throttling { periods: 10, throttled: 4, throttled_us: 7 }));
}

#[test]
fn throttling_of_v2_is_read() {
    let tree = Tree::machine(2);
    tree.v2("/a", "/")
        .put("sys/fs/cgroup/a/cpu.stat", "usage_usec 5\nnr_periods 3\nnr_throttled 2\nthrottled_usec 9\n");
    assert_eq!(tree.facts().throttling, Some(Throttling { periods: 3, throttled: 2, throttled_us: 9 }));
}

#[test]
fn a_wider_quota_does_not_add_threads_and_asking_for_too_many_warns() {
    let tree = Tree::machine(2);
    tree.v2("/", "/").put("sys/fs/cgroup/cpu.max", "300000 100000");
    let facts = tree.facts();
    let budget = cpu_budget(&facts, None);
    assert_eq!((budget.threads, budget.warning.clone()), (2, None));
    assert!(budget.reason.ends_with("the quota of 3 CPUs is wider"), "{}", budget.reason);
    let asked = cpu_budget(&facts, Some(4));
    assert_eq!((asked.threads, asked.reason.as_str()), (4, "train.threads"));
    assert!(asked.warning.unwrap().contains("4 threads exceed the quota of 3 CPUs"));
    let more = cpu_budget(&Tree::machine(1).facts(), Some(9));
    assert!(more.warning.unwrap().contains("9 threads share 2 allowed CPUs (0-1)"));
}

#[test]
fn an_empty_tree_gives_one_thread_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let facts = HostFacts::read(dir.path(), None);
    assert_eq!(cpu_budget(&facts, None).threads, 1);
    assert_eq!(facts.memory, MemoryFacts::default());
    assert_eq!(facts.huge_pages, HugePages::Unknown);
    assert!(facts.warnings.iter().any(|w| w.contains("neither affinity nor cpuset")), "{:?}", facts.warnings);
}

#[test]
fn huge_pages_caches_and_nodes_come_from_sys() {
    let tree = Tree::machine(4);
    tree.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    for (index, level, kind, size) in [
        (0, "1", "Data", "32K"),
        (1, "1", "Instruction", "32K"),
        (2, "2", "Unified", "2048K"),
        (3, "3", "Unified", "30M"),
    ] {
        let dir = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
        tree.put(&format!("{dir}/level"), level).put(&format!("{dir}/type"), kind);
        tree.put(&format!("{dir}/size"), size).put(&format!("{dir}/shared_cpu_list"), "0-3\n");
    }
    tree.put("sys/devices/system/node/node0/cpulist", "0-1,4-5\n")
        .put(
            "sys/devices/system/node/node0/meminfo",
            "Node 0 MemTotal:       1000 kB\nNode 0 MemFree: 1 kB\n",
        )
        .put("sys/devices/system/node/node1/cpulist", "2-3,6-7\n")
        .put("sys/devices/system/node/node2/cpulist", "\n");
    let facts = HostFacts::read(tree.0.path(), Some(&[0, 2, 3]));
    assert_eq!(facts.huge_pages, HugePages::Madvise);
    assert_eq!((facts.l2_bytes, facts.l3), (Some(2 << 20), Some((30 << 20, 4))));
    let nodes = [
        NumaNode { node: 0, cpus: vec![0], memory_bytes: 1_024_000 },
        NumaNode { node: 1, cpus: vec![2, 3], memory_bytes: 0 },
    ];
    assert_eq!(facts.nodes, nodes, "a node without CPUs (memory only) is left out");
}

#[test]
fn hwloc_nodes_are_restricted_to_the_allowed_cpus() {
    let two_sockets = "pack:2 numa:1 l3:1 core:28 pu:2";
    let topology = TopologyBuilder::new().from_synthetic(two_sockets).unwrap().build().unwrap();
    let all: Vec<u32> = (0..112).collect();
    let nodes = hwloc_nodes(&topology, &all);
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|node| node.cpus.len() == 56));
    let second = hwloc_nodes(&topology, &[60, 61, 100]);
    assert_eq!(second.len(), 1, "a node without an allowed CPU is left out");
    assert_eq!((second[0].node, second[0].cpus.as_slice()), (1, [60, 61, 100].as_slice()));
}

#[test]
fn this_machine_is_read_and_hwloc_agrees_with_sys() {
    let facts = HostFacts::detect();
    assert!(!facts.allowed.is_empty() && !facts.cores.is_empty() && !facts.nodes.is_empty());
    assert!(facts.memory.total > 0 && facts.memory.usable() > 0);
    let sys = HostFacts::read(Path::new("/"), Some(&facts.allowed));
    let cpus = |facts: &HostFacts| facts.nodes.iter().map(|n| n.cpus.clone()).collect::<Vec<_>>();
    assert_eq!(cpus(&facts), cpus(&sys));
}

#[test]
fn volumes_in_memory_are_left_out_of_what_can_be_used() {
    let mut memory = MemoryFacts { available: 10_000, group_free: Some(8_000), ..MemoryFacts::default() };
    memory.keep(3_000);
    assert_eq!((memory.available, memory.usable()), (7_000, 5_000));
    memory.keep(9_000);
    assert_eq!(memory.usable(), 0);
    let error = volume_room(Path::new("/proc")).unwrap_err();
    assert_eq!(error.to_string(), "is not a file system in memory");
    if std::fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" /dev/shm tmpfs ")) {
        assert!(volume_room(Path::new("/dev/shm")).is_ok());
    }
}

#[test]
fn cpu_lists_are_read_and_written() {
    assert_eq!(cpulist::parse("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
    assert_eq!(cpulist::parse(""), Some(vec![]));
    for bad in ["3-1", "x", "1-", "0-99999999"] {
        assert_eq!(cpulist::parse(bad), None, "{bad}");
    }
    assert_eq!(cpulist::format(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
    assert_eq!(cpulist::format(&[]), "");
}
