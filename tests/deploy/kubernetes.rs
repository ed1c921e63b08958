//! The Kubernetes manifests: probes, rights, variables, limits.

use yaml_rust2::Yaml;

use crate::manifest::{Container, containers, documents, kubernetes, mebibytes, text};
use crate::support::ports::Port;
use crate::support::relay::{Relay, Settings};
use crate::{GRACE, LEAST_MEMORY, assert_command, assert_known};

const SIDECARS: [&str; 2] = ["kubernetes/sidecar.yaml", "kubernetes/sidecar-native.yaml"];
const STANDALONE: &str = "kubernetes/standalone.yaml";
const MIGRATE: &str = "kubernetes/migrate.yaml";
const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];

/// The containers that run the daemon.
fn daemons() -> Vec<Container> {
    let files = SIDECARS.into_iter().chain([STANDALONE]);
    let daemons: Vec<_> = files.flat_map(containers).collect();
    for daemon in &daemons {
        assert_eq!(daemon.arguments(), ["run"], "{}", daemon.place);
    }
    daemons
}

fn has(container: &Container, probe: &str) -> bool {
    !container.yaml[probe].is_badvalue()
}

#[test]
fn every_manifest_is_looked_at() {
    let mut found = kubernetes();
    found.sort();
    let mut known = vec![MIGRATE, STANDALONE];
    known.extend(SIDECARS);
    known.sort_unstable();
    assert_eq!(found, known);
}

#[test]
fn a_sidecar_never_takes_its_application_out_of_the_service() {
    for file in SIDECARS {
        for container in containers(file) {
            assert!(!has(&container, "readinessProbe"), "{file}");
            assert!(has(&container, "startupProbe"), "{file}");
            assert!(has(&container, "livenessProbe"), "{file}");
            assert_eq!(
                text(&container.yaml["livenessProbe"]["httpGet"]["path"]),
                "/livez"
            );
            assert_eq!(
                text(&container.yaml["startupProbe"]["httpGet"]["path"]),
                "/livez"
            );
        }
    }
}

#[test]
fn the_native_sidecar_is_one_and_the_other_is_not() {
    let restart = |file| containers(file)[0].yaml["restartPolicy"].clone();
    assert_eq!(text(&restart(SIDECARS[1])), "Always");
    assert!(restart(SIDECARS[0]).is_badvalue());
}

#[test]
fn the_relay_alone_has_all_three_probes() {
    let [container] = containers(STANDALONE).try_into().expect("one container");
    for probe in PROBES {
        assert!(has(&container, probe), "{probe}");
    }
    let path = &container.yaml["readinessProbe"]["httpGet"]["path"];
    assert_eq!(text(path), "/readyz");
}

#[tokio::test]
async fn probes_ask_for_pages_that_exist_at_the_port_that_is_listened_on() {
    let (database, broker) = (Port::take(), Port::take());
    let database = format!("postgres://relay:none@127.0.0.1:{}/shop", database.number());
    let broker = format!("amqp://relay:none@127.0.0.1:{}", broker.number());
    let relay = Relay::start(&Settings::new(&database, &broker));
    relay.answers("/livez", 200).await;
    for container in daemons() {
        let (name, listened) = port(&container);
        for probe in PROBES {
            let asked = &container.yaml[probe]["httpGet"];
            if asked.is_badvalue() {
                continue;
            }
            assert_eq!(text(&asked["port"]), name, "{}", container.place);
            let path = text(&asked["path"]);
            let (status, _) = relay.get(path).await.expect("it listens");
            assert_ne!(status, 404, "{}: {path}", container.place);
        }
        let listen = container.environment();
        let listen = listen.iter().find(|(name, _)| name.ends_with("__LISTEN"));
        let (_, listen) = listen.expect("the kubelet comes from outside the container");
        assert_eq!(
            *listen,
            format!("0.0.0.0:{listened}"),
            "{}",
            container.place
        );
    }
    relay.stop().await;
}

fn port(container: &Container) -> (String, i64) {
    let port = &container.yaml["ports"][0];
    let number = port["containerPort"].as_i64().expect("a number");
    (text(&port["name"]).to_owned(), number)
}

#[test]
fn nothing_runs_as_root_or_may_write_or_gain_rights() {
    for file in kubernetes() {
        for container in containers(&file) {
            let is = |key, value| assert_eq!(container.security(key).as_bool(), value, "{file}");
            is("runAsNonRoot", Some(true));
            is("readOnlyRootFilesystem", Some(true));
            is("allowPrivilegeEscalation", Some(false));
            assert!(container.security("runAsUser").as_i64() > Some(0), "{file}");
            let dropped = &container.security("capabilities")["drop"];
            assert_eq!(dropped[0], Yaml::String("ALL".to_owned()), "{file}");
            let profile = &container.security("seccompProfile")["type"];
            assert_eq!(text(profile), "RuntimeDefault", "{file}");
        }
    }
}

#[test]
fn what_is_set_exists_in_the_configuration() {
    for file in kubernetes() {
        for container in containers(&file) {
            assert_known(&file, &container.environment());
            assert_command(&file, &container.arguments());
        }
    }
}

#[test]
fn secrets_are_read_from_files_that_are_mounted() {
    for file in kubernetes() {
        for container in containers(&file) {
            let mounts = container.yaml["volumeMounts"].as_vec().expect("mounts");
            let files = container.environment();
            let files: Vec<_> = files.iter().filter(|(n, _)| n.ends_with("_FILE")).collect();
            assert!(!files.is_empty(), "{file}");
            for (name, path) in files {
                let under = |mount: &Yaml| path.starts_with(text(&mount["mountPath"]));
                assert!(mounts.iter().any(under), "{file}: {name}");
            }
        }
    }
}

#[test]
fn a_stop_and_the_byte_budget_fit_into_the_limits() {
    for daemon in daemons() {
        let grace = daemon.pod["terminationGracePeriodSeconds"].as_i64();
        assert!(grace > Some(GRACE), "{}: {grace:?}", daemon.place);
        let memory = mebibytes(text(&daemon.yaml["resources"]["limits"]["memory"]));
        assert!(memory >= LEAST_MEMORY, "{}: {memory}", daemon.place);
    }
}

#[test]
fn the_network_policy_lets_through_what_the_relay_needs() {
    let documents = documents(STANDALONE);
    let is_policy = |one: &&Yaml| one["kind"].as_str() == Some("NetworkPolicy");
    let policy = &documents.iter().find(is_policy).expect("a policy")["spec"];
    let [container] = containers(STANDALONE).try_into().expect("one container");
    let (_, listened) = port(&container);
    assert_eq!(
        policy["ingress"][0]["ports"][0]["port"].as_i64(),
        Some(listened)
    );
    let out = policy["egress"].as_vec().expect("egress");
    let ports = out
        .iter()
        .filter_map(|rule| rule["ports"].as_vec())
        .flatten();
    let ports: Vec<_> = ports.filter_map(|port| port["port"].as_i64()).collect();
    assert_eq!(ports, [53, 53, 5432, 5671]);
}
