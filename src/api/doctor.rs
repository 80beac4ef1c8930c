//! Has the gateway examine itself and its machine.

use std::net::IpAddr;

use async_trait::async_trait;
use axum::Json;
use axum::extract::{Request, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::origin::Peer;
use super::problem::Problems;
use crate::model::finding::DoctorFinding;

/// Examines the installation that a gateway runs on.
#[async_trait]
pub trait Examiner: Send + Sync {
    /// Examines everything. Nothing is changed.
    async fn examine(&self, seen: SeenProxy) -> Vec<DoctorFinding>;
}

/// How a request reached the gateway, as its headers show.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeenProxy {
    /// Address of the proxy that forwarded the request, if one did.
    pub forwarded_by: Option<IpAddr>,
}

/// Findings of an examination.
#[derive(Serialize, ToSchema)]
pub struct Examination {
    /// What was checked, each with its state and the way out.
    findings: Vec<DoctorFinding>,
}

/// Examine the gateway and its machine
///
/// Disk, clock, limits, keys, names, egress rules, mail, database, and what ends soon: each is `ok`, a `warning` or a `problem`, with the way out. The node that answers examines itself. It looks names up and connects to the mail server, so it may take some seconds.
#[utoipa::path(
    get, path = "/v1/doctor", operation_id = "examine", tag = "status",
    responses((status = 200, body = Examination), Problems),
    security(("token" = ["admin"])),
)]
pub async fn examine(State(api): State<SharedApiState>, request: Request) -> Json<Examination> {
    let is_forwarded = request.headers().contains_key("x-forwarded-for");
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let seen = SeenProxy { forwarded_by: peer.filter(|_| is_forwarded) };
    drop(request);
    Json(Examination { findings: api.examiner.examine(seen).await })
}
