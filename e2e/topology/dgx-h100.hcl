# Eight H100 as in a DGX: four to be cut into slices, two with MIG, two whole.
# Which is which is up to the plugin's configuration; the MIG instances are laid
# out here as an operator would have done with nvidia-smi.
machine "dgx-h100" {
  driver = "580.95.05"
  cuda   = "13.0"

  nvswitch = 4
}

# index 0 to 3: slices
gpu {
  model = "H100"
  count = 4
  numa  = 0
}

# index 4: seven small instances
gpu {
  model = "H100"
  numa  = 1
  mig   = ["1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]
}

# index 5: a large one and small ones
gpu {
  model = "H100"
  numa  = 1
  mig   = ["3g.40gb", "2g.20gb", "1g.10gb"]
}

# index 6 and 7: whole
gpu {
  model = "H100"
  count = 2
  numa  = 1
}
