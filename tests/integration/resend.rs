//! `outbox-relay resend`, with the operator's least rights.

use crate::operator::{json, lines, operator, said};
use crate::outbox::{number, outbox, until};
use crate::queue::Queue;
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};

const ROWS: &str = "INSERT INTO outbox.message (message_id, exchange, ordering_key, payload, sent_at, \
        attempts, last_error) \
      SELECT 'm' || g, CASE WHEN g % 2 = 0 THEN 'even' ELSE 'odd' END, 'k' || g % 3, '1', \
        now() - interval '1 h' * (11 - g), 1, 'late' FROM generate_series(1, 10) g";

#[tokio::test]
async fn what_was_sent_since_is_sent_again_under_its_own_name_and_on_record() {
    let (database, admin) = outbox().await;
    admin.batch_execute(ROWS).await.expect("rows");
    let operator = operator(&database, &admin).await;
    let resend = [
        "resend",
        "--reason",
        "queue was purged",
        "--exchange",
        "even",
        "--since",
    ];
    let dry = [&resend[..], &["5h30m", "--dry-run"]].concat();
    let (code, object) = json(&operator, &dry).await;
    assert_eq!((code, &object["rows"]), (0, &3.into()));
    let pending = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";
    assert_eq!(number(&admin, pending).await, 0);
    assert_eq!(
        said(&operator, &[&resend[..], &["yesterday"]].concat())
            .await
            .0,
        2
    );

    let vhost = vhost().await;
    let mut queue = Queue::behind(&vhost.url, "even", "q").await;
    let relay = Relay::start(&Settings::new(&database.url, &vhost.url));
    relay.ready().await;
    let (code, text) = said(&operator, &[&resend[..], &["5h30m"]].concat()).await;
    assert_eq!((code, text.as_str()), (0, "3 rows will be published again"));
    let mut arrived = Vec::new();
    for _ in 0..3 {
        arrived.push(queue.next().await.1);
    }
    arrived.sort();
    assert_eq!(arrived, ["m10", "m6", "m8"]);
    until(&admin, &format!("SELECT ({pending}) = 0")).await;
    relay.stop().await;
    let record = "SELECT concat_ws(' ', act, by_whom, reason, row_id, message_id, length(old_sha256), \
         detail ? 'sent_at') FROM outbox.audit ORDER BY row_id";
    let expected = |id: i64| format!("resend ann queue was purged {id} m{id} 32 t");
    assert_eq!(lines(&admin, record).await, [6, 8, 10].map(expected));
    let row = "SELECT concat_ws(' ', attempts, last_error) FROM outbox.message WHERE id = 6";
    assert_eq!(lines(&admin, row).await, ["0"]);
}

#[tokio::test]
async fn an_interruption_tells_how_to_go_on() {
    let (database, admin) = outbox().await;
    let rows = "INSERT INTO outbox.message (payload, sent_at) \
         SELECT '1', now() FROM generate_series(1, 5000)";
    admin.batch_execute(rows).await.expect("rows");
    let operator = operator(&database, &admin).await;
    let resend = ["resend", "--since", "1h", "--reason", "lost"];
    let slowly = [&resend[..], &["--rate", "200/s"]].concat();
    let process = Relay::start_with(&operator, &slowly);
    process.printed("of 5000 made pending again").await;
    process.terminate();
    process.printed("Interrupted. To go on").await;
    assert_eq!(process.ended().await.code(), Some(1));
    let pending = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";
    let first = number(&admin, pending).await;
    assert!((1..5000).contains(&first), "{first}");
    let after = format!("--after {first}.");
    let output = process.output().join("\n");
    assert!(output.contains(&after), "{after} is not in\n{output}");
    let reached = first.to_string();
    let rest = [&resend[..], &["--after", &reached]].concat();
    assert_eq!(said(&operator, &rest).await.0, 0);
    assert_eq!(number(&admin, pending).await, 5000);
    assert_eq!(
        number(&admin, "SELECT count(*) FROM outbox.audit").await,
        5000
    );
}

#[tokio::test]
async fn where_no_sent_row_is_kept_there_is_nothing_to_resend() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let operator = operator.with("OUTBOX_RELAY__OUTBOX__ON_SENT", "delete");
    let (code, text) = said(&operator, &["resend", "--since", "1h", "--reason", "x"]).await;
    assert_eq!(code, 1);
    assert!(text.contains("no sent row is kept"), "{text}");
}
