// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"strings"
	"testing"
)

func TestNomadsClientIsLedToNoFileOfTheHost(t *testing.T) {
	identity := func(path string) string { return `"Identity":{"File":true,"Filepath":"` + path + `"}` }
	const sticky = `"EphemeralDisk":{"Sticky":true}`
	for name, row := range map[string]struct{ group, task, says string }{
		"no path":               {"", `"Identity":{"File":true}`, ""},
		"a path in secrets":     {"", identity("secrets/token"), ""},
		"with a slash before":   {"", identity("/secrets/dir/token"), ""},
		"up":                    {"", identity("../../../../etc/cron.d/x"), "a file in secrets/"},
		"up, behind a slash":    {"", identity("/../other/secrets/x"), "a file in secrets/"},
		"up, from secrets":      {"", identity("secrets/../../x"), "a file in secrets/"},
		"down and up":           {"", identity("secrets/../local/x"), "a file in secrets/"},
		"to a neighbor's":       {"", identity("../web/secrets/x"), "a file in secrets/"},
		"where a task links":    {"", identity("local/x"), "a file in secrets/"},
		"secrets itself":        {"", identity("secrets/"), "a file in secrets/"},
		"a named identity":      {"", `"identities":[{"Name":"a"},{"Name":"b","filepath":"local/b"}]`, `filepath "local/b"`},
		"a path that is none":   {"", identity("x") + `,"Identities":[7]`, "cannot be read"},
		"a payload":             {"", `"DispatchPayload":{"File":"x"}`, ""},
		"a sticky disk":         {sticky, "", ""},
		"a payload beside one":  {sticky, `"DispatchPayload":{"File":"x"}`, `dispatch_payload: file "x"`},
		"a disk that is none":   {`"EphemeralDisk":7`, "", "cannot be read"},
		"a payload that is not": {"", `"DispatchPayload":7`, "cannot be read"},
	} {
		group, task := row.group, row.task
		if group != "" {
			group = "," + group
		}
		if task != "" {
			task = "," + task
		}
		j, err := Read([]byte(`{"Job":{"ID":"j","TaskGroups":[{"Name":"g"`+group+`,"Tasks":[{"Name":"t"`+task+`}]}]}}`), Query{})
		if err != nil {
			t.Fatal(err)
		}
		err = j.CheckHostFiles()
		if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
}
