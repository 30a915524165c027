// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// What a job leaves out is for the decision what Nomad makes of it.
func TestWhatIsLeftOutIsAsNomadHasIt(t *testing.T) {
	for name, row := range map[string]struct{ job, group string }{
		"everything":                  {},
		"the count":                   {group: `"Scaling":{"Min":50,"Max":60}`},
		"the count, twice":            {group: `"Count":null,"scaling":{"min":50}`},
		"the least of a scaling":      {group: `"Scaling":{"Max":60}`},
		"the scaling":                 {group: `"Scaling":null`},
		"a count of none":             {group: `"Scaling":{"Min":0}`},
		"nothing":                     {group: `"Count":3,"Scaling":{"Min":1,"Max":5}`},
		"neither, and none":           {group: `"Count":0,"Scaling":{"Min":1,"Max":5}`},
		"the group's update":          {job: `"Update":{"Canary":2}`},
		"the job's update":            {group: `"Update":{"Canary":2}`},
		"the group's canaries":        {job: `"Update":{"Canary":2}`, group: `"Update":{"MaxParallel":3}`},
		"no canaries":                 {job: `"Update":{"Canary":2}`, group: `"Update":{"Canary":0}`},
		"canaries, and their job":     {job: `"Update":null`, group: `"Update":{"Canary":1}`},
		"the priority":                {job: `"Priority":null,"Type":"batch"`},
		"the priority of a batch job": {job: `"Priority":0,"Type":"batch"`},
		"the namespace":               {job: `"Namespace":null,"NodePool":null,"Datacenters":[]`},
	} {
		own := func(fields string) string {
			if fields != "" {
				fields = "," + fields
			}
			return fields
		}
		body := `{"ID":"j"` + own(row.job) + `,"TaskGroups":[{"Name":"g"` + own(row.group) + `,"Tasks":[{"Name":"t","Resources":{"Devices":[{"Name":"nvidia/gpu"}]}}]}]}`
		var nomad api.Job
		if err := json.Unmarshal([]byte(body), &nomad); err != nil {
			t.Fatal(err)
		}
		nomad.Canonicalize()
		g := nomad.TaskGroups[0]
		canaries := 0
		if g.Update != nil && g.Update.Canary != nil {
			canaries = *g.Update.Canary
		}
		if *nomad.Priority == 0 {
			*nomad.Priority = api.JobDefaultPriority // by Nomad's servers
		}
		a := mustRead(t, `{"Job":`+body+`}`).Asks[0]
		if a.Count != *g.Count || a.Canaries != canaries || a.Priority != *nomad.Priority || a.JobType != *nomad.Type || a.Namespace != *nomad.Namespace ||
			a.Tasks[0].Devices[0].Count != int64(*g.Tasks[0].Resources.Devices[0].Count) || !slices.Equal(a.Datacenters, []string{"*"}) {
			t.Errorf("%s: %+v, and Nomad has count %d, %d canaries, priority %d, type %s, namespace %s", name, a, *g.Count, canaries, *nomad.Priority, *nomad.Type, *nomad.Namespace)
		}
	}
}
