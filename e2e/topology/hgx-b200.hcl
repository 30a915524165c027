# Eight B200 on an HGX board.
machine "hgx-b200" {
  driver = "580.95.05"
  cuda   = "13.0"

  nvswitch = 2
}

gpu {
  model = "B200"
  count = 4
  numa  = 0
}

gpu {
  model = "B200"
  count = 4
  numa  = 1
}
