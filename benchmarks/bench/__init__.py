"""What the benchmarks share: inputs, contestants, timing, report."""
