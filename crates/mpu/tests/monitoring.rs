//! Checks the alerts, their runbook and the dashboard: they must name existing metrics and labels.

mod promtool;

use mpu::metrics::families;
use promtool::promtool;
use serde_json::Value;
use std::collections::BTreeSet;

const ALERTS: &str = include_str!("../../../packaging/prometheus/alerts.yml");
const ALERTS_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/alerts.yml");
const RUNBOOK: &str = include_str!("../../../docs/alerts.md");
const BOARD: &str = include_str!("../../../packaging/grafana/mpu.json");

/// Names of metrics in a query.
fn metrics(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("mpu_")).collect()
}

/// The queries of a dashboard, wherever they stand.
fn queries<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    ("expr" | "query", Some(query)) => found.push(query),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

#[test]
fn alerts_and_sections_match() {
    let named = |prefix: &'static str, text: &'static str| -> Vec<&str> {
        text.lines().filter_map(|line| line.trim().strip_prefix(prefix)).collect()
    };
    let alerts = named("- alert: ", ALERTS);
    assert!(alerts.len() >= 9, "{alerts:?}");
    assert_eq!(alerts, named("## ", RUNBOOK));
    let links = named("runbook_url: ", ALERTS);
    let expected = alerts.iter().map(|alert| format!("docs/alerts.md#{}\"", alert.to_lowercase()));
    assert_eq!(links.len(), alerts.len());
    for (link, expected) in links.iter().zip(expected) {
        assert!(link.ends_with(&expected), "{link} is not {expected}");
    }
}

#[test]
fn alert_rules_pass_promtool_and_name_metrics() {
    let exprs: Vec<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(exprs.len() >= 9);
    for expr in exprs {
        let there = |word: &&str| families::ALL.iter().any(|family| family.name == *word);
        assert!(metrics(expr).iter().all(there), "{expr}");
    }
    passes("check", ALERTS);
}

/// Checks that promtool accepts a file with this text. Skips if there is no promtool.
fn passes(verb: &str, text: &str) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a file");
    if let Some((good, output)) = promtool(&[verb, "rules", file.path().to_str().expect("a name")], "") {
        assert!(good && output.contains("SUCCESS"), "{output}\n{text}");
    }
}

/// A host whose exporter stops after half an hour, and another program that never had MPU's page.
#[test]
fn missing_exporters_raise_alerts() {
    let labels = |alert: &str, labels: &str| {
        let rule = ALERTS.split("- alert: ").find(|rule| rule.starts_with(&format!("{alert}\n"))).expect("the alert");
        let text = |key: &str| {
            let line = rule.lines().find_map(|line| line.trim().strip_prefix(key)).expect("a line");
            line.replace("{{ $labels.instance }}", "a:1")
        };
        let of = ["runbook_url: ", "summary: ", "description: "].map(|key| format!("{key}{}", text(key))).join(", ");
        format!("[{{exp_labels: {{severity: warning{labels}}}, exp_annotations: {{{of}}}}}]")
    };
    let (down, none) = (labels("MpuExporterDown", ", job: gpus, instance: \"a:1\""), labels("MpuNoExporter", ""));
    let expect = |at: &str, down: &str, none: &str| {
        format!(
            "      - {{eval_time: {at}, alertname: MpuExporterDown, exp_alerts: {down}}}\n      \
             - {{eval_time: {at}, alertname: MpuNoExporter, exp_alerts: {none}}}\n"
        )
    };
    let text = format!(
        "rule_files: ['{ALERTS_FILE}']\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n      \
         - {{series: 'up{{job=\"gpus\",instance=\"a:1\"}}', values: '1x30 0x60'}}\n      \
         - {{series: 'up{{job=\"other\",instance=\"b:1\"}}', values: '0x90'}}\n      \
         - {{series: 'mpu_scrape_success{{job=\"gpus\",instance=\"a:1\",part=\"gpu\"}}', values: '1x30 stale'}}\n    \
         alert_rule_test:\n{}{}{}",
        expect("20m", "[]", "[]"),
        expect("35m", "[]", "[]"),
        expect("60m", &down, &none),
    );
    passes("test", &text);
}

/// Of two hosts with a textfile, one stops writing. Another program's file must not count.
#[test]
fn stale_textfile_raises_alert() {
    let mtime = |host: &str, file: &str, values: &str| {
        let series = format!("node_textfile_mtime_seconds{{instance=\"{host}\",file=\"{file}\"}}");
        format!("      - {{series: '{series}', values: '{values}'}}\n")
    };
    let series = mtime("a:9100", "/var/lib/n/mpu.prom", "0+60x30 1800x60")
        + &mtime("b:9100", "mpu.prom", "0+60x90")
        + &mtime("a:9100", "/var/lib/n/other-mpu.prom", "0x90");
    let firing = r#"count by (instance) (ALERTS{alertname="MpuTextfileStale",alertstate="firing"})"#;
    let found =
        |at: &str, samples: &str| format!("      - {{eval_time: {at}, expr: '{firing}', exp_samples: {samples}}}\n");
    let text = format!(
        "rule_files: ['{ALERTS_FILE}']\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    \
         promql_expr_test:\n{}{}",
        found("35m", "[]"),
        found("60m", "[{labels: '{instance=\"a:9100\"}', value: 1}]"),
    );
    passes("test", &text);
}

#[test]
fn dashboard_queries_name_existing_metrics_and_labels() {
    let board: Value = serde_json::from_str(BOARD).expect("JSON");
    let mut found_queries = Vec::new();
    queries(&board, &mut found_queries);
    let mut named = BTreeSet::new();
    for query in &found_queries {
        for name in metrics(query) {
            let family = families::ALL.iter().find(|family| family.name == name);
            assert!(family.is_some(), "no metric {name}: {query}");
            named.insert(name);
        }
    }
    assert!(named.len() >= 14, "{named:?}");
    // The metrics that operators need most must have a panel.
    for family in [&families::BYTE_SECONDS, &families::DEVICE_BYTE_SECONDS, &families::ENDED, &families::RESIDUE] {
        assert!(named.contains(family.name), "no panel has {}", family.name);
    }
    // Check each query as a rule, because promtool checks rules.
    let rules: Vec<Value> = found_queries
        .iter()
        .filter(|query| query.contains('{') || query.contains('('))
        .filter(|query| !query.starts_with("label_values"))
        .map(|query| serde_json::json!({"record": "a:b", "expr": query.replace("$instance", ".*").replace("$__range", "1h"), "labels": {"q": query}}))
        .collect();
    assert!(rules.len() >= 14);
    passes("check", &serde_json::json!({"groups": [{"name": "board", "rules": rules}]}).to_string());
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "two panels share an id");
        let is_row = panel["type"] == "row";
        assert!(is_row || !panel["description"].as_str().unwrap_or_default().is_empty(), "{}", panel["title"]);
        let asks = panel["targets"].as_array().is_some_and(|targets| !targets.is_empty());
        assert_eq!(asks, !is_row, "{}", panel["title"]);
        let at = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{} does not fit", panel["title"]);
    }
}

#[test]
fn metric_names_are_extracted_from_queries() {
    assert_eq!(metrics("sum(rate(mpu_x_total{a=\"b\"}[5m])) or vector(0)"), BTreeSet::from(["mpu_x_total"]));
    let mut found = Vec::new();
    let board = serde_json::json!({"panels": [{"targets": [{"expr": "mpu_x"}]}], "templating": {"query": "mpu_y"}});
    queries(&board, &mut found);
    assert_eq!(found, ["mpu_x", "mpu_y"]);
}
