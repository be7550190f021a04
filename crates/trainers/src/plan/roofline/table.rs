//! A roofline as a table, and as JSON.

use std::fmt;

use burnish_report::{bytes, count};
use serde_json::{Value, json};

use crate::plan::roofline::{Roofline, reach};

fn seconds(value: f64) -> String {
    if value >= 1.0 { format!("{value:.3} s") } else { format!("{:.3} ms", 1e3 * value) }
}

impl fmt::Display for Roofline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, (what, tokens)) = (self.seconds(), self.tokens);
        let gpus = if self.ranks == 1 {
            format!("one {}", self.gpu)
        } else {
            format!("{} {}", self.ranks, self.gpu)
        };
        writeln!(
            f,
            "on {gpus}, predicted: {} {what} in {}, {} a second",
            count(tokens),
            seconds(all),
            count(self.tokens_per_second() as u64),
        )?;
        writeln!(
            f,
            "{:28} {:>9} {:>10} {:>10} {:>9} {:>11} {:>6}  bound by",
            "per rank and step", "flops", "read", "written", "launches", "time", "share"
        )?;
        for line in &self.lines {
            let share = 100.0 * line.seconds() / all.max(f64::MIN_POSITIVE);
            writeln!(
                f,
                "{:28} {:>9} {:>10} {:>10} {:>9} {:>11} {share:>5.1}%  {}",
                line.name,
                count(line.cost.flops),
                bytes(line.cost.read),
                bytes(line.cost.written),
                line.cost.launches,
                seconds(line.seconds()),
                line.bound().name(),
            )?;
        }
        let cost = self.cost();
        writeln!(
            f,
            "{:28} {:>9} {:>10} {:>10} {:>9} {:>11}  {:.0}% of the peak of bf16",
            "all together",
            count(cost.flops),
            bytes(cost.read),
            bytes(cost.written),
            cost.launches,
            seconds(all),
            100.0 * self.share_of_peak(),
        )?;
        let products = self.products_seconds();
        writeln!(
            f,
            "products alone by the best kernels, whatever else kernels move: {}, {} a second",
            seconds(products),
            count((tokens as f64 / products.max(f64::MIN_POSITIVE)) as u64),
        )?;
        let of = self.gpu.figures();
        let fits = if self.memory <= of.memory { "" } else { ": more than there is" };
        writeln!(f, "memory: {} of {}{fits}", bytes(self.memory), bytes(of.memory))?;
        writeln!(
            f,
            "assumed: products reach {:.0}% of {:.0} (bf16, fp32 with `bf16: true`), {:.0}% of {:.0} (fp32) \
             TFLOP/s, the best {:.0}%, attention's {:.0}%; kernels {:.0}% of \
             {:.2} TB/s;\n         collectives {:.0}% of {:.0} GB/s and {:.0} us each, beside nothing; a launch {:.0} us, a \
             wait of the host {:.0} us.\n         A bound from counts, not a measurement; rows are as long as they may be, each \
             one document",
            100.0 * reach::products(self.gpu),
            of.bf16 / 1e12,
            100.0 * reach::UNITS,
            of.fp32 / 1e12,
            100.0 * reach::BEST_PRODUCTS,
            100.0 * reach::attention(self.gpu),
            100.0 * reach::BANDWIDTH,
            of.bandwidth / 1e12,
            100.0 * reach::LINK,
            of.link / 1e9,
            1e6 * reach::COLLECTIVE,
            1e6 * reach::LAUNCH,
            1e6 * reach::WAIT,
        )
    }
}

impl Roofline {
    /// The same as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = |line: &super::RooflineLine| {
            json!({
                "operation": line.name,
                "flops": line.cost.flops,
                "bytes_read": line.cost.read,
                "bytes_written": line.cost.written,
                "launches": line.cost.launches,
                "seconds": line.seconds(),
                "bound": line.bound().name(),
            })
        };
        json!({
            "gpu": self.gpu.name(),
            "ranks": self.ranks,
            "tokens": self.tokens.1,
            "tokens_of": self.tokens.0,
            "seconds": self.seconds(),
            "tokens_per_second": self.tokens_per_second(),
            "products_seconds": self.products_seconds(),
            "share_of_bf16_peak": self.share_of_peak(),
            "memory_bytes": self.memory,
            "gpu_memory_bytes": self.gpu.figures().memory,
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "assumed": {
                "products": reach::products(self.gpu),
                "products_of_fp32": reach::UNITS,
                "best_products": reach::BEST_PRODUCTS,
                "attention": reach::attention(self.gpu),
                "bandwidth": reach::BANDWIDTH,
                "link": reach::LINK,
                "launch_seconds": reach::LAUNCH,
                "collective_seconds": reach::COLLECTIVE,
                "wait_seconds": reach::WAIT,
            },
        })
    }
}
