# GPUs of several generations in one machine, and a vGPU.
machine "mixed" {
  driver = "580.95.05"
  cuda   = "13.0"
}

gpu {
  model = "V100"
}

gpu {
  model = "A100-40GB"
  numa  = 0
  mig   = ["3g.20gb", "3g.20gb"]
}

gpu {
  model = "H100"
  numa  = 1
}

gpu {
  model = "A30"
  vgpu  = true
}
