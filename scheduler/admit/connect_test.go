// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"errors"
	"strings"
	"testing"
)

// What Nomad adds to a job for Connect has no GPU that was not decided about: neither devices, nor
// a share, nor meta that would be read later.
func TestTheTasksOfConnectHaveNoGPUs(t *testing.T) {
	service := func(connect string) string { return `"Services":[{"Name":"a"},{"Name":"b","Connect":` + connect + `}]` }
	side := func(task string) string { return service(`{"SidecarService":{},"SidecarTask":` + task + `}`) }
	for name, row := range map[string]struct {
		group, task string // what the group and its task say
		says        string
	}{
		"no service":                     {"", "", ""},
		"none of Connect":                {service("null"), "", ""},
		"none of its own":                {service(`{"SidecarService":{}}`), "", ""},
		"a sidecar without":              {side(`{"Driver":"docker","Config":{"image":"envoy"},"Meta":{"a":"b"},"Resources":{"CPU":50}}`), "", ""},
		"a sidecar with another device":  {side(`{"Resources":{"Devices":[{"Name":"intel/fpga"}]}}`), "", ""},
		"a gpu block that is none":       {side(`{"Config":{"gpu":null}}`), "", ""},
		"devices":                        {side(`{"Resources":{"Devices":[{"Name":"nvidia/gpu","Count":8}]}}`), "", `a sidecar_task with device "nvidia/gpu"`},
		"devices, in other letters":      {strings.ToLower(side(`{"Resources":{"Devices":[{"Name":"nvidia/gpu","Count":8}]}}`)), "", `device "nvidia/gpu"`},
		"devices of the operator's name": {side(`{"Resources":{"Devices":[{"Name":"acme/card"}]}}`), "", `device "acme/card"`},
		"one of several devices":         {side(`{"Resources":{"Devices":[{"Name":"x","FirstAvailable":[{"Name":"fpga"},{"Name":"nvidia/slice"}]}]}}`), "", `device "nvidia/slice"`},
		"any device":                     {side(`{"Resources":{"Devices":[{"Name":"/"}]}}`), "", `device "/" is not valid`},
		"devices twice":                  {side(`{"Resources":{"Devices":[{"Name":"gpu"}],"devices":[]}}`), "", "twice"},
		"a sidecar twice":                {side(`{"Resources":{"Devices":[{"Name":"gpu"}]}},"sidecartask":null`), "", "twice"},
		"a share":                        {side(`{"Config":{"gpu":[{"compute":1000}]}}`), "", "a gpu block"},
		"meta":                           {side(`{"Meta":{"gpu_queue":"other"}}`), "", "meta gpu_queue"},
		"what is no list":                {`"Services":7`, "", "cannot be read"},
		"what is no service":             {`"Services":[7]`, "", "cannot be read"},
		"what is no sidecar":             {side(`7`), "", "cannot be read"},
		"what is no Connect":             {service(`7`), "", "cannot be read"},
		"a task of another kind":         {"", `"Kind":"batch","Meta":{"gpu":"1"}`, ""},
		"a task that speaks Connect":     {"", `"Kind":"connect-native:b","Meta":{"gpu":"1"}`, ""},
		"a task of that kind without":    {"", `"Kind":"connect-proxy:b","Meta":{"a":"b"}`, ""},
		"a task of that kind":            {"", `"Kind":"connect-proxy:b","Meta":{"gpu":"1"}`, `task "t" of kind "connect-proxy:b" with meta gpu`},
		"a gateway with devices":         {"", `"kind":"connect-ingress:b","Resources":{"Devices":[{"Name":"gpu"}]}`, `task "t" of kind "connect-ingress:b" with device "gpu"`},
		"a kind that is none":            {"", `"Kind":7`, "cannot be read"},
	} {
		group, task := row.group, row.task
		if group != "" {
			group = "," + group
		}
		if task != "" {
			task = "," + task
		}
		_, err := Read([]byte(`{"Job":{"ID":"j","TaskGroups":[{"Name":"g"`+group+`,"Tasks":[{"Name":"t"`+task+`}]}]}}`), Query{Devices: []string{"acme/card"}})
		var refusal *Refusal
		if (err != nil) != (row.says != "") || err != nil && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
}
