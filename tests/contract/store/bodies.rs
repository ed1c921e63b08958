//! Bodies: small ones come with the read, large ones when asked for, as far as there is room.

use outbox_relay::message::{Body, RowId};
use outbox_relay::relay::rules::{Fetched, Fingerprint, Wanted};
use outbox_relay::store::Reader;

use super::settling::sent;
use super::{
    MAX_MESSAGE_SIZE, New, ReaderOf, Stage, first, noise, read, reader, settler, suite, told,
    wanted,
};

suite!(
    a_small_body_comes_with_the_read,
    a_large_body_is_deferred_and_fetched,
    bodies_come_in_the_order_asked_for,
    bodies_come_as_far_as_there_is_room,
    the_first_body_comes_even_without_room,
    an_oversized_body_is_measured_and_never_brought,
    a_body_of_a_row_that_is_no_longer_pending_is_gone,
    a_row_that_was_given_the_id_of_another_lends_it_no_body,
);

async fn fetch<S: Stage>(
    reader: &mut ReaderOf<S>,
    ids: &[RowId],
    room: usize,
) -> Vec<(RowId, Fetched)> {
    let fetched = reader.fetch(&wanted(ids), room).await.expect("fetched");
    let answered: Vec<RowId> = fetched.iter().map(|(id, _)| *id).collect();
    assert_eq!(answered, ids, "every id is answered, in order");
    fetched
}

async fn a_small_body_comes_with_the_read<S: Stage>(stage: &S) {
    let small = New {
        payload: noise(1000),
        ..New::default()
    };
    let empty = New::default();
    stage.commit_each([small, empty]).await;
    let mut reader = reader(stage).await;
    let bodies: Vec<Body> = read(&mut reader, &first())
        .await
        .page
        .into_iter()
        .map(|found| found.into_row().expect("not deferred").payload)
        .collect();
    assert_eq!(
        bodies,
        [
            Body::Bytes(noise(1000).into()),
            Body::Bytes(Vec::new().into())
        ]
    );
}

async fn a_large_body_is_deferred_and_fetched<S: Stage>(stage: &S) {
    let rows = stage.commit_each([New::large(50_000)]).await;
    let mut reader = reader(stage).await;
    let mut page = read(&mut reader, &first()).await.page;
    let found = page.pop().expect("one row");
    let (row, stored) = found.into_row().expect_err("deferred");
    assert_eq!((row.id, &row.payload), (rows[0], &Body::Null));
    assert!((50_000..51_000).contains(&stored), "{stored}");
    let fetched = fetch::<S>(&mut reader, &rows, 1 << 20).await;
    let [(_, Fetched::Body(Body::Bytes(bytes)))] = &fetched[..] else {
        panic!("{:?}", told(&fetched))
    };
    assert_eq!(bytes[..], noise(50_000));
}

async fn bodies_come_in_the_order_asked_for<S: Stage>(stage: &S) {
    let rows = stage.commit_each([10, 20, 30].map(New::large)).await;
    let mut reader = reader(stage).await;
    let wanted = [rows[2], rows[0], rows[1]];
    let fetched = fetch::<S>(&mut reader, &wanted, 1000).await;
    assert_eq!(told(&fetched), ["body 30", "body 10", "body 20"]);
    assert!(fetch::<S>(&mut reader, &[], 1000).await.is_empty());
}

async fn bodies_come_as_far_as_there_is_room<S: Stage>(stage: &S) {
    let rows = stage
        .commit_each([3000, 4000, 5000, 100].map(New::large))
        .await;
    let mut reader = reader(stage).await;
    let fetched = fetch::<S>(&mut reader, &rows, 7000).await;
    let expected = ["body 3000", "body 4000", "no room 5000", "no room 100"];
    assert_eq!(told(&fetched), expected, "the rest keeps its place behind");
    let fetched = fetch::<S>(&mut reader, &rows, 12_100).await;
    assert!(told(&fetched).iter().all(|told| told.starts_with("body")));
}

async fn the_first_body_comes_even_without_room<S: Stage>(stage: &S) {
    let rows = stage.commit_each([3000, 10].map(New::large)).await;
    let mut reader = reader(stage).await;
    let fetched = fetch::<S>(&mut reader, &rows, 0).await;
    assert_eq!(told(&fetched), ["body 3000", "no room 10"]);
    stage.delete(rows[0]).await;
    let fetched = fetch::<S>(&mut reader, &rows, 0).await;
    assert_eq!(
        told(&fetched),
        ["gone", "body 10"],
        "the first that is there"
    );
}

async fn an_oversized_body_is_measured_and_never_brought<S: Stage>(stage: &S) {
    let sizes = [MAX_MESSAGE_SIZE + 1, 10, MAX_MESSAGE_SIZE];
    let rows = stage.commit_each(sizes.map(New::large)).await;
    let mut reader = reader(stage).await;
    let fetched = fetch::<S>(&mut reader, &rows, 1 << 20).await;
    assert_eq!(
        told(&fetched),
        ["oversized 100001", "body 10", "body 100000"]
    );
    // It takes no room, and not the first one's right to come without any either.
    let fetched = fetch::<S>(&mut reader, &rows[..2], 0).await;
    assert_eq!(told(&fetched), ["oversized 100001", "body 10"]);
}

async fn a_body_of_a_row_that_is_no_longer_pending_is_gone<S: Stage>(stage: &S) {
    let rows = stage.commit_each([10, 20, 30].map(New::large)).await;
    let (mut reader, mut settler) = (reader(stage).await, settler(stage).await);
    outbox_relay::store::Settler::settle(&mut settler, &[sent(rows[0], 1).await])
        .await
        .expect("settled");
    stage.delete(rows[1]).await;
    let fetched = fetch::<S>(&mut reader, &rows, 1000).await;
    assert_eq!(told(&fetched), ["gone", "gone", "body 30"]);
}

async fn a_row_that_was_given_the_id_of_another_lends_it_no_body<S: Stage>(stage: &S) {
    stage.commit_each([10, 20].map(New::large)).await;
    let mut reader = reader(stage).await;
    let page = read(&mut reader, &first()).await.page;
    let mut known: Vec<Wanted> = page
        .iter()
        .map(|found| Wanted {
            id: found.id(),
            fingerprint: found.fingerprint,
        })
        .collect();
    let [Some(Fingerprint(one)), Some(_)] = [known[0].fingerprint, known[1].fingerprint] else {
        panic!("every row is known by more than its id")
    };
    known[0].fingerprint = Some(Fingerprint(one ^ 1));
    let fetched = reader.fetch(&known, 1000).await.expect("fetched");
    assert_eq!(told(&fetched), ["gone", "body 20"]);
}
