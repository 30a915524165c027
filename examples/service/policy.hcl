# What the placement service's own token may do. Submitting, planning and
# reading jobs for people is done with their tokens, not with this one. It also reads
# what someone starts who may not read it, to decide about it.
#
# For the service as a Nomad job, attached to that job's identity:
#
#   nomad acl policy apply -namespace default -job nomad-gpu-scheduler nomad-gpu-scheduler policy.hcl
#
# For a plain process, in a token of its own:
#
#   nomad acl policy apply nomad-gpu-scheduler policy.hcl
#   nomad acl token create -name nomad-gpu-scheduler -policy nomad-gpu-scheduler

# See every job and alloc, change a waiting job's node constraints, and stop the
# allocs that a preemption chose.
namespace "*" {
  capabilities = ["list-jobs", "read-job", "submit-job", "alloc-lifecycle"]
  # When jobs told that their work is saved.
  variables {
    path "nomad/jobs/*" {
      capabilities = ["list"]
    }
  }
}

# Decisions, reservations, queues and the leader's lock.
namespace "default" {
  capabilities = ["list-jobs", "read-job", "submit-job", "alloc-lifecycle"]
  variables {
    path "nomad-gpu/*" {
      capabilities = ["read", "write", "list", "destroy"]
    }
    path "nomad/jobs/*" {
      capabilities = ["list"]
    }
  }
}

# Nodes with their devices, and their statistics; "write" where MIG layouts follow demand.
node {
  policy = "read"
}
