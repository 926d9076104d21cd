//! `cargo rehearse --layer` on a Python function that knows nothing of idempotency.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use lambda_idempotency_rehearsal::{self as rehearsal, Arguments};

use crate::{
    runtime::{Runtime, project},
    sandbox::scratch,
};

/// Each run has another answer, so that a run's own answer can't pass for the recorded one.
const APP: &str = "
import uuid

def handler(event, context):
    print('a rehearsed handler runs', flush=True)
    return {'done': event['id'], 'run': str(uuid.uuid4())}
";

/// Writes a script that starts the layer's program with these settings, and returns the option that names the script.
/// The settings can't be variables of the test's own process, because all tests share the process.
fn layer(folder: &Path, name: &str, settings: &str) -> String {
    let script = folder.join(name);
    let program = env!("CARGO_BIN_EXE_idempotency-extension");
    fs::write(&script, format!("#!/bin/sh\nexec env {settings} {program} \"$@\"\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("--layer={}", script.display())
}

/// Reads a report by Python's own parser of XML. Prints each step's heading, and the texts of its drawing.
const READER: &str = "
import sys, xml.etree.ElementTree as tree
page = tree.parse(sys.argv[1]).getroot()
spaces = {'h': 'http://www.w3.org/1999/xhtml', 's': 'http://www.w3.org/2000/svg'}
for element in page.iter():
    loads = [name for name in element.attrib if name in ('src', 'href') and not element.attrib[name].startswith('#')]
    assert not loads and not element.tag.endswith(('script', 'link', 'img')), element.attrib
for step in page.iterfind('.//h:section', spaces):
    heading = ''.join(step.find('.//h:h2', spaces).itertext())
    texts = [text.text for text in step.iterfind('.//s:g[@class=\"part\"]/s:g/s:text', spaces) if text.get('class') != 't']
    print(heading + ': ' + ', '.join(texts))
";

/// The steps of a report: each one's heading, and what its drawing shows.
fn drawn(page: &Path) -> Vec<String> {
    let read = Command::new("python3").args(["-c", READER]).arg(page).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    String::from_utf8(read.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rehearsal_reports_a_layer_in_shadow_mode() {
    if !Runtime::Python.is_installed() {
        return;
    }
    let folder = scratch();
    fs::write(folder.join("paying.py"), APP).unwrap();
    let event = folder.join("event.json");
    fs::write(&event, r#"{"id": "order-1"}"#).unwrap();
    let path =
        format!("PYTHONPATH={}:{}", project().join("target/layer-tests/python").display(), folder.display());
    let faults = async |name: &str, settings: &str| {
        let (layer, event) = (layer(&folder, name, settings), event.display().to_string());
        let page = folder.join(name).with_extension("html").display().to_string();
        let options =
            [&layer, "--event", &event, "--count-runs", "a rehearsed handler runs", "--report", &page];
        let command = ["--", "env", &path, "python3", "-m", "awslambdaric", "paying.handler"];
        rehearsal::faults(&Arguments::parse(&[&options[..], &command].concat()).unwrap()).await.unwrap()
    };
    let protected = faults("enforce", "IDEMPOTENCY_KEY=/id").await;
    let shadowed = faults("shadow", "IDEMPOTENCY_KEY=/id IDEMPOTENCY_MODE=shadow").await;
    assert_eq!(protected, Vec::<String>::new());
    let ran_again = shadowed.iter().any(|fault| fault.contains("duplicate after completion"));
    assert!(ran_again, "the rehearsal missed the second run: {shadowed:#?}");
    let (protected, shadowed) = (drawn(&folder.join("enforce.html")), drawn(&folder.join("shadow.html")));
    let duplicate = |page: &[String]| {
        page.iter().find(|step| step.contains("duplicate after completion")).cloned().unwrap()
    };
    assert!(protected.iter().all(|step| step.starts_with('✓')), "{protected:#?}");
    let replayed =
        "delivers the event, claims the request: refused, there's a record, answers: a response of";
    assert!(duplicate(&protected).contains(replayed), "{protected:#?}");
    assert!(!duplicate(&protected).contains("the handler runs"), "{protected:#?}");
    assert!(shadowed[0].starts_with('✗'), "{shadowed:#?}");
    assert!(duplicate(&shadowed).contains("the handler runs"), "{shadowed:#?}");
    fs::remove_dir_all(folder).unwrap();
}
