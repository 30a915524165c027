// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// What no node would take is told of a submission, all of it; what some operator may allow, and
// what Nomad itself refuses, is left to them.
func TestSubmissionsAreJudgedByWhatNoNodeTakes(t *testing.T) {
	job := func(config string) string {
		return fmt.Sprintf(`{"Job":{"TaskGroups":[null,{"Networks":[null],"Tasks":[null,
			{"Name":"t","Driver":"containerd","Resources":{"Devices":[{"Name":"nvidia/gpu"}]},"Config":%s},
			{"Name":"other","Driver":"docker","Config":{"odd":1}}]}]}}`, config)
	}
	for body, want := range map[string][]string{
		job(`{"image":"redis:7"}`):                               nil,
		job(`{"image":"a","privileged":true,"pid_mode":"host"}`): nil,
		job(`{"image":"a","devices":["/dev/fuse"],"cdi_devices":["nvidia.com/gpu=0"],"runtime":"kata","snapshotter":"zfs","cap_add":["sys_admin"],"volumes":["/data:/data"],"seccomp":false,"memory_swap":"8G","pids_limit":100000,"image_pull_timeout":"5h"}`): nil,
		job(`{"image":"${meta.image}","gpu":[{"compute":"${meta.c}"}]}`):  nil,
		job(`{"image":"a","imagee":"b","shm_size":"20GB"}`):               {`"imagee"`, `shm_size: "20GB" is not valid`},
		job(`{"image":"a","gpu":[{"compute":"50%","on_fault":"panic"}]}`): {`gpu.compute: "50%"`, `gpu.on_fault: "panic"`},
		job(`{}`): {`image: is missing`},
		job(`7`):  nil, `{`: nil, `{"Job":null}`: nil, `[]`: nil,
	} {
		var got []string
		mistakes, _ := Job([]byte(body), Generous)
		for _, m := range mistakes {
			got = append(got, m.Error())
		}
		if len(got) != len(want) {
			t.Errorf("%s: %q, want %q", body, got, want)
			continue
		}
		for i := range want {
			if !strings.Contains(strings.Join(got, "\n"), want[i]) {
				t.Errorf("%s: %q, want %q", body, got, want)
			}
		}
	}
}

// Nothing that a client sends brings the service down.
func FuzzSubmission(f *testing.F) {
	f.Add([]byte(`{"Job":{"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"containerd","Config":{"image":"a","mounts":[{"type":"x"}]}}]}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		mistakes, _ := Job(body, Generous)
		for _, m := range mistakes {
			if _, err := json.Marshal(m.Error()); err != nil {
				t.Error(err)
			}
		}
	})
}
