// SPDX-License-Identifier: MPL-2.0

package admit

import "testing"

// What is kept of the registered job is written into the job, group by group and task by task:
// the rest stays as it came, devices too.
func TestPreserve(t *testing.T) {
	const registered = `{"TaskGroups":[
		{"Name":"g","Count":7,"Tasks":[{"Name":"t","Resources":{"CPU":500,"Devices":[{"Name":"nvidia/gpu","Count":8}],"NUMA":{"Affinity":"none"}}},{"Name":"bare"}]},
		{"Name":"gone","Count":9}]}`
	const body = `{"x":1,"Job":{"ID":"a","TaskGroups":[` +
		`{"name":"g","count":1,"Tasks":[{"Name":"t","resources":{"cpu":1,"NUMA":{"Affinity":"require"}},"y":2},{"Name":"bare","Resources":{"CPU":3}},{"Name":"new","Resources":{"CPU":4}}]},` +
		`{"Name":"new","Count":2}]}`
	const tasks = `[{"Name":"t","resources":{"cpu":1,"NUMA":{"Affinity":"require"}},"y":2},{"Name":"bare","Resources":{"CPU":3}},{"Name":"new","Resources":{"CPU":4}}]`
	const kept = `[{"Name":"t","resources":{"CPU":500,"NUMA":{"Affinity":"require"}},"y":2},{"Name":"bare","Resources":{"CPU":3}},{"Name":"new","Resources":{"CPU":4}}]`
	for flags, want := range map[string]string{
		`"PreserveCounts":true`:                              `{"name":"g","count":7,"Tasks":` + tasks + `}`,
		`"preserveResources":true`:                           `{"name":"g","count":1,"Tasks":` + kept + `}`,
		`"PreserveCounts":true,"PreserveResources":true`:     `{"name":"g","count":7,"Tasks":` + kept + `}`,
		`"PreserveCounts":false,"PRESERVERESOURCES":true`:    `{"name":"g","count":1,"Tasks":` + kept + `}`,
		`"PreserveCounts":true,"PreserveResources":null`:     `{"name":"g","count":7,"Tasks":` + tasks + `}`,
		`"PreserveCounts":false,"PreserveResources":false`:   "",
		`"PreserveCounts":null,"EnforceIndex":true,"z":null`: "",
	} {
		j, err := Read([]byte(body+","+flags+"}"), Query{})
		if err != nil {
			t.Fatalf("%s: %v", flags, err)
		}
		if j.Preserves() != (want != "") {
			t.Errorf("%s: it preserves: %v", flags, j.Preserves())
		}
		if want == "" {
			continue
		}
		got, err := j.Preserve([]byte(registered))
		if want := `{"x":1,"Job":{"ID":"a","TaskGroups":[` + want + `,{"Name":"new","Count":2}]}}`; err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s, want\n%s", flags, err, got, want)
		}
	}
}

// A registered job that cannot be read is not kept in part.
func TestPreserveOfWhatCannotBeRead(t *testing.T) {
	j, err := Read([]byte(`{"PreserveResources":true,"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t"}]}]}}`), Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, registered := range []string{`no JSON`, `{"TaskGroups":1}`, `{"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Resources":5}]}]}`} {
		if got, err := j.Preserve([]byte(registered)); err == nil {
			t.Errorf("%s: %s", registered, got)
		}
	}
}
