# One Ascend device: /dev/davinciN, the managers' nodes, and the driver's files for reading.
job "ascend" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1" # your image: "ascendai/pytorch:latest"
      }

      resources {
        cpu    = 100
        memory = 64

        # A vNPU is "huawei/vnpu/vir10_3c_32g".
        device "huawei/npu" {}
      }
    }
  }
}
