//! Examines what the endpoints and tokens need: egress rules, names, and what ends
//! soon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;

use super::ends_soon;
use crate::config::{OptionalMailServer, Settings};
use crate::lifecycle::deliver::tls::certificate_end;
use crate::lifecycle::egress::Egress;
use crate::lifecycle::egress::target::{Host, Target};
use crate::model::answer::FailureKind;
use crate::model::endpoint::{Endpoint, ListensTo};
use crate::model::finding::DoctorFinding;
use crate::model::id::TenantId;
use crate::model::token::Token;

/// Most names that are looked up.
const NAMES_MAX: usize = 20;
/// Longest wait for a name.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

/// Endpoints and tokens of a store.
pub struct CatalogFacts {
    /// Endpoints of all tenants.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Tokens that are not revoked.
    pub tokens: Vec<Arc<Token>>,
}

/// Examines all endpoints and tokens.
pub async fn of_catalog(
    facts: &CatalogFacts,
    settings: &Settings,
    egress: &Egress,
    now: Timestamp,
) -> Vec<DoctorFinding> {
    let endpoints: Vec<&Endpoint> =
        facts.endpoints.iter().map(Arc::as_ref).filter(|endpoint| !endpoint.is_self_test()).collect();
    vec![
        egress_rules(&endpoints, egress),
        names(&endpoints, egress).await,
        certificates(&endpoints, now),
        secrets(&endpoints, now),
        tokens(&facts.tokens, now),
        notifications(&endpoints, settings),
    ]
}

/// Judges the URLs of endpoints by the rules, without looking their names up.
fn egress_rules(endpoints: &[&Endpoint], egress: &Egress) -> DoctorFinding {
    let refused = endpoints.iter().filter_map(|endpoint| {
        let why = egress.check_text(&endpoint.settings.url).err()?;
        Some((endpoint, why.to_string()))
    });
    let refused: Vec<_> = refused.collect();
    let Some((first, why)) = refused.first() else {
        return DoctorFinding::ok("egress_rules", format!("{} endpoints may be called", endpoints.len()));
    };
    let (why, way_out) = why.split_once("; ").unwrap_or((why, "change the endpoint's url"));
    DoctorFinding::problem(
        "egress_rules",
        format!(
            "{} of {} endpoints may not be called, so their deliveries die; the first is {} of tenant {}: {why}",
            refused.len(),
            endpoints.len(),
            first.id,
            first.tenant
        ),
        way_out,
    )
}

/// Looks up the names of endpoints.
async fn names(endpoints: &[&Endpoint], egress: &Egress) -> DoctorFinding {
    let mut hosts = BTreeMap::new();
    for endpoint in endpoints {
        if let Ok((_, Target { host: Host::Name(name), .. })) = Target::read(&endpoint.settings.url) {
            hosts.entry(name).or_insert(endpoint.id);
        }
    }
    let looked_up: Vec<_> = hosts.iter().take(NAMES_MAX).collect();
    if looked_up.is_empty() {
        return DoctorFinding::ok("dns", "no endpoint has a name to look up");
    }
    let answers = join_all(
        looked_up.iter().map(|(name, _)| async { tokio::time::timeout(NAME_TIMEOUT, egress.look_up(name)).await }),
    );
    let answers = answers.await;
    let is_silent = |answer: &Result<Result<_, crate::model::answer::AttemptFailure>, _>| match answer {
        Ok(Ok(_)) => false,
        Ok(Err(failure)) => failure.kind == FailureKind::Ours,
        Err(_) => true,
    };
    if answers.iter().all(is_silent) {
        return DoctorFinding::problem(
            "dns",
            format!("no name server answers, so none of {} names can be called", hosts.len()),
            "mend the machine's name servers (/etc/resolv.conf), or name others with --dns",
        );
    }
    let missing = looked_up.iter().zip(&answers).find(|(_, answer)| !matches!(answer, Ok(Ok(_))));
    match missing {
        Some(((name, endpoint), answer)) => {
            let why = match answer {
                Ok(Err(failure)) => failure.message.clone(),
                Ok(Ok(_)) | Err(_) => format!("no answer within {} seconds", NAME_TIMEOUT.as_secs()),
            };
            let count = answers.iter().filter(|answer| !matches!(answer, Ok(Ok(_)))).count();
            let detail = format!(
                "{count} of {} names are not found; the first is {name} of endpoint {endpoint}: {why}",
                answers.len()
            );
            DoctorFinding::warning("dns", detail, "correct the endpoint's url, or have its owner mend the name")
        }
        None => DoctorFinding::ok("dns", format!("{} names of endpoints are found", answers.len())),
    }
}

