//! The place where pages for people are served, as a setting.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The place where pages for people are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DashboardPlace {
    /// At the address of the API.
    On,
    /// Nowhere at all.
    Off,
    /// At an address of their own.
    At(SocketAddr),
}

impl FromStr for DashboardPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" | "yes" | "1" => Ok(Self::On),
            "off" | "false" | "no" | "0" => Ok(Self::Off),
            address => address.parse().map(Self::At).map_err(|_| {
                format!("{text:?} is not a place for the dashboard; use on, off, or an address such as 127.0.0.1:8402")
            }),
        }
    }
}

impl fmt::Display for DashboardPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}
