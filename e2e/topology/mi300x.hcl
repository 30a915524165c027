# Two MI300X in CPX, one as it is, and two MI210 on the other socket.
machine "mi300x" {}

gpu {
  model = "MI300X"
  count = 2
  numa  = 0
  mode  = "cpx-nps4"
}

gpu {
  model = "MI300X"
  numa  = 0
}

gpu {
  model = "MI210"
  count = 2
  numa  = 1
}
