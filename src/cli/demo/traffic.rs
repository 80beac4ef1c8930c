//! Hands in the events of the demo.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_client::{NewEvent, TenantClient};
use serde_json::json;

/// Tenants that have traffic.
pub const TENANTS: &[&str] = &["shop", "bank", "press"];

const INTERVAL: Duration = Duration::from_millis(500);
const KEYS: u64 = 4;
const TYPES: &[&str] = &["order.placed", "order.paid", "order.shipped"];

/// Hands in two events a second, each with one of four keys, and counts them.
pub async fn send(tenant: TenantClient, sent: Arc<AtomicU64>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    for n in 0_u64.. {
        ticks.tick().await;
        let (key, step) = (n % KEYS, n / KEYS);
        let kind = TYPES[usize::try_from(step).unwrap_or_default() % TYPES.len()];
        let data = json!({"customer": key, "step": step, "cents": 100 + n % 900});
        let Ok(event) = NewEvent::new(kind, &data) else { continue };
        let event = event.id(format!("demo-{n}")).key(format!("customer-{key}"));
        // A refusal shows in `posthaste status`, and the next event is sent all the same.
        if tenant.send(&event).await.is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}
