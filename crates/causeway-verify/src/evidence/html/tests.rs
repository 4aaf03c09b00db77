//! The page: sound markup, nothing from outside, and nothing of a report that becomes markup.

use serde_json::Value;

use super::*;
use crate::evidence::sentences::tests::{benchmark, row, verification};
use crate::evidence::{file, read_text};

fn source(report: Report) -> Source {
    Source { file: "run.json".to_string(), report, mismatches: Vec::new() }
}

/// A page with everything on it.
fn full_page() -> String {
    let mut failed = verification();
    let Content::Verification(run) = &mut failed.content else { unreachable!() };
    run.cases[1].outputs[0].comparison.failures = 3;
    run.cases[1].outputs[0].comparison.fraction = 7.5;
    run.cases[1].passed = false;
    failed.conclude(1.0);
    let mut speed = benchmark();
    let Content::Benchmark(run) = &mut speed.content else { unreachable!() };
    for i in 0..10 {
        run.rows.push(row(&format!("more-{i}"), "forward", 1e-6 * f64::from(i + 1), 1e-6));
    }
    run.rows[3].operations = Some(1e9);
    run.rows[4].measurement.wrong = Some("y differs".to_string());
    speed.conclude(1.0);
    let before = source(benchmark());
    page(&[source(failed), source(speed)], Some(&before))
}

/// Names and attributes of all tags; a closing tag has a slash before its name.
fn tags(html: &str) -> Vec<(String, String)> {
    let without_code = ["style", "script"].iter().fold(html.to_string(), |html, name| {
        let (begin, end) =
            (html.find(&format!("<{name} ")).unwrap(), html.find(&format!("</{name}>")).unwrap());
        let begin = begin + html[begin..].find('>').unwrap() + 1;
        html[..begin].to_string() + &html[end..]
    });
    let mut found = Vec::new();
    for piece in without_code.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        let (name, attributes) = tag.split_once([' ', '\n']).unwrap_or((tag, ""));
        found.push((name.to_string(), attributes.to_string()));
    }
    found
}

/// The names of a tag's attributes: what stands outside of quotes.
fn names(attributes: &str) -> String {
    attributes.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let at = attributes.find(&format!("{name}=\""))? + name.len() + 2;
    attributes[at..].split('"').next()
}

#[test]
fn every_tag_is_closed_in_its_place() {
    const VOID: [&str; 4] = ["!doctype", "meta", "br", "input"];
    let mut open: Vec<String> = Vec::new();
    for (name, attributes) in tags(&full_page()) {
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop().as_deref(), Some(closed), "</{closed}> {attributes}"),
            None if VOID.contains(&name.as_str()) || attributes.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn the_page_is_accessible() {
    let before = source(benchmark());
    is_accessible(&full_page());
    is_accessible(&page(&[source(verification())], None));
    is_accessible(&page(&[source(benchmark())], Some(&before)));
}

fn is_accessible(html: &str) {
    let tags = tags(html);
    let count = |name: &str| tags.iter().filter(|(tag, _)| tag == name).count();
    assert_eq!((count("h1"), count("main"), count("nav")), (1, 1, 1));
    assert!(html.contains("<html lang=\"en\">") && html.contains("name=\"viewport\""));

    // Headings go down one level at a time.
    let mut level = 0;
    for (name, _) in &tags {
        if let Some(next) = name.strip_prefix('h').and_then(|n| n.parse::<u32>().ok()) {
            assert!(next <= level + 1, "h{level}, then h{next}");
            level = next;
        }
    }
    // Every heading of a table says what it heads, every table has a name, and every drawing too or is decoration.
    for (name, attributes) in &tags {
        match name.as_str() {
            "th" => assert!(
                attribute(attributes, "scope").is_some_and(|s| s == "col" || s == "row"),
                "{attributes}"
            ),
            "svg" => assert!(
                attributes.contains("aria-hidden=\"true\"")
                    || attributes.contains("role=\"img\"") && attribute(attributes, "aria-label").is_some(),
                "{attributes}"
            ),
            "div" if attributes.contains("class=\"scroll\"") => {
                assert!(
                    attributes.contains("tabindex=\"0\"") && attribute(attributes, "aria-label").is_some()
                );
            }
            _ => {}
        }
    }
    assert_eq!(
        count("table"),
        html.matches("<caption>").count() + html.matches("<table class=\"facts\" aria-label=").count()
    );

    // Links lead somewhere, and names are given once.
    let ids: Vec<_> = tags
        .iter()
        .filter_map(|(_, attributes)| attribute(attributes, " id").or(attribute(attributes, "id")))
        .collect();
    for (_, attributes) in tags.iter().filter(|(name, _)| name == "a") {
        let target = attribute(attributes, "href").unwrap().strip_prefix('#').unwrap();
        assert_eq!(ids.iter().filter(|id| **id == target).count(), 1, "{target}");
    }
}

#[test]
fn nothing_comes_from_outside() {
    let html = full_page();
    for outside in [
        "://", "src=", "url(", "@import", "<link", "<iframe", "<object", "<embed", "fetch(", "XMLHttp",
        "import(",
    ] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("default-src 'none'"));
    assert_eq!(html.matches("<script").count(), 1);
    // Style and script run by their nonce alone: there is no style in an attribute, and no handler.
    for (name, attributes) in tags(&html) {
        let names = format!(" {}", names(&attributes));
        assert!(!names.contains("style=") && !names.contains(" on"), "{name} {attributes}");
    }
}

