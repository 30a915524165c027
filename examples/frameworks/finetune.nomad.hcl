# Fine-tuning with LoRA. Written for docker.io/hiyouga/llamafactory:0.9.3.
#
# The group's disk keeps checkpoints: a task that was evicted goes on from the last one
# when it starts again on the same node. "nomad alloc fs ALLOC alloc/data/out" lists them.
job "finetune" {
  type = "batch"
  group "train" {
    ephemeral_disk {
      size    = 60000
      sticky  = true
      migrate = true
    }
    task "train" {
      driver = "containerd"
      config {
        image   = "docker.io/hiyouga/llamafactory:0.9.3"
        command = "llamafactory-cli"
        args    = ["train", "/local/lora.yaml"]
      }
      template {
        destination = "local/lora.yaml"
        data        = <<-EOT
          model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
          stage: sft
          do_train: true
          finetuning_type: lora
          lora_target: all
          dataset: identity,alpaca_en_demo
          template: qwen
          output_dir: /alloc/data/out
          save_steps: 100
          per_device_train_batch_size: 1
          num_train_epochs: 1
          bf16: true
        EOT
      }
      env {
        HF_HOME = "/alloc/data/huggingface"
      }
      kill_timeout = "60s"
      resources {
        cpu    = 4000
        memory = 24576
        device "nvidia/slice" {
          count = 20
        }
      }
    }
  }
}
