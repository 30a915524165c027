// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/jobspec2"
	"github.com/shoenig/test/must"
)

const jobText = `
variable "image" {
  default = "redis:7"
}
job "j" {
  group "g" {
    %s
    task "t" {
      driver = "containerd"
      config {
        %s
      }
      resources {
        device "nvidia/slice" { count = 8 }
      }
    }
    task "other" {
      driver = "docker"
      config { nonsense = true }
    }
  }
}
`

func validateJob(t *testing.T, name, text string, options ...string) (code int, stdout, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	var out, errs bytes.Buffer
	code = program.Run(append(append([]string{"validate-job"}, options...), path), &out, &errs)
	return code, out.String(), errs.String()
}

// Mistakes in the config of a task are found before a node has it, each with its key.
func TestConfigOfTasksIsCheckedBeforeItIsPlaced(t *testing.T) {
	const image = "image = \"redis:7\"\n"
	for config, says := range map[string]string{
		``:                                                       `image: is missing`,
		image + `imagee = "x"`:                                   `"imagee"`,
		image + `command = ["a"]`:                                `string required`,
		image + `shm_size = "20GB"`:                              `shm_size: "20GB" is not valid: unit "GB" is decimal`,
		image + `shm_size = 268435456`:                           `as bytes it is 256M`,
		image + `memory_swap = "lots"`:                           `memory_swap: "lots" is not valid`,
		image + `hostname = "-x"`:                                `hostname: `,
		image + `cap_add = ["fly"]`:                              `cap_add: unknown capability "fly"`,
		image + `cap_add = ["sys_admin"]`:                        `cap_add: `,
		image + `privileged = true`:                              `privileged: is not allowed`,
		image + `pid_mode = "host"`:                              `pid_mode: is not allowed`,
		image + `ipc_mode = "mine"`:                              `ipc_mode: "mine"`,
		image + `network_mode = "group"`:                         `network_mode: "group" needs a network block`,
		image + `ports = ["http"]`:                               `ports: `,
		image + `pids_limit = 2.5`:                               `pids_limit: "2.5" is not valid (a whole number)`,
		image + `pids_limit = 20000`:                             `pids_limit: `,
		image + `oom_score_adj = -5`:                             `oom_score_adj: -5 is not between 0 and 1000`,
		image + `cpuset_cpus = "x"`:                              `cpuset_cpus: "x"`,
		image + `ulimit { nofile = "many" }`:                     `ulimit: nofile = "many"`,
		image + `sysctl = [{ "kernel.panic" = "1" }]`:            `sysctl: "kernel.panic"`,
		image + `devices = ["/dev/fuse"]`:                        `devices: "/dev/fuse" is not allowed`,
		image + `mounts = [{ type = "odd", target = "/x" }]`:     `mounts: `,
		image + `security_opt = ["a"]`:                           `security_opt: is an option of Docker's driver`,
		image + "gpu {\n memory = \"8GB\"\n}":                    `gpu.memory: `,
		image + "gpu {\n compute = \"50%\"\n}":                   `gpu.compute: "50%" is not valid`,
		image + "gpu {\n compute = 0.5\n compute_limit = 400\n}": `gpu.compute_limit: 400 is below gpu.compute 500`,
		image + "gpu {\n on_fault = \"panic\"\n}":                `gpu.on_fault: "panic"`,
		image + "gpu {\n color = 1\n}":                           `"color"`,
	} {
		code, _, stderr := validateJob(t, "a.nomad.hcl", fmt.Sprintf(jobText, "", config))
		must.Eq(t, 1, code, must.Sprint(config))
		must.StrContains(t, stderr, `group "g", task "t": `)
		must.StrContains(t, stderr, says)
		must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprint(stderr))
	}
}

// All mistakes come at once; JSON is read as HCL is; values of the start are left for it;
// the operator's word counts.
func TestJobsAreReadInEveryForm(t *testing.T) {
	many := fmt.Sprintf(jobText, "", "image = var.image\ncolor = 1\ntaste = 2\nshm_size = \"20\"\npids_limit = 1.5\ngpu {\n compute = \"half\"\n}")
	_, _, stderr := validateJob(t, "a.nomad.hcl", many)
	must.Eq(t, 5, strings.Count(stderr, "\n"), must.Sprint(stderr))

	job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: "a", Body: []byte(many)})
	must.NoError(t, err)
	alone, err := json.Marshal(job)
	must.NoError(t, err)
	for _, text := range []string{string(alone), `{"Job":` + string(alone) + `}`} {
		_, _, again := validateJob(t, "a.json", text)
		must.Eq(t, stderr, again)
	}

	good := fmt.Sprintf(jobText, `network { mode = "bridge" }`, "image = \"${NOMAD_META_image}\"\nshm_size = \"${meta.shm}\"\nnetwork_mode = \"group\"\nprivileged = true\ngpu {\n compute = \"${meta.part}\"\n memory = \"7GiB\"\n}")
	code, _, stderr := validateJob(t, "a.nomad.hcl", good)
	must.Eq(t, 1, code)
	must.StrContains(t, stderr, "privileged: is not allowed")
	must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprint(stderr))
	node := filepath.Join(t.TempDir(), "agent.hcl")
	must.NoError(t, os.WriteFile(node, []byte("plugin \"nomad-driver-containerd\" {\n config {\n  allow_privileged = true\n }\n}\n"), 0o600))
	code, stdout, stderr := validateJob(t, "a.nomad.hcl", good, "-config", node)
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.StrContains(t, stdout, "The config of 1 tasks is valid.")

	lone := strings.Replace(fmt.Sprintf(jobText, "", "image = \"a\"\ngpu { memory = \"1G\" }"), `device "nvidia/slice" { count = 8 }`, "", 1)
	_, _, stderr = validateJob(t, "a.nomad.hcl", lone)
	must.StrContains(t, stderr, "gpu: the task has no GPU")
	_, _, stderr = validateJob(t, "a.nomad.hcl", "job \"x\" {")
	must.StrContains(t, stderr, "parse job: ")
}
