//! Examines what the endpoints and tokens need: egress rules, names, the proxy, and what
//! ends soon.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;

use super::ends_soon;
use crate::config::{OptionalMailServer, Settings};
use crate::lifecycle::deliver::connect::connect_to_proxy;
use crate::lifecycle::deliver::tls::certificate_end;
use crate::lifecycle::egress::Egress;
use crate::lifecycle::egress::target::{Host, Target};
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::endpoint::{Endpoint, ListensTo};
use crate::model::finding::DoctorFinding;
use crate::model::id::{EndpointId, TenantId};
use crate::model::token::Token;

/// Most names that are looked up.
const NAMES_MAX: usize = 20;
/// Name that nobody can have, as `test` is kept for such uses: that it is not found is an
/// answer, too.
const NO_NAME: &str = "doctor.posthaste.test";
/// Longest wait for a name.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for the proxy.
const PROXY_TIMEOUT: Duration = Duration::from_secs(3);

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
    let (found, proxy) = tokio::join!(look_up(&endpoints, egress), egress_proxy(egress));
    let mut findings = vec![egress_rules(&endpoints, egress, &found), names(&found)];
    findings.extend(proxy);
    findings.extend([
        certificates(&endpoints, now),
        secrets(&endpoints, now),
        tokens(&facts.tokens, now),
        notifications(&endpoints, settings),
    ]);
    findings
}

/// Connects to the proxy for calls of receivers, if there is one.
async fn egress_proxy(egress: &Egress) -> Option<DoctorFinding> {
    let proxy = egress.proxy()?;
    let why = match tokio::time::timeout(PROXY_TIMEOUT, connect_to_proxy(egress, proxy)).await {
        Ok(Ok(_)) => return Some(DoctorFinding::ok("egress_proxy", format!("{proxy} can be reached"))),
        Ok(Err(failure)) => failure.message,
        Err(_) => format!("{proxy} does not answer within {} seconds", PROXY_TIMEOUT.as_secs()),
    };
    let detail = format!("no endpoint can be called, since calls go through a proxy: {why}");
    Some(DoctorFinding::problem("egress_proxy", detail, "start the proxy, or mend --egress-proxy"))
}

/// What came of looking up the names of endpoints.
struct FoundNames {
    /// Number of names that there are.
    count: usize,
    /// The names that were looked up, with an endpoint of each.
    looked_up: BTreeMap<String, (EndpointId, NameAnswer)>,
    /// The answer for [`NO_NAME`], which is asked for if no endpoint has a name.
    unused: Option<NameAnswer>,
}

/// The addresses of a name, or why there are none; nothing if no answer came in time.
type NameAnswer = Option<Result<Vec<IpAddr>, AttemptFailure>>;

/// Looks up the names of endpoints.
async fn look_up(endpoints: &[&Endpoint], egress: &Egress) -> FoundNames {
    let mut hosts = BTreeMap::new();
    for endpoint in endpoints {
        if let Some((name, _)) = name_of(endpoint) {
            hosts.entry(name).or_insert(endpoint.id);
        }
    }
    let count = hosts.len();
    let answers = hosts.into_iter().take(NAMES_MAX).map(|(name, endpoint)| async move {
        let answer = answer_for(&name, egress).await;
        (name, (endpoint, answer))
    });
    let looked_up: BTreeMap<_, _> = join_all(answers).await.into_iter().collect();
    let unused = if looked_up.is_empty() { Some(answer_for(NO_NAME, egress).await) } else { None };
    FoundNames { count, looked_up, unused }
}

async fn answer_for(name: &str, egress: &Egress) -> NameAnswer {
    tokio::time::timeout(NAME_TIMEOUT, egress.look_up(name)).await.ok()
}

fn name_of(endpoint: &Endpoint) -> Option<(String, Target)> {
    let (_, target) = Target::read(&endpoint.settings.url).ok()?;
    match &target.host {
        Host::Name(name) => Some((name.clone(), target)),
        Host::Address(_) => None,
    }
}

/// Judges the URLs of endpoints by the rules, and the addresses that their names have now.
fn egress_rules(endpoints: &[&Endpoint], egress: &Egress, found: &FoundNames) -> DoctorFinding {
    let by_name = |endpoint: &Endpoint| {
        let (name, target) = name_of(endpoint)?;
        let (_, answer) = found.looked_up.get(&name)?;
        let addresses = answer.as_ref()?.as_ref().ok()?;
        let why = egress.check_found(&target, addresses.clone()).err()?;
        Some(format!("{name} is not called, since {why}"))
    };
    let refused = endpoints.iter().filter_map(|endpoint| {
        let by_text = egress.check_text(&endpoint.settings.url).err().map(|why| why.to_string());
        Some((endpoint, by_text.or_else(|| by_name(endpoint))?))
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

/// Judges whether the names of endpoints are found.
fn names(found: &FoundNames) -> DoctorFinding {
    let is_silent = |answer: &NameAnswer| match answer {
        Some(Ok(_)) => false,
        Some(Err(failure)) => failure.kind == FailureKind::Ours,
        None => true,
    };
    let way_out = "mend the machine's name servers (/etc/resolv.conf) and restart the gateway, which reads them when it \
                   starts, or name others with --dns";
    if let Some(answer) = &found.unused {
        return if is_silent(answer) {
            DoctorFinding::warning("dns", "no name server answers, so no endpoint with a name could be called", way_out)
        } else {
            DoctorFinding::ok("dns", "no endpoint has a name to look up; a name server answers")
        };
    }
    if found.looked_up.values().all(|(_, answer)| is_silent(answer)) {
        return DoctorFinding::problem(
            "dns",
            format!("no name server answers, so none of {} names can be called", found.count),
            way_out,
        );
    }
    let missing: Vec<_> = found.looked_up.iter().filter(|(_, (_, answer))| !matches!(answer, Some(Ok(_)))).collect();
    let Some((name, (endpoint, answer))) = missing.first() else {
        return DoctorFinding::ok("dns", format!("{} names of endpoints are found", found.looked_up.len()));
    };
    let why = match answer {
        Some(Err(failure)) => failure.message.clone(),
        Some(Ok(_)) | None => format!("no answer within {} seconds", NAME_TIMEOUT.as_secs()),
    };
    let detail = format!(
        "{} of {} names are not found; the first is {name} of endpoint {endpoint}: {why}",
        missing.len(),
        found.looked_up.len()
    );
    DoctorFinding::warning("dns", detail, "correct the endpoint's url, or have its owner mend the name")
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

/// Judges whether anybody is notified when something goes wrong.
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
