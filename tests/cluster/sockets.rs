//! Finds the node at the other end of a connection, from the kernel's tables.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex};

static NODES: LazyLock<Mutex<HashMap<u32, Arc<str>>>> = LazyLock::new(Mutex::default);

/// Registers a process as a node.
pub fn register(process: u32, node: &str) {
    NODES.lock().expect("nothing panics while it is held").insert(process, node.into());
}

/// Returns the node at the other end of a connection, unless its process has
/// ended meanwhile.
pub fn node_at(theirs: SocketAddr, ours: SocketAddr) -> Option<Arc<str>> {
    let nodes = {
        let mut nodes = NODES.lock().expect("nothing panics while it is held");
        nodes.retain(|process, _| std::fs::exists(format!("/proc/{process}/fd")).unwrap_or(false));
        nodes.clone()
    };
    if nodes.is_empty() {
        // The search is slow where there are many sockets.
        return None;
    }
    let socket = format!("socket:[{}]", inode(theirs, ours)?);
    nodes.into_iter().find_map(|(process, node)| holds(process, &socket).then_some(node))
}

fn holds(process: u32, socket: &str) -> bool {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket))
}

/// Returns the inode of the socket between two addresses, at the first's side.
fn inode(local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let (local, remote) = (as_listed(local), as_listed(remote));
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let line = table.lines().find(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(&local) && words.next() == Some(&remote)
    })?;
    line.split_whitespace().nth(9)?.parse().ok()
}

fn as_listed(address: SocketAddr) -> String {
    let IpAddr::V4(ip) = address.ip() else { panic!("{address} is not of this test") };
    format!("{:08X}:{:04X}", u32::from_le_bytes(ip.octets()), address.port())
}
