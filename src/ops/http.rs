//! A small HTTP server for probes and pages: GET only, no state, no authentication.
//!
//! What a page says comes from elsewhere; `Site::with_page` adds one. Slow and idle clients are
//! cut off, and only so many are served at once, so that nobody can wear the relay out by asking, nor
//! keep its probes from being answered.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::runtime::{Clock, Health};

const JSON: &str = "application/json";
/// A page may load what is served here and nothing else, may not make markup of text, and may
/// not be put into another page (W3C Content Security Policy Level 3; Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";
/// Clients served at once; for one more the one that came first is cut off.
const CLIENTS: usize = 64;
/// How long a client may take to say what it wants.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How long one connection may last in all.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What a page says when it is asked for.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its media type.
    pub content_type: &'static str,
    /// Its text.
    pub body: Bytes,
}

type Render = Box<dyn Fn() -> Page + Send + Sync>;

/// The pages that are served: the probes, and whatever is added.
pub struct Site {
    health: Health,
    clock: Clock,
    pages: Vec<(&'static str, Render)>,
}

impl Site {
    /// `/livez` and `/readyz`.
    #[must_use]
    pub fn new(health: Health, clock: Clock) -> Self {
        Self {
            health,
            clock,
            pages: Vec::new(),
        }
    }

    /// Adds a page; `render` is called for every request and must not block.
    #[must_use]
    pub fn with_page(
        mut self,
        path: &'static str,
        render: impl Fn() -> Page + Send + Sync + 'static,
    ) -> Self {
        self.pages.push((path, Box::new(render)));
        self
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refusal.headers_mut().insert(ALLOW, allowed);
            return refusal;
        }
        match path {
            "/livez" => self.livez(),
            "/readyz" => self.readyz(),
            path => match self.pages.iter().find(|(known, _)| *known == path) {
                Some((_, render)) => page(StatusCode::OK, render()),
                None => text(StatusCode::NOT_FOUND, &self.directory()),
            },
        }
    }

    fn livez(&self) -> Response<Full<Bytes>> {
        match self.health.liveness(self.clock.now()) {
            Ok(()) => json_page(StatusCode::OK, &json!({ "live": true })),
            Err(silent) => {
                let reason = format!("the relay has not come round for {} s", silent.as_secs());
                let body = json!({ "live": false, "reason": reason });
                json_page(StatusCode::SERVICE_UNAVAILABLE, &body)
            }
        }
    }

    fn readyz(&self) -> Response<Full<Bytes>> {
        let readiness = self.health.readiness(self.clock.now());
        let status = if readiness.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        json_page(status, &json!(readiness))
    }

    fn directory(&self) -> String {
        let mut paths = vec!["/livez", "/readyz"];
        paths.extend(self.pages.iter().map(|(path, _)| *path));
        format!("not found; there are {}\n", paths.join(", "))
    }
}

fn json_page(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let body = Bytes::from(format!("{body}\n"));
    let content_type = JSON;
    page(status, Page { content_type, body })
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let body = Bytes::from(body.to_owned());
    let content_type = "text/plain; charset=utf-8";
    page(status, Page { content_type, body })
}

fn page(status: StatusCode, page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A bound server that does not serve yet.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    request_deadline: Duration,
}

