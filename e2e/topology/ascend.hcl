# Three Ascend devices joined by HCCS, one of them cut into vNPUs, and one without HBM.
machine "ascend" {}

gpu {
  model = "910B3"
  count = 2
  numa  = 0
}

gpu {
  model = "910B3"
  numa  = 1
  mode  = "vir10_3c_32g,vir05_1c_16g,vir05_1c_16g"
}

gpu {
  model = "310P3"
  numa  = 1
}
