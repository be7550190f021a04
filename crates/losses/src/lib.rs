//! Losses as numerator, denominator and metrics: nll, dft and the fused log-probability head behind them