impl HttpServer {
    /// Binds `http.listen`.
    ///
    /// # Errors
    /// When the address is taken or not ours.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            listener,
            request_deadline: REQUEST_DEADLINE,
        })
    }

    /// The address really bound; differs from the one asked for if that had port 0.
    ///
    /// # Errors
    /// When the operating system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is cancelled, then ends the connections at once: a probe repeats
    /// itself.
    pub async fn serve(self, site: Arc<Site>, stop: CancellationToken) {
        let mut clients: VecDeque<AbortHandle> = VecDeque::with_capacity(CLIENTS);
        let connections = TaskTracker::new();
        let everything = async {
            loop {
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let talk = talk(
                            stream,
                            Arc::clone(&site),
                            self.request_deadline,
                            stop.clone(),
                        );
                        clients.retain(|client| !client.is_finished());
                        if clients.len() == CLIENTS
                            && let Some(first) = clients.pop_front()
                        {
                            first.abort();
                        }
                        clients.push_back(connections.spawn(talk).abort_handle());
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept an HTTP connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(everything).await;
        connections.close();
        connections.wait().await;
    }
}

async fn talk(
    stream: TcpStream,
    site: Arc<Site>,
    request_deadline: Duration,
    stop: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = site.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_deadline)
        .serve_connection(TokioIo::new(stream), service);
    let bounded = tokio::time::timeout(CONNECTION_DEADLINE, connection);
    if let Some(Ok(Err(error))) = stop.run_until_cancelled(bounded).await {
        debug!(%error, "an HTTP client went away");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::runtime::Backlog;
    use crate::runtime::condition::{Broker, Database};

    struct Running {
        address: SocketAddr,
        health: Health,
        stop: CancellationToken,
        served: tokio::task::JoinHandle<()>,
    }

    async fn running() -> Running {
        running_with(REQUEST_DEADLINE).await
    }

    async fn running_with(request_deadline: Duration) -> Running {
        let health = Health::starting(Clock.now());
        let site = Site::new(health.clone(), Clock).with_page("/metrics", || Page {
            content_type: "text/plain",
            body: Bytes::from_static(b"up 1\n"),
        });
        let mut server = HttpServer::bind((Ipv4Addr::LOCALHOST, 0).into())
            .await
            .unwrap();
        server.request_deadline = request_deadline;
        let stop = CancellationToken::new();
        Running {
            address: server.address().unwrap(),
            health,
            served: tokio::spawn(server.serve(Arc::new(site), stop.clone())),
            stop,
        }
    }

    /// The status line and the body.
    async fn ask(address: SocketAddr, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn probes_tell_why_and_follow_the_engine() {
        let relay = running().await;
        let (status, body) = ask(relay.address, "GET /livez").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_eq!(body, "{\"live\":true}\n");
        relay.health.database(Database::Connected);
        relay.health.backlog(Backlog::Nothing, Clock.now());
        let refused = Broker::Disconnected("mq:5671: connection refused".to_owned());
        relay.health.broker(refused);
        let (status, body) = ask(relay.address, "GET /readyz").await;
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            body,
            json!({
                "ready": false,
                "database": { "ok": true, "state": "connected", "reason": "" },
                "broker": {
                    "ok": false,
                    "state": "disconnected",
                    "reason": "mq:5671: connection refused",
                },
                "progress": {
                    "ok": false,
                    "state": "unknown",
                    "reason": "rows are not looked for without the broker",
                },
            })
        );
        relay.health.broker(Broker::Connected);
        let (status, _) = ask(relay.address, "GET /readyz?verbose").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
    }

    #[tokio::test]
    async fn added_pages_are_served_and_others_are_not_found() {
        let relay = running().await;
        let (status, body) = ask(relay.address, "GET /metrics").await;
        assert_eq!(
            (status.as_str(), body.as_str()),
            ("HTTP/1.1 200 OK", "up 1\n")
        );
        let (status, body) = ask(relay.address, "GET /metric").await;
        assert_eq!(status, "HTTP/1.1 404 Not Found");
        assert_eq!(body, "not found; there are /livez, /readyz, /metrics\n");
        let (status, body) = ask(relay.address, "HEAD /metrics").await;
        assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", ""));
        let (status, _) = ask(relay.address, "POST /metrics").await;
        assert_eq!(status, "HTTP/1.1 405 Method Not Allowed");
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_silent_clients() {
        let relay = running().await;
        let mut silent = TcpStream::connect(relay.address).await.unwrap();
        ask(relay.address, "GET /livez").await;
        relay.stop.cancel();
        tokio::time::timeout(Duration::from_secs(2), relay.served)
            .await
            .unwrap()
            .unwrap();
        let mut rest = Vec::new();
        assert_eq!(silent.read_to_end(&mut rest).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn for_one_client_too_many_the_first_is_cut_off() {
        let relay = running().await;
        let mut silent = Vec::new();
        for _ in 0..CLIENTS {
            silent.push(TcpStream::connect(relay.address).await.unwrap());
        }
        let (status, _) = ask(relay.address, "GET /livez").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_that_asks_nothing_is_cut_off_at_the_deadline() {
        let deadline = Duration::from_millis(100);
        let relay = running_with(deadline).await;
        for begun in ["", "GET /livez HTTP/1.1\r\nHost: x\r\n"] {
            let start = tokio::time::Instant::now();
            let mut client = TcpStream::connect(relay.address).await.unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            let waited = start.elapsed();
            assert!(
                waited >= deadline && waited < CONNECTION_DEADLINE,
                "{waited:?}"
            );
            assert!(!answer.contains("live"), "{answer}");
        }
    }
}
