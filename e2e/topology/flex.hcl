# Intel's: two Flex 170, one of them in two virtual functions, and an Arc under xe.
machine "flex" {}

gpu {
  model = "Flex170"
  numa  = 0
}

gpu {
  model = "Flex170"
  numa  = 1
  mode  = "vf-2"
}

gpu {
  model = "A770"
  numa  = 1
}
