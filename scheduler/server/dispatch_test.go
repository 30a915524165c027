// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// What Nomad lets no one change could neither wait nor be taken back: nothing of it starts that
// was not decided about. That is more of a dispatched job, and what a job starts by the clock once
// it was dispatched.
func TestNothingStartsThatCannotBeTakenBack(t *testing.T) {
	const both = `,"ParameterizedJob":{"Payload":"optional"},"Periodic":{"Spec":"* * * * * * *","Enabled":true}`
	const each = `,"ParameterizedJob":{},"Type":"sysbatch"`
	const child = `,"ParameterizedJob":{},"Dispatched":true`
	const more, back = `{"Count":2,"Target":{"Group":"g"}}`, `{"JobID":"a","JobVersion":0}`
	registers := func(more string) string {
		return strings.Replace(gpuJob("a", oneGPU), `"TaskGroups"`, more[1:]+`,"TaskGroups"`, 1)
	}
	gpus := strings.Replace(storedJob("a", ""), "full", "free", 1)
	none := strings.Replace(gpus, `"gpu":"1","gpu_queue":"free"`, `"x":"1"`, 1)
	with := func(job, more string) string { return job[:len(job)-1] + more + "}" }
	waits := with(strings.Replace(storedJob("a", ""), `"Count":1`, `"Count":0`, 1), `,"Type":"batch","ParameterizedJob":{}`)
	waits = strings.Replace(waits, `"TaskGroups":[`, `"TaskGroups":[{"Name":"nomad-gpu","Count":1,"Meta":{"counts":"{\"g\":1}"},"Constraints":[{"LTarget":"nomad-gpu: waits for room: x","Operand":"=","RTarget":"admitted"}]},`, 1)
	for name, row := range map[string]struct {
		path, body, job string
		status          int
		says            string
	}{
		"a registration":                            {"/v1/jobs", registers(both), "", 422, "that is periodic"},
		"a plan":                                    {"/v1/job/a/plan", registers(both), "", 422, "that is periodic"},
		"a validation":                              {"/v1/validate/job", registers(both), "", 200, "that is periodic"},
		"a registration for each node":              {"/v1/jobs", registers(each), "", 422, "of type sysbatch"},
		"a dispatch for each node":                  {"/v1/job/a/dispatch", `{}`, with(gpus, each), 422, "of type sysbatch"},
		"one for each node, that is none":           {"/v1/jobs", registers(`,"Type":"sysbatch"`), "", 200, ""},
		"a registration without GPUs":               {"/v1/jobs", strings.Replace(registers(both), `"gpu":"1"`, `"x":"1"`, 1), "", 200, ""},
		"one of a parameterized job":                {"/v1/jobs", registers(`,"ParameterizedJob":{}`), "", 200, ""},
		"one of a periodic job":                     {"/v1/jobs", registers(`,"Periodic":{},"ParameterizedJob":null`), "", 200, ""},
		"a dispatch":                                {"/v1/job/a/dispatch", `{}`, with(gpus, both), 422, "that is periodic"},
		"a dispatch of a payload":                   {"/v1/job/a/dispatch/payload", `x`, with(gpus, both), 422, "that is periodic"},
		"a dispatch without GPUs":                   {"/v1/job/a/dispatch", `{}`, with(none, both), 200, ""},
		"more of a dispatched job":                  {"/v1/job/a/scale", more, with(gpus, child), 422, "was dispatched"},
		"more of one that has none":                 {"/v1/job/a/scale", more, with(strings.Replace(gpus, `"Count":1`, `"Count":0`, 1), child), 422, "was dispatched"},
		"a version of a dispatched job":             {"/v1/job/a/revert", back, with(gpus, child), 422, "was dispatched"},
		"more of one without GPUs":                  {"/v1/job/a/scale", more, with(none, child), 200, ""},
		"fewer of a dispatched job":                 {"/v1/job/a/scale", `{"Count":0,"Target":{"Group":"g"}}`, with(gpus, child), 200, ""},
		"a registration by the clock for each node": {"/v1/jobs", registers(`,"Periodic":{},"Type":"sysbatch"`), "", 422, "of type sysbatch"},
		"a dispatch of what waits":                  {"/v1/job/a/dispatch", `{}`, waits, 200, ""},
		"a dispatch around the service":             {"/v1/job/a/dispatch", `{}`, with(storedJob("a", ""), `,"ParameterizedJob":{}`), 409, "would wait for quota"},
		"more of each child":                        {"/v1/job/a/scale", more, waits, 422, "what its children wait and start by"},
		"fewer of a child":                          {"/v1/job/a/scale", `{"Count":0,"Target":{"Group":"g"}}`, with(waits, `,"ParentID":"p"`), 422, "what its children wait and start by"},
		"a version of a child":                      {"/v1/job/a/revert", back, with(waits, `,"ParentID":"p"`), 422, "what its children wait and start by"},
		"more of another job":                       {"/v1/job/a/scale", more, gpus, 200, ""},
		"more of one that was submitted":            {"/v1/job/a/scale", more, with(gpus, `,"Dispatched":false`), 200, ""},
		"a submission that says it is so":           {"/v1/jobs", registers(child), "", 200, ""}, // which Nomad does not read
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil)
			if row.job != "" {
				s.nomad.stores(row.job)
			}
			status, said := s.do(t, http.MethodPut, row.path, row.body)
			if status != row.status || !strings.Contains(said, row.says) {
				t.Errorf("%d %s, want %d %q", status, said, row.status, row.says)
			}
			started := slices.DeleteFunc(s.nomad.carriedOut(), func(path string) bool { return path == "/v1/job/a/plan" })
			if (len(started) > 0) != (row.says == "") {
				t.Errorf("Nomad carries out %v", started)
			}
		})
	}
}
