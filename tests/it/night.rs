//! A bad night, found, grouped, previewed and sent again, though the gateway is killed on
//! the way. `tests/cluster/night.rs` has the same with many nodes.

use serde_json::Value;

use crate::support::night::{ENDPOINTS, Night, PAUSE_REFUSALS};
use crate::support::{Gateway, Options, Receiver, Reply};

for_every_store! {
    a_whole_night_is_found_and_sent_again_though_the_gateway_is_killed_on_the_way,
}

async fn a_whole_night_is_found_and_sent_again_though_the_gateway_is_killed_on_the_way() {
    let options = Options::flags(&["--pause-refusals", PAUSE_REFUSALS]);
    let (gateway, night) = (Gateway::start_with(options).await, Night::default());
    let answering = night.clone();
    let receiver = Receiver::answering(move |one| {
        let seq = one.header("x-seq").parse().unwrap_or(0);
        Reply::Status(answering.answer(one.path.trim_start_matches('/'), one.id(), one.header("x-key"), seq))
    })
    .await;
    let mut endpoints: Vec<Value> = Vec::new();
    for name in ENDPOINTS {
        let url = format!("http://{}/{name}", receiver.address);
        endpoints.push(gateway.create_endpoint(Night::settings(name, &url)).await);
    }
    night.begin(&gateway.client).await;
    night.check_found(&gateway.client, &endpoints).await;
    let job = night.replay(&gateway.client, 100).await;
    night.wait_for_replayed(&gateway.client, &job, 300).await;
    let gateway = gateway.killed_and_restarted().await;
    night.check_recovered(&gateway.client, &job, 1).await;
}
