# Four V100 that NVLink joins directly, two links between every two.
machine "dgx-v100" {
  driver = "470.256.02"
  cuda   = "11.4"
}

gpu {
  model = "V100"
  count = 2
  numa  = 0
}

gpu {
  model = "V100"
  count = 2
  numa  = 1
}
