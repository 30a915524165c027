# Eight A100 with 80 GB.
machine "dgx-a100" {
  driver = "550.163.01"
  cuda   = "12.4"

  nvswitch = 6
}

gpu {
  model = "A100-80GB"
  count = 4
  numa  = 0
}

gpu {
  model = "A100-80GB"
  count = 4
  numa  = 1
}
