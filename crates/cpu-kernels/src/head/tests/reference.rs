//! The head in f64 with the whole logits matrix.

use crate::head::HeadOptions;

/// A dense head with its low-rank part, widened.
#[derive(Clone)]
pub(super) struct Head {
    pub(super) inputs: usize,
    pub(super) out: usize,
    pub(super) rank: usize,
    pub(super) weight: Vec<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) b_bias: Vec<f64>,
    pub(super) scale: f64,
}

#[derive(Default)]
pub(super) struct Stats {
    pub(super) log_prob: Vec<f64>,
    pub(super) entropy: Vec<f64>,
    pub(super) log_sum_sq: Vec<f64>,
    pub(super) mean_logit: Vec<f64>,
    pub(super) log_z: Vec<f64>,
    pub(super) is_top1: Vec<bool>,
}

pub(super) struct Grad {
    pub(super) hidden: Vec<f64>,
    pub(super) weight: Vec<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) b_bias: Vec<f64>,
}

impl Head {
    /// `W h + bias + scale·(B A h + b_bias)` of one row, and `A h`.
    pub(super) fn raw(&self, h: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let dot = |w: &[f64], x: &[f64]| w.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
        let t: Vec<f64> = (0..self.rank).map(|r| dot(&self.a[r * self.inputs..][..self.inputs], h)).collect();
        let z = (0..self.out).map(|v| {
            let base = dot(&self.weight[v * self.inputs..][..self.inputs], h);
            let low = dot(&self.b[v * self.rank..][..self.rank], &t) + self.b_bias.get(v).unwrap_or(&0.0);
            base + self.bias.get(v).unwrap_or(&0.0) + self.scale * low
        });
        (z.collect(), t)
    }

    fn capped(x: f64, o: &HeadOptions) -> f64 {
        let s = x * f64::from(o.logit_scale);
        o.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
    }

    /// Logits without temperature.
    pub(super) fn logits(&self, hidden: &[f64], o: &HeadOptions) -> Vec<f64> {
        hidden.chunks(self.inputs).flat_map(|h| self.raw(h).0).map(|x| Self::capped(x, o)).collect()
    }

    pub(super) fn stats(&self, hidden: &[f64], targets: &[u32], o: &HeadOptions) -> Stats {
        let mut s = Stats::default();
        for (h, &t) in hidden.chunks(self.inputs).zip(targets) {
            let z: Vec<f64> =
                self.raw(h).0.iter().map(|&x| Self::capped(x, o) / f64::from(o.temperature)).collect();
            let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_z = m + z.iter().map(|x| (x - m).exp()).sum::<f64>().ln();
            let p: Vec<f64> = z.iter().map(|x| (x - log_z).exp()).collect();
            let (smoothing, mean) = (f64::from(o.label_smoothing), z.iter().sum::<f64>() / z.len() as f64);
            s.log_prob.push((1.0 - smoothing) * z[t as usize] + smoothing * mean - log_z);
            s.entropy.push(-p.iter().zip(&z).map(|(p, z)| p * (z - log_z)).sum::<f64>());
            s.log_sum_sq.push(p.iter().map(|p| p * p).sum::<f64>().ln());
            s.mean_logit.push(z.iter().sum::<f64>() / z.len() as f64);
            s.log_z.push(log_z);
            s.is_top1.push(z.iter().position(|&x| x == m) == Some(t as usize));
        }
        s
    }

    /// Gradients of `Σ g_lp·log_prob + Σ g_h·entropy`.
    pub(super) fn grad(
        &self,
        hidden: &[f64],
        targets: &[u32],
        o: &HeadOptions,
        g_lp: &[f64],
        g_h: &[f64],
    ) -> Grad {
        let (n, v, r) = (self.inputs, self.out, self.rank);
        let mut g = Grad {
            hidden: vec![0.0; hidden.len()],
            weight: vec![0.0; v * n],
            bias: vec![0.0; v],
            a: vec![0.0; r * n],
            b: vec![0.0; v * r],
            b_bias: vec![0.0; v],
        };
        let s = self.stats(hidden, targets, o);
        for (row, h) in hidden.chunks(n).enumerate() {
            let (raw, t) = self.raw(h);
            let mut du = vec![0.0; r];
            for j in 0..v {
                let capped = Self::capped(raw[j], o);
                let log_p = capped / f64::from(o.temperature) - s.log_z[row];
                let p = log_p.exp();
                let smoothing = f64::from(o.label_smoothing);
                let hit = f64::from(u8::from(targets[row] as usize == j)) * (1.0 - smoothing);
                let hit = hit + smoothing / v as f64;
                let mut dz = g_lp[row] * (hit - p) - g_h[row] * p * (log_p + s.entropy[row]);
                dz /= f64::from(o.temperature);
                dz *= o.softcap.map_or(1.0, |c| 1.0 - (capped / f64::from(c)).powi(2));
                dz *= f64::from(o.logit_scale);
                g.bias[j] += dz;
                g.b_bias[j] += dz * self.scale;
                for i in 0..n {
                    g.hidden[row * n + i] += dz * self.weight[j * n + i];
                    g.weight[j * n + i] += dz * h[i];
                }
                for k in 0..r {
                    g.b[j * r + k] += self.scale * dz * t[k];
                    du[k] += self.scale * dz * self.b[j * r + k];
                }
            }
            for k in 0..r {
                for i in 0..n {
                    g.a[k * n + i] += du[k] * h[i];
                    g.hidden[row * n + i] += du[k] * self.a[k * n + i];
                }
            }
        }
        g
    }
}
