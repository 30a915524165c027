# One H100 that an operator has cut into seven.
machine "recut" {
  driver = "580.95.05"
  cuda   = "13.0"
}

gpu {
  model = "H100"
  mig   = ["1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]
}
