# A small inference machine.
machine "t4" {
  driver = "535.261.03"
  cuda   = "12.2"
}

gpu {
  model = "T4"
  count = 2
}