/// Puts a text in the place of every text of a report that may be any text.
fn fill(value: &mut Value, key: &str, text: &str) {
    match value {
        Value::String(place) if !["kind", "backend"].contains(&key) => *place = text.to_string(),
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, key, text)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                fill(field, name, text);
            }
        }
        _ => {}
    }
}

#[test]
fn no_text_of_a_report_becomes_markup() {
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</style></title></textarea><svg onload=alert(1)>",
        "&lt;b&gt; {{7*7}} ${x} \u{202e}",
    ];
    for text in hostile {
        for report in [verification(), benchmark()] {
            let mut value = report.to_value();
            fill(&mut value, "", text);
            let report = file::from_value(value, text).unwrap();
            assert_eq!(report.device, text);
            let mismatches = vec![Mismatch::Incomplete { missing: text.to_string() }];
            let source = Source { file: text.to_string(), report, mismatches };
            let html = page(std::slice::from_ref(&source), Some(&source));
            assert!(
                !html.contains("<img") && !html.contains("<script>alert") && !html.contains("<svg onload"),
                "{html}"
            );
            assert_eq!(html.matches("<script").count(), 1);
            for (name, attributes) in tags(&html) {
                let names = format!(" {}", names(&attributes));
                assert!(!names.contains(" on") && !names.contains('\''), "{name} {attributes}");
            }
            assert!(html.contains(&escape(text)));
        }
    }
}

#[test]
fn the_page_says_what_the_report_says() {
    let html = full_page();
    for words in [
        "✗ something that was checked was WRONG",
        "Correctness is not shown: see the failed cases.",
        "No speed is claimed",
        "750.0%",
        "entry_ab",
        "y differs",
        "below each bar, thinner, that of causeway 1.0.0",
        "Roofline",
        "TFLOP/s",
    ] {
        assert!(html.contains(words), "{words}");
    }
    let good = page(&[source(verification())], None);
    assert!(good.contains("✓ nothing that was checked was wrong") && good.contains("2 of 2"));
}

#[test]
fn what_the_check_found_is_on_the_page() {
    let mut changed = source(verification());
    changed.mismatches = vec![Mismatch::Digest { stated: "a".to_string(), computed: "b".to_string() }];
    let html = page(&[changed], None);
    assert!(html.contains("it was changed after it was written"));
    assert!(html.contains("✗ NOT SOUND") && !html.contains("✓ nothing"), "a changed report shows nothing");
    let text = benchmark().to_json().replace("\"format\": 2", "\"format\": 1");
    let mut old = source(read_text(&text, "old.json").unwrap());
    old.mismatches = vec![Mismatch::NoDigest];
    let html = page(&[old], None);
    assert!(html.contains("note warn") && html.contains("it has no digest") && !html.contains("NOT SOUND"));
}

#[test]
fn numbers_without_end_are_drawn() {
    let mut report = verification();
    let Content::Verification(run) = &mut report.content else { unreachable!() };
    let found = &mut run.cases[0].outputs[0].comparison;
    (found.fraction, found.max_ulps, found.failures) = (f64::INFINITY, f64::NAN, 1);
    let mut speed = benchmark();
    let Content::Benchmark(run) = &mut speed.content else { unreachable!() };
    run.rows[0].measurement.time.median = 0.0;
    run.rows[1].measurement.floor.median = 0.0;
    let html = page(&[source(report), source(speed)], None);
    for (name, attributes) in tags(&html) {
        let is_drawn = ["circle", "rect", "line", "path", "polyline"].contains(&name.as_str());
        assert!(
            !is_drawn || !attributes.contains("NaN") && !attributes.contains("inf"),
            "{name} {attributes}"
        );
    }
}
