//! One suite per seam, run against the real thing and its twin in memory, and the facts about
//! others' code that the real thing rests on.

#[path = "../support/mod.rs"]
mod support;

mod any_row_in_the_table;
mod lapin_facts;
mod message;
mod on_rabbitmq;
mod publisher;
mod publisher_amqp;
mod publisher_any_row;
mod publisher_faults;
mod publisher_scripted;
mod publisher_tls;
mod rabbitmq_facts;
mod rows;
mod store;
