variable "namespace" {
  description = "The namespace of the jobs."
  type        = string
  default     = "default"
}

variable "datacenters" {
  description = "Where the jobs may run."
  type        = list(string)
  default     = ["*"]
}

variable "image" {
  description = "The image of the placement service; empty runs the program that the package put onto the nodes."
  type        = string
  default     = ""
}

variable "replicas" {
  description = "How many replicas of the placement service there are; one leads."
  type        = number
  default     = 2
}

variable "gpu_mode" {
  description = "How clients offer their GPUs: whole, slice, shared or mig."
  type        = string
  default     = "slice"
}

variable "metrics_port" {
  description = "The port of the device plugin's metrics on clients."
  type        = number
  default     = 9836
}

variable "monitoring" {
  description = "Whether to run Prometheus with the alerts of this release."
  type        = bool
  default     = false
}

variable "clients" {
  description = "The addresses of clients with GPUs, for Prometheus."
  type        = list(string)
  default     = []
}

variable "release" {
  description = "The tag whose alerts Prometheus loads."
  type        = string
  default     = "v0.1.0"
}
