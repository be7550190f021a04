//! Plain lines.

use std::io::Write;
use std::sync::{Arc, Mutex};

use burnish_report::{Progress, Record};

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn one_line_per_logging_step() {
    let page = Page::default();
    let mut progress = Progress::lines(150, 0, Box::new(page.clone()));
    progress.step(1, 3.0, 100.0, None);
    progress.log(
        &Record::new(10, 0.053)
            .with("loss", 3.21)
            .with("grad_norm", 1.25)
            .with("learning_rate", 2e-4)
            .with("tokens_per_second", 12_340.0)
            .with("peak_memory_bytes", 310_000_000u64),
    );
    progress.note("saved checkpoint-10");
    progress.log(&Record::new(150, 0.8).with("eval_loss", 0.5).with("eval_mean_token_accuracy", 0.9));
    progress.finish();
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let begins =
        "step  10/150 · epoch 0.05 · loss 3.210 · grad norm 1.250 · lr 2.00e-4 · 12.3k tokens/s · 310 MB · ";
    assert!(lines[0].starts_with(begins) && lines[0].ends_with(" left"), "{}", lines[0]);
    assert_eq!(lines[1], "saved checkpoint-10");
    assert_eq!(lines[2], "step 150/150 · epoch 0.80 · eval loss 0.5000 · eval accuracy 0.9000");
}
