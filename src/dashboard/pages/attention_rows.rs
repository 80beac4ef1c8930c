//! What needs attention, as a row of the overview: what it is, and where something can be
//! done about it.

use jiff::Timestamp;
use serde::Deserialize;

use crate::dashboard::api_caller::segment;
use crate::dashboard::frame::Frame;
use crate::model::attention::{AttentionKind, Severity};
use crate::model::named_enum::NamedEnum;

/// What needs attention, as the API answers it.
#[derive(Deserialize)]
pub struct AttentionRow {
    /// Kind of trouble.
    pub kind: AttentionKind,
    /// How bad it is.
    pub severity: Severity,
    /// Tenant it concerns, if it is one.
    pub tenant: Option<String>,
    /// Endpoint it concerns, if it is one.
    pub endpoint: Option<String>,
    /// Time since when it has been so.
    pub since: Option<Timestamp>,
    /// Reason in a sentence.
    pub reason: String,
    /// Deliveries that wait there.
    pub waiting: Option<u64>,
    /// Time at which the gateway does something about it by itself.
    pub next_at: Option<Timestamp>,
    /// Command that helps, or shows more.
    pub command: String,
}

impl AttentionRow {
    /// Whether somebody should act now.
    pub fn is_critical(&self) -> bool {
        self.severity == Severity::Critical
    }

    /// Returns the kind in words.
    pub fn kind_words(&self) -> String {
        self.kind.as_str().replace('_', " ")
    }

    /// Returns the page on which something can be done about it, and what that is.
    pub fn step(&self, frame: &Frame) -> Option<(String, &'static str)> {
        let below = |path: &str| format!("{}{path}", frame.root);
        let of_tenant = |tenant: &str| below(&format!("tenants/{}", segment(tenant)));
        let Some((tenant, endpoint)) = self.tenant.as_deref().zip(self.endpoint.as_deref()) else {
            return match self.kind {
                AttentionKind::OverQuota => Some((of_tenant(self.tenant.as_deref()?), "See the tenant")),
                AttentionKind::DeadGrowing => {
                    let query = self.tenant.as_deref().map(|tenant| format!("?tenant={}", segment(tenant)));
                    Some((below(&format!("dead-letters{}", query.unwrap_or_default())), "See what died of what"))
                }
                AttentionKind::OutboxLag | AttentionKind::OutboxRefused | AttentionKind::ServerCertificateEnds => None,
                _ => Some((below("cluster"), "See the cluster")),
            };
        };
        let page = frame.link("endpoints", tenant, endpoint);
        let query = format!("?tenant={}&endpoint={}", segment(tenant), segment(endpoint));
        Some(match self.kind {
            AttentionKind::LaneBlocked => (format!("{page}#lanes"), "See what blocks them"),
            AttentionKind::DeadGrowing if frame.may_manage => {
                (below(&format!("dead-letters/recover{query}&kind=replay&preview=yes")), "Preview a replay…")
            }
            AttentionKind::DeadGrowing => (below(&format!("dead-letters{query}")), "See what died of what"),
            AttentionKind::AutoPaused | AttentionKind::Disabled if frame.may_manage => (page, "Look, and resume it"),
            _ => (page, "See the endpoint"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::cookies::ThemeChoice;
    use crate::model::sign_in::Site;
    use serde_json::json;

    #[test]
    fn each_trouble_leads_to_a_page_on_which_something_can_be_done() {
        let mut frame = Frame::new(Site::Operator, "/", ThemeChoice::Auto, None, "");
        let step = |frame: &Frame, kind: &str, endpoint: Option<&str>| {
            let row = json!({"kind": kind, "severity": "warning", "tenant": "a/b", "endpoint": endpoint,
                "since": null, "reason": "r", "waiting": null, "next_at": null, "command": "c"});
            serde_json::from_value::<AttentionRow>(row).unwrap().step(frame).map(|(href, _)| href)
        };
        let to = |text: &str| Some(text.to_owned());
        assert_eq!(step(&frame, "lane_blocked", Some("ep_1")), to("./endpoints/a%2Fb/ep_1#lanes"));
        assert_eq!(step(&frame, "dead_growing", Some("ep_1")), to("./dead-letters?tenant=a%2Fb&endpoint=ep_1"));
        frame.may_manage = true;
        let replay = "./dead-letters/recover?tenant=a%2Fb&endpoint=ep_1&kind=replay&preview=yes";
        assert_eq!(step(&frame, "dead_growing", Some("ep_1")), to(replay));
        assert_eq!(step(&frame, "breaker_open", Some("ep_1")), to("./endpoints/a%2Fb/ep_1"));
        assert_eq!(step(&frame, "dead_growing", None), to("./dead-letters?tenant=a%2Fb"));
        assert_eq!(step(&frame, "over_quota", None), to("./tenants/a%2Fb"));
        assert_eq!((step(&frame, "disk_low", None), step(&frame, "outbox_lag", None)), (to("./cluster"), None));
    }
}
