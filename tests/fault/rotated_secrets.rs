//! Passwords that change while the relay runs: it reads their files at every connect.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use crate::support::postgres::{Options, Postgres};
use crate::support::rabbit::{Rabbit, Vhost};
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{Draft, QUEUE, Scene};
use crate::support::scratch::{Scratch, UNPRIVILEGED, is_root};

/// Only the relay's login needs its password.
const ACCESS: &str = "host all shop_relay 127.0.0.1/32 scram-sha-256\n\
     local all all trust\nhost all all 127.0.0.1/32 trust\n";

/// The files that secrets are in.
struct Secrets(Scratch);

impl Secrets {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::write(&path, content).expect("own folder");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
        if is_root() {
            chown(&path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may chown");
        }
    }
}

#[tokio::test]
async fn both_passwords_change_while_it_runs_and_nothing_waits_for_a_restart() {
    let secrets = Secrets(Scratch::new("secrets"));
    secrets.write("hba", ACCESS);
    let strict = Options {
        settings: vec![("hba_file", secrets.text("hba"))],
        ..Options::default()
    };
    let (postgres, rabbit) = tokio::join!(Postgres::start_with(strict), Rabbit::start());
    let database = postgres.create_database().await;
    let vhost: Vhost = rabbit.create_vhost().await;
    let broker = |password: &str| {
        let login = format!("shop:{password}");
        vhost.url.replacen("guest:guest", &login, 1)
    };
    rabbit.add_user("shop", "first").await;
    rabbit
        .set_permissions("shop", &vhost.name, [".*", ".*", ".*"])
        .await;
    secrets.write("database", "first\n");
    secrets.write("broker", &broker("first"));
    let login = database.url.replacen("postgres@", "shop_relay@", 1);
    let settings = Settings::default()
        .with("OUTBOX_RELAY__DATABASE__URL", &login)
        .with(
            "OUTBOX_RELAY__DATABASE__PASSWORD_FILE",
            &secrets.text("database"),
        )
        .with("OUTBOX_RELAY__BROKER__URL_FILE", &secrets.text("broker"))
        .with("OUTBOX_RELAY__RELAY__LEASE", "2s");
    let scene = Scene::on(database.url.clone(), vhost.clone()).await;
    scene
        .run("CREATE ROLE shop_relay LOGIN SUPERUSER PASSWORD 'first'")
        .await;
    let relay = Relay::start(&settings);
    relay.ready().await;
    scene.flows(Draft::to(QUEUE)).await;

    scene.run("ALTER ROLE shop_relay PASSWORD 'second'").await;
    rabbit.change_password("shop", "second").await;
    secrets.write("database", "second\n");
    secrets.write("broker", &broker("second"));
    let end = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE usename = 'shop_relay') AS ended";
    assert_eq!(scene.ask::<i64>(end).await, 2, "its two sessions");
    rabbit.close_all_connections().await;
    let row = scene.write(&[Draft::to(QUEUE)]).await[0];
    scene.sent(row).await;
    let output = relay.output().join("\n");
    for word in ["28P01", "ACCESS_REFUSED", "first", "second"] {
        assert!(!output.contains(word), "{word} in\n{output}");
    }
    relay.stop().await;
}
