//! What `check` looks at in RabbitMQ, and what it makes of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::finding::{Finding, State};
use crate::broker::{
    AmqpLink, Broker, BrokerError, Channel, Greeting, Link, LinkState, LossCause, Outcome,
};
use crate::commands::counted::counted;
use crate::commands::servers;
use crate::config::{BrokerAccess, Config, RelaySection, TargetError};
use crate::message::{Body, OutboxRow, Publication, RowId, Rules, is_allowed};
use crate::store::postgres::facts::Destinations;

/// The oldest broker that the relay is tested with.
const OLDEST: (u32, u32) = (3, 10);

/// How long the broker may take for the message of the probe, beyond which it is silent.
const PROBE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) findings: Vec<Finding>,
    /// The connection; `None` if there is none.
    pub(super) link: Option<AmqpLink>,
}

/// Connects and looks at everything but exchanges.
pub(super) async fn look(config: &Config) -> Found {
    let mut found = Found::default();
    let target = config.broker_target();
    let resolving = target.clone();
    let access = match tokio::task::spawn_blocking(move || resolving.resolve()).await {
        Ok(Ok(access)) => access,
        Ok(Err(error)) => {
            found.findings.push(unusable(&error));
            return found;
        }
        Err(error) => {
            found
                .findings
                .push(Finding::failed("broker", error.to_string(), "try again"));
            return found;
        }
    };
    let broker = servers::broker(target);
    let greeting = broker.greeting().await.ok();
    match broker.connect().await {
        Err(error) => found.findings.push(refused(&error, greeting.as_ref())),
        Ok(link) => {
            found
                .findings
                .push(connected(&link, &access, greeting.as_ref()));
            found.findings.extend(greeting.as_ref().and_then(version));
            found.findings.push(publishing(&link).await);
            found.link = Some(link);
        }
    }
    let tls = tls(&access, found.link.is_some());
    found.findings.splice(1..1, tls);
    found
}

/// Says goodbye.
pub(super) async fn leave(link: Option<AmqpLink>) {
    if let Some(link) = link {
        link.close().await;
    }
}

fn unusable(error: &TargetError) -> Finding {
    Finding::failed("broker", error.to_string(), "correct [broker]")
}

/// A broker that greets and does not let us in refuses the login or the virtual host.
fn refused(error: &BrokerError, greeting: Option<&Greeting>) -> Finding {
    let unreachable = |remedy: &str| Finding {
        state: State::Unreachable,
        ..Finding::failed("broker", error.found(), remedy)
    };
    match (greeting, error) {
        (_, BrokerError::Settings { .. }) => Finding::failed(
            "broker",
            error.to_string(),
            "correct the setting that is named",
        ),
        (None, BrokerError::Misfit { remedy, .. }) => unreachable(remedy),
        (None, BrokerError::Timeout { .. } | BrokerError::Failed { .. }) => unreachable(
            "start the broker, or correct [broker] (outbox-relay config shows where each value comes from)",
        ),
        (Some(greeting), _) => Finding::failed(
            "broker",
            format!(
                "{}; it offers {} and logins by {}",
                error.found(),
                name(greeting),
                greeting.mechanisms
            ),
            "correct user, password and vhost in [broker], or give the user permissions in the virtual host (rabbitmqctl set_permissions)",
        ),
    }
}

fn name(greeting: &Greeting) -> String {
    format!("{} {}", greeting.product, greeting.version)
}

fn connected(link: &AmqpLink, access: &BrokerAccess, greeting: Option<&Greeting>) -> Finding {
    let who = greeting.map_or_else(|| "a broker".to_owned(), name);
    let cluster = greeting
        .map(|greeting| greeting.cluster.as_str())
        .filter(|cluster| !cluster.is_empty());
    let cluster = cluster.map_or_else(String::new, |cluster| format!(", cluster {cluster}"));
    let vhost = access
        .endpoints
        .iter()
        .find(|endpoint| endpoint.to_string() == link.host());
    let vhost = vhost.map_or("/", |endpoint| endpoint.vhost.as_str());
    Finding::ok(
        "broker",
        format!(
            "{who} at {}{cluster}, virtual host {vhost}, frame_max {}",
            link.host(),
            link.frame_max()
        ),
    )
}

