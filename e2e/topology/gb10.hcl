# A workstation whose GPU has the host's memory.
machine "gb10" {
  driver = "580.95.05"
  cuda   = "13.0"
}

gpu {
  model = "GB10"
}
