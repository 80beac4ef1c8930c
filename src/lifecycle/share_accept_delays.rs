//! Tells other nodes for how long to hold the accepts of tenants whose deliveries
//! this node makes late, so that no node accepts more than the owner of an
//! endpoint can deliver.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::Gateway;

/// Interval at which delays are published while there are any: that at which they
/// change.
const EVERY: Duration = Duration::from_millis(100);
/// Interval at which a node that is alone looks whether it still is.
const ALONE: Duration = Duration::from_secs(1);

/// Publishes for as long as there are other nodes.
pub async fn run(gateway: Arc<Gateway>) {
    let mut is_published = false;
    loop {
        let is_alone = gateway.store.nodes() <= 1;
        tokio::time::sleep(if is_alone { ALONE } else { EVERY }).await;
        if is_alone {
            continue;
        }
        let delays = gateway.dispatcher.accept_delays();
        let is_delayed = !delays.is_empty();
        // An empty list is published once, so that earlier delays end at once.
        if (is_delayed || is_published)
            && let Err(problem) = gateway.store.publish_accept_delays(delays).await
        {
            debug!("accept delays could not be published to other nodes yet: {problem}");
            continue;
        }
        is_published = is_delayed;
    }
}
