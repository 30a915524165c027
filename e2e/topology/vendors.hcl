# Devices of several vendors in one machine.
machine "vendors" {}

gpu {
  model = "H100"
  count = 2
  numa  = 0
}

gpu {
  model = "MI300X"
  count = 2
  numa  = 1
  mode  = "cpx-nps4"
}

gpu {
  model = "Flex170"
  numa  = 0
}

gpu {
  model = "910B3"
  numa  = 0
}

gpu {
  model = "910B3"
  numa  = 1
}

gpu {
  model = "910B3"
  numa  = 1
  mode  = "vir10_3c_32g,vir05_1c_16g"
}