fn certificates(endpoints: &[&Endpoint], now: Timestamp) -> DoctorFinding {
    let ends = endpoints.iter().filter_map(|endpoint| {
        let end = certificate_end(endpoint.settings.tls.client_certificate.as_deref()?)?;
        Some((end, endpoint.id))
    });
    let Some((end, endpoint)) = ends.min() else {
        return DoctorFinding::ok("client_certificates", "no endpoint has a client certificate");
    };
    let way_out = format!("renew it, and set it with `posthaste endpoints update {endpoint}`");
    if end <= now {
        let detail = format!("the client certificate of endpoint {endpoint} has ended at {end:.0}");
        DoctorFinding::problem("client_certificates", detail, way_out)
    } else if ends_soon(end, now) {
        let detail = format!("the client certificate of endpoint {endpoint} ends at {end:.0}");
        DoctorFinding::warning("client_certificates", detail, way_out)
    } else {
        DoctorFinding::ok("client_certificates", format!("the first ends at {end:.0}"))
    }
}

/// Judges replaced secrets that stop signing within a day.
fn secrets(endpoints: &[&Endpoint], now: Timestamp) -> DoctorFinding {
    let ends = endpoints.iter().flat_map(|endpoint| {
        let active = endpoint.secrets.iter().filter(|secret| secret.is_active(now));
        active.filter_map(|secret| Some((secret.expires_at?, endpoint.id)))
    });
    match ends.min() {
        None => DoctorFinding::ok("secrets", "no secret is being replaced"),
        Some((end, endpoint)) if end.duration_since(now).as_secs() < 86_400 => DoctorFinding::warning(
            "secrets",
            format!("a replaced secret of endpoint {endpoint} stops signing at {end:.0}"),
            "make sure that its receiver has the new one",
        ),
        Some((end, _)) => DoctorFinding::ok("secrets", format!("the first replaced secret stops signing at {end:.0}")),
    }
}

fn tokens(tokens: &[Arc<Token>], now: Timestamp) -> DoctorFinding {
    let ends = tokens.iter().filter_map(|token| Some((token.expires_at?, token.as_ref())));
    let (ended, coming): (Vec<_>, Vec<_>) = ends.partition(|(end, _)| *end <= now);
    let soon: Vec<_> = coming.into_iter().filter(|(end, _)| ends_soon(*end, now)).collect();
    let named = |(end, token): &(Timestamp, &Token)| {
        let whose = token.tenant.as_ref().map_or("the gateway".to_owned(), |tenant| format!("tenant {tenant}"));
        format!("{} of {whose}, at {end:.0}", token.id)
    };
    let mut told = Vec::new();
    if let Some(last) = ended.iter().max_by_key(|(end, _)| *end) {
        told.push(format!("{} tokens have ended; the last was {}", ended.len(), named(last)));
    }
    if let Some(first) = soon.iter().min_by_key(|(end, _)| *end) {
        told.push(format!("{} tokens end soon; the first is {}", soon.len(), named(first)));
    }
    if told.is_empty() {
        return DoctorFinding::ok("tokens", format!("none of {} tokens ends soon", tokens.len()));
    }
    let way_out = "make new ones for those in use with `posthaste tokens create`, hand them over, and revoke the old \
                   ones with `posthaste tokens revoke`";
    DoctorFinding::warning("tokens", told.join("; "), way_out)
}

/// Judges whether anybody is told when something goes wrong.
fn notifications(endpoints: &[&Endpoint], settings: &Settings) -> DoctorFinding {
    let has_mail = matches!(settings.smtp, OptionalMailServer::Server(_));
    let owners = endpoints.iter().filter(|endpoint| endpoint.settings.owner_email.is_some()).count();
    let is_system = |endpoint: &&&Endpoint| endpoint.tenant == TenantId::system();
    let to_operators = endpoints.iter().filter(is_system).count();
    let to_tenants = endpoints.iter().filter(|endpoint| endpoint.settings.listens_to == ListensTo::Operations).count();
    if to_operators > 0 {
        let detail = format!(
            "{to_operators} endpoints of tenant _system get operational events; {owners} endpoints have an owner to mail"
        );
        return DoctorFinding::ok("notifications", detail);
    }
    if owners > 0 && !has_mail {
        let detail = format!("{owners} endpoints have an owner to mail, and there is no mail server");
        return DoctorFinding::warning("notifications", detail, "set --smtp, or make an endpoint in tenant _system");
    }
    if owners + to_tenants > 0 {
        let detail = "owners are told about their endpoints, and nobody about the gateway itself";
        let way_out = "make an endpoint in tenant _system for operational events, and watch /metrics (docs/metrics.md)";
        return DoctorFinding::warning("notifications", detail, way_out);
    }
    DoctorFinding::warning(
        "notifications",
        "nobody is told of trouble: no mail server with owners, and no endpoint for operational events",
        "make an endpoint in tenant _system (docs/gentle.md), or set --smtp and the endpoints' owner_email",
    )
}
