//! The control groups of this process, version 1 and 2, from the innermost one to the root that is visible.
//!
//! A limit may stand at any level and the tightest one counts, so every reader here walks all levels.

use std::fs;
use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_CGROUP_DEPTH;

/// Version of the hierarchy that holds a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The directories of one controller, innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) levels: Vec<PathBuf>,
}

/// A mounted cgroup file system.
struct Mount {
    version: Version,
    /// Directory of the hierarchy that is mounted (not `/` in containers without a cgroup namespace).
    root: String,
    point: PathBuf,
    controllers: Vec<String>,
}

impl Hierarchy {
    /// Finds the directories that limit `controller` for this process below `root`, the directory that holds
    /// `proc` and `sys`.
    pub(super) fn find(root: &Path, controller: &str) -> Option<Self> {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
        let mounts: Vec<Mount> = mounts.lines().filter_map(parse_mount).collect();
        let v1 =
            mounts.iter().find(|m| m.version == Version::V1 && m.controllers.iter().any(|c| c == controller));
        // A controller bound to a version 1 hierarchy is absent from the unified one.
        let mount = v1.or_else(|| mounts.iter().find(|m| m.version == Version::V2))?;
        let path = own.lines().find_map(|line| own_path(line, mount.version, controller))?;
        let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
        Some(Self { version: mount.version, levels: levels(&point, below(path, &mount.root)) })
    }

    /// Reads a file of every level that has it, innermost first.
    pub(super) fn read<'a>(&'a self, file: &'a str) -> impl Iterator<Item = (&'a Path, String)> {
        self.levels
            .iter()
            .filter_map(move |dir| Some((dir.as_path(), fs::read_to_string(dir.join(file)).ok()?)))
    }
}

/// Fields of mountinfo: id, parent, device, root, point, options, optional..., `-`, type, source, super options.
fn parse_mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let version = match back.next()? {
        "cgroup2" => Version::V2,
        "cgroup" => Version::V1,
        _ => return None,
    };
    let controllers = back.nth(1).unwrap_or("").split(',').map(str::to_owned).collect();
    Some(Mount { version, root: unescape(root), point: unescape(point).into(), controllers })
}

/// mountinfo writes blanks and backslashes in octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// Path of this process in the hierarchy, from a line `id:controllers:path`.
fn own_path<'l>(line: &'l str, version: Version, controller: &str) -> Option<&'l str> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = match version {
        Version::V2 => id == "0" && controllers.is_empty(),
        Version::V1 => controllers.split(',').any(|c| c == controller),
    };
    ours.then_some(path)
}

/// The part of a process's path that lies under the mounted directory; empty if it is not visible there.
fn below<'p>(path: &'p str, mount_root: &str) -> &'p str {
    let visible = if mount_root == "/" { Some(path) } else { path.strip_prefix(mount_root) };
    visible.filter(|p| !p.split('/').any(|part| part == "..")).unwrap_or("")
}

fn levels(point: &Path, path: &str) -> Vec<PathBuf> {
    let mut dir = point.join(path.trim_matches('/'));
    let mut levels = vec![dir.clone()];
    while dir != point && levels.len() < MAX_CGROUP_DEPTH && dir.pop() {
        levels.push(dir.clone());
    }
    levels
}
