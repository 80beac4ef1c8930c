//! Tests of the test servers in `tests/servers`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use crate::servers::pgbouncer::PgBouncer;
use crate::servers::postgres::Server;
use crate::servers::proxy::{NetworkState, Proxy};

#[tokio::test]
async fn databases_are_apart_and_gone_with_their_handles() {
    let server = Server::shared(&[]).await;
    let prepare = async |url: &str| {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("CREATE TABLE told AS SELECT 7::bigint AS n").await.unwrap();
    };
    let one = server.database_like(prepare).await;
    let two = server.database_like(prepare).await;
    one.execute("DELETE FROM told").await;
    assert_eq!(one.number("SELECT count(*) FROM told").await, 0);
    assert_eq!(two.number("SELECT n FROM told").await, 7);
    let gone = one.name().to_owned();
    drop(one);
    assert_eq!(two.number(&format!("SELECT count(*) FROM pg_database WHERE datname = '{gone}'")).await, 0);
}

#[tokio::test]
async fn a_killed_server_keeps_what_was_committed() {
    let server = Server::start(&[]).await;
    let database = server.database().await;
    database.execute("CREATE TABLE told AS SELECT 7::bigint AS n").await;
    for _ in 0..2 {
        server.kill().await;
        assert!(tokio_postgres::connect(database.url(), NoTls).await.is_err());
        server.start_again().await;
    }
    server.stop().await;
    server.start_again().await;
    assert_eq!(database.number("SELECT n FROM told").await, 7);
}

#[tokio::test]
async fn pgbouncer_lends_a_connection_for_a_transaction() {
    let server = Server::shared(&[]).await;
    let database = server.database().await;
    let pooler = PgBouncer::start(server, &database, 1).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (client, connection) = tokio_postgres::connect(&database.url_through(pooler.address), NoTls).await.unwrap();
        tokio::spawn(connection);
        clients.push(client);
    }
    for client in &clients {
        let row =
            client.query_typed("SELECT $1::bigint", &[(&7_i64, tokio_postgres::types::Type::INT8)]).await.unwrap();
        assert_eq!(row[0].get::<_, i64>(0), 7);
    }
}

/// Starts a server that answers every byte with the next one.
async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_u8(byte + 1).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn the_proxy_loses_the_network_as_it_is_told() {
    let moment = Duration::from_millis(50);
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_u8(1).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 2);
    for weather in [NetworkState::Silent, NetworkState::AnswersLost, NetworkState::RequestsLost] {
        proxy.set(weather);
        stream.write_u8(3).await.unwrap();
        assert!(timeout(moment, stream.read_u8()).await.is_err(), "{weather:?}");
        proxy.set(NetworkState::Working);
        assert_eq!(stream.read_u8().await.unwrap(), 4, "what was on its way arrives");
    }
    proxy.set(NetworkState::Slow(moment));
    let asked = std::time::Instant::now();
    stream.write_u8(5).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 6);
    assert!(asked.elapsed() >= 2 * moment);

    proxy.cut();
    assert!(stream.read_u8().await.is_err());
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_u8(7).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 8);
    proxy.lead_to(echo().await);
    assert!(stream.read_u8().await.is_err(), "whoever is led elsewhere begins anew");
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_u8(9).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 10);
    proxy.set(NetworkState::Reset);
    assert!(stream.read_u8().await.is_err());
    let mut refused = TcpStream::connect(proxy.address).await.unwrap();
    assert!(refused.read_u8().await.is_err());
}
