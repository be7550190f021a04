//! `Chromium`: a browser without a window, driven by the DevTools protocol over a pair of pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Names that distributions have it by.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Nothing of its own goes out to the network.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
    "--enable-logging=none",
];
/// How long it may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// What a page did while it was read.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Addresses that were asked for besides the page's own.
    pub(crate) requests: Vec<String>,
    /// Errors and warnings: the console's, the browser's, and scripts' that threw.
    pub(crate) complaints: Vec<String>,
    /// From the start of navigation to the first contents on the screen.
    pub(crate) first_paint: Duration,
}

/// A browser that lives until it is dropped.
pub(crate) struct Chromium {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    number: u64,
    session: Option<String>,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Chromium {
    /// `None`, and said so, on a machine without it.
    pub(crate) fn start() -> Option<Self> {
        let there =
            |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        let Some(name) = NAMES.iter().find(there) else {
            println!("no Chromium on this machine (Debian: apt-get install chromium): not run");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // It reads commands from descriptor 3 and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"", "sh", name])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser =
            Self { child, to, from, number: 0, session: None, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Network", "Log", "Runtime", "Page"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Reads a page from the disk until everything of it has come and something is on the screen.
    pub(crate) fn open(&mut self, page: &Path) -> Seen {
        let address = format!("file://{}", page.canonicalize().unwrap().display());
        self.events.clear();
        self.call("Page.navigate", &json!({ "url": address }));
        let began = Instant::now();
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.message();
            self.events.push(event);
            assert!(began.elapsed() < LIMIT, "{address} is not loaded");
        }
        let painted = "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime || 0";
        let mut seen = Seen::default();
        while seen.first_paint.is_zero() {
            assert!(began.elapsed() < LIMIT, "nothing of {address} is on the screen");
            seen.first_paint = Duration::from_secs_f64(self.value(painted).as_f64().unwrap() / 1e3);
        }
        for event in std::mem::take(&mut self.events) {
            let said = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" if said["request"]["url"] != address.as_str() => {
                    seen.requests.push(said["request"]["url"].to_string());
                }
                "Log.entryAdded" if said["entry"]["level"] != "verbose" => {
                    seen.complaints.push(said["entry"]["text"].to_string());
                }
                "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" => {
                    seen.complaints.push(said.to_string())
                }
                _ => {}
            }
        }
        seen
    }

    /// What an expression gives in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        self.call("Runtime.evaluate", &asked)["result"]["value"].clone()
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let message = self.message();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).unwrap()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