fn version(greeting: &Greeting) -> Option<Finding> {
    let mut parts = greeting
        .version
        .split('.')
        .map(|part| part.parse::<u32>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    (greeting.product == "RabbitMQ" && (major, minor) < OLDEST).then(|| {
        Finding::warning(
            "broker_version",
            format!(
                "{} is older than any broker that the relay is tested with",
                name(greeting)
            ),
            "RabbitMQ 3.10 or later",
        )
    })
}

/// What the settings allow is known at once, what is so only when the connection stands.
fn tls(access: &BrokerAccess, stands: bool) -> Vec<Finding> {
    const CHECK: &str = "broker_tls";
    let weak = access.weaknesses();
    if weak.is_empty() && !stands {
        return Vec::new();
    }
    if weak.is_empty() {
        let encrypted = access
            .endpoints
            .iter()
            .all(|endpoint| endpoint.tls.is_some());
        let found = if encrypted {
            "encrypted, the broker is verified"
        } else {
            "not encrypted, on this machine"
        };
        return vec![Finding::ok(CHECK, found)];
    }
    weak.into_iter()
        .map(|weakness| Finding::warning(CHECK, weakness, "amqps:// in broker.url; broker.ca_file if the certificate is signed by your own authority"))
        .collect()
}

/// Publishes a message that no queue gets. An alarm shows only then: RabbitMQ blocks a connection
/// when it publishes (RabbitMQ manual, "Blocked Connection Notifications").
async fn publishing(link: &AmqpLink) -> Finding {
    const CHECK: &str = "publishing";
    let mut channel = match link.open_channel().await {
        Ok(channel) => channel,
        Err(error) => return Finding::failed(CHECK, error.to_string(), "see the broker's log"),
    };
    let publication = match Publication::from_row(nobody(), &rules(link.frame_max())) {
        Ok(publication) => publication,
        Err(unfit) => return Finding::failed(CHECK, unfit.to_string(), "report this"),
    };
    channel.publish(vec![Arc::new(publication)]).await;
    let mut state = link.state();
    let blocked = async {
        let blocked = state
            .wait_for(|state| !matches!(state, LinkState::Open))
            .await;
        blocked.map_or_else(
            |_| LinkState::Lost("the connection ended".to_owned()),
            |state| state.clone(),
        )
    };
    tokio::select! {
        judged = channel.judged() => match judged {
            Ok(outcomes) => outcome(outcomes.first().map(|(_, outcome)| outcome)),
            Err(lost) => loss(&lost.cause),
        },
        state = blocked => match state {
            LinkState::Blocked(reason) => Finding::failed(
                CHECK,
                format!("the broker blocks publishers: {reason}"),
                "free memory or disk on the broker's nodes (rabbitmq-diagnostics alarms)",
            ),
            LinkState::Lost(reason) => Finding::failed(CHECK, format!("the connection was lost: {reason}"), "see the broker's log"),
            LinkState::Open => outcome(None),
        },
        () = tokio::time::sleep(PROBE) => outcome(None),
    }
}

fn outcome(outcome: Option<&Outcome>) -> Finding {
    const CHECK: &str = "publishing";
    match outcome {
        Some(Outcome::Returned { .. } | Outcome::Confirmed(_)) => Finding::ok(
            CHECK,
            "the broker takes messages, confirms them, and returns what no queue gets",
        ),
        Some(Outcome::Nacked) => Finding::failed(
            CHECK,
            "the broker refused a message to no queue",
            "see the broker's log",
        ),
        None => Finding::failed(
            CHECK,
            format!("no confirm within {} s", PROBE.as_secs()),
            "see the broker's log and its alarms (rabbitmq-diagnostics alarms)",
        ),
    }
}

fn loss(cause: &LossCause) -> Finding {
    const CHECK: &str = "publishing";
    match cause {
        LossCause::Closed { code: 403, .. } => Finding::ok(
            CHECK,
            "not looked at: this user may not write to the default exchange, which only rows without an exchange need",
        ),
        LossCause::Closed { code, text } => Finding::failed(
            CHECK,
            format!("the broker closed the channel: {code} {text}"),
            "see the broker's log",
        ),
        LossCause::ConnectionClosed { .. } | LossCause::Connection { .. } => {
            Finding::failed(CHECK, cause.to_string(), "see the broker's log")
        }
        LossCause::Silent { .. } => outcome(None),
    }
}

/// A message to a queue whose name nobody has.
fn nobody() -> OutboxRow {
    OutboxRow {
        id: RowId(0),
        message_id: uuid::Uuid::new_v4().to_string(),
        exchange: String::new(),
        routing_key: format!("outbox-relay.check.{}", uuid::Uuid::new_v4()),
        ordering_key: None,
        payload: Body::Bytes(Bytes::from_static(b"outbox-relay check")),
        headers: None,
        message_type: None,
        correlation_id: None,
        content_type: Some("text/plain".to_owned()),
        properties: None,
        created_at: SystemTime::UNIX_EPOCH,
        attempts: 0,
    }
}

fn rules(frame_max: u32) -> Rules {
    Rules {
        max_message_size: u64::MAX,
        frame_max,
        mandatory: true,
        optional_exchanges: Vec::new(),
        allowed_exchanges: vec!["*".to_owned()],
        default_content_type: "text/plain",
        login: None,
    }
}

/// Whether what pending rows name is there and allowed.
pub(super) async fn exchanges(
    link: &AmqpLink,
    destinations: &Destinations,
    relay: &RelaySection,
) -> Vec<Finding> {
    const CHECK: &str = "exchanges";
    if *link.state().borrow() != LinkState::Open {
        return Vec::new();
    }
    let (mut missing, mut forbidden) = (Vec::new(), Vec::new());
    for exchange in &destinations.exchanges {
        let shown = format!("{exchange:?}");
        if !is_allowed(&relay.allowed_exchanges, exchange) {
            forbidden.push(shown);
            continue;
        }
        let asked = tokio::time::timeout(PROBE, link.exchange_exists(exchange));
        match asked.await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => missing.push(shown),
            // Questions wait while the broker blocks; that is told already.
            Err(_) => return Vec::new(),
            Ok(Err(error)) => {
                return vec![Finding::failed(
                    CHECK,
                    error.to_string(),
                    "see the broker's log",
                )];
            }
        }
    }
    let seen = seen(destinations);
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(Finding::failed(
            CHECK,
            format!("pending rows name exchanges that do not exist: {} ({seen})", missing.join(", ")),
            "declare them, or correct the rows; meanwhile the rows wait, for at most retry.destination_after",
        ));
    }
    if !forbidden.is_empty() {
        findings.push(Finding::failed(
            CHECK,
            format!(
                "pending rows name exchanges outside relay.allowed_exchanges: {} ({seen})",
                forbidden.join(", ")
            ),
            "allow them before starting the relay: it moves such rows to quarantine",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, seen));
    }
    findings
}

fn seen(destinations: &Destinations) -> String {
    let Destinations {
        exchanges,
        rows,
        sampled,
    } = destinations;
    let exchanges = counted(exchanges.len() as u64, "exchange");
    match (rows, sampled) {
        (0, _) => "nothing is pending".to_owned(),
        (1, false) => "looked at the only pending row".to_owned(),
        (rows, false) => format!("looked at all {rows} pending rows, {exchanges}"),
        (rows, true) => {
            format!("looked at the {rows} oldest and newest pending rows, {exchanges}")
        }
    }
}
