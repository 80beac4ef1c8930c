//! Reads how much CPU time processes of this machine have used, from `/proc`.

/// Place of a process's own CPU time behind its name, and of that of its children that
/// have ended and were waited for. Each is two fields: in programs, and in the kernel.
const OWN: usize = 11;
const ENDED_CHILDREN: usize = 13;
/// Place of the process that started it.
const PARENT: usize = 1;
/// The kernel counts CPU time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// The line of a process in `/proc`.
pub struct ProcStat(String);

impl ProcStat {
    /// Reads the line of the process with this number, if there is one.
    pub fn of(pid: u32) -> Option<Self> {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().map(Self)
    }

    /// Reads the line of this process.
    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Returns the CPU time that the process has used, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.seconds(OWN)
    }

    /// Returns the CPU time that its children have used that have ended, in seconds.
    pub fn ended_children_cpu_seconds(&self) -> f64 {
        self.seconds(ENDED_CHILDREN)
    }

    /// Returns the number of the process that started it.
    pub fn parent(&self) -> Option<u32> {
        self.fields().nth(PARENT)?.parse().ok()
    }

    fn seconds(&self, first: usize) -> f64 {
        self.fields().skip(first).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
    }

    /// Returns the fields behind the name, which may have spaces in it.
    fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.rsplit(')').next().unwrap_or_default().split_whitespace()
    }
}

/// Returns the CPU time of a PostgreSQL server that has started the process with this
/// number: its own, and that of all processes it has started. Nothing if there is no such
/// process on this machine.
pub fn server_cpu_seconds(backend: u32) -> Option<f64> {
    let server = ProcStat::of(backend)?.parent()?;
    let name = std::fs::read_to_string(format!("/proc/{server}/comm")).ok()?;
    if name.trim() != "postgres" {
        return None;
    }
    let started: f64 = std::fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| ProcStat::of(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|process| process.parent() == Some(server))
        .map(|process| process.cpu_seconds())
        .sum();
    let server = ProcStat::of(server)?;
    Some(server.cpu_seconds() + server.ended_children_cpu_seconds() + started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_the_parent_are_read_behind_a_name_with_any_characters() {
        let line = "7 (a ) b) S 3 7 7 0 -1 4194560 9 0 0 0 150 50 1000 25 20 0 1 0 4 5 6";
        let stat = ProcStat(line.to_owned());
        assert_eq!((stat.parent(), stat.cpu_seconds(), stat.ended_children_cpu_seconds()), (Some(3), 2.0, 10.25));
        assert!(ProcStat::own().expect("this process has a line").parent().is_some());
        assert_eq!(server_cpu_seconds(std::process::id()), None, "PostgreSQL did not start this one");
    }
}
