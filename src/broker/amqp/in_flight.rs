//! The publications that the client library is working on: looks at those, and only those,
//! that were woken.
//!
//! Judges nothing. A confirm takes part in two waits, one for the socket and one for the
//! broker, and thousands of them are pending at once, so looking at all of them at every wake
//! would cost more than everything else here. Each has a waker of its own that puts its place
//! into a list of woken ones; places, wakers and boxes are reused, so that a publication costs no
//! allocation here once the window has been filled.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use lapin::{Confirmation, PublisherConfirm};
use tokio_util::sync::ReusableBoxFuture;

use super::judge::Seq;

/// What ended: the publication's number and the library's answer.
pub(super) type Ended = (Seq, lapin::Result<Confirmation>);

/// Ends when the publication has been written to the socket.
type Written = ReusableBoxFuture<'static, lapin::Result<PublisherConfirm>>;

#[derive(Default)]
pub(super) struct InFlight {
    places: Vec<Place>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    /// Refused at once, and not reported yet.
    refused: Vec<Ended>,
    /// Reused between rounds.
    batch: Vec<usize>,
}

struct Place {
    seq: Seq,
    stage: Stage,
    written: Written,
    mark: Arc<Mark>,
    waker: Waker,
}

enum Stage {
    Free,
    Writing,
    Confirming(PublisherConfirm),
}

/// The places that were woken and not looked at yet, and the task to wake with them.
#[derive(Default)]
struct Woken {
    places: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

impl Woken {
    fn places(&self) -> MutexGuard<'_, Vec<usize>> {
        // Nothing can panic while it is held.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place's waker.
struct Mark {
    place: usize,
    listed: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let first = {
            let mut places = self.woken.places();
            places.push(self.place);
            places.len() == 1
        };
        // Whoever listed the first place of a round has woken the task already.
        if first {
            self.woken.task.wake();
        }
    }
}

impl InFlight {
    /// Takes a publication in and polls it once, which puts its frames into the library's queue:
    /// publications are written in the order of these calls, and many with one system call.
    pub(super) fn start<F>(&mut self, seq: Seq, publish: F)
    where
        F: Future<Output = lapin::Result<PublisherConfirm>> + Send + 'static,
    {
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place].written.set(publish);
                place
            }
            None => self.add_place(publish),
        };
        let Place { written, waker, .. } = &mut self.places[place];
        let stage = match written.poll(&mut Context::from_waker(waker)) {
            Poll::Pending => Stage::Writing,
            Poll::Ready(Ok(confirm)) => {
                // Nobody waits for the confirm yet: have it looked at in the next round.
                waker.wake_by_ref();
                Stage::Confirming(confirm)
            }
            Poll::Ready(Err(error)) => {
                self.refused.push((seq, Err(error)));
                self.free.push(place);
                Stage::Free
            }
        };
        self.places[place].seq = seq;
        self.places[place].stage = stage;
    }

    fn add_place<F>(&mut self, publish: F) -> usize
    where
        F: Future<Output = lapin::Result<PublisherConfirm>> + Send + 'static,
    {
        let place = self.places.len();
        let mark = Arc::new(Mark {
            place,
            listed: AtomicBool::new(false),
            woken: Arc::clone(&self.woken),
        });
        self.places.push(Place {
            seq: 0,
            stage: Stage::Free,
            written: Written::new(publish),
            waker: Waker::from(Arc::clone(&mark)),
            mark,
        });
        place
    }

    /// Looks at everything woken, until nothing is: then everything woken before the last look at
    /// the list has been looked at. Returns whether anything moved; if nothing did, the task is
    /// woken when something does.
    pub(super) fn poll_round(&mut self, cx: &Context<'_>, ended: &mut Vec<Ended>) -> bool {
        let mut moved = !self.refused.is_empty();
        ended.append(&mut self.refused);
        self.woken.task.register(cx.waker());
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            std::mem::swap(&mut *self.woken.places(), &mut batch);
            if batch.is_empty() {
                self.batch = batch;
                return moved;
            }
            for place in batch.drain(..) {
                moved |= self.poll_place(place, ended);
            }
        }
    }

    fn poll_place(&mut self, index: usize, ended: &mut Vec<Ended>) -> bool {
        let place = &mut self.places[index];
        // Before looking, so that a wake from now on lists the place again.
        place.mark.listed.store(false, Ordering::Release);
        let mut cx = Context::from_waker(&place.waker);
        let mut moved = false;
        if let Stage::Writing = place.stage {
            match place.written.poll(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(confirm)) => {
                    place.stage = Stage::Confirming(confirm);
                    moved = true;
                }
                Poll::Ready(Err(error)) => {
                    self.end(index, Err(error), ended);
                    return true;
                }
            }
        }
        if let Stage::Confirming(confirm) = &mut place.stage
            && let Poll::Ready(answer) = Pin::new(confirm).poll(&mut cx)
        {
            self.end(index, answer, ended);
            moved = true;
        }
        moved
    }

    fn end(&mut self, index: usize, answer: lapin::Result<Confirmation>, ended: &mut Vec<Ended>) {
        let place = &mut self.places[index];
        place.stage = Stage::Free;
        ended.push((place.seq, answer));
        self.free.push(index);
    }
}
