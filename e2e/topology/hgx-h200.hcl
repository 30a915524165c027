# Eight H200 on an HGX board.
machine "hgx-h200" {
  driver = "570.195.03"
  cuda   = "12.8"

  nvswitch = 4
}

gpu {
  model = "H200"
  count = 4
  numa  = 0
}

gpu {
  model = "H200"
  count = 4
  numa  = 1
}
